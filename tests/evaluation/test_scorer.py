"""Scores of hidden tokens, against the model applied to arrays that are written here by hand."""

import math
import types

import jax
import numpy as np
import pytest

from configs.bart import VARIANTS as BART
from evaluation.probes.probe import unit_spans
from evaluation.scorer import LanguageModel, Scores, find_denoiser, hide, score_texts
from generate.prompts import Prompt, max_answer_length
from generate.sampling import Request, Sampling, generate_answers
from objectives.algebra.words import word_starts
from run.sharding import make_reading_mesh
from tests.models import tiny
from tests.table import small_experiment
from tests.train.tiny_experiments import PREFIX_LM, SPANS, random_params, tiny_experiment

TEXT = np.frombuffer(b"def f(x): return", np.uint8).astype(np.int32) + 3
START, STOP = 5, 9
FIM = {"name": "fim", "fim_rate": 1.0, "spm_rate": 0.0, "min_document_length": 8}
MASS = {"name": "mass", "mask_rate": 0.5, "mask_token_rate": 0.8, "random_token_rate": 0.1}
GLM = {"name": "glm", "blanks": "spans", "mask_rate": 0.15, "poisson_lambda": 3.0, "sentence_ends": "stops"}
BART_ONE_MASK = {"name": "bart", **BART["text_infilling"], "mask_random": 0.0}


def scored(experiment, params, examples, **options):
    """The scores of `examples`, in order."""
    model = LanguageModel(experiment, params, make_reading_mesh(params))
    found = {number: scores for number, _, scores in model.score(enumerate(examples), **options)}
    return [found[number] for number in range(len(found))]


def nats(logits, targets):
    """The nats of `targets`, int [n], under `logits`, float [n, V]."""
    logits = np.asarray(logits, np.float64)
    log_z = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
    return log_z - logits[np.arange(len(targets)), targets]


def decoder_logits(experiment, params, tokens, num_bidirectional=0, encoder=None):
    """Logits [L, V] of a decoder that predicts `tokens`, [L], of which the first positions are bidirectional."""
    shifted = np.concatenate([[experiment.vocab.pad], tokens[:-1]]).astype(np.int32)
    length = len(tokens)
    batch = {
        "decoder_input_tokens": shifted[None],
        "decoder_positions": np.arange(length, dtype=np.int32)[None],
        "decoder_segment_ids": np.ones((1, length), np.int32),
    }
    if encoder is None:
        batch["decoder_bidirectional_mask"] = (np.arange(length) < num_bidirectional)[None]
    else:
        batch |= encoder_fields(encoder)
    return np.asarray(tiny.run(experiment.model, params, batch))[0]


def encoder_fields(tokens):
    return {
        "encoder_input_tokens": np.asarray(tokens, np.int32)[None],
        "encoder_positions": np.arange(len(tokens), dtype=np.int32)[None],
        "encoder_segment_ids": np.ones((1, len(tokens)), np.int32),
    }


def example_of(experiment, side, start=START, stop=STOP, text=TEXT):
    return hide(find_denoiser(experiment, side, None), text, start, stop, experiment.vocab)


@pytest.mark.parametrize("positions", ["learned", "rope"])
@pytest.mark.parametrize(("start", "stop"), [(5, 9), (0, 3), (9, 16), (4, 5)])
def test_any_order_reads_the_visible_tokens_and_then_the_hidden_ones(positions, start, stop):
    """Two texts of one batch: each hidden token is predicted from all visible tokens and the hidden ones before it."""
    model = {"num_layers": 2, "positions": positions, "target_positions": True}
    experiment = small_experiment(
        "sigma_gpt:shuffled", "decoder_only", **{f"model__{name}": value for name, value in model.items()}
    )
    params = random_params(experiment)
    examples = [
        example_of(experiment, "both", start, stop),
        example_of(experiment, "both", 2, 4, text=TEXT[:11]),
    ]
    for found, (text, *span) in zip(
        scored(experiment, params, examples), [(TEXT, start, stop), (TEXT[:11], 2, 4)], strict=True
    ):
        hidden = list(range(*span))
        order = [place for place in range(len(text)) if place not in hidden] + hidden
        batch = {
            "decoder_input_tokens": [experiment.vocab.pad, *text[order[:-1]]],
            "decoder_positions": [0, *(place + 1 for place in order[:-1])],
            "decoder_target_positions": order,
            "decoder_segment_ids": [1] * len(text),
        }
        logits = tiny.run(experiment.model, params, {name: np.array([row], np.int32) for name, row in batch.items()})
        expected = nats(np.asarray(logits)[0], text[order])[-len(hidden) :]
        np.testing.assert_allclose(found.nats, expected, rtol=1e-4)


