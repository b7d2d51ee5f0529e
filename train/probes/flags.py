"""The flags of probes: which probe `python -m train.evaluate` runs, and with what fields."""

import dataclasses
from typing import Any

from absl import flags

from contract.errors import ConfigError
from train.probes import PROBES, Probe

_HELP = {  # flag -> the text of --help; defaults are those of the probes' fields
    "path": "minimal_pairs: a JSON-lines file with 'good' and 'bad' in each line.",
    "group": "minimal_pairs: the key of a pair's group. Default: group, if there.",
    "score": "minimal_pairs: log_likelihood or pseudo_log_likelihood. Default: as the model allows.",
    "unit": "minimal_pairs, pseudo_log_likelihood: what is hidden at a time: token or word. Default: token.",
    "mode": "Mode token, such as [S], of the layout. Default: that of the first suitable denoiser.",
}
_INTEGERS = {
    "limit": "minimal_pairs: the most pairs of a group. Default: all.",
    "num_documents": "Probes of held-out text: the number of documents. Default: 256.",
    "places": "Probes of held-out text: the most windows of a document. Default: 4.",
    "length": "Probes of held-out text: tokens in a window. Default: 96.",
}


def define_probe_flags(flag_values: flags.FlagValues) -> None:
    """Defines --probe and the flags of the probes."""
    names = ", ".join(PROBES)
    flags.DEFINE_string("probe", None, f"Asks a question of the model instead: {names}.", flag_values)
    for name, text in _HELP.items():
        flags.DEFINE_string(name, None, text, flag_values)
    for name, text in _INTEGERS.items():
        flags.DEFINE_integer(name, None, text, flag_values=flag_values)
    flags.DEFINE_list("spans", None, "infilling: tokens of a hidden span. Default: 3,8,32.", flag_values)
    flags.DEFINE_boolean("all", False, "Probes of held-out text: all documents.", flag_values)


def make_probe(flag_values: flags.FlagValues) -> Probe | None:
    """Returns the probe of the command line, or None without --probe.

    Raises ConfigError for an unknown probe, and for a flag that the probe does not have.
    """
    name = flag_values["probe"].value
    given = {flag: flag_values[flag].value for flag in (*_HELP, *_INTEGERS, "spans") if flag_values[flag].present}
    if flag_values["all"].value:
        given["all"] = True
    if name is None:
        if given:
            raise ConfigError(f"--{next(iter(given))} needs --probe: add --probe={' or '.join(PROBES)}, or remove it")
        return None
    if name not in PROBES:
        raise ConfigError(f"--probe={name} must be {', '.join(PROBES)}")
    fields = {field.name for field in dataclasses.fields(PROBES[name])}
    for flag in given:
        if (flag if flag != "all" else "num_documents") not in fields:
            raise ConfigError(f"--{flag} has no effect on --probe={name}: remove it")
    return PROBES[name](**_values(given))


def _values(given: dict[str, Any]) -> dict[str, Any]:
    """The probe's fields of the given flags."""
    if given.pop("all", False):
        if "num_documents" in given:
            raise ConfigError("--all and --num_documents exclude each other: remove one")
        given["num_documents"] = None
    if "spans" in given:
        try:
            given["spans"] = tuple(map(int, given["spans"]))
        except ValueError:
            raise ConfigError(f"--spans={','.join(given['spans'])} must be integers, as in --spans=3,8,32") from None
    return given
