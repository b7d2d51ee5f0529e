"""train.init_from: a run that starts with the Transformer of another run, or of a Hugging Face folder."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from contract.errors import ConfigError
from experiment.experiment import Experiment
from huggingface.origin import Origin, fields_as_there, match_decoder_starts, open_origin, place_of, shifted_targets
from huggingface.vocabulary import SharedTokens, describe_differences, match_tokens, token_texts
from models.config import ModelConfig
from models.parameters import array_types, leaf_name
from models.transformer import Params, init_params
from run.compiled_run import CompiledRun
from train.conversions import (
    EXTENSIONS,
    check_widths,
    describe_conversions,
    layers_there,
    names_there,
    widened,
    width_axes,
)

# Fields of config.model with which the same arrays compute something else.
_MEANING = (
    *("mlp", "positions", "relative_num_buckets", "relative_max_distance", "norm", "norm_position", "norm_epsilon"),
    *("head_dim", "scale_logits", "scale_attention", "global_every", "local_distance", "first_attention_norm"),
    *("first_layer_global", "scale_embeddings", "attention_softcap", "logits_softcap", "parallel_residual"),
    *("partial_rotary_factor", "head_norms"),
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which arrays of an origin a run takes, and how. Made by `plan_start`.

    Attributes:
      names: name of an array of the run's Transformer -> that of the origin's array. Arrays without a name start at 0.
      slices: name of an array of the run -> an axis, and the slices of that axis here and there, int [n], that alone
        are copied: the rows of common tokens, positions, or layers. Other arrays are copied whole.
      conversions: a line for each rule of train/conversions.py that applies.
      notes: warnings, a line each.
    """

    names: dict[str, str]
    slices: dict[str, tuple[int, np.ndarray, np.ndarray]]
    conversions: tuple[str, ...]
    notes: tuple[str, ...]


def check_init_from(experiment: Experiment) -> list[str]:
    """Returns notes on how a run of `experiment` starts with the model of `train.init_from`.

    Raises ConfigError, one line, where that model cannot be the start.
    """
    return list(plan_start(_open_start(experiment.train.init_from, experiment.model), experiment).notes)


def _open_start(path: str, model: ModelConfig) -> Origin:
    """Returns the origin in `path`. For a decoder, positions of an encoder with token types have the vector of type 0.

    Texts have type 0, but for second sentences. Raises ConfigError for an encoder without a table of positions.
    """
    origin = open_origin(path)
    if model.has_encoder or not origin.model.num_token_types:
        return origin
    if origin.model.positions != "learned":
        raise ConfigError(
            f"{origin.where}: decoders have no token types, and model.positions={origin.model.positions!r} has no "
            "table to which that of texts is added: start from a model with model.num_token_types=0"
        )

    def load(mesh: Mesh) -> tuple[Params, int | None]:
        params, step = origin.load(mesh)
        rest = {name: tree for name, tree in params.items() if name != "token_type_embedder"}
        table, types = params["position_embedder"]["embedding"], params["token_type_embedder"]["embedding"]
        table = jax.jit(lambda x, y: x + y[0], out_shardings=getattr(table, "sharding", None))(table, types)
        return rest | {"position_embedder": {"embedding": table}}, step

    shapes = {name: tree for name, tree in origin.shapes.items() if name != "token_type_embedder"}
    return dataclasses.replace(origin, shapes=shapes, load=load)


def start_from(run: CompiledRun, params: Params, path: str) -> tuple[Params, list[str]]:
    """Returns `params` with the Transformer of the run or the Hugging Face folder `path`, and lines about it.

    Of a run, the newest checkpoint is taken. Arrays are copied, by the rules of train/conversions.py where the models
    differ. Where vocabularies differ (train.init_from_vocabulary="by_token"), the rows of tables of tokens are copied
    by the tokens' texts, and rows of new tokens stay as in `params`.

    The lines say where the parameters are from, by which rules, how many are copied, and which are new: those that stay
    as in `params`.

    Raises ConfigError as `check_init_from`.
    """
    learner = run.experiment.learner
    origin = _open_start(path, run.experiment.model)
    plan = plan_start(origin, run.experiment)
    before = learner.transformer(params)
    transformer, step = origin.load(run.mesh)
    lines = [f"{'start':>10}  parameters of {path}" + ("" if step is None else f", step {step}")]
    lines += [f"{'converted':>10}  {line}" for line in plan.conversions]
    started = learner.replace_transformer(params, _transplant(before, transformer, plan, origin.model, run.experiment))
    # Of the other entries a learner may replace a part too: the embeddings of ELECTRA's generator.
    kept = {id(leaf) for leaf in jax.tree.leaves(params)}
    of_modules = {module: jax.tree.leaves(tree) for module, tree in started.items() if module != "transformer"}
    new = {module: sum(leaf.size for leaf in leaves if id(leaf) in kept) for module, leaves in of_modules.items()}
    return started, lines + _describe_copies(origin, plan, {name: before[name] for name in params["transformer"]}, new)


