"""Held-out batches: every document, each window once, whatever the batch size, the processes and the run."""

import collections
import dataclasses

import numpy as np
import pytest

from contract.windows import BatchSpec, Capacity, Ramp, WindowSpec
from data.windows.heldout_batches import Heldout, visits
from data.windows.windowing import make_reader
from tests.data.corpus import all_documents, examples_of_window, store_of

SPECS = (WindowSpec("long", 0.75, 40, "join", True), WindowSpec("short", 0.25, 11, "join", False))


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """Thirty documents of 1 to 300 tokens, and one of 3000."""
    random = np.random.default_rng(0)
    lengths = [*random.integers(1, 300, size=29), 3000]
    texts = ["".join(map(chr, random.integers(97, 123, size=n))) for n in lengths]
    return all_documents(store_of(tmp_path_factory.mktemp("corpus"), texts))


def columns(windows, num_rows, groups):
    return {"tokens": windows.tokens, "keys": windows.keys, "groups": groups, "denoiser_ids": windows.denoiser_ids}


def heldout_of(documents, specs=SPECS, *, examples_per_row=1, mix_by="example", transform=columns, **changes):
    arguments = {"batch_size": 4, "seed": 0, "num_windows": 100} | changes
    spec = BatchSpec(tuple(specs), examples_per_row, 0, mix_by)
    return Heldout(documents, spec, transform, **({"local_rows": range(arguments["batch_size"])} | arguments))


def scored(heldout):
    """How often each example occurs, with its key and denoiser."""
    counts = collections.Counter()
    for n in range(heldout.batches.end):
        batch = heldout.batches[n]
        for tokens, key, denoiser_id in zip(batch["tokens"], batch["keys"], batch["denoiser_ids"], strict=True):
            if tokens.any():  # otherwise the process has no window in the batch
                counts[tuple(tokens.tolist()), int(key), int(denoiser_id)] += 1
    return counts


@pytest.mark.parametrize("spec", [*SPECS, WindowSpec("split", 1.0, 40, "split", False)])
def test_the_first_visits_reach_every_document(documents, spec):
    reader = make_reader(documents, spec)
    windows = visits(reader, 0, len(documents))
    slices = reader.slices(np.zeros(len(windows), np.int64), windows)
    assert set(slices.documents.tolist()) == set(range(len(documents)))
    everything = visits(reader, 0, len(reader))
    assert sorted(everything.tolist()) == list(range(len(reader)))
    for most in (1, 7, len(documents), len(reader) - 1, 10**6):
        assert visits(reader, 0, most).tolist() == everything[:most].tolist()
    assert visits(reader, 1, len(reader)).tolist() != everything.tolist()


@pytest.mark.parametrize("examples_per_row", [1, 3])
def test_the_batch_size_and_the_processes_do_not_change_what_is_scored(documents, examples_per_row):
    expected = scored(heldout_of(documents))
    assert sum(expected.values()) == 100 and max(expected.values()) == 1
    for batch_size in (1, 7, 16, 300):
        assert scored(heldout_of(documents, batch_size=batch_size, examples_per_row=examples_per_row)) == expected
    parts = [heldout_of(documents, batch_size=6, local_rows=rows) for rows in ([0, 3], [1, 2, 4], [5])]
    assert sum((scored(part) for part in parts), collections.Counter()) == expected


def test_a_denoisers_windows_do_not_depend_on_the_other_denoisers(documents):
    both = scored(heldout_of(documents, num_windows=100))
    alone = scored(heldout_of(documents, SPECS[:1], num_windows=50))

    def of_first(counts):
        return {(tuple(i for i in tokens if i), key) for tokens, key, denoiser_id in counts if denoiser_id == 0}

    assert of_first(both) == of_first(alone)


def test_all_windows(documents):
    heldout = heldout_of(documents, num_windows=0)
    readers = [make_reader(documents, spec) for spec in SPECS]
    assert heldout.num_windows.tolist() == list(map(len, readers))
    assert [heldout.documents_read([k]) for k in range(2)] == [30, 30] and heldout.documents_read([0, 1]) == 30
    found = collections.Counter()
    for (tokens, _, denoiser_id), count in scored(heldout).items():
        found[denoiser_id, tuple(i for i in tokens if i)] += count
    expected = [(k, examples_of_window(reader, i)[0]) for k, reader in enumerate(readers) for i in range(len(reader))]
    assert found == collections.Counter(expected)


