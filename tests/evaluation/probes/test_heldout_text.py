"""Probes of held-out text: their windows, the same for every run, and the nats and bytes of hidden tokens."""

import io
import json
import math

import numpy as np
import pytest

from contract.errors import ConfigError
from data.windows.documents import Documents
from evaluation.probes.heldout_text import HiddenText, heldout_windows
from evaluation.probes.probe import ALL
from evaluation.scorer import LanguageModel, TextScores, find_denoiser, hide, score_texts
from run.compiled_run import make_run
from run.sharding import make_reading_mesh
from tests.table import small_experiment
from tests.train.tiny_experiments import random_params, tiny_experiment

SENTENCES = ["the quick brown fox jumps over the lazy dog", "pack my box with five dozen liquor jugs"] * 30


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A causal language model with pieces of a SentencePiece model that does not know the letter é."""
    spm = pytest.importorskip("sentencepiece")
    written, path = io.BytesIO(), tmp_path_factory.mktemp("spm") / "small.model"
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES), model_writer=written, vocab_size=80, hard_vocab_limit=False,
        minloglevel=2, **ids,
    )  # fmt: skip
    path.write_bytes(written.getvalue())
    experiment = tiny_experiment("clm", "decoder_only", data={"tokenizer": str(path)})
    params = random_params(experiment)
    return LanguageModel(experiment, params, make_reading_mesh(params))


def test_bytes_are_those_of_the_raw_text_and_unknown_tokens_are_not_scored(model):
    tokenizer, vocab = model.experiment.tokenizer, model.experiment.vocab
    denoiser = find_denoiser(model.experiment, "left", None)
    given = tokenizer.encode("the quick brown")
    texts = [" fox jumps over", " fox é over"]
    windows = [np.concatenate([given, tokenizer.encode(text)]).astype(np.int32) for text in texts]
    found = score_texts(model, denoiser, windows, [[(len(given), len(window))] for window in windows])
    assert found.unknown_tokens.tolist() == [0, 1]
    # The space before a word is part of its piece. Of " fox é over" the letter é, two bytes, is not counted.
    assert found.bytes.tolist() == [len(texts[0]), len(texts[1].encode()) - 2]
    assert found.tokens.tolist() == [len(window) - len(given) - k for k, window in enumerate(windows)]
    # All hidden tokens, the unknown one included, given those before them.
    text = windows[1]
    [(_, _, scores)] = model.score([(0, hide(denoiser, text, len(given), len(text), vocab))])
    is_known = text[len(given) :] != vocab.unk
    assert found.nats[1] == pytest.approx(scores.nats[is_known].sum()) and not is_known.all()
    assert found.nats[1] + found.unknown_nats[1] == pytest.approx(scores.nats.sum())


def test_documents_of_equal_text_are_one_document_of_the_intervals(tmp_path):
    """And so are the responses to one prompt, whose windows begin at equal places."""
    fields = [{"text": f"{k % 6} " + "abcdefgh" * 20} for k in range(12)]
    fields += [{"prompt": "ab", "response": letter * 60} for letter in "xyz"]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, fields)))
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": "training text " * 20}))
    data = {"data__source": "jsonl", "data__path": str(tmp_path / "train.jsonl"), "data__cache_dir": str(tmp_path)}
    data |= {"data__heldout_path": str(tmp_path / "texts.jsonl"), "data__documents": "split"}
    run = make_run(small_experiment("clm", "decoder_only", **data), show_progress=False)
    documents = run.corpora.heldout_documents
    windows = heldout_windows(documents, count=ALL, windows_per_document=2, length=16, shortest=16)
    counts = np.unique([window.document for window in windows], return_counts=True)[1]
    assert len(windows) == 2 * 15 and sorted(counts) == [4] * 6 + [6]


def hidden_text(documents, nats, num_bytes, tokens, is_exact):
    zeros = np.zeros(len(nats), int)
    return HiddenText(documents, TextScores(nats, tokens, num_bytes, zeros, zeros, is_exact))


def test_values_are_sums_over_all_windows_divided_once():
    columns = np.array([3.0, 5.0, 4.0]), np.array([2, 2, 4]), np.array([1, 1, 2])
    text = hidden_text(np.array([0, 0, 2]), *columns, np.zeros(3, bool))
    fields = text.per_byte()
    assert fields["nats_per_byte"] == 12 / 8 and fields["bits_per_byte"] == pytest.approx(1.5 / math.log(2))
    assert fields["nats_per_byte_interval"] is None  # two documents
    assert text.counts() == {"documents": 2, "windows": 3, "tokens": 4, "bytes": 8, "unknown_tokens": 0}


def test_the_intervals_are_over_documents():
    """Windows of the same document vary more than documents do."""
    documents, ones = np.repeat(np.arange(8), 2), np.ones(16, int)
    nats = np.tile([0.5, 1.5], 8) + documents / 100
    text = hidden_text(documents, nats, ones, ones, nats > 1.53)
    fields = text.per_byte() | text.exact_match()
    low, high = fields["nats_per_byte_interval"]
    assert 1.0 < low < fields["nats_per_byte"] < high < 1.07
    assert fields["bits_per_byte_interval"] == pytest.approx([low / math.log(2), high / math.log(2)])
    low, high = fields["exact_match_interval"]
    assert 0.0 <= low < fields["exact_match"] == 0.25 < high <= 0.5


@pytest.fixture(scope="module")
def documents(corpus):
    """The held-out side of a small corpus, 15 documents."""
    data = {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}
    experiment = small_experiment("clm", "decoder_only", **data, data__heldout_fraction=0.5)
    return make_run(experiment, show_progress=False).corpora.heldout_documents


def text_of(window):
    return window.tokens.tobytes()


def test_windows_are_disjoint_pieces_of_their_document_without_its_first_token(documents):
    windows = heldout_windows(documents, count=ALL, windows_per_document=3, length=50, shortest=2)
    by_document = [[w for w in windows if w.document == k] for k in range(len(documents))]
    assert [len(own) for own in by_document] == [3] * len(documents)  # modules of thousands of bytes
    texts = {documents.tokens(i).astype(np.int32).tobytes() for i in range(len(documents))}
    for own in by_document:
        [text] = [text for text in texts if all(text_of(window) in text[4:] for window in own)]
        starts = sorted(text.index(text_of(window)) // 4 for window in own)
        assert starts[0] >= 1 and min(np.diff(starts)) >= 50


def test_windows_are_functions_of_the_documents_alone(documents):
    shuffled = Documents(documents.store, documents.index[::-1], documents.label)
    first = heldout_windows(documents, count=6, windows_per_document=2, length=40, shortest=2)
    assert list(map(text_of, first)) == list(
        map(text_of, heldout_windows(shuffled, count=6, windows_per_document=2, length=40, shortest=2))
    )
    # More documents are added at the end, and the windows of a document do not depend on the others.
    more = heldout_windows(documents, count=8, windows_per_document=2, length=40, shortest=2)
    assert list(map(text_of, more[: len(first)])) == list(map(text_of, first))


def test_hidden_spans_leave_a_token_on_both_sides_and_vary(documents):
    windows = heldout_windows(documents, count=ALL, windows_per_document=10, length=12, shortest=10)
    spans = {length: [window.span(length) for window in windows] for length in (1, 8)}
    for length, own in spans.items():
        assert all(start >= 1 and start + length == stop <= 11 for start, stop in own)
        assert {start for start, _ in own} == set(range(1, 12 - length))
    assert spans[8] == [window.span(8) for window in windows]


def test_short_documents_are_one_window_and_too_short_ones_are_left_out(documents):
    lengths = [len(documents.tokens(i)) for i in range(len(documents))]
    windows = heldout_windows(
        documents, count=ALL, windows_per_document=3, length=100_000, shortest=sorted(lengths)[5] - 1
    )
    assert sorted(len(window.tokens) + 1 for window in windows) == sorted(lengths)[5:]
    assert sorted({window.document for window in windows}) == list(range(len(windows)))


def test_a_corpus_without_a_long_enough_document_is_refused_in_one_line(documents):
    with pytest.raises(ConfigError, match="none of the 15 held-out documents has 1000001 tokens, the fewest") as error:
        heldout_windows(documents, count=ALL, windows_per_document=1, length=2_000_000, shortest=1_000_000)
    assert "\n" not in str(error.value)
