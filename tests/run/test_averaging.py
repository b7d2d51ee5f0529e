"""Averaged parameters: the average by hand, and that everything that reads a run reads the average."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from run.step import averaged, init_state, make_train_step
from tests.run.test_loss_scale import Product


def states_of_product(gradients, ema_decay):
    """The states of a parameter that starts at 1, after an update by each of the gradients at learning rate 1."""
    optimizer, learner = optax.sgd(1.0), Product()
    step = jax.jit(make_train_step(learner, optimizer, grad_accum_steps=1, seed=0, ema_decay=ema_decay))
    states = [init_state(learner, optimizer, seed=0, ema_decay=ema_decay)]
    for gradient in gradients:
        states.append(step(states[-1], {"x_segment_ids": jnp.full((1,), gradient, jnp.float32)})[0])
    return states


def test_the_average_by_hand():
    """The first decay is 2/11, of the warm-up; the warm-up's 3/12 and 4/13 are above 0.2."""
    states = states_of_product([1.0, np.nan, 2.0, -1.0], ema_decay=0.2)
    assert [float(state.params["w"]) for state in states] == [1, 0, 0, -2, -1]
    first = 2 / 11 * 1 + 9 / 11 * 0
    second = 0.2 * first + 0.8 * -2
    expected = [1, first, first, second, 0.2 * second + 0.8 * -1]  # the skipped update changes nothing
    np.testing.assert_allclose([state.ema_params["w"] for state in states], expected, rtol=1e-6)
    assert all(state.eval_params is state.ema_params for state in states)


def test_the_decay_rises_to_the_one_that_is_set():
    def weight_of_the_old_average(num_updates, decay):
        found = averaged({"w": jnp.ones(())}, {"w": jnp.zeros(())}, decay=decay, num_updates=jnp.int32(num_updates))
        return float(found["w"])

    assert weight_of_the_old_average(1, 0.999) == pytest.approx(2 / 11)
    assert weight_of_the_old_average(90, 0.999) == pytest.approx(91 / 100)
    assert weight_of_the_old_average(8000, 0.999) == pytest.approx(8001 / 8010)
    for num_updates in (9000, 10**9):
        assert 1 - weight_of_the_old_average(num_updates, 0.999) == pytest.approx(0.001, rel=1e-4)


def test_the_average_starts_with_the_parameters_of_another_run_in_arrays_of_its_own():
    params = {"w": jnp.full((), 7.0)}
    state = states_of_product([], ema_decay=0.5)[-1].starting_with(params)
    assert float(state.params["w"]) == float(state.ema_params["w"]) == 7
    assert state.ema_params["w"].unsafe_buffer_pointer() != params["w"].unsafe_buffer_pointer()
