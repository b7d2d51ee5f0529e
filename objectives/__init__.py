"""Objectives, one file each, and the layout of their examples in the rows of a batch (objectives/rows).

An entry of OBJECTIVES is a frozen dataclass whose fields are the fields of `config.objective`. This package is NumPy
only; the JAX losses are in objectives/losses, which is not imported here.
"""

from objectives.any_order import AnyOrder
from objectives.bart import BART
from objectives.block_diffusion import BlockDiffusion
from objectives.classification import Classification
from objectives.clm import CLM
from objectives.deshuffling import Deshuffling
from objectives.electra import ELECTRA
from objectives.fim import FIM
from objectives.future_summary import FutureSummary, ResponseFutureSummary
from objectives.glm import GLM
from objectives.iid_denoising import IIDDenoising
from objectives.masked_diffusion import MaskedDiffusion, ResponseDiffusion
from objectives.masked_inputs import MaskedInputs
from objectives.mass import MASS
from objectives.mixture import Mixture
from objectives.mlm import MLM
from objectives.mntp import MNTP
from objectives.multi_token_prediction import MultiTokenPrediction, ResponseMultiTokenPrediction
from objectives.next_latent import NextLatent, ResponseNextLatent
from objectives.nsp import NSP
from objectives.objective import Denoiser, Objective, Schedule
from objectives.pegasus import PEGASUS
from objectives.prefix_lm import PrefixLM
from objectives.reverse import Reverse
from objectives.sft import SFT
from objectives.simcse import SimCSE
from objectives.sop import SOP
from objectives.span_corruption import SpanCorruption
from objectives.teacherless import Teacherless
from objectives.unilm import UniLM

OBJECTIVES = {
    "any_order": AnyOrder,
    "bart": BART,
    "block_diffusion": BlockDiffusion,
    "classification": Classification,
    "clm": CLM,
    "deshuffling": Deshuffling,
    "electra": ELECTRA,
    "fim": FIM,
    "future_summary": FutureSummary,
    "glm": GLM,
    "iid_denoising": IIDDenoising,
    "masked_diffusion": MaskedDiffusion,
    "masked_inputs": MaskedInputs,
    "mass": MASS,
    "mixture": Mixture,
    "mlm": MLM,
    "mntp": MNTP,
    "multi_token_prediction": MultiTokenPrediction,
    "next_latent": NextLatent,
    "nsp": NSP,
    "pegasus": PEGASUS,
    "prefix_lm": PrefixLM,
    "response_diffusion": ResponseDiffusion,
    "response_future_summary": ResponseFutureSummary,
    "response_multi_token_prediction": ResponseMultiTokenPrediction,
    "response_next_latent": ResponseNextLatent,
    "reverse": Reverse,
    "sft": SFT,
    "simcse": SimCSE,
    "sop": SOP,
    "span_corruption": SpanCorruption,
    "teacherless": Teacherless,
    "unilm": UniLM,
}


def denoisers_of(objective: Objective | Mixture, name: str, schedule: Schedule | None = None) -> tuple[Denoiser, ...]:
    """The objective's table of denoisers: a mixture's table, or one row named `name` for any other objective.

    schedule: of the number fields of an objective that is no mixture.

    Raises ConfigError as `Mixture.table` does.
    """
    if isinstance(objective, Mixture):
        return objective.table("objective")
    return (Denoiser(name, "objective", objective, weight=1.0, mode="", final_weight=1.0, schedule=schedule),)
