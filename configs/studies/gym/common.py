"""What the studies of the gym have in common: one small model, and the share of exact answers."""

from collections.abc import Mapping, Sequence
from typing import Any

from configs.studies.base import probe, raw_tokens, study, success_rate, variant
from configs.studies.common import SHORT_RUNS, described, layers


def exact_match(group: str = "", **fields: Any) -> dict[str, Any]:
    """Returns the measure of the share of whole answers that are right, of one group of the task's or of all.

    fields: of the probe (order), and `only`.
    """
    metric = f"groups.{group}.exact_match" if group else "exact_match"
    return probe("exact_match", metric, better="higher", **fields)


SOLVED = {"exact": exact_match(), "solved": success_rate(exact_match(), at=0.9)}
BOTH_ORDERS = {
    "forward": exact_match("forward"),
    "backward": exact_match("backward"),
    "backward_learned": success_rate(exact_match("backward"), at=0.1),
}


def narrow_model(num_layers: int) -> dict[str, Any]:
    """Returns overrides for half the width, relative positions, larger initial values and AdamW.

    A model of this width learned MQAR in fewer updates with these than with those of configs/gym.
    """
    return layers(num_layers, d_model=64, num_heads=2) | {
        "model.positions": "relative",
        "model.initializer_range": 0.1,
        "optimizer.name": "adamw",
    }


def gym_study(
    docstring: str,
    task: str,
    objectives: Sequence[str],
    *,
    tokens: float = 2_000_000,
    measures: dict[str, dict] = SOLVED,
    published: Sequence[dict] = (),
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns a study of objectives on a task of configs/gym.

    Args:
      docstring: of the study's file: its first sentence is the question, and its last paragraph the notes.
      task: the config.
      objectives: its presets; the first is the baseline.
      tokens: that each run reads.
      measures, published, overrides: as in `study`.
    """
    configs = {name: f"configs/gym/{task}.py:{name}" for name in objectives}
    return study(
        **described(docstring),
        config=configs[objectives[0]],
        baseline=objectives[0],
        variants={name: variant(config=config) for name, config in configs.items()},
        budget=raw_tokens(tokens),
        measures=measures,
        overrides=SHORT_RUNS | dict(overrides or {}),
        published=published,
        # What an objective brings with it: its layout, and rows of whole instances for answers alone.
        varies=("model.architecture", "data.documents", "data.bidirectional_inputs"),
    )
