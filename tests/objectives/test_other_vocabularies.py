"""Every objective makes the same examples with any order of the special ids, and where special tokens share an id."""

import dataclasses

import numpy as np
import pytest

from contract.vocab import Vocab
from objectives.algebra.sequences import Sequences
from objectives.objective import Masked
from objectives.rows.collate import extra_columns_of
from tests.objectives.helpers import vocab
from tests.test_objectives import every_objective, random_windows

VOCAB = vocab()
SHIFT = 150  # of the ordinary tokens: VOCAB's begin at 3


def t5_after_conversion() -> Vocab:
    """Sentinels ascend from id 10, below the ordinary tokens; the other special ids are in another order too."""
    ids = dict(zip(("pad", "eos", "unk", "mask", "cls", "sep", "bos"), (9, 4, 8, 0, 7, 2, 5), strict=True))
    modes = tuple((name, 120 + k) for k, (name, _) in enumerate(VOCAB.modes))
    marks = bytes(3 + SHIFT) + VOCAB.marks[VOCAB.content_start : VOCAB.content_end]
    return Vocab(
        size=len(marks),
        **ids,
        modes=modes,
        sentinel_ids=tuple(range(10, 110)),
        content_start=3 + SHIFT,
        content_end=259 + SHIFT,
        marks=marks,
        own_names=(),
    )


def bert() -> Vocab:
    """EOS is [SEP], and BOS is [CLS]."""
    ascending = t5_after_conversion()
    return dataclasses.replace(ascending, eos=ascending.sep, bos=ascending.cls)


def to(vocab: Vocab) -> np.ndarray:
    """int32 [VOCAB.size]: the ids of VOCAB -> those of `vocab`."""
    table = np.full(VOCAB.size, -1, np.int32)
    for role in ("pad", "unk", "mask", "bos", "cls", "sep", "eos"):
        table[getattr(VOCAB, role)] = getattr(vocab, role)
    table[VOCAB.sentinels], table[[id_ for _, id_ in VOCAB.modes]] = vocab.sentinels, [id_ for _, id_ in vocab.modes]
    table[VOCAB.content_start : VOCAB.content_end] = np.arange(vocab.content_start, vocab.content_end)
    return table


def examples_of(objective, windows, vocab, table):
    columns = extra_columns_of(objective.extra_columns, windows, np.arange(len(windows.lengths)))
    if "others" in columns:
        columns["others"] = Sequences(table[columns["others"].tokens], columns["others"].lengths)
    arguments = table[windows.tokens], windows.lengths, windows.keys, vocab
    return objective.corrupt(*arguments, **columns), objective.hidden_mask(*arguments, **columns)


@every_objective
@pytest.mark.parametrize("make_vocab", [t5_after_conversion, bert])
def test_examples_do_not_depend_on_the_special_ids(objective, make_vocab):
    other = make_vocab()
    table, identity = to(other), np.arange(VOCAB.size, dtype=np.int32)
    for seed in range(4):
        windows = random_windows([1, 7, 40, 64, 90, 90], ("random", "lines")[seed % 2], seed)
        if objective.eos_in_windows:  # in the text, and at the end of some windows
            windows.tokens[np.random.default_rng(seed).random(windows.tokens.shape) < 0.05] = VOCAB.eos
            windows.tokens[3:5, windows.lengths[3:5] - 1] = VOCAB.eos
        expected, hidden = examples_of(objective, windows, VOCAB, identity)
        examples, hidden_there = examples_of(objective, windows, other, table)
        np.testing.assert_array_equal(hidden, hidden_there)
        for e, length in enumerate(expected.inputs.lengths):
            inputs, of_other = expected.inputs.tokens[e, :length], examples.inputs.tokens[e, :length]
            np.testing.assert_array_equal(table[inputs], of_other)
            if isinstance(expected, Masked):
                targets, targets_of_other = expected.targets[e, :length], examples.targets[e, :length]
                np.testing.assert_array_equal(expected.selected[e, :length], examples.selected[e, :length])
            else:
                targets, targets_of_other = (
                    part.targets.tokens[e, : part.targets.lengths[e]] for part in (expected, examples)
                )
            np.testing.assert_array_equal(table[targets], targets_of_other)
            restored = objective.restore(inputs, targets, VOCAB)
            restored_there = objective.restore(of_other, targets_of_other, other)
            if restored is None or restored_there is None:
                assert restored_there is None, "the special ids only take information away"
                assert restored is None or other.sep == other.eos
            else:
                np.testing.assert_array_equal(table[restored], restored_there)


def test_sentinels_by_hand():
    other = t5_after_conversion()
    assert other.sentinel(0) == 10 and other.sentinel(np.array([1, 99])).tolist() == [11, 109]
    assert other.sentinels.tolist() == list(range(10, 110)) and other.num_sentinels == 100
    with pytest.raises(IndexError):
        other.sentinel(100)
    assert other.names()[11] == "<extra_id_1>" and other.ids_by_name()["[MASK]"] == 0


def test_names_of_shared_and_missing_ids():
    # BART's: <s> is bos and cls, </s> is eos and sep.
    own = ((0, "<s>"), (1, "<pad>"), (2, "</s>"), (3, "<unk>"), (9, "<mask>"))
    bart = Vocab(10, 1, 2, 3, 9, 0, 2, 0, (), (), 4, 9, bytes(10), own)
    assert bart.names() == dict(own)
    assert bart.ids_by_name() == {name: id_ for id_, name in own} | {"[MASK]": 9, "[CLS]": 0, "[SEP]": 2}
    # GPT-2's: one special token.
    gpt2 = Vocab(11, 10, 10, -1, -1, -1, -1, 10, (), (), 0, 10, bytes(11), ((10, "<|endoftext|>"),))
    assert gpt2.names() == {10: "<|endoftext|>"}
    assert gpt2.ids_by_name() == {"<|endoftext|>": 10, "</s>": 10, "<s>": 10, "<pad>": 10}
    # Without names of its own a shared id has the name of EOS.
    assert dataclasses.replace(gpt2, own_names=()).names() == {10: "</s>"}
