"""Held-out text that is training text: copies are counted, said and dropped, and text of other corpora is found."""

import numpy as np
import pytest

from contract.errors import ConfigError
from data.store import encode, write
from data.windows import leak_guard
from data.windows.documents import Documents
from data.windows.leak_guard import describe_copies, have_equal_documents, is_trained_on, near_duplicates
from data.windows.split import Split, split_documents
from tests.data.corpus import store_of
from tests.data.test_split import memory_store


def texts(count, seed=0):
    generator = np.random.default_rng(seed)
    return [" ".join(f"w{i}" for i in generator.integers(5000, size=300)) for _ in range(count)]


def edited(text):
    return text.replace(text.split()[150], "edited")


def sides(store, heldout):
    """Documents of the store with the given numbers held out, the others for training, in descending order."""
    is_heldout = np.isin(np.arange(len(store)), heldout)
    train = Documents(store, np.flatnonzero(~is_heldout)[::-1], "training")
    return train, Documents(store, np.flatnonzero(is_heldout), "held-out")


def test_copies_by_hand(tmp_path):
    a, b, c, d = texts(4)
    store = store_of(tmp_path, [a, edited(a), b, b, c, edited(c), edited(c) + " more", d])
    assert store.duplicate_ids.tolist() == [0, 1, 2, 2, 4, 5, 6, 7] and store.duplicate_ids.dtype == np.int64
    assert store.near_duplicate_pairs.tolist() == [[0, 1], [4, 5], [4, 6], [5, 6]]
    assert store.near_duplicate_pairs.dtype == np.int64
    train, heldout = sides(store, [1, 3, 4])
    kept, overlap = near_duplicates(train, heldout, "keep")
    assert kept is train
    assert (overlap.heldout, overlap.identical, overlap.near_identical, overlap.train) == (3, 1, 2, 4)
    assert str(overlap) == (
        "of 3 held-out documents, 1 are identical and 2 near-identical (Jaccard >= 0.8) to training "
        "documents; 4 copies in training (data.near_duplicates='drop' drops them)"
    )
    dropped, overlap = near_duplicates(train, heldout, "drop")
    assert dropped.index.tolist() == [7] and dropped.label == "training" and heldout.index.tolist() == [1, 3, 4]
    assert str(overlap).endswith("training documents; 4 copies in training dropped")
    assert describe_copies(store) == (
        "1 of 8 documents are identical to an earlier one, and 3 other ones are near-identical to one (Jaccard "
        "similarity >= 0.8)"
    )


def test_copies_are_found_in_a_group_of_which_not_all_pairs_are_compared(tmp_path):
    text, *others = texts(3)
    words = text.split()
    group = [" ".join([*words[:k], "edited", *words[k + 1 :]]) for k in range(100)]
    store = store_of(tmp_path, [*group, *others])
    assert [99, 98] not in store.near_duplicate_pairs[:, ::-1].tolist()
    train, heldout = sides(store, [99, 100])
    dropped, overlap = near_duplicates(train, heldout, "drop")
    assert (overlap.near_identical, overlap.train, dropped.index.tolist()) == (1, 99, [101])
    _, overlap = near_duplicates(*sides(store, [100, 101]), "keep")
    assert (overlap.near_identical, overlap.train) == (0, 0)


def test_the_split_leaves_near_identical_documents_on_both_sides_and_drop_removes_them(tmp_path):
    """The leak: the split keeps identical documents together, but not edited copies."""
    originals = texts(60)
    store = store_of(tmp_path, originals + list(map(edited, originals)))
    train, heldout = split_documents(store, Split(0.2, 0, "document"))
    leaked = set(heldout.index % 60) & set(train.index % 60)
    assert len(leaked) > 10
    _, overlap = near_duplicates(train, heldout, "keep")
    assert (overlap.identical, overlap.near_identical, overlap.train) == (0, len(leaked), len(leaked))
    dropped, _ = near_duplicates(train, heldout, "drop")
    assert not set(heldout.index % 60) & set(dropped.index % 60)
    assert len(dropped) == len(train) - len(leaked)


