"""Batch n is a function of (arguments, n), and not of the processes, the threads or the first batch that is read."""

import collections
import dataclasses

import numpy as np
import pytest

from contract.windows import RowPlan, WindowSpec
from data.windows.batches import loader
from data.windows.windowing import make_reader
from tests.data.corpus import all_documents, batches_of, examples_of_window, store_of

PAD = 0
SPECS = (
    WindowSpec("short", 0.5, 6, "join", False, ("quantiles",)),
    WindowSpec("long", 0.25, 9, "join", True),
    WindowSpec("never", 0.0, 11, "split", True),
    WindowSpec("packed", 0.25, 8, "pack", True, ("quantiles",)),
)
PAIRS = (WindowSpec("pairs", 0.6, 5, "split", False, ("others",)), WindowSpec("alone", 0.4, 9, "split", True))
PLAN = RowPlan(  # two rows; two specs with two window lengths each
    denoiser_ids=np.array([[0, 1, 1], [1, 0, 0]], np.int32),
    raw_lengths=np.array([[4, 6, 7], [6, 5, 4]], np.int32),
    variant_ids=np.array([[0, 0, 1], [1, 0, 0]], np.int32),
)


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    random = np.random.default_rng(0)
    texts = ["".join(map(chr, random.integers(97, 123, size=n))) for n in random.integers(1, 30, size=80)]
    return all_documents(store_of(tmp_path_factory.mktemp("corpus"), texts))


def as_dict(windows, num_rows):
    columns = {name: column for name, column in windows._asdict().items() if column is not None}
    return {**columns, "num_rows": np.array(num_rows)}


def sums_of_rows(windows, num_rows):
    """The sum of each row's windows, and of their keys: arrays [rows, ...], like those of a batch."""
    tokens, keys = np.zeros((num_rows, windows.tokens.shape[1]), np.int64), np.zeros(num_rows, np.uint64)
    np.add.at(tokens, windows.row_ids, windows.tokens)
    np.add.at(keys, windows.row_ids, windows.keys)
    return {"tokens": tokens, "keys": keys}


def dataset(documents, specs=SPECS, transform=as_dict, **changes):
    return batches_of(documents, specs, transform, **changes)


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def examples_of(batch):
    return [tuple(row[:n].tolist()) for row, n in zip(batch["tokens"], batch["lengths"], strict=True)]


def test_shapes_dtypes_and_padding(documents):
    batch = dataset(documents)[0]
    count = len(batch["lengths"])
    assert count >= 8 and batch["tokens"].shape == (count, 11)  # 11: the longest raw length, drawn or not
    dtypes = {name: batch[name].dtype for name in batch}
    assert [dtypes[name] for name in ("tokens", "lengths", "row_ids", "denoiser_ids")] == [np.int32] * 4
    assert dtypes["keys"] == np.uint64 and batch["num_rows"] == 8
    assert (np.diff(batch["row_ids"]) >= 0).all() and set(batch["row_ids"].tolist()) == set(range(8))
    beyond = np.arange(11) >= batch["lengths"][:, None]
    assert (batch["tokens"][beyond] == PAD).all() and (batch["tokens"][~beyond] != PAD).all()
    raw_length = np.array([spec.raw_length for spec in SPECS])[batch["denoiser_ids"]]
    assert ((batch["lengths"] >= 1) & (batch["lengths"] <= raw_length)).all()


@pytest.mark.parametrize("processes", [2, 4, 8])
@pytest.mark.parametrize(
    ("specs", "changes"),
    [
        (SPECS, {}),
        (SPECS, {"examples_per_row": 3}),
        (PAIRS, {"examples_per_row": 2}),
        (SPECS[:2], {"examples_per_row": 3, "plan": PLAN}),
    ],
)
def test_processes_read_parts_of_one_batch(documents, processes, specs, changes):
    whole = dataset(documents, specs, **changes)
    share = 8 // processes
    parts = [dataset(documents, specs, **changes, local_rows=range(p, p + share)) for p in range(0, 8, share)]
    for n in (57, 0, 1):
        read = [part[n] for part in parts]
        for p, batch in enumerate(read):
            assert batch.pop("num_rows") == share
            batch["row_ids"] = batch["row_ids"] + p * share
        together = {name: np.concatenate([batch[name] for batch in read]) for name in read[0]}
        expected = whole[n]
        expected.pop("num_rows")
        assert_equal(together, expected)


def test_the_batch_size_does_not_change_the_examples(documents):
    small, large = dataset(documents, batch_size=4), dataset(documents, batch_size=12)
    for name in ("tokens", "lengths", "keys", "denoiser_ids"):
        threes = np.concatenate([small[n][name] for n in range(3)])
        np.testing.assert_array_equal(threes, large[0][name])


@pytest.mark.parametrize("threads", [0, 1, 2, 5])
@pytest.mark.parametrize("rows", [range(8), [1, 2, 6]])
def test_loader_yields_the_batches_in_order_from_any_start(documents, threads, rows):
    batches_ = dataset(documents, transform=sums_of_rows, local_rows=rows)
    for start in (0, 7, 10**9):
        iterator = loader(batches_, start=start, threads=threads, prefetch=4)
        for n in range(start, start + 12):
            assert_equal(next(iterator), batches_[n])


