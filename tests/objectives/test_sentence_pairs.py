"""NSP and SOP: every pair that a small text can give, by hand, how often each comes, and BERT's trimming."""

from collections import Counter

import numpy as np
import pytest

from configs import nsp, sop
from contract.batch import check_batch
from contract.errors import ConfigError
from contract.windows import Windows
from objectives import NSP, SOP
from objectives.algebra.sequences import Sequences
from objectives.nsp import trimmed_lengths
from tests.objectives.helpers import collator, vocab

VOCAB = vocab()
CLS, SEP = VOCAB.cls, VOCAB.sep
UNMASKED = {"mask_token_rate": 0.0, "random_token_rate": 0.0, "short_seq_prob": 0.0}
NUM_PAIRS = 4000


def objective(kind=NSP, **fields):
    config = {NSP: nsp, SOP: sop}[kind].VARIANTS[kind.__name__.lower()]
    return kind(**({name: value for name, value in config.items() if name != "name"} | fields))


def ids(text):
    return [VOCAB.content_start + ord(char) for char in text]


def text_of(tokens):
    return "".join(chr(token - VOCAB.content_start) for token in tokens)


def sequences(text, n):
    return Sequences(np.tile(np.asarray(ids(text), np.int32), (n, 1)), np.full(n, len(text)))


def corrupt(one, text, other=None, n=NUM_PAIRS):
    keys = np.random.default_rng(0).integers(0, 2**63, n).astype(np.uint64)
    more = {} if other is None else {"others": sequences(other, n)}
    return one.corrupt(*sequences(text, n), keys, VOCAB, **more)


def pairs(kind, text, other=None, **fields):
    """How often each (A, B, label) comes, of 1."""
    made, found = corrupt(objective(kind, **(UNMASKED | fields)), text, other), Counter()
    for tokens, length, types, label in zip(*made.inputs, made.token_types, made.labels, strict=True):
        first_sep = tokens.tolist().index(SEP)
        assert tokens[0] == CLS and tokens[length - 1] == SEP
        assert types[:length].tolist() == [0] * (first_sep + 1) + [1] * (length - first_sep - 1)
        found[text_of(tokens[1:first_sep]), text_of(tokens[first_sep + 1 : length - 1]), int(label)] += 1 / NUM_PAIRS
    return found


def about(shares):
    return pytest.approx(shares, abs=0.03)


def test_the_next_sentences_or_those_of_another_document():
    """A foreign B begins with the second sentence or a later one, where as many tokens follow as the true B has."""
    assert pairs(NSP, "a\nbb\nccc", "x\nyy\nzzz\nwwww") == about(  # the window cuts: a foreign B is cut as well
        {
            ("a\n", "bb\nccc", 0): 1 / 4,
            ("a\nbb\n", "ccc", 0): 1 / 4,
            ("a\n", "yy\nzzz", 1): 1 / 8,
            ("a\n", "zzz\nww", 1): 1 / 8,
            ("a\nbb\n", "yy", 1): 1 / 12,  # one less than ccc, or it would end with its sentence
            ("a\nbb\n", "zzz", 1): 1 / 12,
            ("a\nbb\n", "www", 1): 1 / 12,
        }
    )


def test_a_foreign_b_is_whole_where_the_true_one_is():
    assert pairs(NSP, "a\nbb\nccc\n", "x\nyy\nzzz\nwwww") == about(
        {
            ("a\n", "bb\nccc\n", 0): 1 / 4,
            ("a\nbb\n", "ccc\n", 0): 1 / 4,
            ("a\n", "yy\nzzz\n", 1): 1 / 8,
            ("a\n", "zzz\n", 1): 1 / 8,
            ("a\nbb\n", "yy\n", 1): 1 / 12,
            ("a\nbb\n", "zzz\n", 1): 1 / 12,
            ("a\nbb\n", "wwww", 1): 1 / 12,  # no whole sentence is there
        }
    )


