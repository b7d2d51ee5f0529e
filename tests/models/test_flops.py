"""Model FLOPs: computed by hand, and compared with XLA's count. Learners' FLOPs: tests/learners/test_flops.py."""

from models.flops import hidden_flops, logits_flops
from tests.models import tiny

LENGTH = 40


def test_flops_of_a_decoder_by_hand():
    """2 layers of D 16, F 20 in three matrices, 4 query heads and 2 key/value heads of 6; rows of 40; V 50."""
    config = tiny.config(architecture="decoder_only")
    query_and_out, key_and_value = 2 * (2 * 40 * 16 * 24), 2 * (2 * 40 * 16 * 12)
    scores_and_sums = 2 * (2 * 40 * 40 * 24)
    mlp = 3 * (2 * 40 * 16 * 20)
    expected = 2 * (query_and_out + key_and_value + scores_and_sums + mlp)
    assert hidden_flops(config, LENGTH, targets_length=7) == expected  # without a decoder of its own
    assert logits_flops(config, 7) == 2 * 7 * 16 * 50
