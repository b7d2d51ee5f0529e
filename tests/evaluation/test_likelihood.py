"""Likelihoods of given texts, against the logits of rows that are written here by hand."""

import collections
import functools
import itertools
import math

import jax
import numpy as np
import pytest

from configs.base import mixture
from configs.masked_diffusion import VARIANTS
from configs.mlm import VARIANTS as MLM
from contract.errors import ConfigError
from evaluation.likelihood import Likelihood, Pair, _sum, continuations, encode_pair, pseudo, rolling
from evaluation.scorer import LanguageModel, hide_parts
from generate.fill_masks import Unmasking, fill_in
from models.transformer import apply as apply_op_by_op
from run.restore import reading_mesh
from tests.table import small_experiment
from tests.train.tiny_experiments import SPANS, random_params, tiny_experiment

apply = jax.jit(apply_op_by_op, static_argnums=0)
SFT = {"name": "sft", "inputs_eos": False}
MASS = {"name": "iid_denoising", "noise_density": 0.15, "random_token_rate": 0.0, "inputs": "sentinels"}
CONTEXT, A, B = "def f(x):", " return", " x + 1"


def language_model(*args, **kwargs):
    experiment = tiny_experiment(*args, **kwargs)
    return LanguageModel(experiment, random_params(experiment), reading_mesh(experiment))


@pytest.fixture(scope="module")
def causal():
    return language_model("clm", "decoder_only")


def ids(text):
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32) + 3


def pairs_of(*texts):
    return [Pair(ids(context), ids(continuation)) for context, continuation in texts]


def fields(stack, tokens):
    """The fields of a row of 48 positions with `tokens` at its start, for one program of each model."""
    row, length = np.zeros((3, 1, 48), np.int32), len(tokens)
    row[0, 0, :length], row[1, 0, :length], row[2, 0, :length] = tokens, np.arange(length), 1
    return dict(zip([f"{stack}_input_tokens", f"{stack}_positions", f"{stack}_segment_ids"], row, strict=True))


def log_softmax(logits):
    logits = np.asarray(logits, np.float64)
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def decoder_log_probs(model, targets, *, prefix=0, encoder=None):
    """The log-probability of each of `targets`, int [n]; the first `prefix` positions are bidirectional."""
    batch = fields("decoder", [model.experiment.vocab.pad, *targets[:-1]])
    if encoder is None:
        batch["decoder_bidirectional_mask"] = (np.arange(48) < prefix)[None]
    else:
        batch |= fields("encoder", encoder)
    return log_softmax(apply(model.experiment.model, model.params, batch))[0, np.arange(len(targets)), targets]


def test_a_causal_model_follows_the_chain_rule_and_equals_a_sum_of_log_softmax(causal):
    found = continuations(causal, pairs_of((CONTEXT, A), (CONTEXT + A, B), (CONTEXT, A + B), ("", CONTEXT + A + B)))
    p_a, p_b, p_ab, p_all = (one.log_likelihood for one in found)
    np.testing.assert_allclose(p_a + p_b, p_ab, rtol=1e-5)
    expected = decoder_log_probs(causal, ids(CONTEXT + A + B))
    np.testing.assert_allclose([p_a, p_ab], [expected[9:16].sum(), expected[9:].sum()], rtol=1e-5)
    np.testing.assert_allclose(p_all, expected.sum(), rtol=1e-5)
    assert [(one.tokens, one.bytes, one.dropped) for one in found] == [(7, 7, 0), (6, 6, 0), (13, 13, 0), (22, 22, 0)]


def test_whether_a_continuation_is_greedy(causal):
    text = ids(CONTEXT)
    batch = fields("decoder", [causal.experiment.vocab.pad, *text])
    batch["decoder_bidirectional_mask"] = np.zeros((1, 48), bool)
    logits = np.array(apply(causal.experiment.model, causal.params, batch))[0, len(text)]
    logits[[causal.experiment.vocab.pad, *range(causal.experiment.vocab.size, len(logits))]] = -np.inf
    likeliest, other = np.argsort(-logits)[:2].astype(np.int32)
    found = continuations(causal, [Pair(text, likeliest[None]), Pair(text, other[None])])
    assert [one.is_greedy for one in found] == [True, False]


