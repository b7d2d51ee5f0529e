"""NSP and SOP: every pair that a small text can give, with its probability."""

from collections import Counter

import numpy as np
import pytest

from configs import nsp, sop
from contract.batch import check_batch
from contract.windows import Windows
from objectives import NSP, SOP
from objectives.algebra.sequences import Sequences
from tests.objectives.helpers import byte_ids, collator, random_keys, vocab

VOCAB = vocab()
CLS, SEP = VOCAB.cls, VOCAB.sep
UNMASKED = {"mask_token_rate": 0.0, "random_token_rate": 0.0, "short_seq_prob": 0.0}
NUM_PAIRS = 4000


def make_objective(objective=NSP, **fields):
    config = {NSP: nsp, SOP: sop}[objective].VARIANTS[objective.__name__.lower()]
    return objective(**({name: value for name, value in config.items() if name != "name"} | fields))


def text_of(tokens):
    return "".join(chr(token - VOCAB.content_start) for token in tokens)


def sequences(text, n):
    return Sequences(np.tile(byte_ids(text), (n, 1)), np.full(n, len(text)))


def corrupt(objective, text, other=None, n=NUM_PAIRS, *, begins=False, ends=False):
    """Examples of windows of one text. begins, ends: whether it begins and ends where its document does, for SOP."""
    if isinstance(objective, NSP):
        columns = {"others": sequences(other, n)}
    else:
        columns = {"begins_document": np.full(n, begins), "ends_document": np.full(n, ends)}
    return objective.corrupt(*sequences(text, n), random_keys(n), VOCAB, **columns)


def pairs(objective, text, other=None, *, begins=False, ends=False, **fields):
    """The frequency of each (A, B, label)."""
    examples = corrupt(make_objective(objective, **(UNMASKED | fields)), text, other, begins=begins, ends=ends)
    frequencies = Counter()
    for tokens, length, types, label in zip(*examples.inputs, examples.token_types, examples.labels, strict=True):
        first_sep = tokens.tolist().index(SEP)
        assert tokens[0] == CLS and tokens[length - 1] == SEP
        assert types[:length].tolist() == [0] * (first_sep + 1) + [1] * (length - first_sep - 1)
        a, b = text_of(tokens[1:first_sep]), text_of(tokens[first_sep + 1 : length - 1])
        frequencies[a, b, int(label)] += 1 / NUM_PAIRS
    return frequencies


def about(frequencies):
    return pytest.approx(frequencies, abs=0.03)


def in_either_order(first, second):
    return {(first, second, 0): 1 / 2, (second, first, 1): 1 / 2}


def shortened(a, b, label, share):
    """The frequencies of pairs with each beginning of a short B."""
    return {(a, b[:n], label): share / len(b) for n in range(1, len(b) + 1)}


def test_b_follows_a_or_is_from_another_document():
    """Both windows are cut at the first line end from place 1, 2, 3 or 4 on: after a and x, or after bb and yyy. The
    longer B is shortened to the length of the shorter one, and both by up to 8 tokens more."""
    assert pairs(NSP, "a\nbb\nccc", "x\nyyy\nzzzz") == about(
        shortened("a\n", "bb\nccc", 0, 1 / 4)
        | shortened("a\n", "yyy\nzz", 1, 1 / 4)
        | shortened("a\nbb\n", "ccc", 0, 1 / 4)
        | shortened("a\nbb\n", "zzz", 1, 1 / 4)
    )


def test_both_texts_are_cut_at_the_same_kind_of_end():
    """The first stop of the other window is before its first line break. From place 3 on the texts have no end."""
    for text, a, true_b, random_b in (("a\nbb ccc", "a\n", "bb", "zz"), ("a. bb ccc", "a.", " bb c", " y\nzz")):
        expected = shortened(a, true_b, 0, 1 / 3) | shortened(a, random_b, 1, 1 / 3) | {(text, "", -1): 1 / 3}
        assert pairs(NSP, text, "x. y\nzz") == about(expected)


