"""Windows of held-out text: the same for every run, in a random order over all documents, and disjoint."""

import numpy as np
import pytest

from contract.errors import ConfigError
from data.windows.documents import Documents
from evaluation.probes.continuation import Continuation
from evaluation.probes.heldout import heldout_windows
from run.compiled_run import make_run
from tests.table import small_experiment


@pytest.fixture(scope="module")
def documents(corpus):
    """The held-out side of a small corpus, 15 documents."""
    data = {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}
    experiment = small_experiment("clm", "decoder_only", **data, data__heldout_fraction=0.5)
    return make_run(experiment, show_progress=False).heldout_documents


def text_of(window):
    return window.tokens.tobytes()


def test_windows_are_disjoint_pieces_of_their_document_without_its_first_token(documents):
    windows = heldout_windows(documents, count=None, places=3, length=50, shortest=2)
    by_document = [[w for w in windows if w.document == k] for k in range(len(documents))]
    assert [len(own) for own in by_document] == [3] * len(documents)  # modules of thousands of bytes
    texts = {documents.tokens(i).astype(np.int32).tobytes() for i in range(len(documents))}
    for own in by_document:
        [text] = [text for text in texts if all(text_of(window) in text[4:] for window in own)]
        starts = sorted(text.index(text_of(window)) // 4 for window in own)
        assert starts[0] >= 1 and min(np.diff(starts)) >= 50


def test_windows_are_functions_of_the_documents_alone(documents):
    shuffled = Documents(documents.store, documents.index[::-1], documents.label)
    first = heldout_windows(documents, count=6, places=2, length=40, shortest=2)
    assert list(map(text_of, first)) == list(
        map(text_of, heldout_windows(shuffled, count=6, places=2, length=40, shortest=2))
    )
    # More documents are added at the end, and the windows of a document do not depend on the others.
    more = heldout_windows(documents, count=8, places=2, length=40, shortest=2)
    assert list(map(text_of, more[: len(first)])) == list(map(text_of, first))


def test_the_first_documents_are_a_random_choice(documents):
    """The order on disk is that of the modules' names."""
    windows = heldout_windows(documents, count=None, places=1, length=40, shortest=2)
    texts = {documents.tokens(i)[1:].astype(np.int32).tobytes(): documents.name(i) for i in range(len(documents))}
    names = [next(name for text, name in texts.items() if text_of(window) in text) for window in windows]
    assert sorted(names) == sorted(texts.values()) and names != sorted(names)


def test_places_are_spread_over_the_document(documents):
    """Over many documents and windows, each part of a document is chosen about equally often."""
    places = []
    for window in heldout_windows(documents, count=None, places=20, length=30, shortest=2):
        for i in range(len(documents)):
            text = documents.tokens(i).astype(np.int32).tobytes()
            if text_of(window) in text:
                places.append(text.index(text_of(window)) / len(text))
                break
    shares = np.histogram(places, bins=4, range=(0, 1))[0] / len(places)
    assert len(places) > 250 and (abs(shares - 0.25) < 0.07).all()


def test_hidden_spans_leave_a_token_on_both_sides_and_vary(documents):
    windows = heldout_windows(documents, count=None, places=10, length=12, shortest=10)
    spans = {length: [window.span(length) for window in windows] for length in (1, 8)}
    for length, own in spans.items():
        assert all(start >= 1 and start + length == stop <= 11 for start, stop in own)
        assert {start for start, _ in own} == set(range(1, 12 - length))
    assert spans[8] == [window.span(8) for window in windows]


def test_short_documents_are_one_window_and_too_short_ones_are_left_out(documents):
    lengths = [len(documents.tokens(i)) for i in range(len(documents))]
    windows = heldout_windows(documents, count=None, places=3, length=100_000, shortest=sorted(lengths)[5] - 1)
    assert sorted(len(window.tokens) + 1 for window in windows) == sorted(lengths)[5:]
    assert sorted({window.document for window in windows}) == list(range(len(windows)))


def test_a_corpus_without_a_long_enough_document_is_refused_in_one_line(documents):
    with pytest.raises(ConfigError, match="none of the 15 held-out documents has 1000001 tokens, the fewest") as error:
        heldout_windows(documents, count=None, places=1, length=2_000_000, shortest=1_000_000)
    assert "\n" not in str(error.value)


def test_a_length_above_every_document_is_refused(documents):
    most = max(len(documents.tokens(i)) for i in range(len(documents))) - 1
    assert len(Continuation(length=most).windows(documents, shortest=2)) >= len(documents)
    with pytest.raises(ConfigError, match=f"--length={most + 1} is longer than every held-out .*--length={most} or le"):
        Continuation(length=most + 1).windows(documents, shortest=2)
