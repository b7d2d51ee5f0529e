"""The train/held-out split, and reading documents by number."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ConfigError
from data.documents import split_by_digest, split_documents
from tests.data.corpus import store_of


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=60).filter(lambda digests: len(set(digests)) > 1),
    st.floats(0.001, 0.999),
    st.integers(-(2**70), 2**70),
)
def test_sides_are_disjoint_complete_and_never_share_a_text(digests, fraction, seed):
    digests = np.array(digests, np.uint64)
    train, heldout = split_by_digest(digests, fraction, seed)
    assert sorted([*train, *heldout]) == list(range(len(digests)))
    assert len(train) and len(heldout)
    assert not set(digests[train].tolist()) & set(digests[heldout].tolist())
    again = split_by_digest(digests, fraction, seed)
    assert train.tolist() == again[0].tolist() and heldout.tolist() == again[1].tolist()


def test_the_fraction_is_of_the_distinct_documents():
    digests = np.repeat(np.arange(1000, dtype=np.uint64), 3)
    train, heldout = split_by_digest(digests, 0.05, seed=0)
    assert (len(heldout), len(train)) == (150, 2850)


def test_another_seed_is_another_split_in_another_order():
    digests = np.arange(1000, dtype=np.uint64)
    (train, heldout), (other_train, other_heldout) = (split_by_digest(digests, 0.1, seed) for seed in (0, 1))
    assert len(set(heldout.tolist()) & set(other_heldout.tolist())) < 30  # 10 by chance
    assert (train[:50] != other_train[:50]).sum() > 40


def test_neighbours_in_a_side_are_not_neighbours_on_disk_and_copies_are_apart():
    digests = np.concatenate([np.arange(1000), np.zeros(200)]).astype(np.uint64)
    train, heldout = split_by_digest(digests, 0.1, seed=0)
    side = train if 0 in train else heldout
    assert (np.abs(np.diff(train)) == 1).mean() < 0.02
    copies = np.flatnonzero(digests[side] == 0)
    assert len(copies) == 201 and (np.diff(copies) == 1).mean() < 3 * 201 / len(side)


def test_the_split_does_not_depend_on_the_order_on_disk():
    digests = np.arange(100, dtype=np.uint64)
    _, heldout = split_by_digest(digests, 0.2, seed=3)
    _, reversed_heldout = split_by_digest(digests[::-1], 0.2, seed=3)
    assert set(digests[heldout].tolist()) == set(digests[::-1][reversed_heldout].tolist())


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_fractions_that_leave_a_side_empty(fraction):
    with pytest.raises(ConfigError, match=r"data\.heldout_fraction=.* must lie between 0 and 1"):
        split_by_digest(np.arange(4, dtype=np.uint64), fraction, 0)


@pytest.mark.parametrize(("count", "found"), [(1, "one document"), (3, "3 equal documents")])
def test_one_document_cannot_be_split(count, found):
    message = rf"data\.heldout_fraction=0\.5 needs two different documents, and the corpus has {found}: set data\."
    with pytest.raises(ConfigError, match=message):
        split_by_digest(np.zeros(count, np.uint64), 0.5, 0)


def test_documents_by_hand(tmp_path):
    store = store_of(tmp_path, ["a", "bc", "def"])
    train, heldout = split_documents(store, 0.3, seed=0)
    assert (len(train), len(heldout), train.label, heldout.label) == (2, 1, "training", "held-out")
    for documents in (train, heldout):
        lengths = []
        for i, d in enumerate(documents.index):
            assert documents.tokens(i).tolist() == [ord(c) + 3 for c in ["a", "bc", "def"][d]]
            assert documents.name(i).endswith(f"00{d}.txt")
            lengths.append(d + 1)
        assert documents.ends(False).tolist() == np.cumsum(lengths).tolist()
        assert documents.ends(True).tolist() == np.cumsum(np.array(lengths) + 1).tolist()