def test_beyond_the_limit_identical_documents_are_counted_and_drop_is_refused(tmp_path, monkeypatch):
    for owner in (encode, write, leak_guard):
        monkeypatch.setattr(owner, "MAX_DOCUMENTS", 3)
    a, b = texts(2)
    store = store_of(tmp_path, [a, edited(a), b, b])
    train, heldout = sides(store, [0, 2])
    _, overlap = near_duplicates(train, heldout, "keep")
    assert str(overlap) == (
        "of 2 held-out documents, 1 are identical (near-identical ones are not counted in corpora of more than 3 "
        "documents) to training documents; 1 copy in training"
    )
    assert "near-identical ones are not counted in corpora of more than 3" in describe_copies(store)
    with pytest.raises(ConfigError, match=r"data\.near_duplicates='drop' is for corpora of up to 3 documents.* has 4:"):
        near_duplicates(train, heldout, "drop")


def test_copies_of_the_second_of_two_identical_documents_are_found(tmp_path):
    a, b = texts(2)
    store = store_of(tmp_path, [a, b, a, edited(a), edited(a)])
    assert store.near_duplicate_pairs.tolist() == [[0, 3]]
    _, overlap = near_duplicates(*sides(store, [2]), "keep")
    assert (overlap.identical, overlap.near_identical, overlap.train) == (1, 0, 3)
    _, overlap = near_duplicates(*sides(store, [4]), "keep")
    assert (overlap.identical, overlap.near_identical, overlap.train) == (1, 0, 3)


def count_trained(documents, digests, train, heldout, *, text_bytes=200, not_by_chance=100):
    """is_trained_on, for documents and a run of documents (text, file)."""
    ours, theirs = (memory_store(*zip(*pairs, strict=True)) for pairs in (documents, digests))
    ours.text_bytes = np.full(len(documents), text_bytes)
    sides = (Documents(theirs, np.array(side, int), "x") for side in (train, heldout))
    documents = Documents(ours, np.arange(len(documents)), "held-out")
    return int(is_trained_on(documents, *sides, not_by_chance=not_by_chance).sum())


RUN = [(1, 10), (2, 10), (3, 20), (2, 20)]  # texts of two files; text 2 is in both


ONE_FILE = [(1, 10), (2, 10), (3, 10)]
OTHER_FILE = [(1, 30), (3, 30), (5, 30)]


@pytest.mark.parametrize(
    ("documents", "run", "train", "heldout", "options", "trained"),
    [
        (RUN, RUN, [0, 1], [2, 3], {}, 2),  # file 10 is on the training side, however it is cut
        ([(7, 10), (8, 20), (9, 20)], RUN, [0, 1], [2, 3], {}, 1),
        (RUN[2:], RUN, [0, 1], [2, 3], {}, 0),  # text 2 of the held-out file 20 is also a text of file 10
        (ONE_FILE, ONE_FILE, [0, 2], [1], {}, 2),  # a file that was split itself
        ([(8, 10), (9, 10)], ONE_FILE, [0, 2], [1], {}, 2),  # cut in another way: some part was read
        (OTHER_FILE, RUN, [0, 1], [2, 3], {}, 1),  # an equal text of another file, unless it is short
        (OTHER_FILE[:1], RUN, [0, 1], [2, 3], {"text_bytes": 99}, 0),
        # In one run every equal text, however short: of one corpus that another one of the same run reads.
        (OTHER_FILE, RUN, [0, 1], [2, 3], {"text_bytes": 1, "not_by_chance": None}, 1),
        (RUN[2:], RUN, [0, 1], [2, 3], {"not_by_chance": None}, 1),  # text 2 is on both sides
    ],
)
def test_documents_that_were_trained_on(documents, run, train, heldout, options, trained):
    assert count_trained(documents, run, train, heldout, **options) == trained


def test_equal_documents_are_those_of_equal_files_in_any_order():
    ours = memory_store([1, 2, 2], [5, 6, 6])
    assert have_equal_documents(ours, memory_store([2, 1, 2], [6, 5, 6]))
    for others in (([1, 2], [5, 6]), ([1, 1, 2], [5, 6, 6]), ([1, 2, 2], [5, 6, 7]), ([1, 2, 3], [5, 6, 6])):
        assert not have_equal_documents(ours, memory_store(*others))
    prompts, sides = memory_store([1, 2, 2], [5, 6, 6]), memory_store([1, 2, 2], [5, 6, 6])
    prompts.text_digests = prompts.text_digests + np.uint64(1)  # equal prompts before other texts
    sides.is_heldout = np.array([True, False, False])
    assert not have_equal_documents(ours, prompts) and not have_equal_documents(ours, sides)
