"""Facts about an experiment that follow from the config, as text, and its table of denoisers."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from command.plural import plural
from data.windows.document_filter import describe_excluded
from data.windows.documents import Documents, MixedDocuments
from experiment.experiment import Experiment
from run.corpus import describe_rates, of_corpus

_DOCUMENTS = {
    "join": "joined: a window continues across the ends of documents",
    "pack": "packed: each document's part of a window is a separate example",
    "split": "split: a window ends where its document ends",
    "whole": "whole: a window is as many documents as fit in a row, each a separate example",
}
_SHOWN_ELSEWHERE = ("name", "denoisers", "schedule", "begin_step", "end_step")


class DenoiserFacts(NamedTuple):
    """One denoiser of the objective, as text."""

    name: str
    mode: str
    share: str  # of the examples
    window: str
    objective: str
    fields: str


def experiment_facts(experiment: Experiment, documents: Documents | MixedDocuments) -> list[tuple[str, str]]:
    """Returns (name, value) of each fact about the objective, the architecture and the data."""
    data, config = experiment.data, experiment.config["objective"]
    own = _written({key: value for key, value in config.items() if key not in _SHOWN_ELSEWHERE})
    common = _common_fields(experiment)
    windows = f"{plural(experiment.row_shape.examples_per_row, 'window')} per row"
    windows += ", planned so that the row is full" if experiment.batch_spec.plan else ""
    notes = dict.fromkeys(denoiser.objective.device_note for denoiser in experiment.denoisers)
    return [
        ("objective", experiment.objective_name + (f", {own}" if len(experiment.denoisers) > 1 and own else "")),
        *_schedule(experiment),
        *([("all denoisers", _written(common))] if common else []),
        ("architecture", _architecture(experiment)),
        ("batch", f"{plural(experiment.train.batch_size, 'row')}, {windows}"),
        *_text_facts(experiment, documents),
        ("tokenizer", f"{data.tokenizer}, {experiment.vocab.size:,} ids"),
        *(("training step", note) for note in notes if note),
    ]


def _text_facts(experiment: Experiment, documents: Documents | MixedDocuments) -> list[tuple[str, str]]:
    """Returns (name, value) of the facts about each corpus, and about the rates of several."""
    data, facts = experiment.data, []
    handling: dict[str, list[str]] = {}  # names of the corpora with each value of data.documents
    for number, (name, own) in enumerate(data.of_corpora().items()):
        part, specs = documents.parts[number], [spec for spec in experiment.window_specs if spec.corpus == number]
        text = f"{own.source} {own.path}".strip() + f", {len(part):,} {part.label} documents"
        facts.append(("text", of_corpus(name) + text))
        facts += [("excluded", of_corpus(name) + what) for what in describe_excluded(part, specs)]
        handling.setdefault(specs[0].documents, []).append(name)
    if data.sources:
        facts.append(("rates", describe_rates(data, documents.factors)))
    for value, names in handling.items():
        of = f"{', '.join(names)}: " if len(handling) > 1 else ""
        facts.append(("windows", f"{of}documents are {_DOCUMENTS[value]}"))
    return facts


def layout_facts(experiment: Experiment) -> list[tuple[str, str]]:
    """Returns (name, value) of the facts about the objective and the architecture, without those of the text."""
    return [
        ("objective", experiment.objective_name),
        ("architecture", _architecture(experiment)),
        ("tokenizer", f"{experiment.data.tokenizer}, {experiment.vocab.size:,} ids"),
    ]


def denoiser_facts(experiment: Experiment, factors: Sequence[float] = ()) -> list[DenoiserFacts]:
    """Returns the objective's table of denoisers, divided by corpora; one row for one denoiser of one corpus.

    factors: MixedDocuments.factors; () where the corpora are not known, and with them the effect of data.rates.
    """
    specs, found = experiment.window_specs, []
    factor_of = [factors[spec.corpus] if factors else 1.0 for spec in specs]
    first, final = (
        sum(getattr(spec, field) * factor for spec, factor in zip(specs, factor_of, strict=True))
        for field in ("weight", "final_weight")
    )
    common = _common_fields(experiment)
    for k, (denoiser, spec, factor) in enumerate(zip(experiment.tasks, specs, factor_of, strict=True)):
        share = f"{spec.weight * factor / first:.1%}"
        share += f" → {spec.final_weight * factor / final:.1%}" if spec.ramp else ""
        share += " of tokens" if experiment.batch_spec.mix_by == "token" else ""
        objective = denoiser.objective
        names = [field.name for field in dataclasses.fields(objective) if field.name not in common]
        fields = _written({name: getattr(objective, name) for name in names})
        window = f"{experiment.window_length(k)} tokens" if spec.documents != "whole" else "whole documents"
        window += ", with EOS" if spec.eos else ""
        found.append(DenoiserFacts(denoiser.name, denoiser.mode, share, window, type(objective).__name__, fields))
    return found


def _architecture(experiment: Experiment) -> str:
    shape = experiment.row_shape
    stacks = {
        "encoder_decoder": f"encoder of {shape.inputs_length} positions, decoder of {shape.targets_length}",
        "encoder_only": f"encoder of {shape.inputs_length} positions",
        "decoder_only": f"decoder of {shape.inputs_length} positions, "
        f"data.bidirectional_inputs={experiment.data.bidirectional_inputs}",
    }
    return f"{shape.architecture}: {stacks[shape.architecture]}"


def _schedule(experiment: Experiment) -> list[tuple[str, str]]:
    if not any(spec.ramp for spec in experiment.window_specs):
        return []
    config = experiment.config["objective"]
    change = f"shares change linearly between steps {config['begin_step']:,} and {config['end_step']:,}"
    return [("schedule", f"{change}; held-out examples have the mean of the initial and the final shares")]


def _common_fields(experiment: Experiment) -> dict[str, Any]:
    """Returns the fields that have the same value in all denoisers; none if there is a single denoiser."""
    first, *others = [vars(denoiser.objective) for denoiser in experiment.denoisers]
    return {name: value for name, value in first.items() if others and all((name, value) in o.items() for o in others)}


def _written(fields: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in fields.items())