def test_groups_are_the_places_of_the_examples_in_the_batch(documents):
    packed = WindowSpec("packed", 1.0, 40, "pack", True)
    heldout = heldout_of(documents, [packed], batch_size=3, num_windows=8)
    parts = [heldout_of(documents, [packed], batch_size=3, num_windows=8, local_rows=[r]) for r in range(3)]
    assert heldout.batches.end == 3 and heldout.num_groups % 3 == 0
    for n in range(3):
        examples, batch = heldout.examples(n), heldout.batches[n]
        assert examples.groups.tolist() == batch["groups"].tolist()
        assert len(set(examples.groups.tolist())) == len(examples.groups) and examples.groups.max() < heldout.num_groups
        of_parts = [part.batches[n]["groups"].tolist() for part in parts]
        if n < 2:
            assert [group for part in of_parts for group in part] == examples.groups.tolist()
        for document, tokens in zip(examples.documents, batch["tokens"], strict=True):
            begin, end = documents.store.offsets[document], documents.store.offsets[document + 1]
            assert tokens[0] in documents.store.tokens[begin:end]


def test_rows_without_a_window_are_empty(documents):
    def one_row_each(windows, num_rows, groups):
        return {"tokens": np.pad(windows.tokens, ((0, num_rows - len(windows.tokens)), (0, 0)))}

    heldout = heldout_of(documents, batch_size=16, num_windows=20, local_rows=[8, 9], transform=one_row_each)
    assert heldout.batches[0]["tokens"].any() and heldout.batches[1]["tokens"].shape == (2, 40)
    assert not heldout.batches[1]["tokens"].any()  # windows 16 to 19 are in rows 0 to 3 of other processes


def test_windows_of_whole_documents(documents):
    capacity = Capacity("data.inputs_length", 300, True, True, 0)
    spec = WindowSpec("sft", 1.0, 300, "whole", False, capacities=(capacity,), on_unusable="skip")
    heldout = heldout_of(documents, [spec], num_windows=0)
    assert heldout.documents_read([0]) == 29 and sum(scored(heldout).values()) == 29
    order = visits(make_reader(documents, spec), 0, 3)
    assert len(set(order.tolist())) == 3


def test_shares_are_those_of_the_raw_tokens_in_training(documents):
    np.testing.assert_allclose(heldout_of(documents, mix_by="token").shares, [0.75, 0.25])
    tokens = np.array([0.75 * 40, 0.25 * 11])
    np.testing.assert_allclose(heldout_of(documents).shares, tokens / tokens.sum(), rtol=0.01)
    ramps = (Ramp(0, 10, 0.25), Ramp(0, 10, 0.75))
    specs = [dataclasses.replace(spec, ramp=ramp) for spec, ramp in zip(SPECS, ramps, strict=True)]
    np.testing.assert_allclose(heldout_of(documents, specs, mix_by="token").shares, [0.5, 0.5])


def test_raw_tokens_are_those_of_the_scored_windows(documents):
    """With "split", a capped evaluation reads short documents first, so its windows are shorter than in training."""
    specs = [WindowSpec("a", 0.5, 200, "split", False), WindowSpec("b", 0.5, 20, "split", False)]
    heldout = heldout_of(documents, specs, num_windows=60, mix_by="token")
    np.testing.assert_allclose(heldout.shares, [0.5, 0.5])
    counts = np.zeros(2, int)
    for n in range(heldout.batches.end):
        batch = heldout.batches[n]
        np.add.at(counts, batch["denoiser_ids"], (batch["tokens"] > 0).sum(axis=1))
    assert heldout.num_raw_tokens.tolist() == counts.tolist() and heldout.num_windows.tolist() == [30, 30]


def test_documents_that_share_an_example(documents):
    joined = WindowSpec("joined", 1.0, 40, "join", True)
    heldout = heldout_of(documents, [joined], num_windows=0, batch_size=1000)
    examples = heldout.examples(0)
    assert len(examples.shared) and (examples.shared[:, 0] != examples.shared[:, 1]).all()
    expected = set()
    for window in range(int(heldout.num_windows[0])):
        touched = np.unique(np.repeat(np.arange(30), np.diff(documents.ends(True), prepend=0))[window * 40 :][:40])
        expected |= {(int(touched[0]), int(other)) for other in touched[1:]}
    assert set(map(tuple, examples.shared.tolist())) == expected
    packed = dataclasses.replace(joined, documents="pack")
    assert not len(heldout_of(documents, [packed]).examples(0).shared)
