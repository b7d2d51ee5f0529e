"""Documents that a spec can use: what stays, what is left out, and what is refused."""

import numpy as np
import pytest

from contract.errors import ConfigError
from contract.windows import Capacity, WindowSpec
from data.batches import batches
from data.batches import excluded as left_out_of
from data.eligible import eligible
from data.windows import WindowReader
from tests.data.test_windows import documents_of

EOS = 1
ONE_STACK = (Capacity("data.inputs_length", 8, True, True, 1),)
TWO_STACKS = (Capacity("data.inputs_length", 4, True, False, 0), Capacity("data.targets_length", 5, False, True, 1))


def pairs_of(texts, prompts, labels=None):
    documents = documents_of(texts)
    documents.store.prompt_lengths = np.asarray(prompts, np.int32)
    documents.store.labels = list(dict.fromkeys(labels or [""]))
    documents.store.label_ids = np.asarray([documents.store.labels.index(label) for label in labels or [""]], np.int32)
    return documents


def whole(capacities, **changes):
    extra_columns = ("prompt_lengths",)
    return WindowSpec("sft", 1.0, 4, "whole", False, extra_columns, capacities=capacities, **changes)


PAIRS = pairs_of([[10, 11, 12], [20, 21, 22, 23, 24, 25, 26], [30, 31], [40, 41, 42, 43]], [1, 2, 0, 3])


@pytest.mark.parametrize(
    ("capacities", "expected"),
    [
        (ONE_STACK, [[0], [1], [2, 3]]),  # positions 4, 8, 3, 5 of 8
        (TWO_STACKS, [[0, 3], [2]]),  # (1, 3), (2, 6), (1, 3), (3, 2) of (4, 5): document 1 is too long
    ],
)
def test_windows_are_rows_of_whole_documents(capacities, expected):
    reader = WindowReader(PAIRS, whole(capacities, on_unusable="skip"))
    segments = reader.segments(np.arange(len(reader)))
    in_store = reader.documents.index[segments.documents]
    assert sorted(sorted(in_store[segments.windows == w].tolist()) for w in range(len(reader))) == expected
    assert segments.begins.all() and (segments.starts == PAIRS.store.offsets[in_store]).all()
    examples = [piece.tolist() for w in range(len(reader)) for piece in reader.read(w)]
    assert examples == [PAIRS.tokens(d).tolist() for d in in_store]


def test_batches_of_whole_documents_tell_their_prompts():
    spec = whole(ONE_STACK)
    arguments = {"batch_size": 3, "examples_per_row": 1, "seed": 0, "shuffle": False, "rows": range(3), "pad_id": 0}
    windows = batches(PAIRS, [spec], lambda windows, rows: windows, **arguments)[0]
    assert windows.tokens.shape == (4, 7)  # as wide as the longest document, and not as spec.raw_length
    assert windows.prompt_lengths.dtype == np.int32
    prompt_of_first = {10: 1, 20: 2, 30: 0, 40: 3}
    assert [prompt_of_first[first] for first in windows.tokens[:, 0]] == windows.prompt_lengths.tolist()
    assert sorted(np.bincount(windows.row_ids).tolist()) == [1, 1, 2]
    assert len(set(windows.keys.tolist())) == 4


def test_documents_too_long_for_a_row():
    message = (
        r"1 of 4 training documents are too long to stand whole in a row \(the longest takes 6 positions of "
        r"data\.targets_length=5\): set data\.targets_length=6 or more, or data\.on_unusable='skip' to leave them out"
    )
    with pytest.raises(ConfigError, match=message):
        eligible(PAIRS, whole(TWO_STACKS))
    kept, excluded = eligible(PAIRS, whole(TWO_STACKS, on_unusable="skip"))
    assert kept.index.tolist() == [0, 2, 3] and len(excluded) == 1
    assert excluded[0].startswith("1 of 4 training documents are too long to stand whole in a row")
    small = tuple(room._replace(positions=2) for room in TWO_STACKS)
    message = (
        r"4 of 4 training .* \(the longest takes 3 positions of data\.inputs_length=2 and 6 positions of "
        r"data\.targets_length=2\): set data\.inputs_length=3 and data\.targets_length=6 or more$"
    )
    with pytest.raises(ConfigError, match=message):
        eligible(PAIRS, whole(small, on_unusable="skip"))


def test_a_corpus_without_prompts():
    documents = pairs_of([[10], [11]], [0, 0])
    with pytest.raises(ConfigError, match=r"'sft' learns responses to prompts, and no document has a prompt: set"):
        eligible(documents, whole(ONE_STACK))


LABELLED = pairs_of([[10, 11, 12], [20], [30, 31], [40]], [0] * 4, ["news", "", "sport", "news"])


def labelled(*classes, **changes):
    return WindowSpec("classification", 1.0, 2, "split", False, ("labels",), classes=classes, **changes)


def test_labels_are_numbers_of_the_classes_named():
    spec = labelled("sport", "news", on_unusable="skip")
    kept, excluded = eligible(LABELLED, spec)
    assert kept.index.tolist() == [0, 2, 3]
    assert excluded == [
        "1 of 4 training documents have a label that is none of objective.classes (mostly: none at all 1)"
    ]
    assert left_out_of(LABELLED, [spec, spec]) == excluded
    arguments = {"batch_size": 4, "examples_per_row": 1, "seed": 0, "shuffle": False, "rows": range(4), "pad_id": 0}
    windows = batches(LABELLED, [spec], lambda windows, rows: windows, **arguments)[0]
    label_of_first = {10: 1, 12: 1, 30: 0, 40: 1}  # document 0 in two pieces
    assert sorted(windows.tokens[:, 0].tolist()) == sorted(label_of_first) and windows.labels.dtype == np.int32
    assert [label_of_first[first] for first in windows.tokens[:, 0].tolist()] == windows.labels.tolist()


def test_the_first_windows_with_labels_are_of_many_documents():
    documents = pairs_of([[10 + d] * 50 for d in range(20)], [0] * 20, [str(d) for d in range(20)])
    spec = labelled(*map(str, range(20)))
    arguments = {"batch_size": 25, "examples_per_row": 1, "seed": 0, "shuffle": False, "rows": range(25), "pad_id": 0}
    dataset = batches(documents, [spec], lambda windows, rows: windows.labels, **arguments)
    assert len(set(dataset[0].tolist())) > 10
    assert np.bincount(np.concatenate([dataset[n] for n in range(20)])).tolist() == [25] * 20  # each window once


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            labelled("sport"),
            r"3 of 4 training documents have a label that is none of objective\.classes \(mostly: 'news' 2, none at "
            r"all 1\): add their labels there, or data\.on_unusable='skip' to leave them out$",
        ),
        (
            labelled("sports"),
            r"objective\.classes names 'sports', and no document has that label: use some of 'news', 'sport'$",
        ),
    ],
)
def test_labels_that_are_no_classes_and_classes_that_are_no_labels(spec, message):
    with pytest.raises(ConfigError, match=message):
        eligible(LABELLED, spec)


def test_a_corpus_without_labels():
    with pytest.raises(ConfigError, match=r"no document has that label: set data\.source to 'stdlib', or 'jsonl' with"):
        eligible(PAIRS, labelled("news"))
