"""Generation of lm-eval's model "cloze", against greedy decoding without a cache."""

import pytest

pytest.importorskip("lm_eval")

from contract.errors import ConfigError
from evaluation.likelihood import continuation_denoiser
from evaluation.lm_eval.arguments import GenerationArguments, generation_arguments
from evaluation.lm_eval.generation import Generator
from evaluation.lm_eval.model import ClozeLM
from evaluation.probes.probe import LanguageModel
from generate.sampling import Sampling
from tests.evaluation.lm_eval.runs import CONTEXTS, experiment_of, generated, greedy
from tests.evaluation.test_likelihood import ids


@pytest.mark.parametrize("name", ["clm", "ul2 [R]", "prefix_lm"])
def test_generation_equals_greedy_decoding_without_a_cache_for_prompts_of_any_length(models, workdirs, name):
    model = ClozeLM(workdir=workdirs["ul2"], mode="[R]") if name == "ul2 [R]" else models[name]
    expected = [greedy(model, context, 9) for context in CONTEXTS]
    found = generated(model, *CONTEXTS, max_gen_toks=9, until=["\n\n"])
    assert found == expected and max(map(len, found)) == 9
    if name == "clm":
        one_row = ClozeLM(workdir=workdirs[name], batch_size=1)
        assert generated(one_row, *CONTEXTS, max_gen_toks=9, until=["\n\n"]) == found


def test_generation_stops_at_the_first_stop_string(models, monkeypatch):
    monkeypatch.setattr("evaluation.lm_eval.generation._TOKENS_AT_A_TIME", 2)  # a stop string can begin in one part
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
    not_sampled = generated(models["clm"], *CONTEXTS, max_gen_toks=9, temperature=2.0, do_sample=False)
    assert not_sampled == [greedy(models["clm"], context, 9) for context in CONTEXTS]


def test_contexts_leave_room_for_the_answer(models):
    long = "0123456789" * 6
    for name, kept in {"clm": 39, "prefix_lm": 38, "ul2": 46}.items():
        generator = Generator(models[name].language_model, models[name].denoiser, models[name].arguments)
        assert generator.default_max_tokens == {"clm": 24, "prefix_lm": 23, "ul2": 24}[name]
        context = generator.read(long, generation_arguments({"max_gen_toks": 9}, 1), where="")
        assert context.prompt.text.tolist() == ids(long[-kept:]).tolist() and context.dropped == 60 - kept
    with pytest.raises(
        ConfigError, match=r"max_gen_toks=49 does not fit a row of data\.inputs_length=48: set --gen_kw"
    ):
        generated(models["clm"], "a", max_gen_toks=49)


INVALID = {
    "temperature": ("x", "temperature='x' must be a number"),
    "top_p": (float("nan"), "top_p=nan must be a number"),
    "top_k": (2.5, "top_k=2.5 must be an integer"),
    "max_gen_toks": ("many", "max_gen_toks='many' must be an integer"),
    "max_new_tokens": (2.5, "max_new_tokens=2.5 must be an integer"),
    "do_sample": ("maybe", "do_sample='maybe' must be true or false"),
}


@pytest.mark.parametrize("name", INVALID)
def test_generation_arguments_of_a_wrong_type_are_errors(name):
    value, message = INVALID[name]
    with pytest.raises(ConfigError, match=f"^generation_kwargs: {message}$"):
        generation_arguments({"do_sample": True, name: value}, 1)


def test_a_generation_argument_that_is_null_is_not_set():
    given = {"do_sample": True, "top_k": None, "top_p": None, "temperature": None, "max_gen_toks": None, "until": None}
    assert generation_arguments(given, 7) == GenerationArguments((), 7, Sampling(1.0, 0, 1.0))
    given = {"do_sample": True, "temperature": "1e-3", "top_k": "5", "max_tokens": "1e1"}  # as YAML reads 1e-3
    assert generation_arguments(given, 7) == GenerationArguments((), 10, Sampling(0.001, 5, 1.0))


def test_what_a_task_cannot_ask_is_an_error(models):
    for arguments, message in {
        "num_beams=4": "num_beams=4 is not supported: use until, max_gen_toks, do_sample, temperature, top_p, top_k",
        "top_p=0": r"top_p=0\.0 must satisfy",
        "max_gen_toks=0": "max_gen_toks=0 must be 1 or more",
    }.items():
        name, value = arguments.split("=")
        with pytest.raises(ConfigError, match=message):
            generated(models["clm"], "a", do_sample=True, **{name: type(1 if name != "top_p" else 1.0)(value)})
    arguments = generation_arguments({"max_new_tokens": 5, "num_beams": 1, "until": "x"}, 1)
    assert arguments == GenerationArguments(("x",), 5, Sampling(0.0, 0, 1.0))
    assert generation_arguments({"do_sample": True}, 7).sampling.temperature == 1.0
    mass = experiment_of("mass")
    with pytest.raises(ConfigError, match="shows the model how many tokens to write"):
        Generator(LanguageModel(mass, {}, None), continuation_denoiser(mass), models["clm"].arguments)
    for ask in (
        lambda: models["clm"].chat_template(True),
        lambda: models["clm"].apply_chat_template([]),
        lambda: models["clm"].tokenizer_name,
    ):
        with pytest.raises(ConfigError, match="--apply_chat_template: a run has no chat template"):
            ask()
