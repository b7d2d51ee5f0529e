"""Special ids by role and by name, where they are in any order, shared or missing."""

import dataclasses

import numpy as np
import pytest

from contract.vocab import Vocab
from tests.objectives.helpers import t5_after_conversion


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
