"""train.init_from: a run that starts with the Transformer of another run, or of a Hugging Face folder."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from contract.errors import ConfigError
from contract.vocab import DECODER_STARTS
from data.tokenizers.tokenizer import Tokenizer
from experiment.config import DataConfig
from experiment.experiment import Experiment
from huggingface.folder import is_huggingface_folder
from huggingface.importing import open_model
from huggingface.vocabulary import (
    SharedTokens,
    describe_differences,
    match_tokens,
    token_texts,
)
from models.config import ModelConfig
from models.parameters import array_types, leaf_name
from models.transformer import Params, init_params
from run.compiled_run import CompiledRun
from run.restore import load_experiment, load_transformer

# Fields of config.data that determine a vocabulary.
_VOCABULARY = ("tokenizer", "append_special_tokens", "num_sentinels", "mode_tokens")
# Fields of config.model with which the same arrays compute something else -> the kind of positions that alone reads the
# field; "" for all.
_MEANING = {
    "mlp": "",
    "positions": "",
    "relative_num_buckets": "relative",
    "relative_max_distance": "relative",
    "rope_theta": "rope",
    "norm": "",
    "norm_position": "",
    "norm_epsilon": "",
    "num_heads": "",
    "scale_logits": "",
    "scale_attention": "",
}


@dataclasses.dataclass(frozen=True)
class Origin:
    """The model that `train.init_from` names. Made by `open_origin`.

    Attributes:
      where: for messages, such as "train.init_from=runs/mlm".
      kind: "run" or "folder", for messages.
      model: its model.
      tokenizer: its tokenizer.
      shapes: of its Transformer's arrays.
      load: mesh -> the Transformer's arrays on it, and the step of their checkpoint; None for a folder.
      data: the fields of its vocabulary, with the path of its own copy of the tokenizer; None for a folder.
    """

    where: str
    kind: str
    model: ModelConfig
    tokenizer: Tokenizer
    shapes: Params
    load: Callable[[Mesh], tuple[Params, int | None]]
    data: DataConfig | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which arrays of an origin a run takes, and how. Made by `plan_start`.

    Attributes:
      slices: name of an array -> an axis, and the slices of that axis here and there, int [n], that alone are copied:
        the rows of common tokens, or the first positions. Other arrays are copied whole.
      notes: a line for each thing that is not a plain copy.
    """

    slices: dict[str, tuple[int, np.ndarray, np.ndarray]]
    notes: tuple[str, ...]


def check_init_from(experiment: Experiment) -> list[str]:
    """Returns notes on how a run of `experiment` starts with the model of `train.init_from`.

    Raises ConfigError, one line, where that model cannot be the start.
    """
    return list(plan_start(open_origin(experiment.train.init_from), experiment).notes)


def start_from(run: CompiledRun, params: Params, path: str) -> tuple[Params, int | None]:
    """Returns `params` with the Transformer of the run or the Hugging Face folder `path`, and the run's step.

    Of a run, the newest checkpoint is taken. Arrays are copied; where vocabularies differ
    (train.init_from_vocabulary="by_token"), the rows of tables of tokens are copied by the tokens' texts, and rows of
    new tokens stay as in `params`. Of a longer table of learned positions, the first rows are copied: row i is the
    position i.

    Raises ConfigError as `check_init_from`.
    """
    learner = run.experiment.learner
    origin = open_origin(path)
    plan = plan_start(origin, run.experiment)
    before = learner.transformer(params)
    transformer, step = origin.load(run.mesh)
    return learner.replace_transformer(params, _transplant(before, transformer, plan)), step


def open_origin(path: str) -> Origin:
    """Returns the model in `path`, the folder of a run or a Hugging Face folder. Raises ConfigError for any other."""
    where = f"train.init_from={path}"
    if is_huggingface_folder(path):
        found = open_model(path, where)
        arrays = (found.model, found.tokenizer, found.shapes)
        return Origin(where, "folder", *arrays, lambda mesh: (found.load(mesh), None))
    other = load_experiment(path, named_by="train.init_from")
    shapes = jax.eval_shape(other.learner.transformer, other.params_shapes)
    arrays = (other.model, other.tokenizer, shapes)
    return Origin(where, "run", *arrays, lambda mesh: load_transformer(other, path, mesh), other.data)