def test_a_long_b_is_shortened_by_up_to_an_eighth():
    text = "a\n" * 40 + "b" * 160
    examples = corrupt(make_objective(NSP, **UNMASKED), text, text.upper())
    is_b = (examples.token_types == 1) & (np.arange(examples.token_types.shape[1]) < examples.inputs.lengths[:, None])
    has_pair = examples.labels >= 0
    second = is_b[has_pair].sum(axis=1) - 1  # without [SEP]
    whole = len(text) - (examples.inputs.lengths[has_pair] - second - 3)  # 3 special tokens, and A
    shares = 1 - second / whole
    assert shares.min() == 0 and 0.12 < shares.max() <= 1 / 8


@pytest.mark.parametrize(("text", "other"), [("abcdef", "x\nyz"), ("a\nbc", "xyz"), ("a", "x\nyz"), ("a\nb", "x. y")])
def test_windows_without_the_same_end_have_no_pair(text, other):
    assert pairs(NSP, text, other) == {(text, "", -1): pytest.approx(1)}


def test_whole_sentences_keep_their_order_or_swap():
    """The first part and the last part belong to sentences that the window cuts; a swapped pair would begin or end
    inside them."""
    expected = Counter()
    for a, b in (("a\n", "bb\nccc\n"), ("a\nbb\n", "ccc\n")):
        expected.update({pair: share / 2 for pair, share in in_either_order(a, b).items()})
    for rest in ("d", "dd", "d\n"):
        assert pairs(SOP, "ff\na\nbb\nccc\n" + rest) == about(expected)


def test_the_first_and_the_last_sentence_of_a_document_are_whole():
    assert pairs(SOP, "a\nbb\ncc", begins=True) == about(in_either_order("a\n", "bb\n"))
    assert pairs(SOP, "a\nbb\ncc\n", ends=True) == about(in_either_order("bb\n", "cc\n"))
    assert pairs(SOP, "a\nbb\n", begins=True, ends=True) == about(in_either_order("a\n", "bb\n"))


def test_a_document_begins_with_a_sentence_as_other_sentences_begin():
    """Without the whitespace after a stop, and not with a line break, which ends the sentence before it."""
    stops = dict(begins=True, sentence_ends="stops")
    for text, first_two in ((" a. b. c. d", "a. b."), ("a. b. c. d", "a. b."), ("a.  b. c. d", "a.  b.")):
        halves = (in_either_order("a.", "b. c."), in_either_order(first_two, "c."))
        assert pairs(SOP, text, **stops) == about({pair: share / 2 for half in halves for pair, share in half.items()})
    assert pairs(SOP, "\na\nb\nc", begins=True) == about(in_either_order("a\n", "b\n"))


def test_lines_and_sentences_within_lines_are_not_mixed():
    """Three line ends are enough for a pair. With two, the stops are used, if there are three."""
    assert pairs(SOP, "w\na. b. c\nd\ne. f") == about(in_either_order("a. b. c\n", "d\n"))
    assert pairs(SOP, "w\na. b. c. d\ne") == about(in_either_order("b.", "c."))


@pytest.mark.parametrize("text", ["abc", "a", "a\nbb\n", "a\nbb\nccc", "a\nb. c\nd. e"])
def test_fewer_than_two_whole_sentences_have_no_pair(text):
    assert pairs(SOP, text) == {(text, "", -1): pytest.approx(1)}


def test_the_short_seq_prob_share_of_the_texts_is_shortened():
    frequencies = pairs(SOP, "abcde", short_seq_prob=0.3)
    # 0.3 of the texts have 2, 3, 4 or 5 tokens, equally often, from the beginning of the window.
    expected = {2: 0.075, 3: 0.075, 4: 0.075, 5: 0.775}
    assert frequencies == about({("abcde"[:n], "", -1): share for n, share in expected.items()})


