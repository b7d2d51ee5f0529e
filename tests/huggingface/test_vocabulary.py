"""Vocabularies are compared by the texts of their tokens."""

import numpy as np

from data.tokenizers.tokenizer import ByteTokenizer
from huggingface.vocabulary import describe_differences, match_tokens, token_texts


def test_common_tokens_are_found_at_other_ids():
    shared = match_tokens(["<pad>", "a", "new", "b", "c"], ["a", "b", "old", "<pad>", "older"])
    np.testing.assert_array_equal(shared.here, [0, 1, 3])
    np.testing.assert_array_equal(shared.there, [3, 0, 1])
    assert (shared.num_new, shared.num_dropped) == (2, 2)


def test_differences_name_the_first_two_ids():
    assert describe_differences(["a", "b"], ["a", "b"]) == ""
    assert describe_differences(["a", "b"], ["a", "c"]) == "id 1 is 'c' there and 'b' here"
    assert describe_differences(["a", "b", "c", "d"], ["b", "a", "c"]) == (
        "id 0 is 'b' there and 'a' here; id 1 is 'a' there and 'b' here; 1 more ids differ"
    )
    assert describe_differences(["a"], ["a", "b"]) == "id 1 is 'b' there and not a token here"


def test_fewer_sentinels_and_other_mode_tokens_move_every_special_token():
    """Padding to a multiple of 128 hides it: the tables have the same shapes."""
    ten = token_texts(ByteTokenizer(num_sentinels=10, mode_tokens=("[R]", "[S]")))
    nine = token_texts(ByteTokenizer(num_sentinels=9, mode_tokens=("[R]", "[S]")))
    swapped = token_texts(ByteTokenizer(num_sentinels=10, mode_tokens=("[S]", "[R]")))
    assert "'<extra_id_9>'" in describe_differences(nine, ten) and "'[R]'" in describe_differences(swapped, ten)
    assert len(set(ten)) == len(ten) and ten[3 + 65] == "<0x41>" and ten[0] == "<pad>"
    shared = match_tokens(nine, ten)
    assert [ten[id_] for id_ in shared.there] == nine and (shared.num_new, shared.num_dropped) == (0, 1)