def test_quantiles_are_evenly_spread_over_a_batch(documents):
    """Over its windows; the pieces of packed windows are spread too, by their numbers. Other examples have 0."""
    batch = dataset(documents, specs=SPECS[3:], batch_size=40)[3]
    piece = np.arange(len(batch["row_ids"])) - np.searchsorted(batch["row_ids"], batch["row_ids"])
    assert piece.max() >= 2
    for number in range(2):
        offsets = (batch["quantiles"] - batch["row_ids"] / 40)[piece == number] % 1.0
        np.testing.assert_allclose(offsets, offsets[0], atol=1e-12)
    np.testing.assert_allclose(np.diff(np.sort(batch["quantiles"][piece == 0])), 1 / 40, atol=1e-12)
    mixed = dataset(documents, batch_size=40)[3]
    assert (mixed["quantiles"][mixed["denoiser_ids"] == 1] == 0).all()
    assert (mixed["quantiles"][mixed["denoiser_ids"] != 1] > 0).all()


def test_quantiles_depend_on_the_batch_of_training_and_not_on_how_many_rows_are_read(documents):
    small, large = (dataset(documents, batch_size=rows, evenly_over=12) for rows in (4, 12))
    threes = np.concatenate([small[n]["quantiles"] for n in range(3)])
    np.testing.assert_array_equal(threes, large[0]["quantiles"])
    np.testing.assert_array_equal(threes, small.read(0, 3)["quantiles"])


def test_every_window_once_an_epoch_in_a_new_order(documents):
    spec = WindowSpec("only", 1.0, 7, "split", False)
    reader = make_reader(documents, spec, seed=3)
    batches_ = dataset(documents, specs=(spec,), batch_size=1)
    epochs = [[examples_of(batches_[n])[0] for n in range(e * len(reader), (e + 1) * len(reader))] for e in range(3)]
    for e, epoch in enumerate(epochs):
        expected = [example for i in range(len(reader)) for example in examples_of_window(reader, i, e)]
        assert collections.Counter(epoch) == collections.Counter(expected)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_keys_depend_on_the_example_and_the_piece(documents):
    batch = dataset(documents, batch_size=200)[0]
    assert len(set(batch["keys"].tolist())) == len(batch["keys"])
    pieces = np.bincount(batch["row_ids"])
    assert pieces.max() >= 2  # of a packed window
    # The same example has the same key in a run with the same seed, another order and other windows.
    other = dataset(documents, specs=SPECS[:1], batch_size=200)[0]
    first_piece = np.diff(batch["row_ids"], prepend=-1) > 0
    np.testing.assert_array_equal(batch["keys"][first_piece], other["keys"])
    assert not set(dataset(documents, seed=4)[0]["keys"].tolist()) & set(batch["keys"].tolist())
    assert not set(dataset(documents)[1]["keys"].tolist()) & set(dataset(documents)[0]["keys"].tolist())


@pytest.mark.slow
def test_planned_rows_follow_the_plan(documents):
    planned = dataset(documents, SPECS[:2], examples_per_row=3, batch_size=5, plan=PLAN)
    readers = {
        (denoiser_id, length): make_reader(
            documents, dataclasses.replace(SPECS[denoiser_id], raw_length=length), seed=3
        )
        for denoiser_id, length in [(0, 4), (0, 5), (1, 6), (1, 7)]
    }
    drawn = collections.Counter()
    for n in range(6):
        batch = planned[n]
        rows = np.arange(5 * n, 5 * (n + 1)) % 2
        for name, column in (("denoiser_ids", PLAN.denoiser_ids), ("variant_ids", PLAN.variant_ids)):
            np.testing.assert_array_equal(batch[name], column[rows].ravel())
        assert batch["row_ids"].tolist() == np.repeat(np.arange(5), 3).tolist()
        planned_ids, planned_lengths = PLAN.denoiser_ids[rows].ravel().tolist(), PLAN.raw_lengths[rows].ravel().tolist()
        for example, *key in zip(examples_of(batch), planned_ids, planned_lengths, strict=True):
            reader = readers[*key]  # each spec reads each length in windows of its own
            epoch, _ = divmod(drawn[*key], len(reader))
            assert example in [examples_of_window(reader, i, epoch)[0] for i in range(len(reader))]
            drawn[*key] += 1


@pytest.mark.parametrize(
    ("specs", "changes"),
    [(SPECS, {}), (SPECS, {"examples_per_row": 3, "local_rows": [1, 6]}), (PAIRS, {}), (PAIRS, {"plan": PLAN})],
)
def test_counts_are_those_of_all_rows_of_the_batches(documents, specs, changes, monkeypatch):
    if "plan" in changes:
        changes = {"plan": PLAN, "examples_per_row": 3}
    counted = dataset(documents, specs, **changes)
    whole = dataset(documents, specs, **{name: value for name, value in changes.items() if name != "local_rows"})
    windows = [whole[n] for n in range(3, 40)]
    ids, lengths = (np.concatenate([batch[name] for batch in windows]) for name in ("denoiser_ids", "lengths"))
    monkeypatch.setattr("data.windows.batches._COUNTED_AT_ONCE", 20)
    counts = counted.count_windows(3, 37)
    assert counts.examples.tolist() == np.bincount(ids, minlength=len(specs)).tolist()
    assert counts.raw_tokens.tolist() == np.bincount(ids, lengths, len(specs)).astype(int).tolist()
    assert all(column.dtype == np.int64 for column in counts)