@pytest.mark.parametrize(("other", "b"), [("x\ny\nz", "y\nz"), ("vwxyz", "vwxyz"), ("uvwxyz", "uvwxyz"), ("z", "z")])
def test_another_document_too_short_for_a_whole_b_gives_what_it_has(other, b):
    assert pairs(NSP, "a\nbbbbbb", other) == about({("a\n", "bbbbbb", 0): 1 / 2, ("a\n", b, 1): 1 / 2})


def test_a_single_sentence_gets_a_foreign_b_and_both_are_trimmed_at_either_end():
    first = {"abc": 1 / 8, "bcd": 3 / 8, "cde": 3 / 8, "def": 1 / 8}
    second = {"rst": 1 / 8, "stu": 3 / 8, "tuv": 3 / 8, "uvw": 1 / 8}
    found = pairs(NSP, "abcdef", "q\nrstuvwxyz")
    assert found == about({(a, b, 1): p * q for a, p in first.items() for b, q in second.items()})


def test_a_window_of_one_token_has_a_b_of_one():
    assert pairs(NSP, "a", "x\nyz") == about({("a", "y", 1): 1.0})


def test_order_is_kept_or_swapped_of_whole_sentences():
    """Without the first, which may have begun before, and what is cut at the end: a swapped pair would show both."""
    in_order = [("a\n", "bb\nccc\n"), ("a\nbb\n", "ccc\n")]
    expected = {(*pair, 0): 1 / 4 for pair in in_order} | {(b, a, 1): 1 / 4 for a, b in in_order}
    for rest in ("", "d", "dd"):
        assert pairs(SOP, "ff\na\nbb\nccc\n" + rest) == about(expected)


@pytest.mark.parametrize("rest", ["", "d"])
def test_two_whole_sentences_are_a_pair(rest):
    assert pairs(SOP, "a\nbb\n" + rest) == about({("a\n", "bb\n", 0): 1 / 2, ("bb\n", "a\n", 1): 1 / 2})


def test_less_is_cut_anywhere_and_one_token_is_in_order():
    for text in ("abc", "a\nc"):
        cuts = [(text[:1], text[1:]), (text[:2], text[2:])]
        expected = {(*pair, 0): 1 / 4 for pair in cuts} | {(b, a, 1): 1 / 4 for a, b in cuts}
        assert pairs(SOP, text) == about(expected)
    assert pairs(SOP, "a") == about({("a", "", 0): 1.0})


def test_a_share_of_the_texts_is_short():
    found = pairs(SOP, "abcde", short_seq_prob=0.3)
    lengths = Counter()
    for (a, b, _), share in found.items():
        lengths[len(a + b)] += share
    # 0.3 of them have 2, 3, 4 or 5 tokens; all are the beginning of the window.
    assert lengths == about({2: 0.075, 3: 0.075, 4: 0.075, 5: 0.775})
    assert all(a + b == "abcde"[: len(a + b)] for a, b, label in found if label == 0)


@pytest.mark.parametrize("kind", [NSP, SOP])
def test_half_of_the_labels_and_nothing_but_the_text_tells_them_apart(kind):
    """Windows anywhere in long texts of lines: lengths, and where A and B end, are the same for both labels."""
    generator = np.random.default_rng(1)
    tokens = generator.integers(*ids("az"), (2, NUM_PAIRS, 80)).astype(np.int32)
    tokens[generator.random(tokens.shape) < 0.07] = ids("\n")[0]
    windows = [Sequences(one, np.full(NUM_PAIRS, 80)) for one in tokens]
    keys = generator.integers(0, 2**63, NUM_PAIRS).astype(np.uint64)
    more = {"others": windows[1]} if kind is NSP else {}
    made = objective(kind, short_seq_prob=0.0).corrupt(*windows[0], keys, VOCAB, **more)
    assert made.labels.dtype == np.int32 and made.labels.mean() == pytest.approx(0.5, abs=0.02)
    rows, lengths = np.arange(NUM_PAIRS), made.inputs.lengths
    first = (made.targets == SEP).argmax(axis=1)
    features = {
        "tokens": lengths,
        "B's share": (lengths - first) / lengths,
        "A ends a line": made.targets[rows, first - 1] == ids("\n")[0],
        "B ends a line": made.targets[rows, lengths - 2] == ids("\n")[0],
    }
    for name, values in features.items():
        means = [values[made.labels == label].mean() for label in (0, 1)]
        assert means[0] == pytest.approx(means[1], rel=0.02, abs=0.02), name


