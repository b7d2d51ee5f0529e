"""NSP and SOP: every pair that a small text can give, with its probability, and BERT's trimming."""

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


def corrupt(objective, text, other=None, n=NUM_PAIRS):
    columns = {} if other is None else {"others": sequences(other, n)}
    return objective.corrupt(*sequences(text, n), random_keys(n), VOCAB, **columns)


def pairs(objective, text, other=None, **fields):
    """The frequency of each (A, B, label)."""
    examples, frequencies = corrupt(make_objective(objective, **(UNMASKED | fields)), text, other), Counter()
    for tokens, length, types, label in zip(*examples.inputs, examples.token_types, examples.labels, strict=True):
        first_sep = tokens.tolist().index(SEP)
        assert tokens[0] == CLS and tokens[length - 1] == SEP
        assert types[:length].tolist() == [0] * (first_sep + 1) + [1] * (length - first_sep - 1)
        a, b = text_of(tokens[1:first_sep]), text_of(tokens[first_sep + 1 : length - 1])
        frequencies[a, b, int(label)] += 1 / NUM_PAIRS
    return frequencies


def about(frequencies):
    return pytest.approx(frequencies, abs=0.03)


def test_b_follows_a_or_is_from_another_document():
    """A random B begins with the second sentence of the other window or a later one that leaves as many tokens as the
    true B has."""
    assert pairs(NSP, "a\nbb\nccc", "x\nyy\nzzz\nwwww") == about(  # both windows end within a sentence
        {
            ("a\n", "bb\nccc", 0): 1 / 4,
            ("a\nbb\n", "ccc", 0): 1 / 4,
            ("a\n", "yy\nzzz", 1): 1 / 8,
            ("a\n", "zzz\nww", 1): 1 / 8,
            ("a\nbb\n", "yy", 1): 1 / 12,  # one token less than ccc, since B must not end with its sentence
            ("a\nbb\n", "zzz", 1): 1 / 12,
            ("a\nbb\n", "www", 1): 1 / 12,
        }
    )


def test_a_random_b_ends_with_a_sentence_where_the_true_b_does():
    assert pairs(NSP, "a\nbb\nccc\n", "x\nyy\nzzz\nwwww") == about(
        {
            ("a\n", "bb\nccc\n", 0): 1 / 4,
            ("a\nbb\n", "ccc\n", 0): 1 / 4,
            ("a\n", "yy\nzzz\n", 1): 1 / 8,
            ("a\n", "zzz\n", 1): 1 / 8,
            ("a\nbb\n", "yy\n", 1): 1 / 12,
            ("a\nbb\n", "zzz\n", 1): 1 / 12,
            ("a\nbb\n", "wwww", 1): 1 / 12,  # no whole sentence begins there
        }
    )


@pytest.mark.parametrize(("other", "b"), [("x\ny\nz", "y\nz"), ("vwxyz", "vwxyz"), ("uvwxyz", "uvwxyz"), ("z", "z")])
def test_a_random_b_is_all_that_a_too_short_document_offers(other, b):
    assert pairs(NSP, "a\nbbbbbb", other) == about({("a\n", "bbbbbb", 0): 1 / 2, ("a\n", b, 1): 1 / 2})


def test_a_single_sentence_has_a_random_b_and_both_are_trimmed_at_either_end():
    first = {"abc": 1 / 8, "bcd": 3 / 8, "cde": 3 / 8, "def": 1 / 8}
    second = {"rst": 1 / 8, "stu": 3 / 8, "tuv": 3 / 8, "uvw": 1 / 8}
    frequencies = pairs(NSP, "abcdef", "q\nrstuvwxyz")
    assert frequencies == about({(a, b, 1): p * q for a, p in first.items() for b, q in second.items()})


def test_a_window_of_one_token_has_a_b_of_one_token():
    assert pairs(NSP, "a", "x\nyz") == about({("a", "y", 1): 1.0})


def test_whole_sentences_keep_their_order_or_swap():
    """Omitting the first sentence, which may begin before the window, and a sentence that the window cuts: either would
    reveal a swapped pair."""
    in_order = [("a\n", "bb\nccc\n"), ("a\nbb\n", "ccc\n")]
    expected = {(*pair, 0): 1 / 4 for pair in in_order} | {(b, a, 1): 1 / 4 for a, b in in_order}
    for rest in ("", "d", "dd"):
        assert pairs(SOP, "ff\na\nbb\nccc\n" + rest) == about(expected)


@pytest.mark.parametrize("rest", ["", "d"])
def test_two_whole_sentences_are_a_pair(rest):
    assert pairs(SOP, "a\nbb\n" + rest) == about({("a\n", "bb\n", 0): 1 / 2, ("bb\n", "a\n", 1): 1 / 2})