def _describe_copies(origin: Origin, plan: Plan, transformer: Params, new: dict[str, int]) -> list[str]:
    """Returns a line on the copied parameters, and one on the new ones, if any.

    transformer: the parameters that start as the origin's. new: of each other module, the number of new ones.
    """
    copied = num_arrays = 0
    for name, array in _by_name(transformer).items():
        if name not in plan.names or plan.names[name].partition("/")[0] not in origin.modules:
            new[name] = array.size
            continue
        axis, here, _ = plan.slices.get(name, (0, range(array.shape[0]), None))
        rows, num_new = array.shape[axis], array.shape[axis] - len(here)
        copied, num_arrays = copied + array.size // rows * len(here), num_arrays + 1
        if num_new:
            new[f"{name} ({num_new:,} of {rows:,} rows)"] = array.size // rows * num_new
    lines = [f"{'copied':>10}  {copied:,} parameters in {num_arrays} arrays"]
    if new:
        lines.append(f"{'new':>10}  {sum(new.values()):,} parameters: {', '.join(new)}")
    return lines


def plan_start(origin: Origin, experiment: Experiment) -> Plan:
    """Returns how a run of `experiment` starts with `origin`.

    Raises ConfigError where vocabularies differ and train.init_from_vocabulary is "equal", where models differ and
    train/conversions.py has no rule, and where a field of the model makes the same arrays compute something else.
    """
    model, where = experiment.model, origin.where
    here = _by_name(jax.eval_shape(experiment.learner.transformer, experiment.params_shapes))
    there = _by_name(origin.shapes)
    vocab_axes = _axes(model, vocab_size=model.vocab_size + 1)
    position_axes = _axes(model, max_length=model.max_length + 1)
    tokens, notes = _match_vocabularies(origin, experiment)
    names = names_there(origin.model, model, here, where)
    layers = layers_there(origin.model, model, names, where)
    check_widths(origin.model, model, where)
    _check_arrays(origin, here, there, names, {**vocab_axes, **position_axes, **dict.fromkeys(layers, 0)})
    _check_meaning(origin, model)
    notes += match_decoder_starts(origin, experiment)
    if tokens is None and origin.model.vocab_size != model.vocab_size:
        texts = token_texts(experiment.tokenizer)  # the same tokens, in tables with different numbers of padding rows
        tokens = match_tokens(texts, texts)
    slices = {}
    if tokens is not None:
        slices = {name: (axis, tokens.here, tokens.there) for name, axis in vocab_axes.items()}
    for name in position_axes.keys() & names.keys():
        axis = position_axes[name]
        length, positions = here[name].shape[axis], there[names[name]].shape[axis]
        if length != positions:
            slices[name] = (axis, np.arange(length), np.arange(length) % positions)
    slices |= {name: (0, np.arange(len(repeated)), repeated) for name, repeated in layers.items()}
    conversions = describe_conversions(origin.model, model, experiment.data.attention_annealing_steps)
    shifted = shifted_targets(experiment)
    if experiment.denoisers[0].objective.prompting is not None and not shifted & origin.shifted:
        elsewhere = f"in that {origin.kind} {place_of(origin.shifted)}"
        conversions.append(f"a token is predicted {place_of(shifted)}, and {elsewhere}")
    return Plan(names, slices, tuple(conversions), tuple(notes))


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
            f"{fields_as_there(origin, experiment)} as there, or train.init_from_vocabulary='by_token' to copy the "
            "rows of the common tokens"
        )
    tokens = match_tokens(here, there)
    if not len(tokens.here):
        raise ConfigError(f"{origin.where}: the vocabularies have no token in common: {differences}")
    return tokens, [
        f"{origin.where}: the rows of {len(tokens.here):,} tokens are copied by token, {tokens.num_new:,} new tokens "
        f"keep their initial values, and {tokens.num_dropped:,} tokens of that {origin.kind} have no row here"
    ]


