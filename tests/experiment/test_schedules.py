import dataclasses

import jax
import pytest

from contract.errors import ConfigError
from experiment.config import OptimizerConfig
from experiment.schedules import make_schedule

CONFIG = OptimizerConfig(
    name="adamw",
    schedule="cosine",
    cycles="",
    learning_rate=0.8,
    warmup_steps=4,
    final_learning_rate_fraction=0.25,
    decay_fraction=0.25,
    b1=0.9,
    b2=0.98,
    eps=1e-8,
    weight_decay=0.0,
    no_decay=(),
    clip_norm=0.0,
)


def rates(steps, at, **changes):
    schedule = jax.jit(make_schedule(dataclasses.replace(CONFIG, **changes), steps))
    return [float(schedule(n)) for n in at]


def test_warm_up_is_linear_from_zero_and_the_same_for_every_schedule():
    for name in ("cosine", "linear", "inverse_sqrt", "constant", "wsd"):
        assert rates(100, [0, 1, 2, 3, 4], schedule=name) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8]), name


def test_cosine_ends_at_its_fraction_on_the_last_step_and_stays():
    # Half way between warm-up (4) and the end (12) a cosine is half way between 0.8 and 0.2.
    assert rates(12, [4, 8, 12, 20]) == pytest.approx([0.8, 0.5, 0.2, 0.2])
    # A quarter of the way: 0.2 + 0.6 * (1 + cos(pi / 4)) / 2.
    assert rates(12, [6]) == pytest.approx([0.712132])


def test_linear_ends_at_its_fraction_on_the_last_step_and_stays():
    assert rates(12, [4, 6, 8, 12, 20], schedule="linear") == pytest.approx([0.8, 0.65, 0.5, 0.2, 0.2])
    # BERT's: to 0. Of 8 steps after the warm-up, 7 are gone at the last update of the run.
    assert rates(12, [11, 12], schedule="linear", final_learning_rate_fraction=0.0) == pytest.approx([0.1, 0.0])


def test_wsd_is_stable_and_then_falls_with_the_root_of_the_decay_behind_it():
    # The last quarter of 64 steps is 16 steps. 1, 4 and 9 of them: 1/4, 1/2 and 3/4 of the way from 0.8 to 0.2.
    at = [4, 30, 48, 49, 52, 57, 64, 80]
    assert rates(64, at, schedule="wsd") == pytest.approx([0.8, 0.8, 0.8, 0.65, 0.5, 0.35, 0.2, 0.2])


def test_a_share_of_the_steps_is_rounded():
    """0.29 of 100 steps are 29, and 28.999999999999996 in float64."""
    expected = [0.8, 0.8 - 0.6 * 29**-0.5]
    assert rates(100, [71, 72], schedule="wsd", decay_fraction=0.29) == pytest.approx(expected)


def test_wsd_may_decay_from_the_end_of_warm_up_and_without_one():
    # 16 of 20 steps, all that warm-up leaves, to 0: half the rate is gone after 4 of them.
    whole = dict(schedule="wsd", final_learning_rate_fraction=0.0)
    assert rates(20, [4, 8, 20], decay_fraction=0.8, **whole) == pytest.approx([0.8, 0.4, 0.0])
    assert rates(16, [0, 4, 16], decay_fraction=1.0, warmup_steps=0, **whole) == pytest.approx([0.8, 0.4, 0.0])


def test_inverse_sqrt_falls_with_the_root_of_the_step_from_the_end_of_warm_up():
    assert rates(1000, [4, 16, 64, 400], schedule="inverse_sqrt") == pytest.approx([0.8, 0.4, 0.2, 0.08])


def test_inverse_sqrt_is_t5s_after_its_10000_warm_up_steps():
    at = [10_000, 40_000, 1_000_000]
    t5 = [n**-0.5 for n in at]
    assert rates(2**20, at, schedule="inverse_sqrt", learning_rate=0.01, warmup_steps=10_000) == pytest.approx(t5)


def test_rsqrt_is_t5s_from_the_first_step_on():
    at = [0, 1, 5000, 10_000, 40_000, 1_000_000]
    t5 = [max(n, 10_000) ** -0.5 for n in at]
    assert rates(2**20, at, schedule="rsqrt", learning_rate=0.01, warmup_steps=10_000) == pytest.approx(t5)
    assert rates(100, [0, 3, 16, 20, 23, 36], schedule="rsqrt", cycles="0-20,20-100") == pytest.approx(
        [0.8, 0.8, 0.4, 0.8, 0.8, 0.4]
    )


