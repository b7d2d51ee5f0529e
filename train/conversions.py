"""The rules by which a model becomes another: a decoder an encoder, a model a deeper one, or one of longer rows.

| from -> to | rule | source |
|---|---|---|
| decoder_only -> encoder_only, and back | the stack's arrays have the other stack's names | |
| decoder_only -> encoder_decoder | both stacks are the decoder; cross-attention is its self-attention | T5Gemma (Zhang et al. 2025, arXiv 2504.06225) |
| the same with merged_attention | both stacks are the decoder, whose self-attention also reads the encoder | T5Gemma 2 (Zhang et al. 2025, arXiv 2512.14856) |
| n layers -> k n | the layers of the stack k times, one after another | G_stack (Du et al. 2024, arXiv 2405.15319) |
| n learned positions -> more | the table again and again: row i is row i mod n | Longformer (Beltagy et al. 2020, arXiv 2004.05150, section 5) |
| rope_theta, local_rope_theta -> larger | nothing is copied otherwise | Xiong et al. 2023, arXiv 2309.16039 |

The norm before cross-attention is that before self-attention, with which the copied queries were trained. Cross-attention
has no rotary positions, which the copied queries and keys had. No rule makes a model wider: those that keep what it
computes hold for some norms alone.
"""  # noqa: E501

import re
from collections.abc import Iterable

import numpy as np

from contract.errors import ConfigError
from models.config import ModelConfig

# (architecture there, here) -> patterns of the names of arrays here, and the names there.
_NAMES: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("decoder_only", "encoder_only"): ((r"^encoder/", "decoder/"),),
    ("encoder_only", "decoder_only"): ((r"^decoder/", "encoder/"),),
    ("decoder_only", "encoder_decoder"): (
        (r"^encoder/", "decoder/"),
        (r"/cross_attention", "/self_attention"),
        (r"^(encoder|decoder)_(position_embedder|embedding_norm)/", r"\2/"),
    ),
}
_DESCRIPTIONS = {
    "encoder_only": "the layers of the decoder are those of an encoder, whose positions see the whole text at once",
    "decoder_only": "the layers of the encoder are those of a decoder",
    "encoder_decoder": "the layers of the decoder are those of both stacks, and its self-attention is cross-attention",
    "merged_attention": "the layers of the decoder are those of both stacks, and its self-attention reads both texts",
}


def names_there(there: ModelConfig, here: ModelConfig, names: Iterable[str], where: str) -> dict[str, str]:
    """Returns the name of each array `names` of the model `here` -> the array of the model `there` that it starts as.

    where: the config field that names the model, for messages. Raises ConfigError for architectures without a rule.
    """
    if there.architecture == here.architecture:
        return {name: name for name in names}
    change = f"{where}: model.architecture={there.architecture!r} there and {here.architecture!r} here"
    rules = _NAMES.get((there.architecture, here.architecture))
    if rules is None:
        raise ConfigError(f"{change}: no rule converts it: set model.architecture={there.architecture!r}")
    if there.positions == here.positions == "relative":
        raise ConfigError(
            f"{change}: no rule converts model.positions='relative', whose biases are of the past alone in a decoder "
            f"and of both sides in an encoder: set model.architecture={there.architecture!r}"
        )
    found = {}
    for name in names:
        found[name] = name
        for pattern, replacement in rules:
            found[name] = re.sub(pattern, replacement, found[name])
    return found


def layers_there(there: ModelConfig, here: ModelConfig, where: str) -> np.ndarray:
    """Returns, for each layer of a stack here, the layer of the model `there` that it starts as: int [num_layers].

    Raises ConfigError unless the stack here is a whole number of those there, and where the copies of a layer would be
    local and global ones.
    """
    if here.num_layers % there.num_layers:
        raise ConfigError(
            f"{where}: model.num_layers={here.num_layers} must be a multiple of {there.num_layers}, the layers there, "
            "which are repeated"
        )
    if here.num_layers != there.num_layers and there.num_layers % there.global_every:
        raise ConfigError(
            f"{where}: model.num_layers={here.num_layers} repeats the {there.num_layers} layers there, which are not a "
            f"multiple of model.global_every={there.global_every}: local layers would become global ones"
        )
    return np.arange(here.num_layers) % there.num_layers


def describe_conversions(there: ModelConfig, here: ModelConfig, annealing_steps: int) -> list[str]:
    """Returns a line for each rule that makes the model `here` of the model `there`.

    annealing_steps: data.attention_annealing_steps.
    """
    lines = []
    if there.architecture == here.architecture == "decoder_only" and here.has_prefix and not there.has_prefix:
        opens = f"opens in {annealing_steps} steps" if annealing_steps else "is open from the first step"
        lines.append(f"that decoder is causal, and here attention to later tokens {opens}")
    if there.architecture != here.architecture:
        lines.append(_DESCRIPTIONS["merged_attention" if here.merged_attention else here.architecture])
    if there.num_layers != here.num_layers:
        times = here.num_layers // there.num_layers
        lines.append(f"the {there.num_layers} layers are repeated {times} times, one stack after another")
    if here.positions == there.positions == "learned" and there.max_length != here.max_length:
        is_longer = here.max_length > there.max_length
        used = f"repeated to {here.max_length}" if is_longer else f"the first {here.max_length} are copied"
        lines.append(f"there are {there.max_length} learned positions: {used}")
    for field in ("rope_theta", "local_rope_theta") if here.positions == there.positions == "rope" else ():
        if getattr(there, field) != getattr(here, field):
            lines.append(f"model.{field} is {getattr(here, field):g} in place of {getattr(there, field):g}")
    return lines
