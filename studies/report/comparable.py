"""Which runs of a study can be compared."""

from collections.abc import Iterable

from contract.errors import ConfigError
from studies.results import Results
from studies.study import Study

# Overrides that change over which tokens a run's own loss is, how the loss is computed, or the vocabulary.
_SCORED_BY = (
    "objective.",
    "loss.",
    "data.tokenizer",
    "data.num_sentinels",
    "data.mode_tokens",
    "data.append_special_tokens",
    "data.decoder_start_token",
    "data.inputs_length",
    "data.targets_length",
    "data.documents",
    "data.examples_per_row",
    "data.packing",
    "data.on_unusable",
    "model.architecture",  # a single stack's rows hold inputs and targets, so its windows have other lengths
)


def is_own(study: Study, measure: str) -> bool:
    """Returns whether each run is scored on its own objective, and the measured variants differ in objective."""
    fields = study.measures[measure]
    if fields["kind"] not in ("heldout", "tokens_to_loss") or fields.get("config"):
        return False
    return objectives_differ(study, fields.get("only") or study.variants)


def objectives_differ(study: Study, variants: Iterable[str]) -> bool:
    """Returns whether the own losses of `variants` are over different tokens, or may be.

    They may be if the variants have different configs or presets, or different overrides of fields that change the
    loss or its tokens. Two configs that set such fields to the same values count as different.
    """
    return len({_objective(study, variant) for variant in variants}) > 1


def _objective(study: Study, name: str) -> str:
    """What decides about the tokens of the variant's own loss, as text."""
    variant = study.variants[name]
    fields = study.overrides | variant.overrides | variant.sweep
    scored_by = sorted((field, repr(value)) for field, value in fields.items() if field.startswith(_SCORED_BY))
    return repr((study.config_of(name), scored_by))


def check_same_heldout(results: Results) -> None:
    """Raises ConfigError if two runs were scored on different held-out text."""
    for outcome in results.outcomes:
        first = results.outcomes[0]
        if outcome.heldout_digest != first.heldout_digest:
            raise ConfigError(
                f"study {results.name}: the runs of {first.variant}, seed {first.seed}, and {outcome.variant}, seed "
                f"{outcome.seed}, hold out different text (heldout_digest {first.heldout_digest} and "
                f"{outcome.heldout_digest}), so their values do not compare: give all variants the same fields "
                "data.source, path, heldout_fraction, split_seed, split_by and heldout_path"
            )
