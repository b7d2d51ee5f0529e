import numpy as np
import pytest

from contract.errors import ConfigError
from objectives import PrefixLM, SpanCorruption
from objectives.rows.lengths import RowShape, longest_window
from tests.objectives.helpers import REFERENCE, collator

ROWS = REFERENCE["random_spans_helper"]["rows"]


def window(objective, inputs, targets, architecture="encoder_decoder", per_row=1):
    return longest_window(objective.output_lengths, RowShape(architecture, inputs, targets, per_row), "it")


def test_t5_grid():
    """Every row of the reference's table, equal but for three differences that are meant.

    The helper (1) rounds in float64 where the mask rounds in float32, (2) may count no span at all where the mask has
    one, and (3) at density .5 takes one token from the window, and reports targets, by a rule of its own. Ours are the
    true lengths of the mask, so windows may differ, and never by more than two tokens.
    """
    different = 0
    for inputs_length, density, mean, raw, targets in ROWS:
        objective = SpanCorruption(density, mean, random_roll=False)
        ours = window(objective, inputs_length, inputs_length if density == 0.5 else 2 * inputs_length)
        true_inputs, true_targets = (int(n[0]) for n in objective.output_lengths(np.asarray([ours]))[:2])
        assert true_inputs <= inputs_length
        if (ours, true_targets) == (raw, targets):
            continue
        different += 1
        lengths = np.arange(raw - 2, raw + 3)
        noise = [round(n * density) for n in lengths]
        float32_noise = [int(np.rint(np.float32(n) * np.float32(density))) for n in lengths]
        no_span = any(round(n / mean) == 0 for n in noise)
        assert no_span or noise != float32_noise or density == 0.5, (inputs_length, density, mean)
        assert abs(ours - raw) <= 2
    assert different < 0.1 * len(ROWS)


@pytest.mark.parametrize(
    ("objective", "inputs", "targets", "raw"),
    [
        (SpanCorruption(0.15, 3.0, False), 512, 114, 568),
        (SpanCorruption(0.5, 3.0, False), 512, 512, 766),
        (SpanCorruption(0.15, 64.0, False), 128, 128, 148),  # the helper says 149, whose inputs are 129 tokens
        (PrefixLM(0.5, "uniform", False), 512, 512, 512),
        (PrefixLM(0.5, "uniform", True), 512, 512, 511),
    ],
)
def test_encoder_decoder_windows(objective, inputs, targets, raw):
    assert window(objective, inputs, targets) == raw


def test_decoder_only_rows_come_out_full():
    for objective in (
        SpanCorruption(0.5, 3.0, False),
        SpanCorruption(0.15, 3.0, False),
        PrefixLM(0.5, "uniform", False),  # its inputs and its targets can each be nearly all
    ):
        raw = window(objective, 512, 1, "decoder_only")
        assert 510 <= int(objective.output_lengths(np.asarray([raw])).both[0]) <= 512


def test_short_targets_are_refused_with_what_would_fit():
    with pytest.raises(ConfigError, match=r"targets_length=64 is too short .* data.targets_length=114 or more, or "
                                          r"data.inputs_length=(\d+) or less") as error:  # fmt: skip
        window(SpanCorruption(0.15, 3.0, False), 512, 64)
    instead = int(str(error.value).split("data.inputs_length=")[2].split()[0])
    assert window(SpanCorruption(0.15, 3.0, False), instead, 64) > 0


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only"])
def test_rows_too_short_for_one_token_are_refused(architecture):
    with pytest.raises(ConfigError, match=r"data.inputs_length=1 is too short for it: set it to \d+ or more"):
        window(SpanCorruption(0.15, 3.0, False), 1, 8, architecture)


def test_too_few_sentinels_are_refused_with_what_would_fit():
    x_denoiser = SpanCorruption(0.5, 3.0, False)
    message = r"num_sentinels=100 is too few for x: .* need 128; set data.num_sentinels=128 or more, or data.inputs_le"
    with pytest.raises(ConfigError, match=message) as error:
        collator(x_denoiser, "encoder_decoder", inputs=512, targets=512, sentinels=100)
    instead = int(str(error.value).split("data.inputs_length=")[1].split()[0])
    assert collator(x_denoiser, "encoder_decoder", inputs=instead, targets=instead, sentinels=100)
    enough = collator(x_denoiser, "encoder_decoder", inputs=512, targets=512, sentinels=128)
    assert enough.batch_spec.windows[0].raw_length == 766


def test_shares_of_a_row():
    assert window(SpanCorruption(0.15, 3.0, False), 1024, 228, per_row=2) == 568