def plan_start(origin: Origin, experiment: Experiment) -> Plan:
    """Returns how a run of `experiment` starts with `origin`.

    Raises ConfigError where vocabularies differ and train.init_from_vocabulary is "equal", where arrays differ in other
    axes than those of tokens, where a table of positions is shorter, and where a field of the model makes the same
    arrays compute something else.
    """
    here = _by_name(jax.eval_shape(experiment.learner.transformer, experiment.params_shapes))
    there = _by_name(origin.shapes)
    vocab_axes = _axes(experiment.model, vocab_size=experiment.model.vocab_size + 1)
    position_axes = _axes(experiment.model, max_length=experiment.model.max_length + 1)
    tokens, notes = _match_vocabularies(origin, experiment)
    _check_arrays(origin, here, there, vocab_axes, position_axes)
    _check_meaning(origin, experiment.model)
    notes += _match_decoder_starts(origin, experiment)
    if tokens is None and origin.model.vocab_size != experiment.model.vocab_size:
        texts = token_texts(experiment.tokenizer)  # the same tokens, in tables with different numbers of padding rows
        tokens = match_tokens(texts, texts)
    slices = {}
    if tokens is not None:
        slices = {name: (axis, tokens.here, tokens.there) for name, axis in vocab_axes.items()}
    for name in position_axes.keys() & here.keys():
        length, longer = (arrays[name].shape[position_axes[name]] for arrays in (here, there))
        if longer > length:
            slices[name] = (position_axes[name], np.arange(length), np.arange(length))
            notes.append(f"{origin.where} has {longer} learned positions: the first {length} are copied")
    return Plan(slices, tuple(dict.fromkeys(notes)))


def _match_vocabularies(origin: Origin, experiment: Experiment) -> tuple[SharedTokens | None, list[str]]:
    """Returns the common tokens, None for equal vocabularies, and notes."""
    here, there = token_texts(experiment.tokenizer), token_texts(origin.tokenizer)
    differences = describe_differences(here, there)
    if not differences:
        if origin.tokenizer.fingerprint == experiment.tokenizer.fingerprint:
            return None, []
        return None, [f"{origin.where} has the same tokens, but its tokenizer may divide a text into other tokens"]
    if experiment.train.init_from_vocabulary == "equal":
        raise ConfigError(
            f"{origin.where}: that {origin.kind} has another vocabulary: {differences}: set "
            f"{_fields_as_there(origin, experiment)} as there, or train.init_from_vocabulary='by_token' to copy the "
            "rows of the common tokens"
        )
    tokens = match_tokens(here, there)
    if not len(tokens.here):
        raise ConfigError(f"{origin.where}: the vocabularies have no token in common: {differences}")
    return tokens, [
        f"{origin.where}: the rows of {len(tokens.here):,} tokens are copied by token, {tokens.num_new:,} new tokens "
        f"keep their initial values, and {tokens.num_dropped:,} tokens of that {origin.kind} have no row here"
    ]


def _fields_as_there(origin: Origin, experiment: Experiment) -> str:
    """Returns the fields whose values give the vocabulary of `origin`: of a run those that differ, with its values."""
    if origin.data is None:
        return ", ".join(f"data.{field}" for field in _VOCABULARY)
    differing = [field for field in _VOCABULARY if getattr(origin.data, field) != getattr(experiment.data, field)]
    if origin.tokenizer.fingerprint == experiment.tokenizer.fingerprint:
        differing = [field for field in differing if field != "tokenizer"]  # a copy of the same file
    return " and ".join(f"data.{field}={getattr(origin.data, field)!r}" for field in differing)