@pytest.mark.parametrize("kind", [NSP, SOP])
def test_the_ablation_changes_no_bit_of_an_example(kind):
    other = "x\nyy\nzzz" if kind is NSP else None
    with_loss, without = (corrupt(objective(kind, pair_weight=w), "a\nbb\nccc", other, n=50) for w in (1.0, 0.0))
    for one, same in zip(
        [*with_loss.inputs, *with_loss[1:4], with_loss.labels],
        [*without.inputs, *without[1:4], without.labels],
        strict=True,
    ):
        np.testing.assert_array_equal(one, same)


def test_masks_cover_neither_cls_nor_sep():
    made = corrupt(objective(), "a\nbb\nccc\n", "x\nyy\nzzz\nwwww")
    special = np.isin(made.targets, [CLS, SEP])
    assert made.selected.any() and not (made.selected & special).any()
    assert (made.inputs.tokens == made.targets)[special].all()


def trimmed_by_bert(first, second, limit):
    """google-research/bert, truncate_seq_pair: one token at a time."""
    while first + second > limit:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


def test_pairs_are_trimmed_as_bert_trims_them():
    cases = np.asarray([(a, b, limit) for a in range(1, 9) for b in range(1, 9) for limit in range(2, 14)])
    expected = [trimmed_by_bert(*case) for case in cases.tolist()]
    assert np.stack(trimmed_lengths(*cases.T), axis=1).tolist() == [list(pair) for pair in expected]


def test_a_pair_in_a_row():
    made = collator(objective(**UNMASKED), "encoder_only", inputs=10, documents="split")
    assert made.batch_spec.windows[0].raw_length == 7 and made.batch_spec.windows[0].extra_columns == ("others",)
    text, other = (np.asarray([ids(text)], np.int32) for text in ("a\nbcd", "x\nyz"))
    for key in range(40):
        windows = Windows(text, np.asarray([5]), np.zeros(1, int), np.asarray([key], np.uint64), np.zeros(1, np.int32),
                          other, np.asarray([4]))  # fmt: skip
        batch = made(windows, 1)
        check_batch(batch, "encoder_only")
        if batch["sentence_labels"][0]:
            break
    assert batch["encoder_input_tokens"].tolist() == [[CLS, *ids("a\n"), SEP, *ids("yz"), SEP, 0, 0, 0]]
    assert batch["encoder_token_types"].tolist() == [[0, 0, 0, 0, 1, 1, 1, 0, 0, 0]]
    assert batch["encoder_segment_ids"].tolist() == [[1] * 7 + [0] * 3]
    assert batch["sentence_labels"].tolist() == [1] and batch["sentence_labels"].dtype == np.int32


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"short_seq_prob": 1.5}, r"objective.short_seq_prob=1.5 must lie between 0 and 1"),
        ({"pair_weight": -1.0}, r"objective.pair_weight=-1.0 must be 0 \(the ablation\) or more"),
        ({"pair_weight": float("inf")}, r"objective.pair_weight=inf"),
        ({"mask_rate": 1.0}, r"objective.mask_rate=1.0"),
    ],
)
def test_fields_that_cannot_work(fields, message):
    with pytest.raises(ConfigError, match=message):
        objective(**fields).check("objective")
