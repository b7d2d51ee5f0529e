"""The teacher of `config.distillation`: a run or a Hugging Face folder whose predictions a model learns from."""

import dataclasses
import hashlib

import jax

from cluster.cluster import Cluster
from contract.errors import ConfigError, errors_naming
from experiment.experiment import Experiment, check_places
from experiment.positions import check_max_length
from huggingface.origin import Origin, fields_as_there, match_decoder_starts, open_teacher, place_of, shifted_targets
from huggingface.vocabulary import describe_differences, token_texts
from models.config import ModelConfig
from models.flops import hidden_flops, logits_flops, scored_length
from models.transformer import Params
from run.sharding import make_mesh, shardings
from workdir.checksums import checksums


def with_teacher(experiment: Experiment) -> Experiment:
    """Returns `experiment` with the teacher that its config names, if any, of which no array is read.

    The learner's `frozen_shapes` are then those of the teacher's parameters. With distillation.weight=0 the teacher is
    checked and takes no part.

    Raises ConfigError, one line, for a folder without a model that predicts tokens, another architecture or vocabulary,
    and a teacher that cannot read the rows of the run.
    """
    path = experiment.learner.setup.distillation.teacher
    return _with_teacher(experiment, open_teacher(path)) if path else experiment


def load_teacher(experiment: Experiment) -> tuple[Experiment, tuple[Params, ...]]:
    """Returns `with_teacher` and the arrays of its learner's `frozen_shapes`, on the mesh of the run's config.

    Of a run, the newest checkpoint is taken. The config of the experiment has a section "teacher" with its step and a
    digest of the parameters, which a run that continues compares. () with distillation.weight=0.

    Raises ConfigError as `with_teacher`, and where the mesh cannot divide the parameters.
    """
    with Cluster().check_equal():
        origin, mesh = open_teacher(experiment.learner.setup.distillation.teacher), make_mesh(experiment.mesh)
        experiment = _with_teacher(experiment, origin)
        frozen_shapes = experiment.learner.frozen_shapes
        with errors_naming(origin.where):
            shardings(mesh, frozen_shapes)  # raises where the mesh cannot divide them
    if not frozen_shapes:
        return experiment, ()
    params, step = origin.load(mesh)
    digest = hashlib.sha256(repr(sorted(checksums(params).items())).encode()).hexdigest()[:16]
    identity = {"parameters": digest} | ({} if step is None else {"step": step})
    of_step = "" if step is None else f", step {step:,}"
    teacher = experiment.teacher.replace(origin.where, f"{origin.where}{of_step}", 1)
    config = experiment.config | {"teacher": identity}
    return dataclasses.replace(experiment, config=config, teacher=teacher), ({"teacher": params},)


def _with_teacher(experiment: Experiment, origin: Origin) -> Experiment:
    setup, data = experiment.learner.setup, experiment.data
    options = setup.distillation
    # Its attention is as it was trained to be: causal, or with the inputs of a text seen at once.
    model = dataclasses.replace(
        origin.model,
        dtype=experiment.model.dtype,
        attention="auto",
        remat="none",
        dropout_rate=0.0,
        one_segment=experiment.model.one_segment,
    )
    notes = _check_vocabulary(experiment, origin)
    notes += _check_rows(experiment, model, origin)
    ids = min(model.vocab_size, experiment.model.vocab_size)
    if options.top_k >= ids:
        raise ConfigError(
            f"distillation.top_k={options.top_k} must be below {ids}, the rows of the output tables: set it to 0 to "
            "compare all tokens"
        )
    warnings = (*experiment.warnings, *notes)
    if not options.weight:
        described = f"{origin.where} is not loaded, because distillation.weight=0.0"
        return dataclasses.replace(experiment, teacher=described, warnings=warnings)
    learner = dataclasses.replace(experiment.learner, setup=dataclasses.replace(setup, teacher=model))
    num_params = sum(leaf.size for leaf in jax.tree.leaves(learner.frozen_shapes))
    tokens = f", its {options.top_k:,} likeliest tokens and the rest" * bool(options.top_k)
    positions = learner.num_logits(scored_length(model, data.inputs_length, data.targets_length))
    of_row = hidden_flops(model, data.inputs_length, data.targets_length) + logits_flops(model, positions)
    return dataclasses.replace(
        experiment,
        learner=learner,
        teacher=f"{origin.where}: {num_params / 1e6:,.2f}M parameters; weight {options.weight:g}, {options.divergence} "
        f"divergence at temperature {options.temperature:g}{tokens}",
        teacher_flops=experiment.train.batch_size * of_row,
        warnings=warnings,
    )


def _check_vocabulary(experiment: Experiment, origin: Origin) -> list[str]:
    """Returns notes. Raises ConfigError unless each id is the same token for the teacher."""
    differences = describe_differences(token_texts(experiment.tokenizer), token_texts(origin.tokenizer))
    if differences:
        raise ConfigError(
            f"{origin.where}: that {origin.kind} has another vocabulary: {differences}: set "
            f"{fields_as_there(origin, experiment)} as there, or choose a teacher of this vocabulary"
        )
    notes = match_decoder_starts(origin, experiment)
    if origin.tokenizer.fingerprint != experiment.tokenizer.fingerprint:
        notes.append(f"{origin.where} has the same tokens, but its tokenizer may divide a text into other tokens")
    return notes


def _check_rows(experiment: Experiment, model: ModelConfig, origin: Origin) -> list[str]:
    """Returns notes. Raises ConfigError where `model`, the teacher's, cannot read the rows of the run."""
    where, here = origin.where, experiment.model
    if model.architecture != here.architecture:
        raise ConfigError(
            f"{where}: model.architecture is {model.architecture!r} in that {origin.kind} and {here.architecture!r} "
            "here, and a teacher reads the same rows: choose a teacher of this architecture"
        )
    shifted = shifted_targets(experiment)
    if not shifted <= origin.shifted:
        raise ConfigError(
            f"{where}: that {origin.kind} predicts a token {place_of(origin.shifted)}, and here it is predicted "
            f"{place_of(shifted - origin.shifted)}: choose a teacher whose objective predicts tokens there"
        )
    if here.target_positions and not model.target_positions:
        raise ConfigError(
            f"{where}: that {origin.kind} has model.target_positions=False and does not know which token of a row is "
            "the next one: choose a teacher that was trained on texts in another order"
        )
    types = max(denoiser.objective.num_token_types for denoiser in experiment.denoisers)
    if 0 < model.num_token_types < types:  # a type without a row is NaN
        raise ConfigError(
            f"{where}: that {origin.kind} has model.num_token_types={model.num_token_types}, and rows here have tokens "
            f"of {types} types: choose a teacher with {types}, or with none"
        )
    with errors_naming(where):
        if model.positions == "learned":
            check_max_length(model, experiment.data)
        check_places(experiment.denoisers, model, experiment.data)
    if here.architecture == "decoder_only" and here.has_prefix and not model.has_prefix:
        return [f"{where} reads every row causally, while rows here also see later tokens"]
    return []
