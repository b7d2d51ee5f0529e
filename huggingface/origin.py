"""The model that a config names, of a run or of a Hugging Face folder, and a config that takes its fields."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from command.program import visible
from contract.errors import ConfigError
from contract.vocab import DECODER_STARTS
from data.tokenizers.tokenizer import Tokenizer
from experiment.experiment import Experiment
from huggingface.family import MACHINE_FIELDS, TRAINING_FIELDS
from huggingface.folder import is_huggingface_folder
from huggingface.importing import open_model, vocabulary_fields
from huggingface.vocabulary import VOCABULARY
from models.config import ModelConfig
from models.transformer import Params, init_params
from run.restore import load_experiment, load_language_model, load_transformer, not_a_language_model
from workdir.run_config import flatten, missing_sections
from workdir.workdir import Workdir

# Fields of config.model that a run chooses for itself: they are of its machine and of its training.
_OF_THE_RUN = (*MACHINE_FIELDS, *TRAINING_FIELDS, "dropout_rate", "dropout_broadcast_positions")
# Fields of config.model that may differ from the model's, because train/conversions.py has a rule for them, or because
# new arrays alone have them.
CONVERTIBLE = (
    *("architecture", "merged_attention", "continuous_positions", "share_embeddings"),
    *("num_layers", "num_decoder_layers", "max_length"),
    *("vocab_size", "d_model", "num_heads", "num_kv_heads", "d_ff", "embedding_size"),
    *("rope_theta", "local_rope_theta", "rope_scaling_factor", "rope_original_length"),
    *("initializer", "initializer_range"),
)


@dataclasses.dataclass(frozen=True)
class Origin:
    """The model that `train.init_from` or `distillation.teacher` names. Made by `open_origin` or `open_teacher`.

    Attributes:
      where: for messages, such as "train.init_from=runs/mlm".
      kind: "run" or "folder", for messages.
      model: its model.
      tokenizer: its tokenizer.
      vocabulary: the fields of config.data that give its vocabulary. The tokenizer of a run is the run's own copy.
      shapes: of its Transformer's arrays.
      modules: the entries of `shapes` that it has trained; the others are drawn by `load`, such as an output head.
      load: mesh -> the Transformer's arrays on it, and the step of their checkpoint; None for a folder.
      shifted: whether it predicts a token where the token before it is read; both if it was trained on both.
    """

    where: str
    kind: str
    model: ModelConfig
    tokenizer: Tokenizer
    vocabulary: Mapping[str, Any]
    shapes: Params
    modules: frozenset[str]
    load: Callable[[Mesh], tuple[Params, int | None]]
    shifted: frozenset[bool]


def open_origin(path: str) -> Origin:
    """Returns the model in `path`, the folder of a run or a Hugging Face folder. Raises ConfigError for any other."""
    where = f"train.init_from={path}"
    if is_huggingface_folder(path):
        return _origin_of_folder(path, where)
    other = load_experiment(path, named_by="train.init_from")
    shapes = jax.eval_shape(other.learner.transformer, other.params_shapes)
    modules = frozenset(other.params_shapes["transformer"])
    parts = (other.model, other.tokenizer, _vocabulary_of_run(other), shapes, modules)
    return Origin(where, "run", *parts, lambda mesh: load_transformer(other, path, mesh), shifted_targets(other))


def open_teacher(path: str) -> Origin:
    """Returns the model in `path` that predicts tokens: of a run of ELECTRA the generator.

    Raises ConfigError for a folder without such a model.
    """
    where = f"distillation.teacher={path}"
    if is_huggingface_folder(path):
        origin = _origin_of_folder(path, where)
        if not origin.model.predicts_tokens:
            raise ConfigError(f"{where}: the model of that folder does not predict tokens: choose another one")
        return origin
    other = load_experiment(path, named_by="distillation.teacher")
    model_and_shapes = other.learner.language_model(other.params_shapes)
    if model_and_shapes is None:
        raise ConfigError(f"{where}: {not_a_language_model(other)}")
    model, shapes = model_and_shapes
    parts = (model, other.tokenizer, _vocabulary_of_run(other), shapes, frozenset(shapes))
    return Origin(where, "run", *parts, lambda mesh: load_language_model(other, path, mesh), shifted_targets(other))


def _origin_of_folder(path: str, where: str) -> Origin:
    found = open_model(path, where)
    modules = frozenset(jax.eval_shape(functools.partial(init_params, found.model), jax.random.key(0)))
    parts = (found.model, found.tokenizer, vocabulary_fields(found), found.shapes, modules)
    return Origin(where, "folder", *parts, lambda mesh: (found.load(mesh), None), frozenset({found.model.has_decoder}))


def place_of(shifted: frozenset[bool]) -> str:
    """Returns in words where a model predicts a token. shifted: as in Origin; of both places, the second."""
    return "where the token before it is read" if True in shifted else "at its own position"


def shifted_targets(experiment: Experiment) -> frozenset[bool]:
    """Returns, of the objectives of a run, whether each predicts a token where the token before it is read."""
    objectives = [denoiser.objective for denoiser in experiment.denoisers]
    return frozenset(getattr(x, "shifted", not x.in_place or x.causal) for x in objectives)


def _vocabulary_of_run(experiment: Experiment) -> dict[str, Any]:
    return {field: getattr(experiment.data, field) for field in VOCABULARY}


def fields_as_there(origin: Origin, experiment: Experiment) -> str:
    """Returns the fields whose values give the vocabulary of `origin`: those that differ, with its values."""
    there, here = origin.vocabulary, experiment.data
    differing = [field for field in there if field != "decoder_start_token" and there[field] != getattr(here, field)]
    if origin.tokenizer.fingerprint == experiment.tokenizer.fingerprint:
        differing = [field for field in differing if field != "tokenizer"]  # a copy of the same file
    return " and ".join(f"data.{field}={there[field]!r}" for field in differing)


def match_decoder_starts(origin: Origin, experiment: Experiment) -> list[str]:
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


def names_origin(config: Mapping[str, Any]) -> bool:
    """Returns whether `train.init_from` of nested dicts, which are not checked yet, names a folder."""
    train = config.get("train")
    return isinstance(train, Mapping) and isinstance(path := train.get("init_from"), str) and path != ""


def with_origin_fields(
    config: Mapping[str, Any], overrides: Mapping[str, Any], workdir: str | None = None
) -> dict[str, Any]:
    """Returns `config` with the model and the vocabulary of `train.init_from`; `config` itself if that is "".

    The fields are those of config.model but _OF_THE_RUN, and of config.data those of the vocabulary. Rows are at most
    as long as a table of learned positions. A field that the command line sets stays as set. A run that continues has
    these fields in its own config.json, and does not need the origin any more.

    Args:
      config: nested dicts, overrides applied.
      overrides: the dotted fields that were set on the command line, such as {"model.num_layers": 8}.
      workdir: the folder of the run; None: a new run.

    Raises ConfigError where the origin cannot be read, and where an override contradicts its model and is no
    conversion.
    """
    if not names_origin(config) or not all(isinstance(config.get(name), Mapping) for name in ("model", "data")):
        return dict(config)  # make_experiment names a section that is missing
    path = config["train"]["init_from"]
    taken = {} if workdir is None else _saved_fields(Workdir(workdir), path)
    taken = taken or _fields_of(open_origin(path), config, overrides)
    merged = {**config}
    for field, value in taken.items():
        section, _, name = field.partition(".")
        if field not in overrides:
            merged[section] = {**merged[section], name: value}
    return merged


def describe_taken(given: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Returns a line on the fields that `with_origin_fields` changed; [] if it changed none."""
    before, after = flatten(given), flatten(config)
    changed = [f"{field}={value}" for field, value in after.items() if before.get(field) != value]
    return [visible(f"of train.init_from={config['train']['init_from']}: {', '.join(changed)}")] if changed else []


