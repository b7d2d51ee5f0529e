"""Nothing that is predicted can be seen where it is predicted, for every objective and layout, bit for bit."""

import functools

import jax
import numpy as np
import pytest

from models.transformer import apply, init_params
from objectives.batch import check_batch
from objectives.losses import target_side
from tests.table import PAIRS, random_windows, small_experiment


@functools.cache
def experiment_of(name, architecture, **overrides):
    return small_experiment(name, architecture, **overrides)


@functools.cache
def model_of(experiment):
    params = jax.jit(functools.partial(init_params, experiment.model))(jax.random.key(1))
    return jax.jit(lambda batch: apply(experiment.model, params, batch))


def logits(experiment, batch):
    check_batch(batch, experiment.model.architecture)
    return np.asarray(model_of(experiment)(batch))


def changed_token(vocab, tokens):
    """Another ordinary token for each."""
    return vocab.content_start + (tokens - vocab.content_start + 17) % (vocab.content_end - vocab.content_start)


@pytest.mark.parametrize(("name", "architecture"), PAIRS)
def test_a_predicted_token_moves_no_bit_of_its_own_prediction(name, architecture):
    """Row i of the second batch has raw token i changed, all else and all randomness equal.

    Wherever that changes a scored target the logits must stay the same to the last bit. Excepted are the positions
    that MLM keeps on purpose: there the input *is* the token to predict.
    """
    experiment = experiment_of(name, architecture)
    side, vocab = None, experiment.tokenizer.vocab
    for source, spec in enumerate(experiment.collator.specs):
        raw = spec.raw_length
        windows = random_windows(experiment, raw, same_keys=True)
        windows = windows._replace(
            source=np.full(raw, source, np.int32),
            lengths=np.full(raw, raw),
            tokens=windows.tokens[:, :raw] if windows.tokens.shape[1] >= raw else windows.tokens,
        )
        diagonal = np.arange(raw)
        tokens = windows.tokens.copy()
        tokens[diagonal, diagonal] = changed_token(vocab, tokens[diagonal, diagonal])
        # All batches of a pair have the shape of its longest window, so that one compilation serves.
        rows = max(one.raw_length for one in experiment.collator.specs)
        before, after = (
            padded_rows(experiment.collator(one, raw), rows) for one in (windows, windows._replace(tokens=tokens))
        )
        side = target_side(before)
        moved = np.any(logits(experiment, before) != logits(experiment, after), axis=-1)
        targets = before[f"{side}_target_tokens"], after[f"{side}_target_tokens"]
        scored = (before[f"{side}_loss_weights"] > 0) & (after[f"{side}_loss_weights"] > 0)
        predicted = scored & (targets[0] != targets[1])
        kept = np.zeros_like(scored)
        if side == "encoder":
            kept = before["encoder_input_tokens"] == before["encoder_target_tokens"]
        leaks = predicted & moved & ~kept
        assert not leaks.any(), f"{spec.name}: raw token, position {np.argwhere(leaks)[:5].tolist()}"
        # The test sees every scored piece of text, and the model does see the text.
        is_text = (targets[0][0] >= vocab.content_start) & (targets[0][0] < vocab.content_end)
        np.testing.assert_array_equal(predicted.any(axis=0), scored[0] & is_text)
        assert moved.any()


def padded_rows(batch, rows):
    return {name: np.pad(array, ((0, rows - len(array)), (0, 0))) for name, array in batch.items()}


@pytest.mark.parametrize(("name", "architecture"), PAIRS)
def test_packed_examples_do_not_see_each_other(name, architecture):
    """Every token of the first example of each row changes; no logit of the second moves."""
    experiment = experiment_of(name, architecture, data__examples_per_row=2, data__documents="join")
    windows = random_windows(experiment, 4, same_keys=False)
    assert_segment_is_alone(experiment, windows, 4)


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
def test_packed_documents_do_not_see_each_other(architecture):
    experiment = experiment_of("clm", architecture)
    windows = random_windows(experiment, 4, same_keys=False)
    lengths = np.asarray([13, 27, 39, 1])
    windows = windows._replace(rows=np.asarray([0, 0, 1, 1]), lengths=lengths)
    assert_segment_is_alone(experiment, windows, 2)


def assert_segment_is_alone(experiment, windows, num_rows):
    first = np.diff(windows.rows, prepend=-1) > 0
    tokens = np.where(first[:, None], changed_token(experiment.tokenizer.vocab, windows.tokens), windows.tokens)
    before, after = (experiment.collator(one, num_rows) for one in (windows, windows._replace(tokens=tokens)))
    moved = np.any(logits(experiment, before) != logits(experiment, after), axis=-1)
    segments = before[f"{target_side(before)}_segment_ids"]
    np.testing.assert_array_equal(segments, after[f"{target_side(before)}_segment_ids"])
    assert (segments == 2).any() and not moved[segments == 2].any()
    assert moved[segments == 1].any()
