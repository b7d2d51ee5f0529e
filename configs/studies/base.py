"""The parts of a study, as plain dicts. studies/study.py checks them.

A file of configs/studies has a function get_study() that returns `study(...)`:

    def get_study():
        return study(
            question="Does the masking rate matter?",
            config="configs/mlm.py",
            baseline="mask_15",
            variants={
                "mask_15": variant(),
                "mask_40": variant({"objective.mask_rate": 0.4}),
            },
            budget=raw_tokens(4_000_000),
            measures={"loss": heldout_loss(config="configs/mlm.py")},
        )

A name of a variant or measure has lower-case letters, digits and underscores. A config is written as on the command
line, with an optional preset; overrides are {"objective.mask_rate": 0.4}, as in --config.objective.mask_rate=0.4.
"""

from collections.abc import Mapping, Sequence
from typing import Any

Overrides = Mapping[str, Any] | None  # field -> value
Names = Sequence[str]  # of variants


def study(
    *,
    question: str,
    config: str,
    baseline: str,
    variants: Mapping[str, dict],
    budget: dict[str, Any],
    measures: Mapping[str, dict],
    overrides: Overrides = None,
    seeds: int | None = None,
    published: Sequence[dict] = (),
    notes: str = "",
    same_model: str = "",
    varies: Sequence[str] = (),
    sweep: Mapping[str, Sequence[Any]] | None = None,
) -> dict[str, Any]:
    """Returns a study.

    The question is about `config.objective` and the fields that overrides and sweeps of variants name. A field in which
    the variants that do not name it differ, because they have other configs or starts, is a confounder, and so are
    sweeps over other values: the dry run and the report list it, and the report's headline names it.

    Args:
      question: what the study answers, one sentence; the title of its report.
      config: of the variants that do not name one.
      baseline: the variant with which all others are compared.
      variants: name -> `variant(...)`.
      budget: `raw_tokens(...)` or `flops(...)`: how much each run trains.
      measures: name -> `heldout_loss(...)` and so on. The first one decides about the learning rates of a sweep.
      overrides: fields of every run, before the variant's own.
      seeds: runs of each variant: `seed` is 0, ..., seeds - 1. None: 5, or 8 where a measure is a success rate.
      published: `published(...)` results of the literature, to compare with.
      notes: what a reader must know to read the results, such as what differs from a paper; a paragraph of the report.
      same_model: a config whose model, initialization, precision, optimizer, lengths of rows and batch size all runs
        have, unless overrides say otherwise; "": each run has those of its own config.
      varies: further fields that the question is about, or that follow from it, such as "data.targets_length".
      sweep: one field -> three values or more, which every variant tries first, as in `variant(sweep=...)`.
    """
    if seeds is None:
        seeds = 8 if any("success_at" in fields for fields in measures.values()) else 5
    return dict(
        question=question,
        config=config,
        baseline=baseline,
        variants={name: dict(fields) for name, fields in variants.items()},
        budget=budget,
        measures={name: dict(fields) for name, fields in measures.items()},
        overrides=dict(overrides or {}),
        seeds=seeds,
        published=tuple(map(dict, published)),
        notes=notes,
        same_model=same_model,
        varies=tuple(varies),
        sweep=dict(sweep or {}),
    )


def variant(
    overrides: Overrides = None,
    *,
    config: str = "",
    start: dict[str, Any] | None = None,
    sweep: Mapping[str, Sequence[Any]] | None = None,
) -> dict[str, Any]:
    """Returns a variant of a study.

    Args:
      overrides: fields of its runs.
      config: "": the study's.
      start: `stage(...)`, an earlier run from which the variant's run starts (train.init_from). The earlier run has the
        seed of the other variants' runs, and the later one another seed, so that it reads the text in another order.
      sweep: one field of `optimizer` -> its values. Each value is tried once, with a seed that the study does not use
        otherwise, and the value with the best first measure is the variant's. These runs are measured on validation
        text (data.heldout), which is not the text that the study reports.
    """
    return dict(overrides=dict(overrides or {}), config=config, start=start, sweep=dict(sweep or {}))


def stage(config: str, share: float, overrides: Overrides = None) -> dict[str, Any]:
    """Returns the first part of a variant's training, which has `share` of the budget, above 0 and below 1."""
    return dict(config=config, share=share, overrides=dict(overrides or {}))


def raw_tokens(amount: float) -> dict[str, Any]:
    """Returns a budget of tokens of training text, whatever part of them is hidden or scored."""
    return dict(unit="raw_tokens", amount=float(amount))


def flops(amount: float) -> dict[str, Any]:
    """Returns a budget of model FLOPs (models/flops.py): forward and backward passes, without recomputation."""
    return dict(unit="flops", amount=float(amount))