def test_every_token_of_a_document_is_read_wherever_the_windows_begin():
    text = "".join(f"{chr(97 + k) * (k % 5 + 2)}\n" for k in range(26))
    tokens, width = byte_ids(text), 24
    read = np.zeros(len(text), bool)
    for offset in range(width):
        begins = np.maximum(np.arange(offset - width, len(text), width), 0)
        ends = np.minimum(np.arange(offset, len(text) + width, width), len(text))
        begins, ends = (side[: len(begins)][begins < ends[: len(begins)]] for side in (begins, ends[: len(begins)]))
        rows = np.zeros((len(begins), width), np.int32)
        for row, begin, end in zip(rows, begins, ends, strict=True):
            row[: end - begin] = tokens[begin:end]
        columns = {"begins_document": begins == 0, "ends_document": ends == len(text)}
        keys = random_keys(len(begins), offset)
        hidden = make_objective(SOP, **UNMASKED).hidden_mask(rows, ends - begins, keys, VOCAB, **columns)
        for shown, begin, end in zip(~hidden, begins, ends, strict=True):
            read[begin:end] |= shown[: end - begin]
    assert read.all()


@pytest.mark.parametrize("objective", [NSP, SOP])
def test_labels_are_balanced_and_independent_of_lengths_and_line_ends(objective):
    """In windows that begin and end anywhere in long texts of lines."""
    generator = np.random.default_rng(1)
    newline = byte_ids("\n")[0]
    tokens = generator.integers(*byte_ids("az"), (2, NUM_PAIRS, 80)).astype(np.int32)
    tokens[generator.random(tokens.shape) < 0.07] = newline
    texts, others = (Sequences(of_windows, np.full(NUM_PAIRS, 80)) for of_windows in tokens)
    keys = generator.integers(0, 2**63, NUM_PAIRS).astype(np.uint64)
    columns = {"begins_document": keys < 0, "ends_document": keys < 0} if objective is SOP else {"others": others}
    examples = make_objective(objective, short_seq_prob=0.0).corrupt(*texts, keys, VOCAB, **columns)
    rows, lengths = np.flatnonzero(examples.labels >= 0), examples.inputs.lengths
    labels = examples.labels[rows]
    assert examples.labels.dtype == np.int32 and labels.mean() == pytest.approx(0.5, abs=0.02)
    assert (lengths - 3 <= 80).all() and len(rows) > 0.8 * NUM_PAIRS
    first_sep = (examples.targets == SEP).argmax(axis=1)
    features = {
        "tokens": lengths[rows],
        "B's share": ((lengths - first_sep) / lengths)[rows],
        "A ends a line": examples.targets[rows, first_sep[rows] - 1] == newline,
        "B ends a line": examples.targets[rows, lengths[rows] - 2] == newline,
    }
    for name, values in features.items():
        means = [values[labels == label].mean() for label in (0, 1)]
        assert means[0] == pytest.approx(means[1], rel=0.02, abs=0.02), name


def test_a_row_of_a_batch_contains_a_pair_its_token_types_and_its_label():
    collate = collator(make_objective(**UNMASKED), "encoder_only", inputs=10, documents="split")
    [spec] = collate.batch_spec.windows
    assert spec.raw_length == 7 and spec.extra_columns == ("others",)
    text, other = (byte_ids(text)[None] for text in ("a\nbcd", "x\nyz"))
    for key in range(40):
        windows = Windows(text, np.asarray([5]), np.zeros(1, int), np.asarray([key], np.uint64), np.zeros(1, np.int32),
                          other, np.asarray([4]))  # fmt: skip
        batch = collate(windows, 1)
        check_batch(batch, "encoder_only")
        if batch["sentence_labels"][0] and (batch["encoder_segment_ids"] > 0).sum() == 7:  # all of "yz"
            break
    assert batch["encoder_input_tokens"].tolist() == [[CLS, *byte_ids("a\n"), SEP, *byte_ids("yz"), SEP, 0, 0, 0]]
    assert batch["encoder_token_types"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 0, 0, 0]]
    assert batch["encoder_segment_ids"].tolist() == [[1] * 7 + [0] * 3]
    assert batch["sentence_labels"].tolist() == [1] and batch["sentence_labels"].dtype == np.int32
