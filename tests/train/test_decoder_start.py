"""data.decoder_start_token: what decoders read at the start of each segment, and nothing else."""

import numpy as np
import pytest

from contract.batch import check_batch
from contract.errors import ConfigError
from generate.prompts import make_prompt, prompt_batch
from run.texts import batch_of
from tests.table import random_windows, small_experiment

PACKED = {"data__examples_per_row": 3}
CASES = {
    "clm, packed": ("clm", "decoder_only", PACKED),
    "prefix_lm, packed": ("prefix_lm", "decoder_only", PACKED),
    "span_corruption, packed": ("span_corruption", "encoder_decoder", PACKED),
    "bart": ("bart", "encoder_decoder", {}),
}


@pytest.mark.parametrize("start", ["bos", "eos"])
@pytest.mark.parametrize("case", CASES)
def test_every_segment_starts_with_the_token(case, start):
    name, architecture, overrides = CASES[case]
    pad, other = (
        small_experiment(name, architecture, data__decoder_start_token=token, **overrides) for token in ("pad", start)
    )
    windows = random_windows(pad, 4, same_keys=False)
    if case in ("clm, packed", "bart"):  # rows with padding
        windows = windows._replace(lengths=windows.lengths - 1)
    expected, found = batch_of(pad, windows), batch_of(other, windows)
    check_batch(found, architecture)
    segments = found["decoder_segment_ids"]
    starts = (found["decoder_positions"] == 0) & (segments > 0)
    assert starts.sum() == 4 * overrides.get("data__examples_per_row", 1) and (segments == 0).any()
    assert other.vocab.decoder_start == getattr(other.vocab, start) != pad.vocab.pad
    assert (found["decoder_input_tokens"][starts] == other.vocab.decoder_start).all()
    assert (expected["decoder_input_tokens"][starts] == pad.vocab.pad).all()
    for field, array in found.items():
        same = ~starts if field == "decoder_input_tokens" else np.ones(array.shape, bool)
        np.testing.assert_array_equal(array[same], expected[field][same], err_msg=field)


@pytest.mark.parametrize(("name", "architecture"), [("clm", "decoder_only"), ("span_corruption", "encoder_decoder")])
def test_prompts_start_with_the_token(name, architecture):
    experiment = small_experiment(name, architecture, data__decoder_start_token="bos")
    texts = [np.array([10, 11, 12], np.int32), np.array([13], np.int32)]
    batch = prompt_batch(experiment, [make_prompt(experiment.denoisers[0], text, experiment.vocab) for text in texts])
    starts = (batch["decoder_positions"] == 0) & (batch["decoder_segment_ids"] > 0)
    assert starts.sum() == 2 and (batch["decoder_input_tokens"][starts] == experiment.vocab.bos).all()
    assert (batch["decoder_input_tokens"][batch["decoder_segment_ids"] == 0] == experiment.vocab.pad).all()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"decoder_start_token": "bos", "append_special_tokens": False},
            "data.decoder_start_token='bos' needs the special token <s>, which data.tokenizer='byte' lacks: set "
            "data.append_special_tokens=True, or choose 'pad' or 'eos'",
        ),
        ({"decoder_start_token": "cls"}, "data.decoder_start_token='cls' must be"),
    ],
)
def test_a_token_that_does_not_exist_is_one_line(overrides, message):
    with pytest.raises(ConfigError) as error:
        small_experiment("clm", "decoder_only", **{f"data__{name}": value for name, value in overrides.items()})
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
