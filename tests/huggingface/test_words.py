"""Words seen: whitespace-separated, by the measured words per token."""

import pytest

from data.tokenizers.tokenizer import make_tokenizer
from huggingface import words
from huggingface.words import given_rate, measure_rate, short_count
from tests.data.corpus import all_documents, corpus_config, store_of


def measure(tmp_path, texts):
    documents = all_documents(store_of(tmp_path, texts))
    return measure_rate(documents, make_tokenizer(corpus_config(tmp_path)))


def test_words_and_tokens_of_a_small_corpus_are_counted_exactly(tmp_path):
    # 4 + 4 words. A token is a byte, and each document has an EOS: 23 + 1 and 10 + 1 tokens.
    rate = measure(tmp_path, ["one  two,three\n\tfour \u00e9", "a b c d\u00e9x"])
    assert (rate.words, rate.tokens) == (8, 35)
    assert rate.is_all and rate.documents == 2
    assert rate.words_in(2 * rate.tokens) == 16
    assert "measured on all 2 training documents" in rate.describe()


def test_of_a_large_corpus_a_sample_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(words, "_MOST_TOKENS", 60)
    rate = measure(tmp_path, [f"{k:03} words" for k in range(12)])  # 10 tokens each: every second document
    assert (rate.words, rate.tokens, rate.documents, rate.is_all) == (12, 60, 6, False)
    assert "a sample of 6 training documents (60 tokens)" in rate.describe()


def test_a_given_rate():
    assert given_rate(0.75).words_in(1_000_000) == 750_000
    assert given_rate(0.75).describe() == "0.75 whitespace-separated words per token, a given number"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1K"),
        (1234, "1.23K"),
        (999_499, "999K"),
        (999_500, "1M"),
        (10_000_000, "10M"),
        (123_456_789, "123M"),
        (4_570_000_000, "4.57B"),
        (2 * 10**12, "2T"),
    ],
)
def test_short_counts(count, text):
    assert short_count(count) == text
