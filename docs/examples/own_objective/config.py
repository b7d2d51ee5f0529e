"""A decoder that writes each text twice. In this folder: python -m train.main --config=config.py"""

import repeat_text  # noqa: F401  registers the objective
from ml_collections import ConfigDict

from configs import clm


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset of configs/clm.py."""
    config = clm.get_config(preset)
    config.objective = ConfigDict({"name": "repeat_text"})
    config.data.documents = "join"
    return config
