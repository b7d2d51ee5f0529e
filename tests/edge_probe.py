"""Classifiers that see only the lengths and the edge tokens of sentence pairs, for tests/test_pair_labels.py."""

import itertools

import numpy as np


def edges_of(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The lengths and edge tokens of the pairs in a batch of rows [CLS] A [SEP] B [SEP], int64 [n] each."""
    rows = np.flatnonzero(batch["sentence_labels"] >= 0)
    tokens, types = batch["encoder_target_tokens"][rows], batch["encoder_token_types"][rows]
    total, second = (batch["encoder_segment_ids"][rows] > 0).sum(axis=1) - 3, types.sum(axis=1) - 1
    first, row = total - second, np.arange(len(rows))
    features = {
        "tokens of A": first,
        "tokens of B": second,
        "tokens": total,
        "first of A": tokens[row, 1],
        "last of A": tokens[row, first],
        "first of B": tokens[row, first + 2],
        "last of B": tokens[row, total + 1],
    }
    return {name: values.astype(np.int64) for name, values in features.items()}


def probe(fit: tuple[dict, np.ndarray], test: tuple[dict, np.ndarray]) -> dict[str, float]:
    """The accuracy on `test` of classifiers fitted on `fit`, by name. Each side: the edges of n pairs, labels int [n].

    A table of the most frequent label for each value of each feature and of each pair of features.
    """
    names = list(fit[0])
    accuracies = {}
    for chosen in [*((name,) for name in names), *itertools.combinations(names, 2)]:
        cells, num_cells = _cells([[side[0][name] for name in chosen] for side in (fit, test)])
        votes = np.zeros(num_cells)
        np.add.at(votes, cells[0], 2 * fit[1] - 1)
        # Without a vote for or against it, a cell has the label 1 or 0 by its number's parity.
        predicted = np.where(votes[cells[1]] == 0, cells[1] % 2, votes[cells[1]] > 0)
        accuracies[" and ".join(chosen)] = float((predicted == test[1]).mean())
    return accuracies


def _cells(sides: list[list[np.ndarray]]) -> tuple[list[np.ndarray], int]:
    """The number of each example's combination of values, for both sides, and how many combinations there are."""
    columns = np.concatenate([np.stack(columns, axis=1) for columns in sides])
    distinct, cells = np.unique(columns, axis=0, return_inverse=True)
    return np.split(cells.ravel(), [len(sides[0][0])]), len(distinct)
