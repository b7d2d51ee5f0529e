"""What the studies of the gym have in common: one small model, and the share of exact answers."""

from collections.abc import Sequence
from typing import Any

from configs.studies.base import probe, raw_tokens, study, variant
from configs.studies.common import SHORT_RUNS


def exact_match(group: str = "", **fields: Any) -> dict[str, Any]:
    """Returns the measure of the share of whole answers that are right, of one group of the task's or of all.

    fields: of the probe (order), and `only`.
    """
    metric = f"groups.{group}.exact_match" if group else "exact_match"
    return probe("exact_match", metric, better="higher", **fields)


def gym_study(
    task: str,
    objectives: Sequence[str],
    *,
    question: str,
    tokens: float,
    measures: dict[str, dict],
    published: Sequence[dict] = (),
    notes: str,
) -> dict[str, Any]:
    """Returns a study of objectives on a task of configs/gym.

    Args:
      task: the config.
      objectives: its presets; the first is the baseline.
      tokens: that each run reads.
      question, measures, published, notes: as in `study`.
    """
    configs = {name: f"configs/gym/{task}.py:{name}" for name in objectives}
    return study(
        question=question,
        config=configs[objectives[0]],
        baseline=objectives[0],
        variants={name: variant(config=config) for name, config in configs.items()},
        budget=raw_tokens(tokens),
        measures=measures,
        overrides=SHORT_RUNS,
        published=published,
        notes=notes,
        # What an objective brings with it: its layout, and rows of whole instances for answers alone.
        varies=("model.architecture", "data.documents", "data.bidirectional_inputs"),
    )