def test_a_prefix_lm_reads_the_first_half_bidirectionally(sentinel=True):
    # With one layer the states of the prefix would not depend on their attention.
    experiment = tiny_experiment(PREFIX_LM | {"sentinel": sentinel}, "decoder_only", model={"num_layers": 2})
    params, vocab = random_params(experiment), experiment.vocab
    marker = [vocab.sentinel(0)] * sentinel
    inputs = [*TEXT[:8], *marker, vocab.eos]
    tokens = np.array([*inputs, *marker, *TEXT[8:]])
    logits = decoder_logits(experiment, params, tokens, num_bidirectional=len(inputs) + 1)
    [found] = scored(experiment, params, [example_of(experiment, "left", 8, len(TEXT))])
    np.testing.assert_allclose(found.nats, nats(logits, tokens)[-8:], rtol=1e-4)
    causal = decoder_logits(experiment, params, tokens, num_bidirectional=0)
    assert not np.allclose(found.nats, nats(causal, tokens)[-8:], rtol=1e-3)


def sequence_of(name, vocab):
    """objective -> encoder tokens, decoder tokens before the hidden span, and the span: TEXT[5:9] hidden."""
    before, hidden, after = np.split(TEXT, [START, STOP])
    first = vocab.sentinel(0)
    return {
        "span_corruption": ([*before, first, *after, vocab.eos], [first], hidden),
        "ul2": ([vocab.mode("[R]"), *before, first, *after, vocab.eos], [first], hidden),
        "bart": ([*before, vocab.mask, *after, vocab.eos], [*before], hidden),
        "mass": ([*before, *[first] * 4, *after, vocab.eos], [*before], hidden),
    }[name]


IID = {"name": "iid_denoising", "noise_density": 0.15, "random_token_rate": 0.0}
ENCODER_DECODERS = {
    "span_corruption": SPANS,
    "ul2": "ul2",
    "bart": BART_ONE_MASK,
    "mass": IID | {"inputs": "sentinels", "targets": "full"},
}


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_an_encoder_decoder_sees_both_sides_and_is_scored_on_its_targets(name):
    experiment = tiny_experiment(ENCODER_DECODERS[name], "encoder_decoder")
    params = random_params(experiment)
    encoder, start, hidden = sequence_of(name, experiment.vocab)
    targets = np.array([*start, *hidden])
    logits = decoder_logits(experiment, params, targets, encoder=encoder)
    [found] = scored(experiment, params, [example_of(experiment, "both")])
    np.testing.assert_allclose(found.nats, nats(logits, targets)[-4:], rtol=1e-4)


@pytest.mark.parametrize("spm", [False, True])
def test_fill_in_the_middle_reads_prefix_and_suffix_before_the_middle(spm):
    experiment = tiny_experiment(FIM | {"spm_rate": float(spm)}, "decoder_only", data={"documents": "pack"})
    params, vocab = random_params(experiment), experiment.vocab
    before, hidden, after = np.split(TEXT, [START, STOP])
    pre, suf, mid = vocab.sentinels[:3]
    parts = [pre, suf, *after, mid, *before] if spm else [pre, *before, suf, *after, mid]
    tokens = np.array([*parts, *hidden])
    [found] = scored(experiment, params, [example_of(experiment, "both")])
    np.testing.assert_allclose(found.nats, nats(decoder_logits(experiment, params, tokens), tokens)[-4:], rtol=1e-4)


def test_words_are_hidden_at_once_and_each_token_once():
    experiment = tiny_experiment("mlm", "encoder_only")
    vocab = experiment.vocab
    text = TEXT.copy()
    text[6] = vocab.unk
    denoiser = find_denoiser(experiment, "both", None)
    examples = [hide(denoiser, text, *span, vocab) for span in unit_spans(text, "word", vocab)]
    assert np.concatenate([example.hidden for example in examples]).tolist() == text.tolist()
    ordinary = text != vocab.unk
    assert len(examples) == word_starts(text[None], ordinary[None], vocab)[0].sum() + 1
    masked = [(example.inputs == vocab.mask).sum() for example in examples]
    assert masked == [len(example.hidden) for example in examples] and max(masked) > 1


def test_among_tokens_of_text_a_model_without_preferences_has_256_bytes_and_unk():
    """All logits are 0: log(257), whatever the sentinels and mode tokens. The first of the 257 ids is the likeliest."""
    experiment = tiny_experiment("ul2", "encoder_decoder")
    params = jax.tree.map(np.zeros_like, random_params(experiment))
    text = np.where(np.arange(len(TEXT)) == START, experiment.vocab.unk, TEXT).astype(np.int32)
    [found] = scored(experiment, params, [example_of(experiment, "both", text=text)], text_only=True)
    np.testing.assert_allclose(found.nats, math.log(257), rtol=1e-6)
    assert found.is_likeliest.tolist() == [True, False, False, False]


