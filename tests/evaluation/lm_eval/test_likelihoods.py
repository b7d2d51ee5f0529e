"""Log-likelihoods of lm-eval's model "cloze", against rows that are written here by hand and lm-eval's own rule."""

import numpy as np
import pytest

pytest.importorskip("lm_eval")

from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from contract.errors import ConfigError
from evaluation.likelihood import Pair, continuation_denoiser, continuations, longest_window, rolling_windows
from evaluation.lm_eval.model import ClozeLM, split_pair
from evaluation.scorer import hide
from objectives.prompting import Respond
from tests.evaluation.lm_eval.runs import TEXT, experiment_of, loglikelihoods, requests
from tests.evaluation.test_likelihood import SFT, decoder_log_probs, ids
from tests.train.tiny_experiments import tiny_experiment


class HuggingFaceRule(TemplateLM):
    """lm-eval's division of a text, with UTF-8 bytes for tokens."""

    tok_encode = staticmethod(lambda text, add_special_tokens=None: list(text.encode()))
    eot_token_id = 1
    _loglikelihood_tokens = loglikelihood_rolling = generate_until = None


def test_texts_are_divided_as_lm_eval_divides_them(models):
    model, theirs = models["clm"], HuggingFaceRule()
    experiment = model.language_model.experiment
    for context, continuation in [("a b", " c"), ("a b ", "c"), ("a \n\t", " c"), ("é  ", "ü"), ("a", "b")]:
        expected = [np.array(part) + 3 for part in theirs._encode_pair(context, continuation)]
        for denoiser in (model.denoiser, models["ul2"].denoiser):
            found = split_pair(experiment, denoiser, context, continuation, where="")
            assert [part.tolist() for part in found[:2]] == [part.tolist() for part in expected]
    [before, after, _] = split_pair(experiment, model.denoiser, " \n", "c", where="")
    assert len(before) == 0 and after.tolist() == ids(" \nc").tolist()


def test_prompts_and_responses_are_encoded_apart_as_in_their_training(tmp_path):
    pytest.importorskip("sentencepiece")
    from tests.data.test_tokenizer import train_model

    data = {"tokenizer": train_model(tmp_path / "t5.model")}
    clm = tiny_experiment("clm", "decoder_only", data=data)
    sft = tiny_experiment(SFT, "decoder_only", data=data | {"documents": "whole"})
    assert isinstance(sft.denoisers[0].objective.prompting, Respond)
    in_pairs = tiny_experiment("clm", "decoder_only", data=data | {"source": "gym", "path": "reversal:facts=6"})
    together, *apart = (
        split_pair(experiment, experiment.denoisers[0], "the quick ", "brown", where="")
        for experiment in (clm, sft, in_pairs)
    )
    encode = clm.tokenizer.encode
    assert np.concatenate(together[:2]).tolist() == encode("the quick brown").tolist()
    for pair in apart:
        assert [part.tolist() for part in pair[:2]] == [encode(text).tolist() for text in ("the quick", " brown")]


def test_log_likelihoods_equal_rows_written_by_hand_in_the_order_of_the_requests(models):
    clm, ul2 = models["clm"], models["ul2"]
    pairs = [("def f(x):", " x = y"), ("", TEXT), ("def f(x): ", "x"), ("def", " f")]
    rows = [decoder_log_probs(clm.language_model, ids(text)) for text in (TEXT, TEXT, "def f(x): x", "def f")]
    expected = [row[start:].sum() for row, start in zip(rows, (9, 0, 9, 3), strict=True)]
    np.testing.assert_allclose(loglikelihoods(clm, *pairs), expected, rtol=1e-5)
    vocab = ul2.language_model.experiment.vocab
    encoders = [[vocab.mode("[S]"), *ids(context), vocab.eos] for context in ("def f(x):", "")]
    targets = (" x = y", TEXT)
    rows = [decoder_log_probs(ul2.language_model, ids(text), encoder=encoder)
            for text, encoder in zip(targets, encoders, strict=True)]  # fmt: skip
    np.testing.assert_allclose(loglikelihoods(ul2, *pairs[:2]), [row.sum() for row in rows], rtol=1e-5)