def heldout_loss(
    *, config: str = "", overrides: Overrides = None, metric: str = "loss", better: str = "", only: Names = ()
) -> dict[str, Any]:
    """Returns the measure `metric` of train.evaluate, under the run's own config or under a common one.

    config: the config under which all runs are scored, as in `train.evaluate --config`. "": the run's own, which
      compares runs of one objective alone.
    better: "higher" or "lower"; "": that of the metric's name, `better_of`.
    only: the variants that are measured, where the measure does not fit all; (): all variants. Without the study's
      baseline, the first of them is the baseline of this measure.
    """
    return dict(
        kind="heldout",
        config=config,
        overrides=dict(overrides or {}),
        metric=metric,
        better=better or better_of(metric),
        only=tuple(only),
    )


def better_of(metric: str) -> str:
    """Returns which values of a metric, such as "labels.500.accuracy" or "loss/clm", are better: "higher" or "lower".

    "" for a metric of another name than those of cloze, whose study must say it.
    """
    name = metric.split(".")[-1].partition("/")[0]
    if name.endswith(("accuracy", "exact_match", "f1", "precision", "recall")):
        return "higher"
    return "lower" if name.endswith(("loss", "perplexity", "per_byte", "stderr")) else ""


def probe(
    name: str,
    metric: str,
    *,
    better: str = "",
    config: str = "",
    overrides: Overrides = None,
    only: Names = (),
    **fields: Any,
) -> dict[str, Any]:
    """Returns the measure `metric` of `train.evaluate --probe=NAME`, such as probe("continuation", "bits_per_byte").

    metric: a field of the probe's JSON line; "spans.8.exact_match" is a field within a field.
    config, overrides: the layout in which the model is scored; "": the run's own.
    better, only: as in `heldout_loss`.
    fields: of the probe (evaluation/probes), such as num_documents=64.
    """
    return dict(
        kind="probe",
        probe=name,
        metric=metric,
        better=better or better_of(metric),
        config=config,
        overrides=dict(overrides or {}),
        only=tuple(only),
        fields=dict(fields),
    )


def fine_tuning(
    metric: str = "accuracy",
    *,
    config: str = "configs/classification.py",
    overrides: Overrides = None,
    better: str = "",
    only: Names = (),
) -> dict[str, Any]:
    """Returns the measure `metric` of the last evaluation of a run of `config` that starts from the variant's run.

    The fine-tuned model has the shape, the vocabulary, the precision and the seed of the variant's run, and a decoder
    has the attention over inputs of its training: causal, unless its inputs saw each other. Measures with
    the same config and overrides share one run. A study also fine-tunes from the initial weights, with each of its
    seeds: the floor of this measure. better, only: as in `heldout_loss`.
    """
    return dict(
        kind="fine_tuning",
        config=config,
        overrides=dict(overrides or {}),
        metric=metric,
        better=better or better_of(metric),
        only=tuple(only),
    )


def throughput() -> dict[str, Any]:
    """Returns the measure of raw tokens of text per second of training steps, without compilation and evaluations."""
    return dict(kind="throughput", better="higher")


def success_rate(measure: Mapping[str, Any], at: float) -> dict[str, Any]:
    """Returns the measure of the share of seeds that succeed, for a task that a run learns or does not learn.

    A run succeeds if its value of `measure`, such as probe("exact_match", ...), is at least `at` where higher values
    are better, and at most `at` where lower ones are. A run that diverged or has no value has failed.
    """
    return dict(measure) | dict(success_at=float(at))


def published(
    source: str,
    *,
    measure: str,
    metric: str,
    values: Mapping[str, float] | None = None,
    better_than: Sequence[tuple[str, str]] = (),
    better: str = "higher",
    sd: float = 0.0,
) -> dict[str, Any]:
    """Returns a result of the literature.

    Args:
      source: paper and table.
      measure: the measure of the study whose order of variants is compared with the paper's.
      metric: what the paper measures, such as "GLUE".
      values: variant -> the paper's value, the baseline's among them; the order of each variant and the baseline is
        compared.
      better_than: further pairs (variant, variant); the paper says that the first is better.
      better: "higher" or "lower", of `values`.
      sd: the paper's standard deviation between runs, in units of `values`; 0: not given. A difference of `values` is
        an order only if it is at least two standard deviations of a difference, 2 sqrt(2) sd. Without sd, or without
        the values of a pair, the report shows what these runs say, and counts neither agreement nor disagreement.
    """
    return dict(
        source=source,
        measure=measure,
        metric=metric,
        values=dict(values or {}),
        better_than=tuple(map(tuple, better_than)),
        better=better,
        sd=float(sd),
    )
