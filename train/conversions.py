"""The rules by which a model becomes another: a decoder an encoder, or a model a deeper, a wider or a longer one.

| from -> to | rule | source |
|---|---|---|
| decoder_only -> encoder_only, and back | the stack's arrays have the other stack's names | |
| encoder_only with token types -> decoder_only | the vector of type 0 is added to that of each learned position | |
| decoder_only -> encoder_decoder | both stacks are the decoder; cross-attention is its self-attention | T5Gemma (Zhang et al. 2025, arXiv 2504.06225) |
| the same with merged_attention | both stacks are the decoder, whose self-attention also reads the encoder | T5Gemma 2 (Zhang et al. 2025, arXiv 2512.14856) |
| n layers of a stack -> k n | the layers of the stack k times, one after another | G_stack (Du et al. 2024, arXiv 2405.15319) |
| widths w -> k w | k copies of each feature, head and hidden unit, which share what each weight was | HyperCloning (Samragh et al. 2024, arXiv 2409.12903), after Net2Net (Chen et al. 2016, arXiv 1511.05641) |
| one token table -> one for each stack | both are that table | T5Gemma |
| no target_positions -> target_positions | all arrays are copied, and the second encoding is 0 | sigma-GPT (Pannatier et al. 2024, arXiv 2404.09562) |
| n learned positions -> more | the table again and again: row i is row i mod n | Longformer (Beltagy et al. 2020, arXiv 2004.05150, section 5) |
| rope_theta, local_rope_theta, rope_scaling_factor -> larger | nothing is copied otherwise | Xiong et al. 2023, arXiv 2309.16039 |

The norm before cross-attention is that before self-attention, with which the copied queries were trained. The copied
queries and keys had rotary positions; cross-attention and the encoder's keys of merged attention have them only with
continuous_positions, as in RedLLM (Zhang et al. 2025, arXiv 2510.26622).

A wider model has the logits of the narrow one. Where a kernel's inputs are copied k times, the copies have random shares
of each weight: with equal shares, copies would have equal gradients forever. (HyperCloning's noisy symmetric expansion
adds noise of both signs to equal shares.) A norm over k copies is that over one. The logits of a tied table would be k
times as large, so the norm before them is divided by k, or by sqrt(k) with scale_logits. With scale_embeddings the
token tables are divided by sqrt(k), and the logits of a tied table are larger by as much less.
"""  # noqa: E501

import functools
import re
import zlib
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from contract.errors import ConfigError
from models.config import ModelConfig
from models.parameters import stacks_layers

# Fields of config.model that may be larger here: of arrays, and of rotary positions, for longer rows.
WIDTHS = ("d_model", "num_heads", "num_kv_heads", "d_ff", "embedding_size")
EXTENSIONS = ("rope_theta", "local_rope_theta", "rope_scaling_factor")

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

    The positions of targets have none where the model `there` does not have them: they start at 0, with which rows from
    left to right have its logits.

    where: the config field that names the model, for messages. Raises ConfigError for architectures without a rule.
    """
    if here.target_positions and not there.target_positions:
        names = [name for name in names if not name.startswith("target_positions/")]
    if here.share_embeddings and not there.share_embeddings:
        raise ConfigError(f"{where}: model.share_embeddings=True would leave the encoder's token table out: remove it")
    new_table = there.share_embeddings and not here.share_embeddings
    tables = ((r"^encoder_token_embedder/", "token_embedder/"),) if new_table else ()
    if there.architecture == here.architecture:
        return _renamed(names, tables)
    change = f"{where}: model.architecture={there.architecture!r} there and {here.architecture!r} here"
    rules = _NAMES.get((there.architecture, here.architecture))
    if rules is None:
        raise ConfigError(f"{change}: no rule converts it: set model.architecture={there.architecture!r}")
    if there.positions == here.positions == "relative":
        raise ConfigError(
            f"{change}: no rule converts model.positions='relative', whose biases are of the past alone in a decoder "
            f"and of both sides in an encoder: set model.architecture={there.architecture!r}"
        )
    return _renamed(names, rules + tables)


def _renamed(names: Iterable[str], rules: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Returns each of `names` -> the name after all rules, each a pattern and its replacement."""
    return {name: functools.reduce(lambda found, rule: re.sub(*rule, found), rules, name) for name in names}


def layers_there(there: ModelConfig, here: ModelConfig, names: dict[str, str], where: str) -> dict[str, np.ndarray]:
    """Returns, for each array with more layers here, the layer there that each starts as: int [layers here].

    names: from `names_there`. Raises ConfigError unless a stack here is a whole number of those there, and where the
    copies of a layer would be local and global ones, or would have a norm that it has not.
    """
    found = {}
    for name, source in names.items():
        depth, old = _depth(here, name), _depth(there, source)
        if not stacks_layers(name) or depth == old:
            continue
        of_decoder = here.num_decoder_layers and name.startswith("decoder/")
        given = f"{where}: model.{'num_decoder_layers' if of_decoder else 'num_layers'}={depth}"
        if not there.first_attention_norm:
            raise ConfigError(
                f"{given} repeats layer 0, which with model.first_attention_norm=False has no norm before its "
                f"attention: its copies would have an untrained one: set it to {old}"
            )
        if depth % old:
            raise ConfigError(f"{given} must be a multiple of {old}, the layers there, which are repeated")
        if old % there.global_every:
            raise ConfigError(
                f"{given} repeats the {old} layers there, which are not a multiple of model.global_every="
                f"{there.global_every}: local layers would become global ones"
            )
        found[name] = np.arange(depth) % old
    return found


