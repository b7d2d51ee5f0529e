"""Sampling: the distribution of drawn tokens, and decoding with a cache against the model without one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generate.prompts import make_prompt, prompt_batch
from generate.sampling import Sampling, decode, sample_token
from models.transformer import apply
from objectives.algebra.sequences import Sequences
from objectives.objective import InputsTargets, RowShape
from objectives.rows import layout
from tests.train.tiny_experiments import random_params, tiny_experiment

GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0)
_sample = jax.jit(sample_token)
_apply = jax.jit(apply, static_argnums=0)


def drawn_frequencies(probabilities, *, temperature=1.0, top_k=0, top_p=1.0, allowed=None, draws=4000) -> np.ndarray:
    """The frequency of each token, float [V], in `draws` rows of the same probabilities."""
    probabilities = np.asarray(probabilities, np.float32)
    logits = jnp.broadcast_to(jnp.log(probabilities), (draws, len(probabilities)))
    allowed = np.ones(len(probabilities), bool) if allowed is None else np.asarray(allowed)
    keys = jax.random.split(jax.random.key(7), draws)
    tokens = _sample(logits, keys, allowed_V=allowed, temperature=temperature, top_k=top_k, top_p=top_p)
    assert tokens.dtype == jnp.int32 and tokens.shape == (draws,)
    return np.bincount(tokens, minlength=len(probabilities)) / draws


# Arguments, and the resulting distribution for probabilities 0.1, 0.4, 0.2, 0.3.
CASES = {
    "default": (dict(), [0.1, 0.4, 0.2, 0.3]),
    "temperature 0.5 squares the odds": (dict(temperature=0.5), [1 / 30, 16 / 30, 4 / 30, 9 / 30]),
    "temperature 0": (dict(temperature=0.0), [0, 1, 0, 0]),
    "temperature nearly 0": (dict(temperature=1e-38), [0, 1, 0, 0]),
    "top 1": (dict(top_k=1), [0, 1, 0, 0]),
    "top 2": (dict(top_k=2), [0, 4 / 7, 0, 3 / 7]),
    "p = 0.39: the likeliest reaches it": (dict(top_p=0.39), [0, 1, 0, 0]),
    "p = 0.41: the second reaches it": (dict(top_p=0.41), [0, 4 / 7, 0, 3 / 7]),
    "p = 0.71: the third reaches it": (dict(top_p=0.71), [0, 4 / 9, 2 / 9, 3 / 9]),
    # The likeliest token has 4/7 of the probability that top-k keeps, which reaches 0.5, and 0.4 of all.
    "top-p is relative to top-k": (dict(top_k=2, top_p=0.5), [0, 1, 0, 0]),
    "top-p is after temperature": (dict(temperature=0.5, top_p=0.53), [0, 1, 0, 0]),
}


@pytest.mark.parametrize(("arguments", "expected"), CASES.values(), ids=CASES)
def test_tokens_are_drawn_from_the_expected_distribution(arguments, expected):
    frequencies = drawn_frequencies([0.1, 0.4, 0.2, 0.3], **arguments)
    np.testing.assert_array_equal(frequencies > 0, np.array(expected) > 0)
    np.testing.assert_allclose(frequencies, expected, atol=0.03)  # 4000 draws: four standard errors of 0.5 are 0.032


def test_of_equally_likely_tokens_top_k_keeps_the_k_lowest_ids():
    np.testing.assert_allclose(drawn_frequencies([0.2, 0.2, 0.2, 0.4], top_k=2), [1 / 3, 0, 0, 2 / 3], atol=0.03)
    np.testing.assert_allclose(drawn_frequencies([0.25] * 4, top_k=3), [1 / 3, 1 / 3, 1 / 3, 0], atol=0.03)
    np.testing.assert_array_equal(drawn_frequencies([0.3, 0.3, 0.1, 0.3], temperature=0.0), [1, 0, 0, 0])
    # Of four quarters the first two reach 0.5.
    np.testing.assert_allclose(drawn_frequencies([0.25] * 4, top_p=0.5), [0.5, 0.5, 0, 0], atol=0.03)


def test_tokens_that_are_not_allowed_are_never_drawn_and_do_not_count_in_top_k():
    allowed = [False, True, True, True, False]
    probabilities = [0.3, 0.1, 0.2, 0.1, 0.3]
    np.testing.assert_allclose(drawn_frequencies(probabilities, allowed=allowed), [0, 0.25, 0.5, 0.25, 0], atol=0.03)
    np.testing.assert_allclose(
        drawn_frequencies(probabilities, allowed=allowed, top_k=2), [0, 1 / 3, 2 / 3, 0, 0], atol=0.03
    )
    np.testing.assert_array_equal(drawn_frequencies(probabilities, allowed=allowed, temperature=0.0), [0, 0, 1, 0, 0])


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(0, 12), st.floats(0.01, 1.0), st.sampled_from([0.0, 0.1, 1.0, 3.0]))
def test_a_drawn_token_is_among_the_k_likeliest_and_needed_to_reach_p(seed, top_k, top_p, temperature):
    logits = np.random.default_rng(seed).normal(size=(8, 11)).astype(np.float32)
    tokens = np.asarray(
        _sample(
            logits,
            jax.random.split(jax.random.key(seed), 8),
            allowed_V=np.ones(11, bool),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
        )
    )
    for row, token in zip(logits.astype(np.float64), tokens, strict=True):
        likelier = np.sort(row[row > row[token]])[::-1]
        assert len(likelier) < (top_k or 11)
        if temperature > 0:
            kept = np.exp((np.sort(row)[::-1][: top_k or 11] - row.max()) / temperature)
            assert np.exp((likelier - row.max()) / temperature).sum() / kept.sum() < top_p + 1e-5
        else:
            assert not len(likelier)


MODELS = {
    "encoder-decoder, relative": ("ul2", "encoder_decoder", {}),
    "prefix decoder, learned": ("ul2", "decoder_only", {"positions": "learned"}),
    "causal decoder, rope, grouped keys": ("clm", "decoder_only", {"positions": "rope", "num_kv_heads": 1}),
}


@pytest.fixture(scope="module", params=MODELS.values(), ids=MODELS)
def model(request):
    objective, architecture, fields = request.param
    experiment = tiny_experiment(objective, architecture, model={"num_layers": 2, **fields})
    # With a large scale logits differ so much that rounding does not decide which is the greatest.
    return experiment, random_params(experiment, scale=3.0)


def prompt_of(experiment, length: int, seed: int):
    text = np.random.default_rng(seed).integers(3, 259, length).astype(np.int32)
    return make_prompt(experiment.denoisers[0], text, experiment.vocab)


def decode_prompt(experiment, params, prompt, sampling, max_tokens, num_rows=1, seed=0):
    batch, keys = prompt_batch(experiment, [prompt] * num_rows), jax.random.split(jax.random.key(seed), num_rows)
    limits = np.full(num_rows, max_tokens, np.int32)
    return decode(
        experiment.model, params, batch, keys, limits, sampling, vocab=experiment.vocab, max_tokens=max_tokens
    )


def uncached_greedy(experiment, params, prompt, max_tokens: int) -> list[int]:
    """The likeliest tokens, each from a pass over the whole row, laid out as in training: inputs and targets so far."""
    vocab, shape = experiment.vocab, RowShape(experiment.model.architecture, 48, 48, 1)
    place = layout.encoder_decoder if experiment.model.has_encoder else layout.decoder_only
    answer = []
    while len(answer) < max_tokens and vocab.eos not in answer:
        targets = np.array([[*prompt.targets_start, *answer, vocab.unk]], np.int32)
        examples = InputsTargets(
            Sequences(prompt.inputs[None], np.array([len(prompt.inputs)])),
            Sequences(targets, np.array([targets.shape[1]])),
        )
        batch = place(examples, np.zeros(1, int), np.zeros(1, np.int32), 1, shape, vocab)
        last = np.flatnonzero(batch["decoder_segment_ids"][0])[-1]
        logits = np.asarray(_apply(experiment.model, params, batch))[0, last].copy()
        logits[vocab.pad], logits[vocab.size :] = -np.inf, -np.inf
        answer.append(int(logits.argmax()))
    return answer


def test_decoding_with_a_cache_gives_the_same_tokens_as_without(model):
    experiment, params = model
    answers = []
    for seed in range(3):
        prompt = prompt_of(experiment, 7, seed)
        expected = uncached_greedy(experiment, params, prompt, 16)
        [tokens], [count] = jax.device_get(decode_prompt(experiment, params, prompt, GREEDY, 16))
        assert tokens[: len(expected)].tolist() == expected
        assert (tokens[len(expected) :] == experiment.vocab.pad).all()
        assert count == len(expected) - (expected[-1] == experiment.vocab.eos)
        answers.append(tuple(expected))
    # With equal answers, or answers of a single token, the test could not detect a wrong cache.
    assert len(set(answers)) == 3 and max(len(set(answer)) for answer in answers) > 3


@pytest.fixture(scope="module")
def uniform_model():
    """A causal model whose parameters, and so its logits, are all 0: it draws every token with equal probability."""
    experiment = tiny_experiment("clm", "decoder_only")
    return experiment, jax.tree.map(np.zeros_like, random_params(experiment))


def test_rows_end_independently_with_an_eos_and_pad_after_it(uniform_model):
    experiment, params = uniform_model
    vocab = experiment.vocab
    # The two lowest ids that may be drawn are EOS, 1, and unk, 2.
    sampling = Sampling(temperature=1.0, top_k=2, top_p=1.0)
    tokens, lengths = jax.device_get(
        decode_prompt(experiment, params, prompt_of(experiment, 3, 0), sampling, 24, num_rows=64)
    )
    for row, length in zip(tokens, lengths, strict=True):
        assert (row[:length] == vocab.unk).all()
        assert length == 24 or (row[length] == vocab.eos and (row[length + 1 :] == vocab.pad).all())
    # Lengths are geometric: half of the rows are empty. Four standard errors of this share in 64 rows are 0.25.
    assert abs((lengths == 0).mean() - 0.5) < 0.25 and len(set(lengths.tolist())) > 3


def test_each_row_ends_at_its_own_limit(uniform_model):
    experiment, params = uniform_model
    batch = prompt_batch(experiment, [prompt_of(experiment, 3, 0)] * 4)
    keys, limits = jax.random.split(jax.random.key(0), 4), np.array([0, 1, 5, 8], np.int32)
    sampling = Sampling(temperature=1.0, top_k=0, top_p=1.0)
    tokens, lengths = jax.device_get(
        decode(experiment.model, params, batch, keys, limits, sampling, vocab=experiment.vocab, max_tokens=8)
    )
    assert lengths.tolist() == limits.tolist() == (tokens != experiment.vocab.pad).sum(axis=1).tolist()
