"""Teacherless training (Bachmann & Nagarajan 2024): responses are predicted from prompts and masks, in one pass.

    python -m train.main --config=configs/teacherless.py
    python -m train.main --config=configs/gym/star_graph.py:teacherless     # the paper's task

Presets: those of configs/sft.py; only the objective differs. The paper trains on synthetic tasks whose answers have one
length; responses in text are far less determined by their prompts.
"""

from ml_collections import ConfigDict

from configs import sft


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    config = sft.get_config(preset)
    config.objective = ConfigDict({"name": "teacherless"})
    return config
