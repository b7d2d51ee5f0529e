"""Batches of several corpora: realised shares, rows that depend on nothing else, and text of the right store."""

import numpy as np
import pytest

from contract.windows import BatchSpec, RowPlan, WindowSpec
from data.windows.documents import Documents, MixedDocuments
from data.windows.heldout_batches import Heldout
from tests.data.corpus import all_documents, batches_of, store_of

RATES = np.array([0.62, 0.27, 0.11])
# Every corpus has an alphabet of its own, and documents of its own lengths.
TEXTS = [["a" * 37, "bb" * 41, "c" * 5] * 4, ["x" * 11, "yz" * 9] * 5, ["1" * 97, "2" * 60, "345" * 30] * 3]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpora")
    return [store_of(folder / str(k), texts) for k, texts in enumerate(TEXTS)]


def mixed(stores, factors=(1.0, 1.0, 1.0)):
    return MixedDocuments([all_documents(store) for store in stores], factors)


def specs(weights, documents=("join", "split", "pack"), eos=False):
    return [
        WindowSpec(f"d/{k}", float(weight), 16, handling, eos, corpus=k)
        for k, (weight, handling) in enumerate(zip(weights, documents, strict=True))
    ]


@pytest.mark.parametrize("mix_by", ["example", "token"])
def test_realised_shares_are_the_rates(stores, mix_by):
    """Within 1 percentage point from 300 rows on, in any part of the run."""
    batches = batches_of(mixed(stores), specs(RATES), mix_by=mix_by, batch_size=1)
    for first, count in ((0, 300), (12_345, 300), (10**9, 1000)):
        counts = batches.count_windows(first, count)
        found = counts.windows if mix_by == "example" else counts.raw_tokens
        assert found / found.sum() == pytest.approx(RATES, abs=0.01), (first, count)


def test_factors_multiply_the_weights(stores):
    batches = batches_of(mixed(stores, (0.5, 1.0, 0.25)), specs((2.0, 1.0, 4.0)), batch_size=1)
    assert batches.count_windows(0, 300).windows.tolist() == [100, 100, 100]


def test_held_out_shares_have_the_factors_too(stores):
    spec = BatchSpec(tuple(specs((2.0, 1.0, 4.0))), 1, pad_id=0, mix_by="token")
    options = dict(batch_size=4, local_rows=range(4), seed=0, num_windows=0)
    assert Heldout(mixed(stores, (0.5, 1.0, 0.25)), spec, None, **options).shares == pytest.approx([1 / 3] * 3)


def test_windows_are_text_of_their_corpus(stores):
    batches = batches_of(mixed(stores), specs(RATES), examples_per_row=2)
    texts = ["".join(map(chr, store.tokens)) for store in stores]
    seen = set()
    for windows in map(batches.__getitem__, range(20)):
        for tokens, length, k in zip(windows.tokens, windows.lengths, windows.denoiser_ids, strict=True):
            window = "".join(map(chr, tokens[:length]))
            # Windows of joined documents (corpus 0) leave out the EOS between two of them.
            assert set(window) <= set(texts[0]) if k == 0 else window in texts[k]
            assert (tokens[length:] == 0).all()
            seen.add(int(k))
    assert seen == {0, 1, 2}


def test_each_corpus_is_read_once_per_epoch(stores):
    batches = batches_of(mixed(stores), specs(RATES, ("split",) * 3), batch_size=1)
    assert batches.epoch_tokens.tolist() == [int(all_documents(store).ends(False)[-1]) for store in stores]
    first_epoch = {k: int(n) for k, n in enumerate(batches.epoch_tokens)}
    read = np.zeros(3, np.int64)
    for n in range(2000):
        drawn = batches.draw(n, 1)
        [k] = drawn.denoiser_ids
        if read[k] < first_epoch[k]:
            read[k] += drawn.lengths.sum()
            assert read[k] <= first_epoch[k], "an epoch ends with a window"
    assert read.tolist() == list(first_epoch.values())


def test_planned_rows_join_windows_of_several_corpora(stores):
    ids = np.array([[0, 1, 2], [0, 0, 1]], np.int32)
    plan = RowPlan(ids, np.full((2, 3), 8, np.int32), np.zeros((2, 3), np.int32))
    documents = mixed(stores)
    batches = batches_of(documents, specs(RATES, ("join",) * 3), examples_per_row=3, plan=plan, batch_size=2)
    windows = batches[0]
    assert windows.denoiser_ids.tolist() == ids.ravel().tolist() and windows.row_ids.tolist() == [0, 0, 0, 1, 1, 1]
    for tokens, k in zip(windows.tokens, windows.denoiser_ids, strict=True):
        assert set(tokens[:8].tolist()) <= set(stores[k].tokens.tolist())


def test_one_corpus_in_a_table_is_read_as_it_is_alone(stores):
    alone = batches_of(all_documents(stores[0]), specs((1.0,), ("join",)))
    table = batches_of(MixedDocuments([all_documents(stores[0])], (0.3,)), specs((7.0,), ("join",)))
    for n in (0, 4):
        assert all(np.array_equal(a, b) for a, b in zip(alone[n], table[n], strict=True) if a is not None)


def test_held_out_documents_of_several_stores_have_numbers_of_their_own(stores):
    spec = BatchSpec(tuple(specs(RATES, ("join", "split", "pack"))), 1, pad_id=0)
    documents = mixed(stores)

    def transform(windows, num_rows, groups):
        return {"groups": groups}

    heldout = Heldout(documents, spec, transform, batch_size=4, local_rows=range(4), seed=0, num_windows=0)
    numbers = {k: set() for k in range(3)}
    for n in range(heldout.batches.end):
        examples = heldout.examples(n)
        for number, k in zip(examples.documents.tolist(), examples.denoiser_ids.tolist(), strict=True):
            numbers[k].add(number)
        of_shared = np.searchsorted(np.cumsum([len(store) for store in stores]), examples.shared, side="right")
        assert (of_shared == examples.shared_by[:, None]).all(), "no window is text of two corpora"
    first = np.cumsum([0, *map(len, stores)])
    for k, store in enumerate(stores):
        assert numbers[k] <= set(range(first[k], first[k] + len(store))) and len(numbers[k]) > 5
        assert heldout.documents_read([k]) == len(store)
        texts = store.tokens[heldout.places(10**6, k)]
        assert len(texts) == heldout.num_raw_tokens[k] and set(texts.tolist()) <= set(store.tokens.tolist())
    assert heldout.documents_read([0, 1, 2]) == sum(map(len, stores))
    counts = np.array([7, first[1] + 2, first[2] + 1])
    assert documents.in_text(counts).tolist() == [1.0, 1.0, 1.0]
    covered = MixedDocuments([Documents(store, np.arange(len(store)), "x") for store in stores], RATES)
    assert covered.bytes_covered() == 1.0 and len(covered) == sum(map(len, stores))
