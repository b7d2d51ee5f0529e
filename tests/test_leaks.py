"""No prediction depends on the token that it predicts, for every objective and architecture, bit for bit."""

import functools
import itertools

import jax
import numpy as np
import pytest

from contract.batch import check_batch
from contract.errors import ConfigError
from models.transformer import apply, init_params
from objectives.algebra.sequences import Sequences
from objectives.losses.cross_entropy import target_side
from objectives.objective import Masked
from objectives.rows.collate import extra_columns_of
from tests.table import CASES, PAIRS, changed_token, random_windows, shares_rows, small_experiment

ROWS = 16


@functools.cache
def experiment_of(name, architecture, **overrides):
    return small_experiment(name, architecture, **overrides)


@functools.cache
def model_of(config):
    params = jax.jit(functools.partial(init_params, config))(jax.random.key(1))
    return jax.jit(lambda batch: apply(config, params, batch))


def logits(experiment, batch):
    """The logits of a batch of any number of rows, computed ROWS rows at a time, so that a model compiles once."""
    check_batch(batch, experiment.model.architecture)
    num_rows = len(batch["example_source"])
    padded = {
        name: np.pad(array, [(0, -num_rows % ROWS), *[(0, 0)] * (array.ndim - 1)]) for name, array in batch.items()
    }
    chunks = [{name: array[i : i + ROWS] for name, array in padded.items()} for i in range(0, num_rows, ROWS)]
    return np.concatenate([model_of(experiment.model)(chunk) for chunk in chunks])[:num_rows]


@pytest.mark.parametrize(("name", "architecture"), CASES)
def test_no_bit_of_a_prediction_depends_on_the_predicted_token(name, architecture):
    """All rows of a first batch are equal. In a second batch row i has raw token i changed; everything else, all
    randomness included, is the same. Where the objective reads "others", later rows have one token of those changed.

    Where the objective hides the changed token, the inputs must stay the same. Where the inputs show a token that is
    predicted nevertheless (full targets such as BART's; tokens that MLM keeps), the row gets the inputs of the first
    batch. Then, wherever a scored target changed, the logits must stay the same to the last bit.
    """
    experiment = experiment_of(name, architecture)
    vocab, collate = experiment.vocab, experiment.collate
    # An objective may read "others" or permute the text for some random draws only.
    objectives = [denoiser.objective for denoiser in experiment.denoisers]
    varies = any(objective.extra_columns or not objective.covers_window for objective in objectives)
    for denoiser_id, seed in itertools.product(range(len(objectives)), range(3 if varies else 1)):
        spec, objective = experiment.window_specs[denoiser_id], objectives[denoiser_id]
        raw, extra_columns = spec.raw_length, objective.extra_columns
        num_rows = raw * 2 if "others" in extra_columns else raw
        windows = random_windows(experiment, num_rows, same_keys=True, seed=seed)
        windows = windows._replace(
            denoiser_ids=np.full(num_rows, denoiser_id, np.int32),
            lengths=np.full(num_rows, raw),
            tokens=windows.tokens[:, :raw],
            others_tokens=windows.others_tokens[:, :raw],
            others_lengths=np.full(num_rows, raw),
        )
        diagonal = np.arange(num_rows)
        texts = np.concatenate([windows.tokens, windows.others_tokens], axis=1)[:, :num_rows]
        changed_texts = texts.copy()
        changed_texts[diagonal, diagonal] = changed_token(vocab, texts[diagonal, diagonal])
        changed = windows._replace(tokens=changed_texts[:, :raw])
        if "others" in extra_columns:
            changed = changed._replace(others_tokens=changed_texts[:, raw:])
        examples = collate.examples(windows), collate.examples(changed)
        same_inputs = (examples[0].inputs.tokens == examples[1].inputs.tokens).all(axis=1)
        columns = extra_columns_of(extra_columns, windows, diagonal)
        hidden = objective.hidden_mask(windows.tokens, windows.lengths, windows.keys, vocab, **columns)[
            diagonal, diagonal
        ]
        leaked = diagonal[hidden & ~same_inputs]
        assert not leaked.size, f"{spec.name}: the inputs depend on the hidden raw tokens {leaked}"
        examples = examples[0], with_inputs_of(examples[0], examples[1], scored_tokens_differ(*examples))

        before, after = (collate.place(placed, windows, num_rows) for placed in examples)
        side = target_side(before)
        logits_differ = np.any(logits(experiment, before) != logits(experiment, after), axis=-1)
        targets = before[f"{side}_target_tokens"], after[f"{side}_target_tokens"]
        scored = (before[f"{side}_loss_weights"] > 0) & (after[f"{side}_loss_weights"] > 0)
        predicted = scored & (targets[0] != targets[1])
        leaks = predicted & logits_differ
        assert not leaks.any(), f"{spec.name}: raw token, position {np.argwhere(leaks)[:5].tolist()}"
        # Every scored token with a different ordinary token was changed in some row, and the model depends on its text.
        changeable = changed_token(vocab, targets[0][0]) != targets[0][0]
        np.testing.assert_array_equal(predicted.any(axis=0), scored[0] & changeable)
        assert logits_differ.any()