def _match_decoder_starts(origin: Origin, experiment: Experiment) -> list[str]:
    """Returns a note where the run has no token like the one with which the origin's decoder starts.

    Raises ConfigError where the run has this token, and starts with another one.
    """
    if not (origin.model.has_decoder and experiment.model.has_decoder):
        return []
    here, there = experiment.vocab, origin.tokenizer.vocab
    names, start = here.names(), there.names()[there.decoder_start]
    same = [name for name in DECODER_STARTS if names.get(getattr(here, name)) == start]
    if not same:
        return [f"{origin.where}: the decoder of the {origin.kind} starts with {start!r}, which is no start token here"]
    if here.decoder_start_token not in same:
        raise ConfigError(
            f"{origin.where}: the decoder of that {origin.kind} starts with {start!r}, and here with "
            f"{names[here.decoder_start]!r}: set data.decoder_start_token={same[0]!r}"
        )
    return []


def _check_arrays(
    origin: Origin,
    here: dict[str, Any],
    there: dict[str, Any],
    vocab_axes: dict[str, int],
    position_axes: dict[str, int],
) -> None:
    """Raises ConfigError unless the arrays `there` can start those `here`, both by name."""

    def fits(name: str) -> bool:
        if name not in here or name not in there or here[name].ndim != there[name].ndim:
            return False
        return all(
            a == b or axis == vocab_axes.get(name) or (axis == position_axes.get(name) and b > a)
            for axis, (a, b) in enumerate(zip(here[name].shape, there[name].shape, strict=True))
        )

    differing = [name for name in {**here, **there} if not fits(name)]
    if differing:
        name, types_here, types_there = differing[0], array_types(here), array_types(there)
        raise ConfigError(
            f"{origin.where}: {name} is {types_there.get(name, 'missing')} in that {origin.kind} and "
            f"{types_here.get(name, 'missing')} here, and {len(differing) - 1} more arrays differ: copy the fields of "
            "model, data.inputs_length and data.targets_length from that run's config.json"
        )


def _check_meaning(origin: Origin, model: ModelConfig) -> None:
    for field, positions in _MEANING.items():
        here, there = getattr(model, field), getattr(origin.model, field)
        if here != there and positions in ("", model.positions):
            raise ConfigError(
                f"{origin.where}: model.{field} is {there!r} in that {origin.kind} and {here!r} here, so the same "
                f"arrays would compute something else: set model.{field}={there!r}"
            )


def _axes(model: ModelConfig, **larger: int) -> dict[str, int]:
    """Returns, by the array's name, the axis that grows with the field of `model` that `larger` sets."""
    shapes, grown = (
        _by_name(jax.eval_shape(functools.partial(init_params, config), jax.random.key(0)))
        for config in (model, dataclasses.replace(model, **larger))
    )
    pairs = {name: zip(leaf.shape, grown[name].shape, strict=True) for name, leaf in shapes.items()}
    return {name: axis for name, sizes in pairs.items() for axis, (a, b) in enumerate(sizes) if a != b}


def _by_name(tree: Params) -> dict[str, Any]:
    """Returns name -> array."""
    return {leaf_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _transplant(before: Params, there: Params, plan: Plan) -> Params:
    """Returns `there`, with the shapes of `before`, whose values stay in the slices that `there` does not have."""
    arrays = _by_name(there)

    def leaf(path: Any, old: Any) -> Any:
        name = leaf_name(path)
        return _with_slices(old, arrays[name], *plan.slices[name]) if name in plan.slices else arrays[name]

    return jax.tree_util.tree_map_with_path(leaf, before)


def _with_slices(old: Any, new: Any, axis: int, here: np.ndarray, there: np.ndarray) -> jax.Array:
    """Returns `old` with the slices `here` of `axis` replaced by the slices `there` of `new`, sharded as `old`."""

    def replace(old: jax.Array, new: jax.Array) -> jax.Array:
        rows = jnp.moveaxis(new, axis, 0)[there]
        return jnp.moveaxis(jnp.moveaxis(old, axis, 0).at[here].set(rows), 0, axis)

    return jax.jit(replace, out_shardings=getattr(old, "sharding", None))(old, new)
