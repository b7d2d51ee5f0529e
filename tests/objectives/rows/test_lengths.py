"""How long windows may be so that their examples fit a row."""

import re

import numpy as np
import pytest

from contract.errors import ConfigError
from objectives import PrefixLM, SpanCorruption
from objectives.objective import OutputLengths, RowShape
from objectives.rows.window_specs import longest_window
from tests.objectives.helpers import REFERENCE
from tests.table import small_experiment

ROWS = REFERENCE["random_spans_helper"]["rows"][::6]


def window(objective, inputs, targets, architecture="encoder_decoder", examples_per_row=1):
    return longest_window(objective.output_lengths, RowShape(architecture, inputs, targets, examples_per_row), "x")


def test_windows_equal_those_of_t5_up_to_three_deliberate_deviations():
    """Every sixth row of T5's table (random_spans_helper).

    T5's helper (1) rounds in float64 where the noise mask rounds in float32, (2) may count no span where the mask has
    one, and (3) at density 0.5 shortens the window by one token and reports targets by a rule of its own. Windows here
    follow from the true lengths of the mask, so they may differ from T5's, by two tokens at most.
    """
    num_different = 0
    for inputs_length, density, mean, t5_raw_length, t5_targets in ROWS:
        objective = SpanCorruption(density, mean, False, "composition")
        raw_length = window(objective, inputs_length, inputs_length if density == 0.5 else 2 * inputs_length)
        true_inputs, true_targets = (int(n[0]) for n in objective.output_lengths(np.asarray([raw_length]))[:2])
        assert true_inputs <= inputs_length
        if (raw_length, true_targets) == (t5_raw_length, t5_targets):
            continue
        num_different += 1
        lengths = np.arange(t5_raw_length - 2, t5_raw_length + 3)
        noise = [round(n * density) for n in lengths]
        float32_noise = [int(np.rint(np.float32(n) * np.float32(density))) for n in lengths]
        no_span = any(round(n / mean) == 0 for n in noise)
        assert no_span or noise != float32_noise or density == 0.5, (inputs_length, density, mean)
        assert abs(raw_length - t5_raw_length) <= 2
    assert num_different < 0.1 * len(ROWS)


@pytest.mark.parametrize(
    ("objective", "inputs", "targets", "raw"),
    [
        (SpanCorruption(0.15, 3.0, False, "composition"), 512, 114, 568),
        (SpanCorruption(0.5, 3.0, False, "composition"), 512, 512, 766),
        (SpanCorruption(0.15, 64.0, False, "composition"), 128, 128, 148),  # T5: 149, with 129 inputs
        (PrefixLM(0.5, "uniform", False), 512, 512, 512),
        (PrefixLM(0.5, "uniform", True), 512, 512, 511),
    ],
)
def test_encoder_decoder_windows_have_the_expected_length(objective, inputs, targets, raw):
    assert window(objective, inputs, targets) == raw


def test_decoder_only_windows_fill_their_row():
    for objective in (
        SpanCorruption(0.5, 3.0, False, "composition"),
        SpanCorruption(0.15, 3.0, False, "composition"),
        PrefixLM(0.5, "uniform", False),  # its inputs or its targets can be nearly the whole window
    ):
        raw = window(objective, 512, 1, "decoder_only")
        assert 510 <= int(objective.output_lengths(np.asarray([raw])).both[0]) <= 512


def test_too_short_targets_raise_with_lengths_that_fit():
    with pytest.raises(ConfigError, match=r"targets_length=64 is too short .* data.targets_length=114 or more, or "
                                          r"data.inputs_length=(\d+) or less") as error:  # fmt: skip
        window(SpanCorruption(0.15, 3.0, False, "composition"), 512, 64)
    fitting = int(str(error.value).split("data.inputs_length=")[2].split()[0])
    assert window(SpanCorruption(0.15, 3.0, False, "composition"), fitting, 64) > 0


def test_too_few_sentinels_for_several_denoisers_raise_with_a_number_that_suffices_for_all():
    def config(sentinels, inputs=512):
        sizes = {"data__inputs_length": inputs, "data__targets_length": inputs, "data__num_sentinels": sentinels}
        return small_experiment("ul2", "encoder_decoder", **sizes)

    with pytest.raises(ConfigError, match=r"=20 is too few for x1: .*=\d+ or more, or lower data.inputs_le") as error:
        config(20)
    needed = int(re.search(r"num_sentinels=(\d+) or more", str(error.value))[1])
    assert config(needed) and config(20, 64)
    with pytest.raises(ConfigError):
        config(needed - 1)


def test_two_examples_per_row_have_windows_for_half_a_row():
    assert window(SpanCorruption(0.15, 3.0, False, "composition"), 1024, 228, examples_per_row=2) == 568


def test_targets_one_token_too_long_shorten_the_window_and_longer_ones_are_an_error():
    """As in T5 at density .5. The error names lengths that fit: 8 inputs have 10 targets, 10 inputs have 12."""
    row = RowShape("encoder_decoder", inputs_length=10, targets_length=10, examples_per_row=1)
    assert longest_window(lambda raw: OutputLengths(raw, raw + 1, 2 * raw + 1), row, "x") == 9
    message = r"set data.targets_length=12 or more, or data.inputs_length=8 or less$"
    with pytest.raises(ConfigError, match=message):
        longest_window(lambda raw: OutputLengths(raw, raw + 2, 2 * raw + 2), row, "x")
