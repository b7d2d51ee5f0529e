"""MASS: literal examples and rows, rates, positions that the model reads, and prompts with one fragment."""

import numpy as np
import pytest

from contract.batch import check_batch
from contract.errors import ConfigError
from generate.prompts import max_answer_length, prompt_batch, read_prompt
from objectives import MASS, Denoiser
from objectives.objective import RowShape
from tests.models import tiny
from tests.objectives.helpers import collator, make_collator, random_keys, random_windows, sequence, vocab
from tests.table import objective_of, small_experiment
from tests.train.tiny_experiments import random_params, tiny_experiment

VOCAB = vocab()
M, EOS = VOCAB.mask, VOCAB.eos
MASKS_ALONE = MASS(0.5, 1.0, 0.0)
FIELDS = {"name": "mass", "mask_rate": 0.5, "mask_token_rate": 1.0, "random_token_rate": 0.0}


def corrupt(objective, lengths, seed=0):
    tokens = np.tile(np.arange(10, 10 + max(lengths), dtype=np.int32), (len(lengths), 1))
    return objective.corrupt(tokens, np.asarray(lengths), random_keys(len(lengths), seed), VOCAB)


def begins_at(places, monkeypatch):
    monkeypatch.setattr("objectives.mass.rng.integers", lambda *_: np.asarray(places))


def test_a_fragment_of_half_of_the_text_is_masked_and_keeps_its_positions(monkeypatch):
    begins_at([2, 0], monkeypatch)
    examples = corrupt(MASKS_ALONE, [8, 3])
    assert sequence(examples.inputs) == [10, 11, M, M, M, M, 16, 17, EOS]
    assert sequence(examples.targets) == [12, 13, 14, 15, EOS]
    assert examples.positions[0].tolist() == [2, 3, 4, 5, 6]
    assert sequence(examples.inputs, 1) == [M, M, 12, EOS] and sequence(examples.targets, 1) == [10, 11, EOS]
    assert examples.positions[1, :3].tolist() == [0, 1, 2]


def test_a_row_of_two_examples(monkeypatch):
    begins_at([1, 2], monkeypatch)
    windows = random_windows(np.random.default_rng(0), [4, 4], row_ids=[0, 0])
    (a, b, c, d), (e, f, g, h) = windows.tokens.tolist()
    batch = collator(MASKS_ALONE, "encoder_decoder", inputs=12, targets=8, examples_per_row=2)(windows, 1)
    check_batch(batch, "encoder_decoder")
    assert batch["encoder_input_tokens"].tolist() == [[a, M, M, d, EOS, e, f, M, M, EOS, 0, 0]]
    assert batch["encoder_positions"].tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 0]]
    assert batch["decoder_target_tokens"].tolist() == [[b, c, EOS, g, h, EOS, 0, 0]]
    assert batch["decoder_input_tokens"].tolist() == [[0, b, c, 0, g, h, 0, 0]]
    assert batch["decoder_positions"].tolist() == [[1, 2, 3, 2, 3, 4, 0, 0]]


def test_beside_others_and_with_a_mode_token_positions_are_those_of_the_inputs(monkeypatch):
    """Prefix LM, without positions of its own, counts from 0; a mode token moves the text, and the fragment, by one."""
    begins_at([1], monkeypatch)
    table = [Denoiser("mass", "x", MASKS_ALONE, 1.0, "[R]", 1.0)]
    table.append(Denoiser("prefix", "x", objective_of("prefix_lm"), 1.0, "", 1.0))
    shape = RowShape("encoder_decoder", 12, 12, 1)
    collate = make_collator(tuple(table), shape, VOCAB, documents="join", bidirectional_inputs=True)
    batch = collate(random_windows(np.random.default_rng(0), [4, 6], denoiser_ids=[0, 1]), 2)
    check_batch(batch, "encoder_decoder")
    assert batch["encoder_input_tokens"][0, [0, 2, 3]].tolist() == [VOCAB.mode("[R]"), M, M]
    assert batch["decoder_positions"][0, :3].tolist() == [2, 3, 4]
    count = int((batch["decoder_segment_ids"][1] > 0).sum())
    assert batch["decoder_positions"][1, :count].tolist() == list(range(count))


