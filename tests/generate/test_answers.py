"""Answers to several prompts: equal to those of each prompt alone, for greedy decoding and for draws."""

import jax
import numpy as np
import pytest

from contract.errors import ConfigError
from generate.fill_masks import mask_probabilities, read_masked_prompt
from generate.prompts import max_answer_length, read_prompt
from generate.sampling import Answer, Request, Sampling, decode, generate_answers
from generate.texts import NamedText, Options, answer_texts, read_texts
from tests.train.tiny_experiments import PREFIX_LM, random_params, tiny_experiment

GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0)
DRAWN = Sampling(temperature=1.0, top_k=20, top_p=0.95)
# One token, and several lengths whose answers end at different limits of a row of 48 tokens.
TEXTS = ["a", "def f(x):", "the quick brown fox jumps", "return"]
MODELS = {
    "encoder-decoder, relative": ("ul2", "encoder_decoder", {}),
    "prefix decoder, learned": ("ul2", "decoder_only", {"positions": "learned"}),
}


@pytest.fixture(scope="module", params=MODELS.values(), ids=MODELS)
def model(request):
    objective, architecture, fields = request.param
    experiment = tiny_experiment(objective, architecture, model={"num_layers": 2, **fields})
    # With a large scale logits differ so much that rounding does not decide which token is drawn.
    return experiment, random_params(experiment, scale=3.0)


def requests_of(experiment, texts, most=12):
    prompts = [read_prompt(experiment, text, None)[0] for text in texts]
    return [Request(prompt, min(most, max_answer_length(experiment, prompt))) for prompt in prompts]


def answers(model, requests, sampling, **options):
    """(tokens, finished) of each answer to each request."""
    found = generate_answers(*model, requests, sampling, **({"num_samples": 1, "seed": 0} | options))
    return [[(answer.tokens.tolist(), answer.finished) for answer in of_request] for of_request in found]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_answers_equal_those_of_each_prompt_alone(model, sampling):
    requests = requests_of(model[0], TEXTS)
    together = answers(model, requests, sampling)
    alone = [answers(model, [request], sampling)[0] for request in requests]
    assert together == alone
    assert together[::-1] == answers(model, requests[::-1], sampling)
    # With equal or empty answers the test could not detect an exchange of rows.
    assert len({str(answer) for answer in together}) > 3 and any(len(answer[0][0]) > 4 for answer in together)


def test_a_prompt_that_nearly_fills_the_row_has_its_own_limit(model):
    experiment, _ = model
    room = 48 if experiment.model.has_encoder else 3
    requests = requests_of(experiment, ["y" * 43, "z"], most=48)  # with mode token, EOS and the start 46 positions
    assert requests[0].max_tokens == room and requests[1].max_tokens > 40
    for [(tokens, finished)], request in zip(answers(model, requests, DRAWN), requests, strict=True):
        assert finished == (len(tokens) < request.max_tokens) and len(tokens) <= request.max_tokens


def test_draws_depend_on_the_seed_the_prompt_and_the_number_of_the_sample(model):
    requests = requests_of(model[0], ["def f(x):", "x = 1", "def f(x):"], most=8)
    sampled = answers(model, requests, DRAWN, num_samples=3)
    assert sampled[0] == sampled[2] and sampled[0] != sampled[1]
    assert len({str(answer) for answer in sampled[0]}) == 3
    assert [of_request[:1] for of_request in sampled] == answers(model, requests, DRAWN)
    assert sampled == answers(model, requests, DRAWN, num_samples=3, batch_size=2)
    assert sampled != answers(model, requests, DRAWN, num_samples=3, seed=1)


def test_prompts_of_similar_lengths_share_a_program(model):
    answers(model, requests_of(model[0], ["abcd"]), GREEDY)
    programs = decode._cache_size()
    for length in (1, 9):
        answers(model, requests_of(model[0], ["a" * length]), GREEDY)
    assert decode._cache_size() == programs


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_refused(model, sampling, value):
    """As those of a model that overflows: no answer is empty for this reason."""
    experiment, params = model
    kernel = params["logits_dense"]["kernel"].copy()
    kernel[:, experiment.vocab.content_start] = value
    broken = params | {"logits_dense": {"kernel": kernel}}
    with pytest.raises(ConfigError, match=r"^the model's logits are not finite, .*precision='float32'") as error:
        list(generate_answers(experiment, broken, requests_of(experiment, ["a"]), sampling, num_samples=1, seed=0))
    assert "\n" not in str(error.value)


def test_probabilities_of_masks_that_are_no_numbers_are_refused():
    experiment = tiny_experiment("mlm", "encoder_only")
    params = jax.tree.map(lambda leaf: leaf * np.nan, random_params(experiment))
    with pytest.raises(ConfigError, match=r"^the model's logits are not finite"):
        list(mask_probabilities(experiment, params, [read_masked_prompt(experiment, "a[MASK]")]))


def test_masks_are_filled_as_in_each_prompt_alone():
    experiment = tiny_experiment("mlm", "encoder_only")
    params = random_params(experiment)
    texts = [read_masked_prompt(experiment, text) for text in ("a[MASK]b[MASK]", "[MASK]", "the quick [MASK] fox" * 2)]
    found = list(mask_probabilities(experiment, params, texts))
    assert [len(of_text) for of_text in found] == [2, 1, 2]
    for text, expected, split in zip(
        texts, found, mask_probabilities(experiment, params, texts, batch_size=2), strict=True
    ):
        [alone] = mask_probabilities(experiment, params, [text])
        np.testing.assert_allclose(alone, expected, rtol=1e-4)
        np.testing.assert_allclose(split, expected, rtol=1e-4)
    assert np.abs(found[0][0] - found[2][0]).max() > 1e-3


@pytest.mark.parametrize(
    ("objective", "prompt", "space"),
    [("clm", "the", " "), ("clm", "", ""), ({**PREFIX_LM, "sentinel": False}, "the", " "), ("sft", "the", "")],
)
def test_an_answer_keeps_the_space_with_which_it_continues_the_prompt(objective, prompt, space, tmp_path, monkeypatch):
    """Of a SentencePiece model that puts a space before every text, and so before every response, which begins one."""
    pytest.importorskip("sentencepiece")
    from tests.data.test_tokenizer import train_model

    data = {"tokenizer": train_model(tmp_path / "t5.model")}
    if objective == "sft":
        objective, data = {"name": "sft", "inputs_eos": False}, data | {"documents": "whole"}
    experiment = tiny_experiment(objective, "decoder_only", data=data)
    answer = Answer(experiment.tokenizer.encode("dog"), finished=True)
    monkeypatch.setattr("generate.texts.generate_answers", lambda *_, **__: iter([[answer]]))
    texts, options = [NamedText(prompt, "prompt")], Options()
    requests, _ = read_texts(experiment, texts, options)
    [[generated]] = answer_texts(experiment, {}, texts, requests, options, 1)
    assert (generated.answer, generated.text) == (f"{space}dog", f"{prompt} dog".strip())