def test_fewer_than_two_whole_sentences_are_cut_anywhere_and_one_token_is_in_order():
    for text in ("abc", "a\nc"):
        cuts = [(text[:1], text[1:]), (text[:2], text[2:])]
        expected = {(*pair, 0): 1 / 4 for pair in cuts} | {(b, a, 1): 1 / 4 for a, b in cuts}
        assert pairs(SOP, text) == about(expected)
    assert pairs(SOP, "a") == about({("a", "", 0): 1.0})


def test_the_short_seq_prob_share_of_the_texts_is_shortened():
    frequencies = pairs(SOP, "abcde", short_seq_prob=0.3)
    lengths = Counter()
    for (a, b, _), frequency in frequencies.items():
        lengths[len(a + b)] += frequency
    # 0.3 of the texts have 2, 3, 4 or 5 tokens, equally often, from the beginning of the window.
    assert lengths == about({2: 0.075, 3: 0.075, 4: 0.075, 5: 0.775})
    assert all(a + b == "abcde"[: len(a + b)] for a, b, label in frequencies if label == 0)


@pytest.mark.parametrize("objective", [NSP, SOP])
def test_labels_are_balanced_and_independent_of_lengths_and_line_ends(objective):
    """In windows that begin and end anywhere in long texts of lines."""
    generator = np.random.default_rng(1)
    newline = byte_ids("\n")[0]
    tokens = generator.integers(*byte_ids("az"), (2, NUM_PAIRS, 80)).astype(np.int32)
    tokens[generator.random(tokens.shape) < 0.07] = newline
    texts, others = (Sequences(of_windows, np.full(NUM_PAIRS, 80)) for of_windows in tokens)
    keys = generator.integers(0, 2**63, NUM_PAIRS).astype(np.uint64)
    columns = {"others": others} if objective is NSP else {}
    examples = make_objective(objective, short_seq_prob=0.0).corrupt(*texts, keys, VOCAB, **columns)
    assert examples.labels.dtype == np.int32 and examples.labels.mean() == pytest.approx(0.5, abs=0.02)
    rows, lengths = np.arange(NUM_PAIRS), examples.inputs.lengths
    first_sep = (examples.targets == SEP).argmax(axis=1)
    features = {
        "tokens": lengths,
        "B's share": (lengths - first_sep) / lengths,
        "A ends a line": examples.targets[rows, first_sep - 1] == newline,
        "B ends a line": examples.targets[rows, lengths - 2] == newline,
    }
    for name, values in features.items():
        means = [values[examples.labels == label].mean() for label in (0, 1)]
        assert means[0] == pytest.approx(means[1], rel=0.02, abs=0.02), name


@pytest.mark.parametrize("objective", [NSP, SOP])
def test_examples_do_not_depend_on_pair_weight(objective):
    other = "x\nyy\nzzz" if objective is NSP else None
    weighted, ablated = (
        corrupt(make_objective(objective, pair_weight=weight), "a\nbb\nccc", other, n=50) for weight in (1.0, 0.0)
    )
    for array, same in zip(
        [*weighted.inputs, *weighted[1:4], weighted.labels],
        [*ablated.inputs, *ablated[1:4], ablated.labels],
        strict=True,
    ):
        np.testing.assert_array_equal(array, same)


def test_cls_and_sep_are_never_selected():
    examples = corrupt(make_objective(), "a\nbb\nccc\n", "x\nyy\nzzz\nwwww")
    special = np.isin(examples.targets, [CLS, SEP])
    assert examples.selected.any() and not (examples.selected & special).any()
    assert (examples.inputs.tokens == examples.targets)[special].all()


def trimmed_by_bert(first, second, limit):
    """google-research/bert, truncate_seq_pair: one token at a time."""
    while first + second > limit:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


def test_pairs_are_trimmed_as_in_bert():
    cases = np.asarray([(a, b, limit) for a in range(1, 9) for b in range(1, 9) for limit in range(2, 14)])
    expected = [trimmed_by_bert(*case) for case in cases.tolist()]
    assert np.stack(trimmed_lengths(*cases.T), axis=1).tolist() == [list(pair) for pair in expected]


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
        if batch["sentence_labels"][0]:
            break
    assert batch["encoder_input_tokens"].tolist() == [[CLS, *byte_ids("a\n"), SEP, *byte_ids("yz"), SEP, 0, 0, 0]]
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
def test_invalid_fields_raise(fields, message):
    with pytest.raises(ConfigError, match=message):
        make_objective(**fields).check("objective")
