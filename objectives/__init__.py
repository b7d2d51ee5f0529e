"""Pre-training objectives: what to corrupt (one file each), how to lay it out, and what to pay for it.

An entry of OBJECTIVES is a frozen dataclass whose fields are those of `config.objective`.
"""

from objectives.bart import BART
from objectives.classification import Classification
from objectives.clm import CLM
from objectives.deshuffling import Deshuffling
from objectives.electra import ELECTRA
from objectives.fim import FIM
from objectives.iid_denoising import IIDDenoising
from objectives.mixture import Mixture
from objectives.mlm import MLM
from objectives.multi_token_prediction import MultiTokenPrediction
from objectives.nsp import NSP
from objectives.objective import Denoiser
from objectives.prefix_lm import PrefixLM
from objectives.sft import SFT
from objectives.simcse import SimCSE
from objectives.sop import SOP
from objectives.span_corruption import SpanCorruption
from objectives.unilm import UniLM

OBJECTIVES = {
    "bart": BART,
    "classification": Classification,
    "clm": CLM,
    "deshuffling": Deshuffling,
    "electra": ELECTRA,
    "fim": FIM,
    "iid_denoising": IIDDenoising,
    "mixture": Mixture,
    "mlm": MLM,
    "multi_token_prediction": MultiTokenPrediction,
    "nsp": NSP,
    "prefix_lm": PrefixLM,
    "sft": SFT,
    "simcse": SimCSE,
    "sop": SOP,
    "span_corruption": SpanCorruption,
    "unilm": UniLM,
}


def denoisers_of(objective, name: str) -> tuple[Denoiser, ...]:
    """The objective's table of denoisers: its own, or itself as the only row."""
    if isinstance(objective, Mixture):
        return objective.rows("objective")
    return (Denoiser(name, "objective", objective, weight=1.0, mode="", final_weight=1.0),)
