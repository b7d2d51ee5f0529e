"""The optional columns: windows of other documents."""

import numpy as np
import pytest

from contract.errors import ConfigError
from contract.windows import WindowSpec
from data.windows.windowing import make_reader
from tests.data.corpus import all_documents, batches_of, examples_of_window, store_of
from tests.data.test_windows import documents_of

PAIRS = WindowSpec("pairs", 0.5, 4, "split", True, ("others",))
ALONE = WindowSpec("alone", 0.5, 6, "split", False)


def read(documents, specs, n=0, **changes):
    return batches_of(documents, specs, **({"batch_size": 40} | changes))[n]


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """Document d consists of 1 to 30 times letter d."""
    random = np.random.default_rng(0)
    texts = [chr(97 + d) * int(n) for d, n in enumerate(random.integers(1, 30, size=26))]
    return all_documents(store_of(tmp_path_factory.mktemp("corpus"), texts))


def test_others_are_windows_of_the_same_kind_of_another_document(documents):
    windows = read(documents, [PAIRS, ALONE])
    reader = make_reader(documents, PAIRS, seed=3)
    possible = {examples_of_window(reader, i, epoch)[0] for i in range(len(reader)) for epoch in range(50)}
    assert windows.others_tokens.dtype == windows.others_lengths.dtype == np.int32
    assert windows.others_tokens.shape == windows.tokens.shape == (40, 6)
    assert set(windows.denoiser_ids.tolist()) == {0, 1}
    for e in range(40):
        length = windows.others_lengths[e]
        assert (windows.others_tokens[e, length:] == 0).all()
        if windows.denoiser_ids[e] == 1:
            assert length == 0
            continue
        other = tuple(windows.others_tokens[e, :length].tolist())
        assert other in possible and not set(other) & set(windows.tokens[e, : windows.lengths[e]].tolist()) - {1}


@pytest.mark.parametrize("eos", [False, True])
def test_windows_at_the_ends_of_their_documents(documents, eos):
    """Windows of 4 tokens. With EOS, the last one of a document ends with it."""
    spec = WindowSpec("ends", 1.0, 4, "split", eos, ("begins_document", "ends_document"))
    windows = read(documents, [spec], batch_size=len(make_reader(documents, spec)))  # one epoch
    assert windows.begins_document.dtype == windows.ends_document.dtype == bool
    assert windows.begins_document.sum() == windows.ends_document.sum() == len(documents)
    assert not (windows.begins_document & windows.ends_document)[windows.lengths < 4].all()
    if eos:
        last = windows.tokens[np.arange(len(windows.lengths)), windows.lengths - 1]
        np.testing.assert_array_equal(windows.ends_document, last == 1)


def test_all_windows_of_the_other_documents_are_equally_likely():
    # Windows of two: document 0 has three, 1 has one, 2 has two.
    documents = documents_of([[10, 11, 12, 13, 14], [20], [30, 31, 32]])
    reader = make_reader(documents, WindowSpec("pairs", 1.0, 2, "split", False, ("others",)))
    starts = {0: [6, 8, 10], 1: [0, 2, 4, 8, 10], 2: [0, 2, 4, 6]}  # in the store, where an EOS follows each document
    keys = np.random.default_rng(0).integers(0, 2**63, 30_000).astype(np.uint64)
    for document, expected in starts.items():
        drawn = reader.others(np.full(len(keys), document), keys)
        found, counts = np.unique(drawn.starts, return_counts=True)
        assert found.tolist() == expected
        np.testing.assert_allclose(counts / len(keys), 1 / len(expected), atol=0.015)
        assert (drawn.documents != document).all()


def test_a_single_document_has_no_other():
    message = "'pairs' pairs texts of different documents, and there is one training document: add documents to"
    with pytest.raises(ConfigError, match=message):
        make_reader(documents_of([[10, 11, 12]]), PAIRS)
    with pytest.raises(ValueError, match="'pairs' requests 'others', which needs documents='split', not 'join'"):
        make_reader(documents_of([[10], [11]]), WindowSpec("pairs", 1.0, 1, "join", True, ("others",)))
