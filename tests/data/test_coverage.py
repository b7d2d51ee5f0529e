"""Unknown tokens, bytes that tokens spell, and texts that do not round-trip are counted and said."""

import re

import numpy as np
import pytest

from data.store.store import open_or_build
from data.tokenizers.tokenizer import SentencePieceTokenizer, make_tokenizer
from data.windows.corpus_statistics import coverage_warnings
from data.windows.documents import MixedDocuments
from tests.data.corpus import all_documents, corpus_config, store_of
from tests.data.tiny_tokenizers import sentencepiece

TEXTS = ["the fox\njumps over\tthe  lazy dog\n", " a 語 quick brown fox\n\n\n    jumps\n", "plain text"]


SENTENCES = ["the quick brown fox jumps over the lazy dog", "plain text is a text"] * 20
IDENTITY = {"normalization_rule_name": "identity"}


@pytest.fixture(scope="module")
def lossy(tmp_path_factory):
    """SentencePiece's defaults, with which a model loses text."""
    path = tmp_path_factory.mktemp("lossy") / "m.model"
    return sentencepiece(path, SENTENCES, vocab_size=320, byte_fallback=False)


def test_the_space_before_each_text_is_not_a_byte_of_it_and_does_not_make_up_for_lost_bytes(tmp_path):
    lossless = sentencepiece(tmp_path / "a.model", SENTENCES, remove_extra_whitespaces=False, **IDENTITY)
    assert SentencePieceTokenizer(lossless, num_sentinels=1, mode_tokens=()).dummy_bytes == 1
    store = store_of(tmp_path / "1", TEXTS, tokenizer=lossless)
    assert store.token_bytes.tolist() == store.text_bytes.tolist() and store.bytes_covered() == 1
    store = store_of(
        tmp_path / "2", ["a  cat", "a cat"], tokenizer=sentencepiece(tmp_path / "b.model", SENTENCES, **IDENTITY)
    )
    assert store.token_bytes.tolist() == [5, 5] and store.bytes_covered() == 10 / 11


def test_documents_that_normalization_makes_longer_do_not_make_up_for_shorter_ones(tmp_path):
    store = store_of(tmp_path, ["a  cat", "½½"], tokenizer=sentencepiece(tmp_path / "m.model", SENTENCES))
    assert store.text_bytes.tolist() == [6, 4] and store.token_bytes.tolist() == [5, 10]  # 1, U+2044, 2
    assert store.bytes_covered() == (5 + 4) / 10
    assert store.in_text(np.array([0, 1])).tolist() == [1.0, 0.4]


def test_the_coverage_of_several_corpora_is_that_of_their_bytes(tmp_path):
    tokenizer = sentencepiece(tmp_path / "m.model", SENTENCES)
    stores = [store_of(tmp_path / name, [text], tokenizer=tokenizer) for name, text in (("1", "a  cat"), ("2", "½½"))]
    documents = MixedDocuments(list(map(all_documents, stores)), (1.0, 1.0))
    assert documents.bytes_covered() == pytest.approx((5 + 4) / (6 + 4))


def test_prompts_and_responses_have_a_space_of_their_own(tmp_path):
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "a fox", "response": "jumps"}\n{"prompt": "", "response": "b"}')
    model = sentencepiece(tmp_path / "m.model", SENTENCES, remove_extra_whitespaces=False, **IDENTITY)
    changes = {"tokenizer": model, "source": "jsonl", "path": f"{tmp_path}/pairs.jsonl"}
    corpus = corpus_config(tmp_path, **changes)
    store = open_or_build(corpus, make_tokenizer(corpus))
    assert store.token_bytes.tolist() == store.text_bytes.tolist() == [10, 1]


def test_a_model_that_loses_text_is_warned_about(lossy, tmp_path):
    store = store_of(tmp_path, TEXTS, tokenizer=lossy)
    unk = SentencePieceTokenizer(lossy, num_sentinels=1, mode_tokens=()).vocab.unk
    tokens = store.tokens[store.tokens != 1]
    assert store.unknown_fraction == (tokens == unk).mean() > 0
    assert store.text_bytes.tolist() == [len(text.encode()) for text in TEXTS]
    # The second text: 7 line ends and runs of spaces and 3 bytes of one character are lost.
    assert store.token_bytes[1] < store.text_bytes[1] - 3
    assert store.bytes_covered(np.array([1])) == store.token_bytes[1] / store.text_bytes[1] < store.bytes_covered() < 1
    unknown, changed = coverage_warnings(store, SentencePieceTokenizer(lossy, num_sentinels=1, mode_tokens=()))
    assert re.match(r"\d+\.\d\d% of the corpus's tokens are unknown", unknown) and "data.train_tokenizer" in unknown
    assert changed.startswith("the tokenizer changes texts, such as 'A  text, with\\tWORDS\\nand lines\\n' to ")
    assert (
        "use one that loses no text, which python -m data.train_tokenizer trains" in changed
        and "\n" not in unknown + changed
    )