def _saved_fields(workdir: Workdir, path: str) -> dict[str, Any]:
    """Returns the fields that the run in `workdir` took from `path`; {} if no run from there has a checkpoint here."""
    if not workdir.has_config or not workdir.steps():
        return {}
    saved = workdir.config_with_own_tokenizer()
    if missing_sections(saved) or saved["train"].get("init_from") != path:
        return {}
    lengths = ("inputs_length", "targets_length") if saved["model"].get("positions") == "learned" else ()
    of_data = (*VOCABULARY, *lengths)
    fields = {f"model.{name}": value for name, value in saved["model"].items() if name not in _OF_THE_RUN}
    values = {name: saved["data"][name] for name in of_data}
    return fields | {f"data.{name}": tuple(v) if isinstance(v, list) else v for name, v in values.items()}


def _fields_of(origin: Origin, config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the dotted fields that a run of `config` takes. Raises ConfigError for a contradiction."""
    fields = {name: getattr(origin.model, name) for name in config["model"] if hasattr(origin.model, name)}
    fields = {f"model.{name}": value for name, value in fields.items() if name not in _OF_THE_RUN}
    has_table = origin.model.positions == "learned"
    has_targets = origin.model.target_positions or config["model"].get("target_positions", False)
    if has_targets:
        fields["model.target_positions"] = True  # new where the origin has none: train/conversions.py
    if not has_table:
        del fields["model.max_length"]
    if overrides.get("model.architecture") == "decoder_only":
        del fields["model.num_token_types"]  # a decoder has none: train/init_from.py
    vocabulary = {f"data.{name}": value for name, value in origin.vocabulary.items()}
    if any(overrides.get(field, value) != value for field, value in vocabulary.items()):
        del fields["model.vocab_size"]  # other rows; the vocabularies are compared by their tokens
    for field, value in fields.items():
        if overrides.get(field, value) != value and field.partition(".")[2] not in CONVERTIBLE:
            raise ConfigError(
                f"--config.{field}={overrides[field]} contradicts {origin.where}, whose {field} is {value!r}, and no "
                "rule converts it: remove it"
            )
    if has_table and "model.max_length" not in overrides:
        lengths = {f"data.{name}": config["data"][name] for name in ("inputs_length", "targets_length")}
        longest = origin.model.max_length - has_targets  # the last token of a full row has a position too
        fields |= {name: longest for name, n in lengths.items() if n > longest}
    return fields | vocabulary
