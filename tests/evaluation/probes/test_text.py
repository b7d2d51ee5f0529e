"""Nats and bytes of hidden text, with tokens of several bytes and tokens whose bytes are not known."""

import io
import math

import jax
import numpy as np
import pytest

from evaluation.probes.heldout import Window
from evaluation.probes.probe import LanguageModel, find_denoiser
from evaluation.probes.scorer import hide
from evaluation.probes.text import HiddenText, score_windows
from run.sharding import make_reading_mesh
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
    windows = [
        Window(k, np.concatenate([given, tokenizer.encode(text)]).astype(np.int32), np.array([k], np.uint64))
        for k, text in enumerate(texts)
    ]

    def hidden_end(window):
        return [hide(denoiser, window.tokens, len(given), len(window.tokens), vocab)]

    found = score_windows(model, windows, hidden_end, per_window=1, text_only=False)
    assert found.unknown_tokens.tolist() == [0, 1]
    # The space before a word is part of its piece. Of " fox é over" the letter é, two bytes, is not counted.
    assert found.bytes.tolist() == [len(texts[0]), len(texts[1].encode()) - 2]
    assert found.tokens.tolist() == [len(window.tokens) - len(given) - k for k, window in enumerate(windows)]
    # All hidden tokens, the unknown one included, given those before them.
    [(_, scores)] = model.scores(hidden_end(windows[1]), 1)
    is_known = windows[1].tokens[len(given) :] != vocab.unk
    assert found.nats[1] == pytest.approx(scores.nats[is_known].sum()) and not is_known.all()


def test_probabilities_among_tokens_of_text_are_greater(model):
    """Exactly by the factor of the probability of other tokens: of a model without preferences log(V / tokens)."""
    tokenizer, vocab = model.experiment.tokenizer, model.experiment.vocab
    denoiser = find_denoiser(model.experiment, "left", None)
    window = Window(0, tokenizer.encode("the quick brown fox é over").astype(np.int32), np.array([0], np.uint64))
    model = LanguageModel(model.experiment, jax.tree.map(np.zeros_like, model.params), model.mesh)

    def hidden_text(window):
        return [hide(denoiser, window.tokens, 1, len(window.tokens), vocab)]

    all_tokens, of_text = (
        score_windows(model, [window], hidden_text, per_window=1, text_only=text_only) for text_only in (False, True)
    )
    assert of_text.unknown_tokens.tolist() == [1] and of_text.tokens.tolist() == all_tokens.tokens.tolist()
    num_text_tokens = vocab.content_end - vocab.content_start + 1  # and unk
    expected = of_text.tokens * math.log(num_text_tokens)
    np.testing.assert_allclose(of_text.nats, expected, rtol=1e-6)
    np.testing.assert_allclose(all_tokens.nats, of_text.tokens * math.log(model.experiment.model.vocab_size), rtol=1e-6)


def test_values_are_sums_over_all_windows_divided_once():
    documents = np.array([0, 0, 2])
    zeros = np.zeros(3, int)
    text = HiddenText(documents, np.array([3.0, 5.0, 4.0]), np.array([2, 2, 4]), np.array([1, 1, 2]), zeros, zeros > 0)
    fields = text.per_byte()
    assert fields["nats_per_byte"] == 12 / 8 and fields["bits_per_byte"] == pytest.approx(1.5 / math.log(2))
    assert fields["nats_per_byte_interval"] is None  # two documents
    assert text.counts() == {"documents": 2, "windows": 3, "tokens": 4, "bytes": 8, "unknown_tokens": 0}


def test_the_intervals_are_over_documents():
    """Windows of the same document vary more than documents do."""
    documents, ones = np.repeat(np.arange(8), 2), np.ones(16, int)
    nats = np.tile([0.5, 1.5], 8) + documents / 100
    text = HiddenText(documents, nats, ones, ones, 0 * ones, nats > 1.53)
    fields = text.per_byte() | text.exact_match()
    low, high = fields["nats_per_byte_interval"]
    assert 1.0 < low < fields["nats_per_byte"] < high < 1.07
    assert fields["bits_per_byte_interval"] == pytest.approx([low / math.log(2), high / math.log(2)])
    low, high = fields["exact_match_interval"]
    assert 0.0 <= low < fields["exact_match"] == 0.25 < high <= 0.5


def test_exact_windows_are_counted():
    is_exact = np.array([True, False, True])
    ones = np.ones(3, int)
    text = HiddenText(np.array([0, 0, 1]), ones.astype(float), ones, ones, 0 * ones, is_exact)
    assert text.exact_match()["exact_match"] == pytest.approx(2 / 3)