def test_masked_diffusion_has_the_bound_of_so_many_draws(models, workdirs):
    pairs = [("def f(x):", " x = y"), ("", TEXT)]
    more, few = models["diffusion"], ClozeLM(workdirs["diffusion"], draws=2)
    tokens = [Pair(ids(context), ids(continuation), not context) for context, continuation in pairs]
    for model, draws in ((more, 128), (few, 2)):
        expected = [one.log_likelihood for one in continuations(model.language_model, tokens, draws=draws)]
        assert loglikelihoods(model, *pairs) == pytest.approx(expected, rel=1e-5)
    assert loglikelihoods(few, *pairs) != loglikelihoods(more, *pairs)
    [rolled] = few.loglikelihood_rolling(requests("loglikelihood_rolling", (TEXT,)), disable_tqdm=True)
    assert rolled == pytest.approx(loglikelihoods(few, ("", TEXT))[0], rel=1e-5)
    with pytest.raises(ConfigError, match="shows the model how many tokens to write"):
        few.generate_until(requests("generate_until", ("a", {})), True)
    with pytest.raises(ConfigError, match="--model_args draws=0 must be an integer of 1 or more"):
        ClozeLM(workdirs["diffusion"], draws=0)


def test_contexts_lose_their_first_tokens_with_a_warning_and_continuations_are_never_cut(models, caplog):
    model, long = models["clm"], "0123456789" * 6
    shortened = model.get_model_info()["shortened_contexts"]
    [found, _] = loglikelihoods(model, (long, "abcde"), ("a", "b"))
    expected = decoder_log_probs(model.language_model, ids(long[-43:] + "abcde"))[43:].sum()
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert "1 of 2 contexts are too long for a row of data.inputs_length=48" in caplog.text
    assert model.get_model_info()["shortened_contexts"] == shortened + 1
    with pytest.raises(
        ConfigError, match=r"task some_task, document 1, loglikelihood 0: has 1 tokens of context and 60"
    ):
        loglikelihoods(model, ("a", "b"), ("a", long))
    with pytest.raises(ConfigError, match="document 0, loglikelihood 0: has an empty continuation"):
        loglikelihoods(model, ("a", ""))


@pytest.mark.parametrize("name", ["clm", "ul2", "spans", "prefix_lm", "mass"])
def test_rolling_windows_are_those_of_lm_eval_and_fit_a_row(name):
    experiment = experiment_of(name)
    denoiser = continuation_denoiser(experiment)
    longest = longest_window(experiment, denoiser)
    assert longest == {"clm": 47, "ul2": 46, "spans": 46, "prefix_lm": 46, "mass": 46}[name]
    for length in (1, 30, 46, 47, 48, 95, 200):
        text = np.arange(length, dtype=np.int32)
        theirs = map(make_disjoint_window, get_rolling_token_windows(text.tolist(), -1, longest, 1))
        found = rolling_windows(text, longest)
        expected = [(context if context != [-1] else [], continuation) for context, continuation in theirs]
        assert [(one.context.tolist(), one.continuation.tolist()) for one in found] == expected
        for context, continuation, _ in found:
            window = np.concatenate([context, continuation])
            example = hide(denoiser, window, len(context), len(window), experiment.vocab)
            inputs, targets = len(example.inputs), len(example.targets_start) + len(continuation)
            assert max(inputs, targets) <= 48 if experiment.model.has_encoder else inputs + targets <= 48


def test_rolling_log_likelihoods_equal_windows_written_by_hand(models):
    text = "".join(chr(97 + k % 26) for k in range(100))
    clm = models["clm"].language_model
    # Windows of 47 scored tokens, which with a token before them fill a row of 48; the last one reads 42 tokens.
    parts = [(text[:47], 0), (text[46:94], 1), (text[52:], 42)]
    expected = sum(decoder_log_probs(clm, ids(part))[start:].sum() for part, start in parts)
    found = models["clm"].loglikelihood_rolling(requests("loglikelihood_rolling", (text,), ("",), ("ab",)), True)
    short = decoder_log_probs(clm, ids("ab")).sum()
    np.testing.assert_allclose(found, [expected, 0.0, short], rtol=1e-5)
