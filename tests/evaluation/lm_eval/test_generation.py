"""Generation of lm-eval's model "cloze", against greedy decoding without a cache."""

import copy

import numpy as np
import pytest

pytest.importorskip("lm_eval")

from contract.errors import ConfigError
from evaluation.likelihood import continuation_denoiser
from evaluation.lm_eval.model import ClozeLM, Generation, generation_arguments
from evaluation.scorer import LanguageModel
from generate.sampling import Answer, Sampling
from tests.evaluation.lm_eval.runs import CONTEXTS, experiment_of, generated, greedy
from tests.evaluation.test_likelihood import ids


@pytest.mark.slow
@pytest.mark.parametrize("name", ["clm", "ul2 [R]", "prefix_lm"])
def test_generation_equals_greedy_decoding_without_a_cache_for_prompts_of_any_length(models, workdirs, name):
    model = ClozeLM(workdir=workdirs["ul2"], mode="[R]") if name == "ul2 [R]" else models[name]
    expected = [greedy(model, context, 9) for context in CONTEXTS]
    found = generated(model, *CONTEXTS, max_gen_toks=9, until=["\n\n"])
    assert found == expected and max(map(len, found)) == 9
    if name == "clm":
        one_row = ClozeLM(workdir=workdirs[name], batch_size=1)
        assert generated(one_row, *CONTEXTS, max_gen_toks=9, until=["\n\n"]) == found


def test_generation_stops_at_the_first_stop_string(models):
    texts = [greedy(models["prefix_lm"], context, 9) for context in CONTEXTS]
    for stops in ([texts[0][3:5]], [texts[0][6], texts[1][2:4]], ["no such text"], [], [""]):
        ends = [[text.find(stop) for stop in stops if stop and stop in text] for text in texts]
        expected = [text[: min(found, default=9)] for text, found in zip(texts, ends, strict=True)]
        assert generated(models["prefix_lm"], *CONTEXTS, max_gen_toks=9, until=stops) == expected


def test_samples_depend_on_the_seed_and_the_repeat_and_not_on_the_other_requests(models, workdirs):
    sampled = {"do_sample": True, "temperature": 9.0, "top_k": 50, "max_gen_toks": 9, "until": []}
    *first, repeated = generated(models["clm"], "def f", "a", "b", "c", "def f", **sampled)
    assert len({*first, repeated}) == 5
    assert generated(models["clm"], "d", "c", "a", "def f", **sampled)[1:] == [first[3], first[1], first[0]]
    assert generated(ClozeLM(workdir=workdirs["clm"], seed=5), "def f", "a", "b", "c", **sampled)[0] != first[0]
    of_seed_1 = generated(ClozeLM(workdir=workdirs["clm"], seed=1), "def f", "def f", **sampled)
    assert len({first[0], repeated, *of_seed_1}) == 4, "the repeats of one seed are not the first answers of the next"
    not_sampled = generated(models["clm"], *CONTEXTS, max_gen_toks=9, temperature=2.0, do_sample=False)
    assert not_sampled == [greedy(models["clm"], context, 9) for context in CONTEXTS]


def test_a_special_token_ends_an_answer_and_an_unknown_one_does_not(models):
    model, [a, b] = models["clm"], ids("ab")
    vocab = model.language_model.experiment.vocab
    answer = Answer(np.array([a, vocab.unk, b, vocab.sentinels[0], a], np.int32), True)
    text = model._decode(ids("def"), answer)
    assert text.startswith("a") and text.endswith("b")


def test_contexts_leave_room_for_the_answer(models):
    long = "0123456789" * 6
    for name, kept in {"clm": 39, "prefix_lm": 38, "ul2": 46}.items():
        assert models[name].max_gen_toks == {"clm": 24, "prefix_lm": 23, "ul2": 24}[name]
        prompt, dropped = models[name].read_context(long, 9, where="")
        assert prompt.text.tolist() == ids(long[-kept:]).tolist() and dropped == 60 - kept
    with pytest.raises(ConfigError, match=r"max_gen_toks=49 does not fit a row of data\.inputs_length=48: set"):
        generated(models["clm"], "a", max_gen_toks=49)


def test_generation_arguments_that_cannot_work_are_errors():
    for name, value, message in (
        ("max_gen_toks", 0, "max_gen_toks=0 must be 1 or more"),
        ("temperature", "x", "could not convert"),
        ("num_beams", 4, "num_beams=4 is not supp"),
    ):
        with pytest.raises(ConfigError, match=f"^generation_kwargs.*{message}"):
            generation_arguments({"do_sample": True, name: value}, 1)


def test_a_generation_argument_that_is_null_is_not_set():
    given = {"do_sample": True, "top_k": None, "top_p": None, "temperature": None, "max_gen_toks": None, "until": None}
    assert generation_arguments(given, 7) == Generation((), 7, Sampling(1.0, 0, 1.0))
    given = {"do_sample": True, "temperature": "1e-3", "top_k": "5", "max_tokens": "10"}  # as YAML reads 1e-3
    assert generation_arguments(given, 7) == Generation((), 10, Sampling(0.001, 5, 1.0))


def test_a_layout_that_shows_the_number_of_tokens_does_not_generate(models):
    arguments = generation_arguments({"max_new_tokens": 5, "num_beams": 1, "until": "x"}, 1)
    assert arguments == Generation(("x",), 5, Sampling(0.0, 0, 1.0))
    mass, model = experiment_of("mass"), copy.copy(models["clm"])
    model.language_model, model.denoiser = LanguageModel(mass, {}, None), continuation_denoiser(mass)
    with pytest.raises(ConfigError, match="shows the model how many tokens to write"):
        generated(model, "a")