def test_an_encoder_decoder_reads_the_context_in_its_encoder():
    model = language_model(SPANS, "encoder_decoder")
    vocab = model.experiment.vocab
    encoder = [*ids(CONTEXT), vocab.sentinel(0), vocab.eos]
    expected = decoder_log_probs(model, np.array([vocab.sentinel(0), *ids(A)]), encoder=encoder)
    [found] = continuations(model, pairs_of((CONTEXT, A)))
    np.testing.assert_allclose(found.log_likelihood, expected[1:].sum(), rtol=1e-5)
    # A text of three windows of 46 scored tokens in a row of 48; the last one reads 31 tokens to fill 47.
    text = ids(CONTEXT * 12)
    [found] = rolling(model, [text])
    parts = [Pair(text[:0], text[:46]), Pair(text[45:46], text[46:92]), Pair(text[61:92], text[92:])]
    expected = sum(part.nats for part in continuations(model, parts))
    np.testing.assert_allclose(found.nats, expected, rtol=1e-5)
    assert found.tokens == found.bytes == 108


def test_sft_reads_the_context_as_the_prompt_and_a_mode_chooses_a_denoiser():
    sft = language_model(SFT, "decoder_only", data={"documents": "whole"})
    expected = decoder_log_probs(sft, ids(CONTEXT + A), prefix=10)
    [found] = continuations(sft, pairs_of((CONTEXT, A)))
    np.testing.assert_allclose(found.log_likelihood, expected[9:].sum(), rtol=1e-5)
    ul2 = language_model("ul2", "encoder_decoder")
    vocab, params = ul2.experiment.vocab, pairs_of((CONTEXT, A))
    [default], [r] = continuations(ul2, params), continuations(ul2, params, mode="[R]")
    s_inputs = [vocab.mode("[S]"), *ids(CONTEXT), vocab.eos]
    r_inputs = [vocab.mode("[R]"), *ids(CONTEXT), vocab.sentinel(0), vocab.eos]
    in_s = decoder_log_probs(ul2, ids(A), encoder=s_inputs).sum()
    in_r = decoder_log_probs(ul2, np.array([vocab.sentinel(0), *ids(A)]), encoder=r_inputs)[1:].sum()
    np.testing.assert_allclose([default.log_likelihood, r.log_likelihood], [in_s, in_r], rtol=1e-5)
    with pytest.raises(ConfigError, match=r"--mode='\[Q\]' is not a mode of this run"):
        continuations(ul2, params, mode="[Q]")


def test_rolling_scores_each_token_once(causal):
    text = ids("abcdefghijklmnopqrstuvwxyz" * 4)
    whole, one = rolling(causal, [text[:48], text])
    np.testing.assert_allclose(whole.log_likelihood, decoder_log_probs(causal, text[:48]).sum(), rtol=1e-5)
    # 47 scored, then one read and 47 scored, then 38 read and the last 10 scored, in a row of 48.
    parts = [text[:47], text[46:94], text[56:]]
    scored = [decoder_log_probs(causal, part)[k:].sum() for part, k in zip(parts, (0, 1, 38), strict=True)]
    np.testing.assert_allclose(one.log_likelihood, sum(scored), rtol=1e-5)
    assert whole.tokens == 48 and one.tokens == 104
    # Targets that repeat the context share their row between it and the scored tokens.
    mass = language_model(MASS | {"targets": "full"}, "encoder_decoder")
    assert rolling(mass, [text])[0].tokens == 104


@pytest.mark.parametrize(("variant", "stack"), [("same", "encoder"), ("response", "decoder")])
def test_the_bound_of_masked_diffusion(variant, stack):
    """Against the sum over all parts of a continuation of three tokens: k of them are hidden, k uniform in 1..3.

    A response has an EOS after it, as in training, which is shown.
    """
    alignment = {"encoder": "same", "decoder": "next"}[stack]
    data = {"documents": "whole"} if variant == "response" else {}
    model = language_model(VARIANTS[variant] | {"alignment": alignment}, f"{stack}_only", data=data)
    vocab, [pair] = model.experiment.vocab, pairs_of(("def f", "(x)"))
    text = np.concatenate([*pair[:2], [vocab.eos] * (variant == "response")]).astype(np.int32)

    def nats(places):
        row = np.where(np.isin(np.arange(len(text)), places), vocab.mask, text)
        batch = fields(stack, row if stack == "encoder" else [vocab.pad, *row[:-1]])
        if stack == "decoder":
            batch["decoder_bidirectional_mask"] = (np.arange(48) < len(text))[None]
        logits = apply(model.experiment.model, model.params, batch)
        return -log_softmax(logits)[0, places, text[list(places)]].sum()

    parts = {k: list(itertools.combinations((5, 6, 7), k)) for k in (1, 2, 3)}
    exact = sum(np.mean([3 / k * nats(part) for part in parts[k]]) for k in parts) / 3
    [found], [one] = continuations(model, [pair], draws=3000), continuations(model, [pair], draws=1)
    np.testing.assert_allclose(found.nats, exact, rtol=0.01)
    assert one.nats != found.nats and (found.tokens, found.bytes) == (one.tokens, one.bytes) == (3, 3)
    assert continuations(model, [pair], draws=1) == [one], "the draws are those of the text"
    for draws in (0, -1, 2.5, "8", True):
        with pytest.raises(ConfigError, match=r"^draws=.* must be an integer of 1 or more$"):
            continuations(model, [pair], draws=draws)