def test_without_warm_up_the_first_update_has_the_whole_rate():
    assert rates(8, [0, 8], schedule="constant", warmup_steps=0) == pytest.approx([0.8, 0.8])
    assert rates(8, [0, 4, 8], warmup_steps=0) == pytest.approx([0.8, 0.5, 0.2])


def test_each_cycle_has_its_own_warm_up_and_length():
    # Cosines of 8 steps after the warm-ups of 4. Between the cycles, and after them, the rate is the last one.
    at = [0, 4, 8, 12, 19, 20, 22, 24, 28, 32, 50]
    expected = [0.0, 0.8, 0.5, 0.2, 0.2, 0.0, 0.4, 0.8, 0.5, 0.2, 0.2]
    assert rates(100, at, cycles="0-12,20-32") == pytest.approx(expected)
    # The second cycle cuts the first one short.
    assert rates(100, [4, 7, 8, 10, 12], cycles="0-12, 8-20") == pytest.approx([0.8, rates(12, [7])[0], 0.0, 0.4, 0.8])
    # Decays of a quarter of 16 and of 32 steps.
    wsd = rates(100, [4, 12, 13, 16, 20, 44, 45, 52, 60], schedule="wsd", cycles="0-16,20-52")
    assert wsd == pytest.approx([0.8, 0.8, 0.5, 0.2, 0.0, 0.8, 0.8 - 0.6 * 8**-0.5, 0.2, 0.2])


def test_a_cycle_is_the_schedule_of_that_many_steps_bit_for_bit():
    for name in ("cosine", "linear", "inverse_sqrt", "rsqrt", "constant", "wsd"):
        assert rates(1000, range(80), schedule=name, cycles="0-64") == rates(64, range(80), schedule=name), name


@pytest.mark.parametrize(
    ("changes", "steps", "named"),
    [
        ({"warmup_steps": 10}, 10, "warmup_steps=10 .*train.steps=10: .*: set optimizer.warmup_steps=1$"),
        ({"warmup_steps": 5}, 1, "set optimizer.warmup_steps=0$"),
        ({"warmup_steps": 0, "schedule": "inverse_sqrt"}, 10, "warmup_steps=0"),
        ({"warmup_steps": 0, "schedule": "rsqrt"}, 10, "warmup_steps=0 with optimizer.schedule='rsqrt'"),
        ({"schedule": "wsd", "decay_fraction": 0.7}, 10, "decay_fraction=0.7 .* 7 steps: .*warmup_steps=4 .* 1 to 6"),
        ({"schedule": "wsd", "decay_fraction": 0.04}, 10, "decay_fraction=0.04 .* 0 steps"),
        ({"cycles": "400"}, 10, r"^optimizer.cycles='400' must be the first and the last step of each cycle"),
        ({"cycles": "1-9"}, 10, "the first cycle must begin at 0"),
        ({"cycles": "0-9,9-20,9-30"}, 10, "each later than the one before"),
        ({"cycles": "0-9,9-12"}, 10, "warmup_steps=4 must be below the 3 steps of the cycle 9-12"),
        ({"cycles": "0-9,9-14", "schedule": "wsd", "decay_fraction": 0.5}, 10, "of the 5 steps of the cycle 9-14 is a"),
    ],
)
def test_values_that_cannot_work_are_named(changes, steps, named):
    with pytest.raises(ConfigError, match=named) as error:
        make_schedule(dataclasses.replace(CONFIG, **changes), steps)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "inverse_sqrt", "rsqrt", "constant", "wsd"])
@pytest.mark.parametrize("cycles", ["", "0-10,10-30", "0-30"])
def test_every_rate_is_the_same_for_a_number_of_python_as_on_a_device(schedule, cycles):
    """A line of metrics has the rate of a number of Python, and the optimizer that of an int32."""
    changes = dict(schedule=schedule, cycles=cycles)
    by_number = make_schedule(dataclasses.replace(CONFIG, **changes), 30)
    assert [float(by_number(n)) for n in range(35)] == pytest.approx(rates(30, range(35), **changes), rel=1e-6)
