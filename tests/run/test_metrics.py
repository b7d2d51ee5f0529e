import math

import jax.numpy as jnp
import pytest

from run.metrics import byte_metrics, summarize


def sums(loss=(6.0,), weight=(4.0,), correct=(1.0,)):
    return {
        "loss_sum": jnp.float32(sum(loss)),
        "weight_sum": jnp.float32(sum(weight)),
        "correct_sum": jnp.float32(sum(correct)),
        "loss_sum_by_group": jnp.array(loss, jnp.float32),
        "weight_sum_by_group": jnp.array(weight, jnp.float32),
        "correct_sum_by_group": jnp.array(correct, jnp.float32),
    }


def test_summary_by_hand():
    # The true tokens have probabilities 0.7, 0.9 and 0.25, whose -ln sum to 1.84833; two of them are the likeliest.
    loss = -(math.log(0.7) + math.log(0.9) + math.log(0.25))
    summary = summarize(sums((loss,), (3.0,), (2.0,)), ["clm"])
    assert summary == {
        "loss": pytest.approx(0.61611, abs=1e-5),
        "perplexity": pytest.approx(1.85170, abs=1e-4),
        "accuracy": pytest.approx(2 / 3),
        "loss/clm": pytest.approx(0.61611, abs=1e-5),
        "accuracy/clm": pytest.approx(2 / 3),
    }


def test_the_loss_weights_tokens_and_not_denoisers():
    summary = summarize(sums((1.0, 9.0), (1.0, 3.0), (1.0, 0.0)), ["r", "x"])
    assert (summary["loss"], summary["loss/r"], summary["loss/x"]) == (2.5, 1.0, 3.0)  # not (1 + 3) / 2
    assert (summary["accuracy"], summary["accuracy/r"], summary["accuracy/x"]) == (0.25, 1.0, 0.0)


def test_a_denoiser_without_scored_tokens_is_omitted():
    assert not {"loss/s", "accuracy/s"} & set(summarize(sums((1.0, 0.0), (1.0, 0.0), (0.0, 0.0)), ["r", "s"]))


def test_no_scored_tokens_are_nan_and_overflow_is_infinity():
    assert math.isnan(summarize(sums((0.0,), (0.0,), (0.0,)), ["r"])["loss"])
    assert summarize(sums((4000.0,), (4.0,)), ["r"])["perplexity"] == math.inf


def test_byte_metrics_by_hand():
    # 6 nats over 4 bytes that the tokens spell.
    bits = 6 / math.log(2) / 4
    found = {"loss_sum": 6.0, "bytes_sum": 4.0}
    assert byte_metrics("bits_per_byte", found, 1.0) == {"bits_per_byte": pytest.approx(bits), "bytes_covered": 1.0}
    # Unknown tokens: 2% of the text's bytes are in no token.
    assert byte_metrics("bits_per_byte", found, 0.98) == {"bits_per_byte": pytest.approx(bits), "bytes_covered": 0.98}
