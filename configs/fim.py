"""Fill-in-the-middle for causal language models (Bavarian et al. 2022): half of the documents are reordered.

    python -m train.main --config=configs/fim.py
    python -m train.main --config=configs/fim.py --config.objective.fim_rate=0.9

Half of the reordered documents are in SPM format (objectives/fim.py). Presets: as in configs/clm.py; only the objective
differs.

Tiny on two CPU cores: 500 steps, held-out loss 1.956 (standard error 0.038); the corpus's unigram entropy is 3.236.
"""

from ml_collections import ConfigDict

from configs import clm
from configs.sizes import DIAL


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    config = clm.get_config(preset)
    config.objective = ConfigDict({"name": "fim", "fim_rate": 0.5, "spm_rate": 0.5})
    # A reordered document takes three more tokens. A row has room for one reordered document per 64, or 128, tokens.
    config.objective.min_document_length = 64 if preset in DIAL else 128
    return config
