"""Eligible documents: which are kept, which are excluded, and what is an error."""

import numpy as np
import pytest

from contract.errors import ConfigError
from contract.windows import Capacity, WindowSpec
from data.windows.document_filter import check_classes, describe_excluded, eligible
from data.windows.windowing import make_reader
from tests.data.corpus import batches_of, examples_of_window
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
        ((ONE_STACK[0]._replace(least=4),), [[0, 2], [1], [3]]),  # 4, 8, 4, 5
        (TWO_STACKS, [[0, 3], [2]]),  # (1, 3), (2, 6), (1, 3), (3, 2) of (4, 5): document 1 is too long
    ],
)
def test_windows_are_rows_of_whole_documents(capacities, expected):
    reader = make_reader(PAIRS, whole(capacities, on_unusable="skip"))
    slices = reader.slices(np.zeros(len(reader), np.int64), np.arange(len(reader)))
    in_store = reader.documents.index[slices.documents]
    assert sorted(sorted(in_store[slices.windows == w].tolist()) for w in range(len(reader))) == expected
    assert slices.begins.all() and (slices.starts == PAIRS.store.offsets[in_store]).all()
    examples = [example for w in range(len(reader)) for example in examples_of_window(reader, w)]
    assert examples == [tuple(PAIRS.tokens(d).tolist()) for d in in_store]


def test_batches_of_whole_documents_have_prompt_lengths():
    windows = batches_of(PAIRS, [whole(ONE_STACK)], batch_size=3)[0]
    assert windows.tokens.shape == (4, 7)  # as wide as the longest document, and not as spec.raw_length
    assert windows.prompt_lengths.dtype == np.int32
    prompt_of_first = {10: 1, 20: 2, 30: 0, 40: 3}
    assert [prompt_of_first[first] for first in windows.tokens[:, 0]] == windows.prompt_lengths.tolist()
    assert sorted(np.bincount(windows.row_ids).tolist()) == [1, 1, 2]
    assert len(set(windows.keys.tolist())) == 4


def test_documents_too_long_for_a_row():
    message = (
        r"1 of 4 training documents are longer than a row \(the longest needs 6 positions of data\.targets_length=5\): "
        r"set data\.targets_length=6 or more, or set data\.on_unusable='skip' to exclude them"
    )
    with pytest.raises(ConfigError, match=message):
        eligible(PAIRS, whole(TWO_STACKS))
    kept, reasons = eligible(PAIRS, whole(TWO_STACKS, on_unusable="skip"))
    assert kept.index.tolist() == [0, 2, 3] and len(reasons) == 1
    assert reasons[0].startswith("1 of 4 training documents are longer than a row")
    small = tuple(capacity._replace(positions=2) for capacity in TWO_STACKS)
    message = (
        r"4 of 4 training .* \(the longest needs 3 positions of data\.inputs_length=2 and 6 positions of "
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


def test_labels_are_indices_of_classes():
    spec = labelled("sport", "news", on_unusable="skip")
    kept, reasons = eligible(LABELLED, spec)
    assert kept.index.tolist() == [0, 2, 3]
    assert reasons == [
        "1 of 4 training documents have a label that is not in objective.classes (most frequent: no label: 1)"
    ]
    assert describe_excluded(LABELLED, [spec, spec]) == reasons
    windows = batches_of(LABELLED, [spec], batch_size=4)[0]
    label_of_first = {10: 1, 11: 1, 12: 1, 30: 0, 40: 1}  # document 0 in two pieces, cut after 10 or after 11
    assert {10, 30, 40} < set(windows.tokens[:, 0].tolist()) and windows.labels.dtype == np.int32
    assert [label_of_first[first] for first in windows.tokens[:, 0].tolist()] == windows.labels.tolist()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            labelled("sport"),
            r"3 of 4 training documents have a label that is not in objective\.classes \(most frequent: 'news': 2, no "
            r"label: 1\): add the labels to objective\.classes, or set data\.on_unusable='skip' to exclude them$",
        ),
        (
            labelled("sports"),
            r"objective\.classes contains 'sports', and no document has that label: use labels of the corpus: 'news', "
            r"'sport'$",
        ),
    ],
)
def test_labels_without_class_and_classes_without_label(spec, message):
    with pytest.raises(ConfigError, match=message):
        check_classes([LABELLED.store], spec)
        eligible(LABELLED, spec)


def test_classes_of_several_corpora():
    others = pairs_of([[50]], [0], ["sports"])
    check_classes([LABELLED.store, others.store], labelled("sports", "news"))
    with pytest.raises(ConfigError, match=r"contains 'art', .*: use labels of the corpus: 'news', 'sport', 'sports'$"):
        check_classes([LABELLED.store, others.store], labelled("sports", "art"))