def _depth(model: ModelConfig, name: str) -> int:
    """Returns the number of layers of the stack that has the array `name`."""
    return (model.of_decoder if name.startswith("decoder/") else model).num_layers


def check_widths(there: ModelConfig, here: ModelConfig, where: str) -> None:
    """Raises ConfigError unless each width here is a multiple of that of the model `there`, and groups of heads equal.

    Raises it too for a wider post-norm model with a tied table and no head: no norm is before its logits alone.
    """
    for field in WIDTHS:
        width, of_there = getattr(here, field), getattr(there, field)
        if width and of_there and width % of_there:
            raise ConfigError(
                f"{where}: model.{field}={width} must be a multiple of {of_there}, the number there, of which each is "
                "copied"
            )
    group = there.num_heads // there.num_kv_heads
    if here.num_heads != group * here.num_kv_heads:
        raise ConfigError(
            f"{where}: model.num_kv_heads={here.num_kv_heads} must be {here.num_heads // group} for "
            f"model.num_heads={here.num_heads}: {group} query heads share each key/value head there"
        )
    has_norm = here.prediction_head == "bert" or here.norm_position == "pre"
    if _logits_factor(there, here) != 1 and not has_norm:
        raise ConfigError(
            f"{where}: model.d_model={here.d_model} would make the logits larger, and model.norm_position='post' with "
            f"model.tie_embeddings=True has no norm for them alone: set model.d_model={there.d_model}"
        )


def _logits_factor(there: ModelConfig, here: ModelConfig) -> float:
    """Returns by what the logits of the wider table would be multiplied."""
    if not (here.tie_embeddings and here.predicts_tokens):
        return 1.0
    return (here.embedding_width / there.embedding_width) ** (1 - (here.scale_logits + here.scale_embeddings) / 2)


def width_axes(name: str) -> tuple[int, ...]:
    """Returns the axes of the array `name` that are widths, counted from its end; of a kernel, inputs first."""
    if name.endswith("relative_position_bias/embedding"):  # [heads, buckets]
        return (-2,)
    return (-2, -1) if name.endswith("/kernel") else (-1,)


def widened(there: ModelConfig, here: ModelConfig, name: str, array: Array, shape: tuple[int, ...], seed: int) -> Array:
    """Returns `array` of the model `there` as the array `name` of the wider model `here`.

    shape: of the result: that of `array`, but for longer `width_axes`. seed: of the copies' shares.
    """
    times = [a // b for a, b in zip(shape, array.shape, strict=True)]
    result = jnp.tile(array, times)
    if name.endswith("/kernel") and times[-2] > 1:
        key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))
        weights = jax.random.uniform(key, (*shape[:-2], times[-2], array.shape[-2], shape[-1]), minval=0.5, maxval=1.5)
        result = result * (weights / weights.sum(-3, keepdims=True)).reshape(shape)
    if name.endswith("token_embedder/embedding") and here.scale_embeddings:
        result = result / times[-1] ** 0.5
    of_stack = f"{'decoder' if here.has_decoder else 'encoder'}/final_norm/"
    before_logits = "prediction_head/norm/" if here.prediction_head == "bert" else of_stack
    return result / _logits_factor(there, here) if name.startswith(before_logits) else result


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
    if there.num_token_types and not here.has_encoder:
        lines.append("a decoder has no token types: the vector of type 0, that of texts, is added to each position's")
    if here.target_positions and not there.target_positions:
        lines.append("the positions of targets are new and 0: texts from left to right have that model's logits")
    if there.share_embeddings and not here.share_embeddings:
        lines.append("the encoder has a token table of its own, a copy of the other")
    if here.continuous_positions and not there.continuous_positions:
        lines.append("the decoder's positions are counted on from the encoder's, whose keys are rotary")
    differing = [field for field in WIDTHS if getattr(there, field) != getattr(here, field)]
    if differing:
        wider = ", ".join(f"model.{field}={getattr(here, field)}" for field in differing)
        lines.append(f"{wider}: copies of what is there, which share its outgoing weights at random")
    pairs = (there, here), (there.of_decoder, here.of_decoder)
    of_encoder, of_decoder = ((a.num_layers, b.num_layers) for a, b in pairs)
    depths = {" of the encoder": of_encoder, " of the decoder": of_decoder}
    for stack, (old, new) in (depths if of_encoder != of_decoder else {"": of_encoder}).items():
        if old != new:
            lines.append(f"the {old} layers{stack} are repeated {new // old} times, one stack after another")
    if here.positions == there.positions == "learned" and there.max_length != here.max_length:
        is_longer = here.max_length > there.max_length
        used = f"repeated to {here.max_length}" if is_longer else f"the first {here.max_length} are copied"
        lines.append(f"there are {there.max_length} learned positions: {used}")
    for field in EXTENSIONS if here.positions == there.positions == "rope" else ():
        if getattr(there, field) != getattr(here, field):
            lines.append(f"model.{field} is {getattr(here, field):g} in place of {getattr(there, field):g}")
    return lines