def test_the_fragment_is_shown_as_berts_selected_tokens_and_begins_anywhere():
    n, length = 4000, 20
    examples = corrupt(MASS(0.5, 0.8, 0.1), [length] * n)
    first = examples.positions[:, 0]
    assert np.abs(np.bincount(first, minlength=11) - n / 11).max() < 5 * np.sqrt(n / 11)
    inside = (np.arange(length) >= first[:, None]) & (np.arange(length) < first[:, None] + 10)
    shown, text = examples.inputs.tokens[:, :length], np.arange(10, 10 + length)
    assert (shown == text)[~inside].all()
    masked, kept = (shown == M)[inside].mean(), (shown == text)[inside].mean()
    error = 5 * np.sqrt(0.2 / (n * 10))
    assert masked == pytest.approx(0.8, abs=error) and kept == pytest.approx(0.1 + 0.1 / 256, abs=error)


def test_inputs_and_targets_determine_the_text_where_masks_show_the_ends_of_the_fragment():
    for seed in range(20):
        for e, length in enumerate(lengths := [1, 2, 3, 7, 12]):
            examples = corrupt(MASKS_ALONE, lengths, seed)
            inputs, targets = (np.asarray(sequence(part, e)) for part in examples[:2])
            assert MASKS_ALONE.restore(inputs, targets, VOCAB).tolist() == list(range(10, 10 + length))
    kept = MASKS_ALONE.restore(np.asarray([10, M, 12, EOS]), np.asarray([11, 12, EOS]), VOCAB)
    assert kept is None  # 10 and 12 may both be the second token of the fragment


def test_the_decoder_reads_the_positions_of_the_text():
    experiment = tiny_experiment(FIELDS, "encoder_decoder", model={"positions": "learned"})
    params = random_params(experiment)
    batch = experiment.collate(random_windows(np.random.default_rng(0), [40, 40]), 2)
    assert batch["decoder_positions"][:, 0].any()
    from_zero = batch | {"decoder_positions": np.tile(np.arange(48, dtype=np.int32), (2, 1))}
    logits = [np.asarray(tiny.run(experiment.model, params, each)) for each in (batch, from_zero)]
    later = batch["decoder_positions"][:, 0] > 0
    assert (np.abs(logits[0] - logits[1])[later, 0].max(axis=-1) > 1e-3).all()


def test_a_prompt_with_one_fragment_is_laid_out_as_in_training(monkeypatch):
    experiment = tiny_experiment(FIELDS, "encoder_decoder", model={"positions": "learned"})
    windows = random_windows(np.random.default_rng(0), [12])
    windows = windows._replace(tokens=windows.tokens % 26 + 100)
    begins_at([4], monkeypatch)
    row, inputs = experiment.collate(windows, 1), sequence(experiment.collate.examples(windows).inputs)
    prompt, notes = read_prompt(experiment, experiment.tokenizer.decode(inputs[:-1]), None)
    assert notes == [] and prompt.inputs.tolist() == inputs and prompt.position == 4
    batch = prompt_batch(experiment, [prompt])
    for name in ("encoder_input_tokens", "encoder_positions", "decoder_input_tokens", "decoder_positions"):
        width = 48 if name.startswith("encoder") else 1
        assert batch[name].tolist() == row[name][:, :width].tolist(), name
    assert max_answer_length(experiment, prompt) == 44  # the positions of the text that are left
    answer = windows.tokens[0, 4:10]
    assert prompt.prompting.complete(prompt.text, answer, experiment.vocab).tolist() == windows.tokens[0].tolist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ab", r"the prompt has 0 \[MASK\], and this run's model fills in one blank, whose \[MASK\] are neighbours"),
        ("a[MASK]b[MASK]", r"the prompt has 2 \[MASK\], and this run's model fills in one blank"),
    ],
)
def test_prompts_without_one_fragment_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        read_prompt(tiny_experiment(FIELDS, "encoder_decoder", model={"positions": "learned"}), text, None)


def test_fields_that_cannot_work_are_refused_in_one_line():
    with pytest.raises(ConfigError, match=r"relative' does not say .* with objective \(MASS\), whose targets"):
        small_experiment("mass", "encoder_decoder", model__positions="relative")
    with pytest.raises(ConfigError, match=r"objective.mask_token_rate=0.8 .* objective.random_token_rate=0.3"):
        MASS(0.5, 0.8, 0.3).check("objective")