def test_draws_have_each_number_and_each_part_equally_often():
    model = language_model(VARIANTS["same"], "encoder_only")
    denoiser, vocab, text = model.experiment.denoisers[0], model.experiment.vocab, ids(CONTEXT + A)
    parts = list(hide_parts(denoiser, text, 9, 13, 8_000, vocab))
    assert sum(part.weight * len(part.hidden) for part in parts) == pytest.approx(4)
    places = [tuple(np.flatnonzero(part.inputs == vocab.mask)) for part in parts]
    assert all(text[list(at)].tolist() == part.hidden.tolist() for at, part in zip(places, parts, strict=True))
    counts = collections.Counter(places)
    for k in (1, 2, 3, 4):
        expected = 2000 / math.comb(4, k)
        of_size = [counts[at] for at in itertools.combinations(range(9, 13), k)]
        assert sum(of_size) == 2000 and np.abs(np.array(of_size) - expected).max() < 5 * expected**0.5


@pytest.mark.parametrize("variant", ["same", "response"])
def test_a_continuation_is_greedy_if_its_masks_are_filled_in_with_it(variant):
    data = {"documents": "whole"} if variant == "response" else {}
    model = language_model(VARIANTS[variant], "encoder_only", data=data)
    mask, end = model.experiment.vocab.mask, [model.experiment.vocab.eos] * (variant == "response")
    prompt = np.concatenate([ids(CONTEXT), [mask] * 3, end]).astype(np.int32)
    [[filled, _]] = fill_in(model.experiment, model.params, [prompt], Unmasking("margin"), seed=0)
    found = [Pair(ids(CONTEXT), filled[len(CONTEXT) :][:3]), *pairs_of((CONTEXT, A), (CONTEXT, ""))]
    for options in ({}, {"rows_per_batch": 1}):
        assert [one.is_greedy for one in continuations(model, found, draws=2, **options)] == [True, False, True]
    row = np.full(48 - len(end), ids("a")[0], np.int32)  # the longest that fits a row of 48
    assert continuations(model, [Pair(row[:4], row[4:])], draws=1)[0].tokens == len(row) - 4
    with pytest.raises(ConfigError, match="special tokens 1 too many"):
        continuations(model, [Pair(row[:4], row[3:])], draws=1)


def test_masked_diffusion_in_a_mixture_has_its_own_layout():
    """MLM, the first of the denoisers that fill in masks, reads a text between [CLS] and [SEP]."""
    rows = {"mlm": {"name": "mlm", "mode": "", "weight": 1.0, **MLM["bert"]}}
    rows["diffusion"] = {"mode": "", "weight": 1.0, **VARIANTS["same"]}
    model = language_model(mixture(rows), "encoder_only")
    alone = LanguageModel(tiny_experiment(VARIANTS["same"], "encoder_only"), model.params, model.mesh)
    row = np.full(48, ids("a")[0], np.int32)
    pairs = [*pairs_of((CONTEXT, A)), Pair(row[:40], row[40:])]
    for found, expected in zip(*(continuations(one, pairs, draws=3) for one in (model, alone)), strict=True):
        assert found.is_greedy == expected.is_greedy
        np.testing.assert_allclose(found.nats, expected.nats, rtol=1e-5)


def test_the_pseudo_likelihood_hides_each_token_of_the_continuation():
    model = language_model("mlm", "encoder_only")
    vocab, text = model.experiment.vocab, ids(CONTEXT + A)
    expected = 0.0
    for place in range(9, 16):
        row = np.array([vocab.cls, *text, vocab.sep])
        row[1 + place] = vocab.mask
        logits = apply(model.experiment.model, model.params, fields("encoder", row))
        expected += log_softmax(logits)[0, 1 + place, text[place]]
    [found] = pseudo(model, pairs_of((CONTEXT, A)))
    np.testing.assert_allclose(found.log_likelihood, expected, rtol=1e-5)
    assert found.tokens == 7
    with pytest.raises(
        ConfigError, match=r"objective\.name='mlm' on encoder_only does not continue texts, .* use the ps"
    ):
        continuations(model, pairs_of((CONTEXT, A)))


