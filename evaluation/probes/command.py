"""Probes on the command line of train.evaluate: their flags, whether a probe fits a run, and its answer."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from absl import flags
from jax.sharding import Mesh

from contract.errors import ConfigError
from evaluation.probes import PROBES
from evaluation.probes.probe import ALL, Probe
from evaluation.scorer import LanguageModel, Side
from experiment.config import from_mapping
from experiment.experiment import Experiment
from models.parameters import Params
from run.corpus import Corpora
from run.restore import language_model, not_a_language_model, transformer_alone

# Flag of a field of the probes -> the text of --help; types and defaults are those of the fields.
_FIELDS = {
    "path": "minimal_pairs: a JSON-lines file with 'good' and 'bad' in each line. exact_match: one with 'prompt' and "
    "'response'; default: the held-out documents with a prompt. linear: one with 'text' and 'label', of the labelled "
    "texts.",
    "order": "exact_match, masks: which is filled in first: margin, probability, entropy, left_to_right, random or "
    "once (all together). Default: margin; once for teacherless.",
    "test": "linear: a JSON-lines file with 'text' and 'label', of the texts that are scored.",
    "labels": "linear: numbers of labelled texts, or all. Default: 100,500,all.",
    "draws": "linear: draws of so many labelled texts. Default: 5. continuation and infilling, of masked diffusion: "
    "hidden parts of each span. Default: 32.",
    "pooling": "linear: mean, first or last state of a text. Default: mean.",
    "group": "minimal_pairs: the key of a pair's group. Default: group, if there.",
    "score": "minimal_pairs: log_likelihood or pseudo_log_likelihood. Default: what the model has.",
    "unit": "minimal_pairs, pseudo_log_likelihood: what is hidden at a time: token or word. Default: token.",
    "mode": "Mode token, such as [S], of the layout. Default: that of the first suitable denoiser.",
    "num_documents": "Probes of held-out text: the number of documents. Default: 256.",
    "windows_per_document": "Probes of held-out text: the most windows of a document. Default: 4.",
    "length": "Probes of held-out text: tokens in a window. Default: 96.",
    "text_only": "Probes of held-out text: probabilities among tokens of text, without sentinels, mode tokens, EOS and "
    "other special tokens. Default: among all tokens.",
    "spans": "infilling: tokens of a hidden span. Default: 3,8,32.",
}


def define_probe_flags(flag_values: flags.FlagValues) -> None:
    """Defines --probe and the flags of the probes."""
    flags.DEFINE_string("probe", None, f"Computes a probe instead: {', '.join(PROBES)}.", flag_values)
    defaults = {field.name: field.default for probe in PROBES.values() for field in dataclasses.fields(probe)}
    define = {bool: flags.DEFINE_boolean, int: flags.DEFINE_integer, tuple: flags.DEFINE_list}
    for name, text in _FIELDS.items():
        define.get(type(defaults[name]), flags.DEFINE_string)(name, None, text, flag_values=flag_values)
    flags.DEFINE_boolean("all", False, "Score all held-out windows; with a probe, all documents.", flag_values)


def probe_of_flags(flag_values: flags.FlagValues) -> Probe | None:
    """Returns the probe of the command line, or None without --probe. Raises ConfigError as `make_probe` does."""
    name = flag_values["probe"].value
    given = {flag: flag_values[flag].value for flag in _FIELDS if flag_values[flag].present}
    if name is None:
        if given:
            raise ConfigError(f"--{next(iter(given))} needs --probe: add --probe={' or '.join(PROBES)}, or remove it")
        return None
    if flag_values["all"].value:
        given["num_documents"] = ALL
    try:
        if "spans" in given:
            given["spans"] = tuple(map(int, given["spans"]))
    except ValueError:
        raise ConfigError(f"--spans={','.join(given['spans'])} must be integers, as in --spans=3,8,32") from None
    try:
        return make_probe(name, given)
    except ConfigError as error:
        raise ConfigError(re.sub(r"(config field )?\bprobe\.", "--", str(error))) from error


def make_probe(name: str, fields: Mapping[str, Any]) -> Probe:
    """Returns the probe `name`. Raises ConfigError for an unknown one, for an unknown field and for a wrong value."""
    if name not in PROBES:
        raise ConfigError(f"probe={name!r} must be {', '.join(PROBES)}")
    defaults = {field.name: field.default for field in dataclasses.fields(PROBES[name])}
    return from_mapping(PROBES[name], defaults | dict(fields), "probe")


def check_probe(probe: Probe, experiment: Experiment) -> None:
    """Raises ConfigError, before anything slow, if the probe does not fit the run or its fields cannot work."""
    if probe.needs_language_model and experiment.learner.language_model(experiment.params_shapes) is None:
        raise not_a_language_model(experiment)
    if probe.sides and not probe.denoisers(experiment):
        raise _does_not_fit(probe, experiment)
    probe.check(experiment)


def answer(probe: Probe, experiment: Experiment, params: Params, corpora: Corpora | None, mesh: Mesh) -> dict[str, Any]:
    """Returns the JSON fields of a probe's answer.

    Args:
      probe: one that has passed `check_probe`.
      experiment: of the run, or of the other config.
      params: of `experiment`.
      corpora: of the run or of the other config, for a probe that reads the corpus.
      mesh: over whose devices rows are split.

    Raises ConfigError as `Probe.measure` does.
    """
    read = language_model if probe.needs_language_model else transformer_alone
    return {"probe": probe.name} | probe.measure(LanguageModel(*read(experiment, params), mesh), corpora)


_CAN: dict[Side, str] = {
    "left": "continues a text",
    "both": "fills in hidden tokens and sees the text on both sides of them",
    "bound": "is trained on masked diffusion",
}


def _does_not_fit(probe: Probe, experiment: Experiment) -> ConfigError:
    fitting = [f"--probe={name}" for name, other in PROBES.items() if other(mode=probe.mode).denoisers(experiment)]
    remedy = f"use {' or '.join(fitting)}" if fitting else "no probe fits"
    mode = f" with --mode={probe.mode!r}" if probe.mode is not None else ""
    return ConfigError(
        f"--probe={probe.name} needs a model that {' or '.join(_CAN[side] for side in probe.chosen_sides)}, which "
        f"objective.name={experiment.objective_name!r}{mode} on {experiment.model.architecture} does not train: "
        f"{remedy}, or another layout with --config"
    )
