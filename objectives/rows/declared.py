"""Checks that examples are as their objective declares: models, rows and learners have the size that it declares."""

import functools

import numpy as np

from objectives.objective import InputsTargets, Masked, Objective
from objectives.rows.lengths import OutputLengths


def check_declared(
    objective: Objective, examples: InputsTargets | Masked, lengths: np.ndarray, chosen: slice = slice(None)
) -> None:
    """Raises TypeError where examples have more than the objective declares, with the member to define.

    Such examples would not fit their rows, or the learner would compute the logits of some of their targets alone.

    Args:
      objective: the objective that made the examples `chosen`.
      examples: E examples.
      lengths: int [E], of the windows that became the examples.
      chosen: the examples to check.
    """
    if isinstance(examples, Masked):
        _check_fields(objective, examples)
        made = {"both": examples.inputs.lengths, "most_scored": examples.selected.sum(axis=1)}
        what = {"both": "makes {} positions", "most_scored": "selects {} positions"}
    else:
        inputs, targets = examples.inputs.lengths, examples.targets.lengths
        made = {"inputs": inputs, "targets": targets, "both": inputs + targets, "most_scored": targets}
        what = {
            "inputs": "makes {} inputs",
            "targets": "makes {} targets",
            "both": "makes {} inputs and targets",
            "most_scored": "makes {} targets",
        }
    lengths = lengths[chosen]
    bounds = _bounds(objective, 1 << int(lengths.max()).bit_length())
    for name, counts in made.items():
        counts = counts[chosen]
        most = bounds[name][lengths]
        if (counts > most).any():
            e = int((counts - most).argmax())
            member = name if name == "most_scored" else "output_lengths"
            declared = f"{most[e]}" if name == "most_scored" else f"{most[e]} for {name}"
            raise TypeError(
                f"{type(objective).__name__}.corrupt {what[name].format(counts[e])} of a window of {lengths[e]} "
                f"tokens, and {member} returns {declared}: define {member}"
            )


def _check_fields(objective: Objective, examples: Masked) -> None:
    undeclared = {
        "has_attention_order": examples.attention_order is not None and not objective.has_attention_order,
        "num_token_types": examples.token_types is not None and not objective.num_token_types,
    }
    for name, is_undeclared in undeclared.items():
        if is_undeclared:
            raise TypeError(
                f"{type(objective).__name__}.corrupt sets a field of Masked that needs {name}: define {name}"
            )


@functools.lru_cache(maxsize=256)
def _bounds(objective: Objective, count: int) -> dict[str, np.ndarray]:
    """Returns what the objective declares for windows of 0 to count - 1 tokens, int [count] each."""
    raw = np.arange(1, count)
    declared: OutputLengths = objective.output_lengths(raw)
    bounds = declared._asdict() | {"most_scored": objective.most_scored(raw)}
    return {name: np.concatenate([[0], values]) for name, values in bounds.items()}
