"""PEGASUS: sentences chosen by ROUGE-1, at random or from the start, against an independent ROUGE, and their masks."""

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.tokenizers.tokenizer import make_tokenizer
from experiment.config import DataConfig, from_mapping
from objectives import PEGASUS
from objectives.algebra.sentences import sentence_ends, sentences_of
from objectives.pegasus import common_words
from tests.data.tiny_tokenizers import gpt2
from tests.objectives.helpers import byte_ids, random_keys, sequence, vocab
from tests.small_fields import small_config

VOCAB = vocab()
M, EOS = VOCAB.mask, VOCAB.eos
TEXT = ["The cat sat on the mat.", " A dog barked.", " The cat and the dog ran on the mat!", " Nobody knows why."]


def corrupt(objective, text, n=1):
    tokens = np.tile(byte_ids(text), (n, 1))
    return objective.corrupt(tokens, np.full(n, tokens.shape[1]), random_keys(n), VOCAB)


def pegasus(select, gap_ratio=0.3, most_hidden=0.5):
    return PEGASUS(select, gap_ratio, most_hidden, "stops_and_newlines")


def words_in_common(sentences: list[str]) -> list[int]:
    """For each sentence the overlap of ROUGE-1 with the other sentences together."""
    words = [Counter(re.findall(r"\w+", sentence)) for sentence in sentences]
    return [((sum(words, Counter()) - own) & own).total() for own in words]


def f1(sentences: list[str]) -> list[float]:
    """ROUGE-1's F1 of each sentence and the other sentences together, from precision and recall."""
    words = [Counter(re.findall(r"\w+", sentence)) for sentence in sentences]
    scores = []
    for own, common in zip(words, words_in_common(sentences), strict=True):
        rest = sum(words, Counter()) - own
        precision, recall = common / max(own.total(), 1), common / max(rest.total(), 1)
        scores.append(2 * precision * recall / (precision + recall) if common else 0.0)
    return scores


def test_the_sentence_with_the_most_words_of_the_rest_is_the_gap():
    """By hand: The, cat, on, the, mat; dog; The, cat, the, dog, on, mat; none. Of 4 sentences 30% are one."""
    assert words_in_common(TEXT) == [5, 1, 6, 0]
    examples = corrupt(pegasus("principal"), "".join(TEXT))
    assert sequence(examples.inputs) == [*byte_ids(TEXT[0] + TEXT[1]), M, *byte_ids(TEXT[3]), EOS]
    assert sequence(examples.targets) == [*byte_ids(TEXT[2]), EOS]


def test_several_gaps_keep_their_order_and_have_a_mask_each():
    examples = corrupt(pegasus("principal", gap_ratio=0.5, most_hidden=0.9), "".join(TEXT))
    assert sequence(examples.inputs) == [M, *byte_ids(TEXT[1]), M, *byte_ids(TEXT[3]), EOS]
    assert sequence(examples.targets) == [*byte_ids(TEXT[0] + TEXT[2]), EOS]
    examples = corrupt(pegasus("lead", gap_ratio=0.5), "".join(TEXT))
    assert sequence(examples.inputs) == [M, M, *byte_ids(TEXT[2] + TEXT[3]), EOS]  # neighbours
    assert sequence(examples.targets) == [*byte_ids(TEXT[0] + TEXT[1]), EOS]


def test_a_sentence_that_does_not_fit_is_passed_over():
    """The sentences have 23, 14, 36 and 18 tokens of 91, and the third one is the first choice, then the first."""
    assert [len(sentence) for sentence in TEXT] == [23, 14, 36, 18]
    for most, chosen in ((91, [0, 2]), (58, [1, 2]), (49, [2]), (35, [0]), (37, [2]), (17, [1]), (13, [])):
        examples = corrupt(pegasus("principal", gap_ratio=0.5, most_hidden=(most + 0.5) / 91), "".join(TEXT))
        gaps = "".join(TEXT[k] for k in chosen)
        assert sequence(examples.targets) == [*byte_ids(gaps), EOS], most
    nothing = corrupt(pegasus("principal"), "one sentence without an end")
    assert sequence(nothing.inputs) == [*byte_ids("one sentence without an end"), EOS]
    assert sequence(nothing.targets) == [EOS]


@settings(deadline=None, max_examples=80)
@given(
    texts=st.lists(
        st.lists(st.lists(st.sampled_from(["a", "b", "cat", "ca", "t", "A"]), min_size=1, max_size=6), max_size=6),
        min_size=1,
        max_size=4,
    )
)
def test_words_in_common_and_their_order_are_those_of_an_independent_rouge(texts):
    """Of several texts at once, with what follows their ends."""
    sentences = [[" ".join(words) + ".\n" for words in text] or ["a\n"] for text in texts]
    ids = [byte_ids("".join(text)) for text in sentences]
    lengths = np.asarray([len(text) for text in ids])
    tokens = np.full((len(ids), lengths.max() + 3), 3 + ord("a"), np.int32)
    for row, text in zip(tokens, ids, strict=True):
        row[: len(text)] = text
    table = sentences_of(sentence_ends(tokens, lengths, VOCAB, "newlines"))
    common = common_words(tokens, lengths, table, VOCAB)
    for e, of_text in enumerate(sentences):
        assert table.lengths[e, : len(of_text)].tolist() == list(map(len, of_text)) and table.counts[e] == len(of_text)
        found = common[e, : len(of_text)].tolist()
        assert found == words_in_common(of_text)
        by_f1 = sorted(range(len(of_text)), key=lambda k: (-round(f1(of_text)[k], 9), k))
        assert sorted(range(len(of_text)), key=lambda k: (-found[k], k)) == by_f1


def test_random_gaps_are_30_percent_of_the_sentences_and_each_is_equally_likely():
    n, count = 4000, 12
    text = "".join(f"{chr(97 + k)}bc\n" for k in range(count))
    hidden = pegasus("random").hidden_mask(
        np.tile(byte_ids(text), (n, 1)), np.full(n, len(text)), random_keys(n), VOCAB
    )
    chosen = hidden.reshape(n, count, 4)
    assert (chosen.all(axis=2) == chosen.any(axis=2)).all()  # whole sentences
    assert (chosen[:, :, 0].sum(axis=1) == 3).all()  # 3.6, rounded down
    assert np.abs(chosen[:, :, 0].mean(axis=0) - 0.25).max() < 5 * np.sqrt(0.1875 / n)


@pytest.mark.parametrize("select", ["principal", "lead"])
def test_other_choices_do_not_depend_on_the_key(select):
    examples = corrupt(pegasus(select), "".join(TEXT), n=20)
    assert (examples.inputs.tokens == examples.inputs.tokens[0]).all()


def test_a_line_break_that_is_joined_to_the_next_word_ends_the_sentence_before(tmp_path):
    tokenizer = make_tokenizer(
        from_mapping(
            DataConfig, small_config("clm", "decoder_only", data__tokenizer=str(gpt2(tmp_path)))["data"], "data"
        )
    )
    tokens = tokenizer.encode("uno\nfoo\ndos\nfoo\nzip dos\n")[None]
    sentences = sentences_of(sentence_ends(tokens, np.array([tokens.shape[1]]), tokenizer.vocab, "newlines"))
    found = common_words(tokens, np.array([tokens.shape[1]]), sentences, tokenizer.vocab)
    assert found[0, :5].tolist() == [0, 1, 0, 1, 0]  # a word after a space is another one