def scored_tokens_differ(before, after):
    """bool [E]: whether any scored token of the two examples differs."""
    if isinstance(before, Masked):
        return ((before.targets != after.targets) & before.selected).any(axis=1)
    return (before.targets.tokens != after.targets.tokens).any(axis=1)


def with_inputs_of(before, after, rows):
    """`after` with the inputs of `before` in `rows`, bool [E]."""
    inputs = np.where(rows[:, None], before.inputs.tokens, after.inputs.tokens)
    return after._replace(inputs=Sequences(inputs, after.inputs.lengths))


@pytest.mark.parametrize(("name", "architecture"), PAIRS)
def test_logits_of_a_packed_example_do_not_depend_on_the_other_examples_of_its_row(name, architecture):
    if not shares_rows(name):
        with pytest.raises(ConfigError, match=r"data.examples_per_row=2 does not go with"):
            experiment_of(name, architecture, data__examples_per_row=2)
        return
    experiment = experiment_of(name, architecture, data__examples_per_row=2, data__documents="split")
    windows = random_windows(experiment, 4, same_keys=False)
    assert_second_segments_do_not_depend_on_first(experiment, windows, 4)


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
def test_logits_of_an_example_of_a_planned_row_do_not_depend_on_the_other_examples(architecture):
    experiment = experiment_of("ul2", architecture, data__examples_per_row=2, data__packing="planned")
    num_rows = len(experiment.batch_spec.plan.denoiser_ids)
    assert_second_segments_do_not_depend_on_first(
        experiment, random_windows(experiment, num_rows, same_keys=False), num_rows
    )


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
@pytest.mark.parametrize("name", ["clm", "sft"])
def test_logits_of_a_packed_document_do_not_depend_on_the_other_documents_of_its_row(name, architecture):
    experiment = experiment_of(name, architecture)
    windows = random_windows(experiment, 4, same_keys=False)
    lengths = np.asarray([13, 25, 37, 1])
    prompts = np.minimum(windows.prompt_lengths, lengths - 1)
    windows = windows._replace(row_ids=np.asarray([0, 0, 1, 1]), lengths=lengths, prompt_lengths=prompts)
    assert_second_segments_do_not_depend_on_first(experiment, windows, 2)


def assert_second_segments_do_not_depend_on_first(experiment, windows, num_rows):
    """Changes every token of the first example of each row, which must change no bit of the logits of the second."""
    first = np.diff(windows.row_ids, prepend=-1) > 0
    changed = windows._replace(
        tokens=np.where(first[:, None], changed_token(experiment.vocab, windows.tokens), windows.tokens)
    )
    before, after = experiment.collate(windows, num_rows), experiment.collate(changed, num_rows)
    logits_differ = np.any(logits(experiment, before) != logits(experiment, after), axis=-1)
    segments = before[f"{target_side(before)}_segment_ids"]
    np.testing.assert_array_equal(segments, after[f"{target_side(before)}_segment_ids"])
    assert (segments == 2).any() and not logits_differ[segments == 2].any()
    assert logits_differ[segments == 1].any()