def _check_arrays(
    origin: Origin, here: dict[str, Any], there: dict[str, Any], names: dict[str, str], free_axes: dict[str, int]
) -> None:
    """Raises ConfigError unless the arrays `there` can start those `here`, both by name.

    names: as in Plan. free_axes: the axis of arrays here whose length may differ.
    """

    def fits(name: str) -> bool:
        source = there.get(names[name])
        if source is None or source.ndim != here[name].ndim:
            return False
        shapes = enumerate(zip(here[name].shape, source.shape, strict=True))
        wide = [axis % source.ndim for axis in width_axes(name)] if source.ndim else []
        return all(a == b or axis == free_axes.get(name) or (axis in wide and a % b == 0) for axis, (a, b) in shapes)

    used = set(names.values())
    differing = [name for name in names if not fits(name)] + [name for name in there if name not in used]
    if differing:
        name, types_here, types_there = differing[0], array_types(here), array_types(there)
        remedy = "set the fields of model as there"
        if name.startswith("token_type_embedder/"):  # sentence types, which NSP and SOP need
            remedy = f"set model.num_token_types={here[name].shape[0] if name in here else 0} in the earlier run"
        raise ConfigError(
            f"{origin.where}: {name} is {types_there.get(names.get(name, name), 'missing')} in that {origin.kind} and "
            f"{types_here.get(name, 'missing')} here, and {len(differing) - 1} more arrays differ: {remedy}"
        )


def _check_meaning(origin: Origin, model: ModelConfig) -> None:
    there = origin.model
    differing = [
        field
        for field in _MEANING
        if getattr(model, field) != getattr(there, field)
        and (model.positions == "relative" or not field.startswith("relative_"))
    ]
    if model.architecture == there.architecture and model.continuous_positions != there.continuous_positions:
        differing.append("continuous_positions")
    if model.positions == "rope":  # larger: for longer rows
        differing += [field for field in EXTENSIONS if getattr(model, field) < getattr(there, field)]
        if there.rope_scaling_factor > 1 and model.rope_original_length != there.rope_original_length:
            differing.append("rope_original_length")
    if differing:
        field = differing[0]
        value = getattr(there, field)
        raise ConfigError(
            f"{origin.where}: model.{field} is {value!r} in that {origin.kind} and {getattr(model, field)!r} here, so "
            f"the same arrays would compute something else: set model.{field}={value!r}"
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


def _transplant(before: Params, there: Params, plan: Plan, model: ModelConfig, experiment: Experiment) -> Params:
    """Returns the arrays that `plan` takes of `there`, with the shapes of `before`, whose other values stay.

    model: that of `there`. experiment: of the run.
    """
    arrays, taken = _by_name(there), set()

    def leaf(path: Any, old: Any) -> Any:
        name = leaf_name(path)
        if name not in plan.names:
            return jax.jit(jnp.zeros_like, out_shardings=getattr(old, "sharding", None))(old)
        source, is_again = arrays[plan.names[name]], plan.names[name] in taken
        taken.add(plan.names[name])
        # The axis of `slices` is not a width, or all of its slices are copied.
        lengths = {plan.slices[name][0]: source.shape[plan.slices[name][0]]} if name in plan.slices else {}
        shape = tuple(lengths.get(axis, length) for axis, length in enumerate(old.shape))
        if shape != source.shape:
            widen = functools.partial(widened, model, experiment.model, name, shape=shape, seed=experiment.seed)
            sharding = None if name in plan.slices else getattr(old, "sharding", None)
            source = jax.jit(widen, out_shardings=sharding)(source)
        if name in plan.slices:
            return _with_slices(old, source, *plan.slices[name])
        return jnp.copy(source) if is_again else source  # a state that is donated has no array twice

    return jax.tree_util.tree_map_with_path(leaf, before)


def _with_slices(old: Any, new: Any, axis: int, here: np.ndarray, there: np.ndarray) -> jax.Array:
    """Returns `old` with the slices `here` of `axis` replaced by the slices `there` of `new`, sharded as `old`."""

    def replace(old: jax.Array, new: jax.Array) -> jax.Array:
        rows = jnp.moveaxis(new, axis, 0)[there]
        return jnp.moveaxis(jnp.moveaxis(old, axis, 0).at[here].set(rows), 0, axis)

    return jax.jit(replace, out_shardings=getattr(old, "sharding", None))(old, new)
