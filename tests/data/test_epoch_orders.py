"""Random orders in blocks are those of one stable sort, and an epoch's order is computed once."""

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.rng import GOLDEN, mix64, seed_bits
from data.windows import epoch_orders
from data.windows.epoch_orders import EpochOrders, order_by
from files import mapped_arrays

KEYS = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 5), st.integers(2**64 - 3, 2**64 - 1))


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(mapped_arrays, "BLOCK", 7)
    monkeypatch.setattr(mapped_arrays, "IN_MEMORY_BYTES", 0)


@settings(deadline=None, max_examples=100)
@given(st.lists(KEYS, max_size=60), st.integers(1, 20))
def test_the_order_is_that_of_a_stable_sort(keys, block):
    """Of keys that are evenly distributed, and of keys that are not: all in one part, or equal."""
    keys = np.array(keys, np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped_arrays, "BLOCK", block)
        patch.setattr(mapped_arrays, "IN_MEMORY_BYTES", 0)
        order = order_by(keys.__getitem__, len(keys), Path())
    assert order.tolist() == np.argsort(keys, kind="stable").tolist()


def test_large_orders_are_those_of_a_stable_sort(tmp_path):
    """With the sizes of blocks that runs have."""
    keys = mix64(np.arange(5 * mapped_arrays.BLOCK + 3, dtype=np.uint64))
    np.testing.assert_array_equal(order_by(keys.__getitem__, len(keys), tmp_path), np.argsort(keys, kind="stable"))


def test_there_are_at_most_65536_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(mapped_arrays, "BLOCK", 1)
    monkeypatch.setattr(epoch_orders, "_MOST_PARTS_BITS", 3)
    keys = mix64(np.arange(100, dtype=np.uint64))
    np.testing.assert_array_equal(order_by(keys.__getitem__, 100, tmp_path), np.argsort(keys))


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (0, 1), (-3, 2), (2**70, 0)])
def test_an_order_is_the_sort_of_the_documents_by_their_hashes(seed, epoch, tmp_path, small_blocks):
    lengths = np.random.default_rng(0).integers(1, 50, 40)
    order, ends = EpochOrders(np.cumsum(lengths), tmp_path).of(seed, epoch)
    keys = mix64(np.uint64(seed_bits(seed, f"documents {epoch}")) + GOLDEN * np.arange(40, dtype=np.uint64))
    assert order.tolist() == np.argsort(keys).tolist()
    assert ends.tolist() == np.cumsum(lengths[np.argsort(keys)]).tolist()


def test_an_order_by_hand(tmp_path):
    """Runs of earlier versions have these orders, and must continue with them."""
    order, ends = EpochOrders(np.array([2, 5, 6, 10, 15]), tmp_path).of(7, 1)
    assert (order.tolist(), ends.tolist()) == ([1, 4, 3, 2, 0], [3, 8, 12, 13, 15])


def orders_that_count(tmp_path, monkeypatch):
    """The orders of five documents, and the list of the epochs that were computed."""
    computed, compute = [], EpochOrders._compute

    def counted(self, seed, epoch):
        computed.append(epoch)
        return compute(self, seed, epoch)

    monkeypatch.setattr(EpochOrders, "_compute", counted)
    return EpochOrders(np.arange(1, 6), tmp_path), computed


def test_threads_wait_for_the_one_that_computes_an_order(tmp_path, monkeypatch):
    orders, computed = orders_that_count(tmp_path, monkeypatch)
    begins, compute = threading.Barrier(4), epoch_orders.order_by

    def after_all_have_asked(*arguments):
        event.wait(60)
        return compute(*arguments)

    def ask():
        begins.wait(60)
        found.append(orders.of(0, 3))

    event, found = threading.Event(), []
    monkeypatch.setattr(epoch_orders, "order_by", after_all_have_asked)
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    event.set()
    for thread in threads:
        thread.join(60)
    assert computed == [3] and len(found) == 4 and all(order is found[0] for order in found)


def test_orders_that_no_reader_uses_are_dropped(tmp_path, monkeypatch):
    orders, computed = orders_that_count(tmp_path, monkeypatch)
    monkeypatch.setattr(epoch_orders, "_UNUSED", 5)
    first = orders.of(0, 0)
    for _ in range(3):
        orders.of(0, 1)
    assert orders.of(0, 0) is first
    for _ in range(6):
        orders.of(0, 1)
    again = orders.of(0, 0)
    assert computed == [0, 1, 0] and again is not first and again.documents.tolist() == first.documents.tolist()


def test_the_orders_that_were_used_last_are_kept(tmp_path, monkeypatch):
    orders, computed = orders_that_count(tmp_path, monkeypatch)
    monkeypatch.setattr(epoch_orders, "_EPOCHS", 2)
    for epoch in (0, 1, 0, 2, 0, 1):
        orders.of(0, epoch)
    assert computed == [0, 1, 2, 1]


def test_an_order_that_could_not_be_written_is_computed_again(tmp_path, monkeypatch):
    orders = EpochOrders(np.arange(1, 6), tmp_path)
    compute = epoch_orders.order_by
    monkeypatch.setattr(epoch_orders, "order_by", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        orders.of(0, 0)
    monkeypatch.setattr(epoch_orders, "order_by", compute)
    assert sorted(orders.of(0, 0).documents.tolist()) == [0, 1, 2, 3, 4]