@pytest.mark.parametrize(("objective", "architecture"), [("ul2", "encoder_decoder"), ("mlm", "encoder_only")])
def test_text_only_renormalises_over_the_tokens_of_text(objective, architecture):
    """Against logits of `apply`, from which the columns of other tokens are removed."""
    experiment = tiny_experiment(objective, architecture)
    params, vocab = random_params(experiment, scale=2.0), experiment.vocab
    example = example_of(experiment, "both")
    if objective == "mlm":
        row = np.array([vocab.cls, *example.inputs, vocab.sep])
        logits = np.asarray(tiny.run(experiment.model, params, encoder_fields(row)))[0, row == vocab.mask]
    else:
        targets = np.array([*example.targets_start, *example.hidden])
        logits = decoder_logits(experiment, params, targets, encoder=example.inputs)[-len(example.hidden) :]
    first, stop = vocab.unk, vocab.content_end
    greedy = logits[:, first:stop].argmax(-1) + first
    [among_all] = scored(experiment, params, [example])
    [found] = scored(experiment, params, [example], text_only=True)
    np.testing.assert_allclose(found.nats, nats(logits[:, first:stop], example.hidden - first), rtol=1e-4)
    assert (found.nats < among_all.nats).all()
    assert found.is_likeliest.tolist() == (greedy == example.hidden).tolist()


@pytest.mark.parametrize(
    ("objective", "architecture"), [("clm", "decoder_only"), ("ul2", "encoder_decoder"), ("mlm", "encoder_only")]
)
def test_scores_do_not_depend_on_the_batch(objective, architecture):
    experiment = tiny_experiment(objective, architecture)
    params, generator = random_params(experiment), np.random.default_rng(0)
    texts = [generator.integers(3, 259, length).astype(np.int32) for length in [2, 40, 3, 17, 16, 33, 5, 5]]
    side = "left" if objective == "clm" else "both"
    stops = [len(text) if side == "left" else len(text) - 1 for text in texts]
    examples = [example_of(experiment, side, 1, max(stop, 2), text) for text, stop in zip(texts, stops, strict=True)]
    together = scored(experiment, params, examples, rows_per_batch=2)
    for example, one in zip(examples, together, strict=True):
        [alone] = scored(experiment, params, [example])
        assert len(one.nats) == len(example.hidden)
        np.testing.assert_allclose(one.nats, alone.nats, rtol=1e-4, atol=1e-4)
        assert one.is_likeliest.tolist() == alone.is_likeliest.tolist()


@pytest.mark.parametrize(
    ("objective", "architecture", "documents"),
    [
        (FIM, "decoder_only", "pack"),
        (SPANS, "encoder_decoder", "join"),
        (MASS, "encoder_decoder", "join"),
        (GLM, "decoder_only", "join"),
    ],
)
def test_a_span_is_exact_where_greedy_decoding_writes_it(objective, architecture, documents):
    """Generates the hidden span greedily, and scores the text with this span and with one token of it changed."""
    model = {"positions": "learned" if objective in (MASS, GLM) else "relative"}
    experiment = tiny_experiment(objective, architecture, data={"documents": documents}, model=model)
    params, vocab = random_params(experiment, scale=2.0), experiment.vocab
    example = example_of(experiment, "both")
    denoiser = find_denoiser(experiment, "both", None)
    prompt = Prompt(denoiser, TEXT, example.inputs, example.targets_start, example.position)
    greedy = Sampling(temperature=0.0, top_k=0, top_p=1.0)
    assert max_answer_length(experiment, prompt) >= 4
    [[answer]] = generate_answers(experiment, params, [Request(prompt, 4)], greedy, num_samples=1, seed=0)
    answer = answer.tokens
    assert len(answer) == 4  # no EOS
    other = np.where(np.arange(4) == 2, (answer - 3 + 1) % 256 + 3, answer).astype(np.int32)
    exact, changed = scored(experiment, params, [example._replace(hidden=hidden) for hidden in (answer, other)])
    assert exact.is_likeliest.all()
    assert changed.is_likeliest[:3].tolist() == [True, True, False]
    assert vocab.pad not in answer


def test_a_text_of_several_spans_has_their_sums_and_is_exact_if_all_of_them_are():
    experiment = tiny_experiment("ul2", "encoder_decoder")
    vocab, letter = experiment.vocab, experiment.vocab.content_start
    nats_of = {letter: 1.0, letter + 1: 4.0, vocab.unk: 2.0}

    def score(examples, **_):
        for number, example in examples:
            hidden = example.hidden.tolist()
            yield number, example, Scores(np.array([nats_of[token] for token in hidden]), example.hidden != letter)

    texts = [np.array(ids, np.int32) for ids in ([letter, vocab.unk, vocab.unk, letter + 1], [letter + 1] * 2)]
    spans = [[(k, k + 1) for k in range(len(text))] for text in texts]
    denoiser = find_denoiser(experiment, "both", None)
    found = score_texts(types.SimpleNamespace(experiment=experiment, score=score), denoiser, texts, spans)
    assert [values.tolist() for values in found] == [[5, 8], [2, 2], [2, 2], [4, 0], [2, 0], [False, True]]