def test_a_pseudo_likelihood_fits_with_each_of_its_tokens_hidden():
    """BART on a single stack writes the text before a hidden token: the last one takes the longest row."""
    experiment = small_experiment("bart", "decoder_only", data__inputs_length=40)
    model, text = LanguageModel(experiment, {}, reading_mesh(experiment)), ids("a" * 20)
    with pytest.raises(ConfigError, match=r"text 1 has 0 tokens .* special tokens 1 too many for data"):
        pseudo(model, [Pair(text[:0], text)])


def test_a_context_that_does_not_fit_is_an_error_or_is_dropped_and_counted(causal):
    text = ids("0123456789" * 6)
    with pytest.raises(ConfigError, match=r"text 2 has 50 tokens of context and 10 of continuation, with special "
                       r"tokens 12 too many for data\.inputs_length=48"):  # fmt: skip
        continuations(causal, [Pair(text[:1], text[1:2]), Pair(text[:50], text[50:])])
    [found] = continuations(causal, [Pair(text[:50], text[50:])], drop_context=True)
    assert found.dropped == 12 and found.tokens == 10
    np.testing.assert_allclose(found.log_likelihood, decoder_log_probs(causal, text[12:])[38:].sum(), rtol=1e-5)
    with pytest.raises(ConfigError, match=r"document 1 has 5 tokens of context and 55 of .*: shorten the continuation"):
        continuations(causal, [Pair(text[:5], text[5:])], drop_context=True, where="document {}".format)
    assert continuations(causal, [Pair(text[:5], text[:0])])[0][:4] == (0, 0, 0, True)


def test_a_token_with_characters_of_both_belongs_to_the_continuation(tmp_path):
    pytest.importorskip("sentencepiece")
    from tests.data.test_tokenizer import train_model

    experiment = tiny_experiment("clm", "decoder_only", data={"tokenizer": train_model(tmp_path / "t5.model")})
    encode, tokenizer = functools.partial(encode_pair, experiment, experiment.denoisers[0]), experiment.tokenizer
    whole = tokenizer.encode("the quick brown fox").tolist()
    for context in ("", "the", "the ", "the qu", "the quick brown f", "the quick brown fox"):
        before, after, is_start = encode(context, "the quick brown fox"[len(context) :])
        assert [*before, *after] == whole
        read = tokenizer.decode(before)
        assert "the quick brown fox".startswith(read) and len(read) <= len(context)
        assert is_start == (not len(before))
    with pytest.raises(ConfigError, match="the text is not valid UTF-8 at character 1"):
        encode("a", "\udcff")


def test_bytes_are_those_of_the_text_without_the_tokenizer_s_space(tmp_path):
    pytest.importorskip("sentencepiece")
    from tests.data.test_tokenizer import train_model
    from tests.data.tiny_tokenizers import sentencepiece

    data = {"tokenizer": train_model(tmp_path / "t5.model")}
    text, rest = "the quick brown", " fox jumps over the lazy dog"
    for objective, documents, after in (("clm", "split", rest), (SFT, "whole", rest.strip())):
        model = language_model(objective, "decoder_only", data=data | {"documents": documents})
        assert model.experiment.tokenizer.dummy_bytes == 1
        pair = functools.partial(encode_pair, model.experiment, model.experiment.denoisers[0])
        pairs = [pair("", text), pair(text, after), pair(text, "")]
        assert [found.bytes for found in continuations(model, pairs)] == [len(text), len(after), 0]
        several = model.experiment.tokenizer.encode(text * 9)
        assert len(several) > 48 and rolling(model, [several])[0].bytes == len(text) * 9
    words = {"tokenizer": sentencepiece(tmp_path / "words.model", model_type="word", byte_fallback=False)}
    model = language_model("clm", "decoder_only", data=words)  # an unknown word has no bytes, nor the space before it
    pair = functools.partial(encode_pair, model.experiment, model.experiment.denoisers[0])
    assert [found.bytes for found in continuations(model, [pair("", "zzz"), pair("", "zzz fox")])] == [0, 4]
    mlm = language_model("mlm", "encoder_only", data=data)
    pair = functools.partial(encode_pair, mlm.experiment, mlm.experiment.denoisers[0])
    assert [found.bytes for found in pseudo(mlm, [pair("", text), pair(text, rest)])] == [len(text), len(rest)]


def test_a_text_of_several_windows_is_greedy_if_all_of_them_are():
    parts = [Likelihood(1.0, 2, 3, True, 0), Likelihood(0.5, 1, 4, False, 0)]
    assert _sum(parts) == _sum(parts[::-1]) == Likelihood(1.5, 3, 7, False, 0)
    assert _sum(parts[:1]) == parts[0]
