"""Nothing that is predicted can be seen where it is predicted, for every objective and layout, bit for bit."""

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
    """Of any number of rows, a fixed number at a time: one compilation serves all batches of a model."""
    check_batch(batch, experiment.model.architecture)
    num_rows = len(batch["example_source"])
    padded = {
        name: np.pad(array, [(0, -num_rows % ROWS), *[(0, 0)] * (array.ndim - 1)]) for name, array in batch.items()
    }
    chunks = [{name: array[i : i + ROWS] for name, array in padded.items()} for i in range(0, num_rows, ROWS)]
    return np.concatenate([model_of(experiment.model)(chunk) for chunk in chunks])[:num_rows]


@pytest.mark.parametrize(("name", "architecture"), CASES)
def test_a_predicted_token_moves_no_bit_of_its_own_prediction(name, architecture):
    """Row i of the second batch has raw token i changed, all else and all randomness equal; where the objective reads
    others, the rows after those have theirs changed.

    The inputs must stay the same wherever the token is one that the objective hides. Where it shows the token and has
    it predicted all the same (full targets such as BART's; what MLM keeps), the row is given the inputs of before.
    Then, wherever a scored target changed, the logits must stay the same to the last bit.
    """
    experiment = experiment_of(name, architecture)
    vocab, collate = experiment.vocab, experiment.collate
    # At some draws only may an objective read what else there is, or change the order.
    kinds = [denoiser.objective for denoiser in experiment.denoisers]
    draws = range(3 if any(kind.extra_columns or not kind.covers_window for kind in kinds) else 1)
    for source, seed in itertools.product(range(len(experiment.window_specs)), draws):
        spec, extra_columns = experiment.window_specs[source], experiment.denoisers[source].objective.extra_columns
        raw = spec.raw_length
        num_rows = raw * 2 if "others" in extra_columns else raw
        windows = random_windows(experiment, num_rows, same_keys=True, seed=seed)
        windows = windows._replace(
            denoiser_ids=np.full(num_rows, source, np.int32),
            lengths=np.full(num_rows, raw),
            tokens=windows.tokens[:, :raw],
            others_tokens=windows.others_tokens[:, :raw],
            others_lengths=np.full(num_rows, raw),
        )
        diagonal = np.arange(num_rows)
        texts = np.concatenate([windows.tokens, windows.others_tokens], axis=1)[:, :num_rows]
        otherwise = texts.copy()
        otherwise[diagonal, diagonal] = changed_token(vocab, texts[diagonal, diagonal])
        changed = windows._replace(tokens=otherwise[:, :raw])
        if "others" in extra_columns:
            changed = changed._replace(others_tokens=otherwise[:, raw:])
        examples = collate.examples(windows), collate.examples(changed)
        same_inputs = (examples[0].inputs.tokens == examples[1].inputs.tokens).all(axis=1)
        more = extra_columns_of(extra_columns, windows, diagonal)
        objective = experiment.denoisers[source].objective
        hidden = objective.hidden(windows.tokens, windows.lengths, windows.keys, vocab, **more)[diagonal, diagonal]
        assert same_inputs[hidden].all(), f"{spec.name}: the inputs tell raw tokens {diagonal[hidden & ~same_inputs]}"
        examples = examples[0], with_inputs_of(examples[0], examples[1], predicts_otherwise(*examples))

        before, after = (collate.place(one, windows, num_rows) for one in examples)
        side = target_side(before)
        moved = np.any(logits(experiment, before) != logits(experiment, after), axis=-1)
        targets = before[f"{side}_target_tokens"], after[f"{side}_target_tokens"]
        scored = (before[f"{side}_loss_weights"] > 0) & (after[f"{side}_loss_weights"] > 0)
        predicted = scored & (targets[0] != targets[1])
        leaks = predicted & moved
        assert not leaks.any(), f"{spec.name}: raw token, position {np.argwhere(leaks)[:5].tolist()}"
        # The test sees every scored piece of text, and the model does see the text.
        changes = changed_token(vocab, targets[0][0]) != targets[0][0]
        np.testing.assert_array_equal(predicted.any(axis=0), scored[0] & changes)
        assert moved.any()


def predicts_otherwise(before, after):
    """bool [E]: whether any scored token of the examples differs."""
    if isinstance(before, Masked):
        return ((before.targets != after.targets) & before.selected).any(axis=1)
    return (before.targets.tokens != after.targets.tokens).any(axis=1)


def with_inputs_of(before, after, rows):
    inputs = np.where(rows[:, None], before.inputs.tokens, after.inputs.tokens)
    return after._replace(inputs=Sequences(inputs, after.inputs.lengths))


@pytest.mark.parametrize(("name", "architecture"), PAIRS)
def test_packed_examples_do_not_see_each_other(name, architecture):
    """Every token of the first example of each row changes; no logit of the second moves."""
    if not shares_rows(name):
        with pytest.raises(ConfigError, match=r"data.examples_per_row=2 does not go with"):
            experiment_of(name, architecture, data__examples_per_row=2)
        return
    experiment = experiment_of(name, architecture, data__examples_per_row=2, data__documents="split")
    windows = random_windows(experiment, 4, same_keys=False)
    assert_segment_is_alone(experiment, windows, 4)


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
def test_examples_of_planned_rows_do_not_see_each_other(architecture):
    experiment = experiment_of("ul2", architecture, data__examples_per_row=2, data__packing="planned")
    num_rows = len(experiment.batch_spec.plan.denoiser_ids)
    assert_segment_is_alone(experiment, random_windows(experiment, num_rows, same_keys=False), num_rows)


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
@pytest.mark.parametrize("name", ["clm", "sft"])
def test_packed_documents_do_not_see_each_other(name, architecture):
    experiment = experiment_of(name, architecture)
    windows = random_windows(experiment, 4, same_keys=False)
    lengths = np.asarray([13, 25, 37, 1])
    prompts = np.minimum(windows.prompt_lengths, lengths - 1)
    windows = windows._replace(row_ids=np.asarray([0, 0, 1, 1]), lengths=lengths, prompt_lengths=prompts)
    assert_segment_is_alone(experiment, windows, 2)


def assert_segment_is_alone(experiment, windows, num_rows):
    first = np.diff(windows.row_ids, prepend=-1) > 0
    tokens = np.where(first[:, None], changed_token(experiment.vocab, windows.tokens), windows.tokens)
    before, after = (experiment.collate(one, num_rows) for one in (windows, windows._replace(tokens=tokens)))
    moved = np.any(logits(experiment, before) != logits(experiment, after), axis=-1)
    segments = before[f"{target_side(before)}_segment_ids"]
    np.testing.assert_array_equal(segments, after[f"{target_side(before)}_segment_ids"])
    assert (segments == 2).any() and not moved[segments == 2].any()
    assert moved[segments == 1].any()
