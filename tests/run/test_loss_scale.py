"""Loss scaling: the adjustments by hand, which gradients it preserves and which updates it skips."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from run.step import LossScale, TrainState, adjusted, init_state, initial_loss_scale, make_train_step
from tests.table import random_windows
from tests.train.tiny_experiments import random_params, tiny_experiment
from workdir.checkpoint import Checkpoints, abstract

ZERO = jnp.zeros((), jnp.int32)


def scale_of(factor, good_count=0):
    return LossScale(jnp.float32(factor), jnp.int32(good_count))


@pytest.mark.parametrize(
    ("before", "finite", "after"),
    [
        ((1024, 7), True, (1024, 8)),
        ((1024, 7), False, (512, 0)),
        ((1024, 1998), True, (1024, 1999)),
        ((1024, 1999), True, (2048, 0)),
        ((1024, 1999), False, (512, 0)),
        ((1, 5), False, (1, 0)),
        ((2.0**24, 1999), True, (2.0**24, 0)),
    ],
)
def test_adjustments_by_hand(before, finite, after):
    scale = adjusted(scale_of(*before), jnp.asarray(finite))
    assert (float(scale.factor), int(scale.good_count)) == after
    assert (scale.factor.dtype, scale.good_count.dtype) == (jnp.float32, jnp.int32)


def test_only_float16_has_a_scale():
    assert initial_loss_scale("float32") is None and initial_loss_scale("bfloat16") is None
    assert float(initial_loss_scale("float16").factor) == 2**15


@dataclasses.dataclass(frozen=True)
class Product:
    """A stub learner with one parameter, initially 1. Its gradient is the batch's only number, rounded to float16."""

    def init_params(self, key):
        return {"w": jnp.ones(())}

    def weights(self, batch):
        return {}

    def loss(self, params, batch, weights, *, key, train):
        return batch["x_segment_ids"][0] * params["w"].astype(jnp.float16).astype(jnp.float32), {}


def run_product(gradients, scale):
    """Yields the state and metrics after an update by each of the gradients, at learning rate 1."""
    optimizer, learner = optax.sgd(1.0), Product()
    step = jax.jit(make_train_step(learner, optimizer, grad_accum_steps=1, seed=0))
    state = init_state(learner, optimizer, seed=0)._replace(loss_scale=scale)
    for gradient in gradients:
        state, metrics = step(state, {"x_segment_ids": jnp.full((1,), gradient, jnp.float32)})
        yield state, metrics


def test_gradients_that_underflow_in_float16_are_preserved_exactly():
    for scale, grad_norm in ((None, 0.0), (scale_of(2**15), 2.0**-26)):
        ((_, metrics),) = run_product([2.0**-26], scale)
        assert float(metrics["grad_norm"]) == grad_norm


def test_updates_that_overflow_are_skipped_until_the_scale_fits_and_do_not_count_towards_a_stop():
    # 8 * 2^15, 8 * 2^14 and 8 * 2^13 = 65,536 are infinite in float16, 8 * 2^12 is not.
    states, metrics = zip(*run_product([8.0] * 5, scale_of(2**15)), strict=True)
    assert [float(state.params["w"]) for state in states] == [1, 1, 1, -7, -15]
    assert [float(m["loss_scale"]) for m in metrics] == [2**14, 2**13, 2**12, 2**12, 2**12]
    assert [int(m["skipped_count"]) for m in metrics] == [1, 2, 3, 3, 3]
    assert [int(m["skipped_in_a_row_count"]) for m in metrics] == [0] * 5
    assert int(states[-1].step) == 5 and int(states[-1].loss_scale.good_count) == 2


def test_updates_that_no_scale_makes_finite_count_at_the_smallest_scale():
    states, metrics = zip(*run_product([np.nan] * 5 + [1.0, np.nan], scale_of(4)), strict=True)
    assert [float(m["loss_scale"]) for m in metrics] == [2, 1, 1, 1, 1, 1, 1]
    assert [int(m["skipped_in_a_row_count"]) for m in metrics] == [0, 0, 1, 2, 3, 0, 1]
    assert int(metrics[-1]["skipped_count"]) == 6 and float(states[-1].params["w"]) == 0


def test_t5_skips_recovers_and_learns_and_resumes_bit_for_bit(tmp_path):
    sizes = {"data": {"inputs_length": 24, "targets_length": 16}, "model": {"mlp": "relu"}}
    experiment = tiny_experiment("span_corruption", "encoder_decoder", precision="float16", **sizes)
    batch = jax.tree.map(jnp.asarray, experiment.collate(random_windows(experiment, 4, same_keys=False), 4))
    params = {"transformer": jax.tree.map(jnp.asarray, random_params(experiment, scale=0.5))}
    optimizer = optax.sgd(0.1, momentum=0.9)
    state = TrainState(ZERO, params, optimizer.init(params), ZERO, ZERO, scale_of(2**24, good_count=3))
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    state = jax.device_put(state, place)  # committed, like a restored state, so that the step compiles once
    step = jax.jit(make_train_step(experiment.learner, optimizer, grad_accum_steps=1, seed=0))
    losses, factors = [], []
    checkpoints = Checkpoints(tmp_path, keep=9)
    for number in range(16):
        if number in (2, 12):
            checkpoints.save(number, state)
        before = state
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss_sum"] / metrics["weight_sum"]))
        factors.append(float(metrics["loss_scale"]))
        if not np.isfinite(metrics["grad_norm"]):
            jax.tree.map(np.testing.assert_array_equal, state.params, before.params)
            jax.tree.map(np.testing.assert_array_equal, state.opt_state, before.opt_state)
    skipped = int(state.skipped_count)
    assert 3 <= skipped <= 9 and factors == [2.0 ** (24 - min(n + 1, skipped)) for n in range(16)]
    assert int(state.loss_scale.good_count) == 16 - skipped
    assert losses[0] == losses[skipped] and losses[-1] < 0.8 * losses[0]

    shapes = abstract(state, jax.tree.map(lambda _: place, state))
    for number in (2, 12):
        resumed = checkpoints.restore(shapes, number)
        assert float(resumed.loss_scale.factor) == factors[number - 1]
        for _ in range(number, 16):
            resumed, _ = step(resumed, batch)
        jax.tree.map(np.testing.assert_array_equal, resumed, state)
    checkpoints.close()
