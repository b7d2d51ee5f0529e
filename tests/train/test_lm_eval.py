"""The model "cloze" of lm-eval, against rows that are written here by hand and against lm-eval's own functions.

Importing lm-eval takes seconds, so all of its tests are in this file, which one worker runs.
"""

import json
import math
import os
import re
import sys
import tempfile

os.environ.setdefault("HF_HOME", tempfile.mkdtemp(prefix="cloze-hf-"))  # where lm-eval's data sets are written
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import jax
import numpy as np
import pytest

pytest.importorskip("lm_eval")

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM

from contract.errors import ConfigError
from objectives.prompting import Respond
from tests.train.test_likelihood import apply, decoder_log_probs, fields, ids
from tests.train.tiny_experiments import PREFIX_LM, SPANS, random_params, tiny_experiment
from train.checkpoint import Checkpoints
from train.generate.sampling import Sampling
from train.likelihood import continuation_denoiser
from train.lm_eval import __main__ as command
from train.lm_eval.arguments import GenerationArguments, generation_arguments
from train.lm_eval.generation import Generator
from train.lm_eval.model import ClozeLM
from train.lm_eval.texts import longest_window, rolling_windows, split_pair
from train.probes.probe import LanguageModel
from train.probes.scorer import hide
from train.run import abstract_state
from train.run_config import write_config
from train.sharding import make_mesh

MASS = {"name": "iid_denoising", "noise_density": 0.15, "random_token_rate": 0.0, "inputs": "sentinels"}
LAYOUTS = {
    "clm": ("clm", "decoder_only", {}),
    "ul2": ("ul2", "encoder_decoder", {}),
    "prefix_lm": (PREFIX_LM, "decoder_only", {"positions": "learned", "num_layers": 2}),
    "spans": (SPANS, "encoder_decoder", {}),
    "mass": (MASS | {"targets": "full"}, "encoder_decoder", {}),
    "mlm": ("mlm", "encoder_only", {}),
    "classification": ({"name": "classification", "classes": ("a", "b")}, "decoder_only", {}),
}
TEXT = "def f(x): x = y"  # few lengths and numbers of rows, so that few programs are compiled
CONTEXTS = ["def f(x):", "a", TEXT, "def f(x):"]


def experiment_of(name):
    objective, architecture, model = LAYOUTS[name]
    data = {"documents": "split", "source": "jsonl"} if name == "classification" else {}
    return tiny_experiment(objective, architecture, model=model, data=data)


@pytest.fixture(scope="module")
def workdirs(tmp_path_factory):
    """The folder of a run of each of the layouts, by name; three of them have a checkpoint with random parameters."""
    folders = {}
    for name in LAYOUTS:
        experiment, folders[name] = experiment_of(name), str(tmp_path_factory.mktemp(name))
        write_config(folders[name], experiment.config)
        if name in ("clm", "ul2", "prefix_lm"):
            checkpoints = Checkpoints(os.path.join(folders[name], "checkpoints"), keep=1)
            shapes = abstract_state(experiment, make_mesh(experiment.mesh))
            state = jax.tree.map(lambda shape: np.zeros(shape.shape, shape.dtype), shapes)
            params = random_params(experiment, scale=2.0)
            params["logits_dense"]["kernel"] *= (np.arange(384) >= 35) & (np.arange(384) < 130)  # generates ASCII
            checkpoints.save(3, state._replace(params={"transformer": params}))
            checkpoints.close()
    return folders


@pytest.fixture(scope="module")
def models(workdirs):
    """The lm-eval model of each run with a checkpoint."""
    return {name: ClozeLM(workdir=workdirs[name]) for name in ("clm", "ul2", "prefix_lm")}


def requests(kind, *arguments):
    return [Instance(kind, {}, of_one, 0, metadata=("some_task", number, 1)) for number, of_one in enumerate(arguments)]


def loglikelihoods(model, *pairs):
    return [result[0] for result in model.loglikelihood(requests("loglikelihood", *pairs), disable_tqdm=True)]


def generated(model, *contexts, **arguments):
    return model.generate_until(requests("generate_until", *((text, arguments) for text in contexts)), True)


def greedy(model, context, count):
    """The text of the likeliest `count` tokens after `context`, by the model without a cache, to a special token."""
    lm, vocab, denoiser = model.language_model, model.language_model.experiment.vocab, model.denoiser
    inputs, start, encoder = [], [*ids(context)], None
    if denoiser.objective.has_inputs:
        sentinel = [vocab.sentinel(0)] * (denoiser.mode == "[R]")
        inputs, start = [*start, *sentinel, vocab.eos], sentinel
    if lm.experiment.model.has_encoder:
        inputs, encoder = [], [vocab.mode(denoiser.mode), *inputs]
    tokens = [*inputs, *start]
    for _ in range(count):
        batch = fields("decoder", [vocab.pad, *tokens])
        if encoder is None:
            prefix = len(inputs) + 1 if inputs else 0
            batch["decoder_bidirectional_mask"] = (np.arange(48) < prefix)[None]
        else:
            batch |= fields("encoder", encoder)
        logits = np.array(apply(lm.experiment.model, lm.params, batch))[0, len(tokens)]
        logits[[vocab.pad, *range(vocab.size, len(logits))]] = -np.inf
        if not vocab.content_start <= logits.argmax() < vocab.content_end:
            break
        tokens.append(int(logits.argmax()))
    return lm.experiment.tokenizer.decode(np.array(tokens[len(inputs) + len(start) :], np.int32))


class HuggingFaceRule(TemplateLM):
    """lm-eval's division of a text, with UTF-8 bytes for tokens."""

    tok_encode = staticmethod(lambda text, add_special_tokens=None: list(text.encode()))
    eot_token_id = 1
    _loglikelihood_tokens = loglikelihood_rolling = generate_until = None


def test_texts_are_divided_as_lm_eval_divides_them(models):
    model, theirs = models["clm"], HuggingFaceRule()
    tokenizer = model.language_model.experiment.tokenizer
    for context, continuation in [("a b", " c"), ("a b ", "c"), ("a \n\t", " c"), ("é  ", "ü"), ("a", "b")]:
        expected = [np.array(part) + 3 for part in theirs._encode_pair(context, continuation)]
        for denoiser in (model.denoiser, models["ul2"].denoiser):
            found = split_pair(tokenizer, denoiser, context, continuation, where="")
            assert [part.tolist() for part in found] == [part.tolist() for part in expected]
    [before, after] = split_pair(tokenizer, model.denoiser, " \n", "c", where="")
    assert len(before) == 0 and after.tolist() == ids(" \nc").tolist()


def test_prompts_and_responses_are_encoded_apart_as_in_their_training(tmp_path):
    pytest.importorskip("sentencepiece")
    from data.tokenizer import SentencePieceTokenizer
    from tests.data.test_tokenizer import T5_LIKE, train_model

    path = train_model(tmp_path / "t5.model", **T5_LIKE)
    tokenizer = SentencePieceTokenizer(path, num_sentinels=2, mode_tokens=())
    experiment = tiny_experiment("clm", "decoder_only")
    [clm] = experiment.denoisers
    sft = tiny_experiment({"name": "sft", "inputs_eos": False}, "decoder_only", data={"documents": "whole"})
    assert isinstance(sft.denoisers[0].objective.prompting, Respond)
    together = split_pair(tokenizer, clm, "the quick ", "brown", where="")
    apart = split_pair(tokenizer, sft.denoisers[0], "the quick ", "brown", where="")
    assert np.concatenate(together).tolist() == tokenizer.encode("the quick brown").tolist()
    assert [part.tolist() for part in apart] == [tokenizer.encode(text).tolist() for text in ("the quick", " brown")]


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


def test_a_model_is_greedy_about_what_it_generates_and_about_nothing_else(models):
    text = greedy(models["clm"], "def f", 4)
    other = text[:-1] + ("~" if text[-1] != "~" else "!")
    pairs = [("def f", text), ("def f", other), ("def f", text[:2]), ("def f", "x" + text)]
    found = models["clm"].loglikelihood(requests("loglikelihood", *pairs), True)
    assert [is_greedy for _, is_greedy in found] == [True, False, True, False]


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
def test_rolling_windows_score_each_token_once_and_fit_a_row(name):
    experiment = experiment_of(name)
    denoiser = continuation_denoiser(experiment)
    longest = longest_window(experiment, denoiser)
    assert longest == {"clm": 47, "ul2": 46, "spans": 46, "prefix_lm": 46, "mass": 46}[name]
    for length in (1, 30, 46, 47, 48, 95, 200):
        text, scored = np.arange(length, dtype=np.int32), []
        for context, continuation in rolling_windows(text, longest):
            window = np.concatenate([context, continuation])
            assert window.tolist() == list(range(window[0], window[0] + len(window)))
            assert (len(context) > 0) == (continuation[0] > 0)
            example = hide(denoiser, window, len(context), len(window), experiment.vocab)
            inputs, targets = len(example.inputs), len(example.targets_start) + len(continuation)
            assert max(inputs, targets) <= 48 if experiment.model.has_encoder else inputs + targets <= 48
            scored += continuation.tolist()
        assert scored == text.tolist()


def test_rolling_log_likelihoods_equal_windows_written_by_hand(models):
    text = "".join(chr(97 + k % 26) for k in range(100))
    clm, ul2 = models["clm"].language_model, models["ul2"].language_model
    # Windows of 47 scored tokens, which with a token before them fill a row of 48; the last one reads 42 tokens.
    parts = [(text[:47], 0), (text[46:94], 1), (text[52:], 42)]
    expected = sum(decoder_log_probs(clm, ids(part))[start:].sum() for part, start in parts)
    found = models["clm"].loglikelihood_rolling(requests("loglikelihood_rolling", (text,), ("",), ("ab",)), True)
    short = decoder_log_probs(clm, ids("ab")).sum()
    np.testing.assert_allclose(found, [expected, 0.0, short], rtol=1e-5)
    # The encoder of UL2 reads [S], the token before the window and an EOS; 46 tokens would be the most.
    vocab = ul2.experiment.vocab
    parts = [(text[:0], text[:46]), (text[45:46], text[46:92])]
    rows = [decoder_log_probs(ul2, ids(scored), encoder=[vocab.mode("[S]"), *ids(read), vocab.eos])
            for read, scored in parts]  # fmt: skip
    found = models["ul2"].loglikelihood_rolling(requests("loglikelihood_rolling", (text[:92],)), True)
    np.testing.assert_allclose(found, [sum(row.sum() for row in rows)], rtol=1e-5)


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
    monkeypatch.setattr("train.lm_eval.generation._TOKENS_AT_A_TIME", 2)  # a stop string can begin in one part
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
    "no workdir": ("clm", {"workdir": None}, "--model_args has no workdir: write"),
    "unknown": ("clm", {"pretrained": "gpt2"}, "--model_args has the unknown pretrained=gpt2: use workdir, step"),
    "a number": ("clm", {"workdir": 7}, "workdir=7 is read as a number"),
    "step": ("clm", {"step": "last"}, "--model_args step=last must be an integer of 0 or more"),
    "no such step": ("clm", {"step": 2}, "has no checkpoint of step 2|step"),
    "batch_size": ("clm", {"batch_size": "many"}, "--batch_size=many must be auto"),
    "mode": ("ul2", {"mode": "[Q]"}, r"--mode='\[Q\]' is not a mode of this run"),
    "encoder": ("mlm", {}, "objective.name='mlm' on encoder_only does not continue texts"),
    "labels": ("classification", {}, "objective.name='classification' does not train the prediction of tokens"),
}


@pytest.mark.parametrize("case", INVALID)
def test_what_cannot_be_evaluated_is_an_error(workdirs, case):
    name, arguments, message = INVALID[case]
    arguments = {"workdir": workdirs[name]} | arguments
    with pytest.raises(ConfigError, match=message) as error:
        ClozeLM(**{key: value for key, value in arguments.items() if value is not None})
    assert "\n" not in str(error.value)


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


TASKS = {
    "choice": """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: gold
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""",
    "rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: bits_per_byte}, {metric: word_perplexity}]
""",
    "writing": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["e"], max_gen_toks: 8}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""",
}


@pytest.fixture
def run_command(tmp_path, monkeypatch, capsys, workdirs, models):
    """Runs the command on local tasks; returns the results that it writes."""
    import lm_eval.tasks

    documents = [
        {"question": question, "choices": [" a", " b c", " pass", "\n"], "gold": k, "answer": answer}
        for k, question in enumerate(["def f(x)", "a é b", "x = y + ", "import"])
        for answer in [greedy(models["clm"], question, 8).split("e")[0] if k < 3 else "?"]
    ]
    (tmp_path / "documents.jsonl").write_text("\n".join(map(json.dumps, documents)), encoding="utf-8")
    source = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {tmp_path}/documents.jsonl}}}}"
    for name, fields_of_task in TASKS.items():
        (tmp_path / f"{name}.yaml").write_text(f"task: local_{name}\n{source}\ntest_split: test{fields_of_task}")
    manager = lm_eval.tasks.TaskManager
    # Without the index of lm-eval's own tasks, which takes 5 s.
    monkeypatch.setattr("lm_eval.tasks.TaskManager", lambda **options: manager(**options, include_defaults=False))

    def run(tasks, *flags, model_args=f"workdir={workdirs['clm']}"):
        out = tmp_path / "out.json"
        given = ["lm_eval", "--model_args", model_args, "--tasks", tasks, "--include_path", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", [*given, "--output_path", str(out), *flags])
        command.main()
        [path] = tmp_path.glob("out_*.json")
        results = json.loads(path.read_text())
        path.unlink()
        return results

    run.documents = documents
    return run


def test_the_command_writes_lm_evals_results_for_local_tasks(run_command, models, tmp_path):
    cache = ("--use_cache", str(tmp_path / "cache"))
    results = run_command("local_choice,local_rolling,local_writing", "--batch_size", "4", *cache)
    assert results["config"]["model"] == "cloze" and results["config"]["step"] == 3
    assert results["config"]["batch_size"] == "4" and results["config"]["denoiser"] == "clm"
    found, documents = results["results"], run_command.documents
    texts = [document["question"] for document in documents]
    scores = [loglikelihoods(models["clm"], *((text, choice) for choice in documents[0]["choices"])) for text in texts]
    correct = [int(np.argmax(row)) == document["gold"] for row, document in zip(scores, documents, strict=True)]
    assert found["local_choice"]["acc,none"] == np.mean(correct)
    nats = -sum(decoder_log_probs(models["clm"].language_model, ids(text)).sum() for text in texts)
    num_bytes, words = sum(len(text.encode()) for text in texts), sum(len(re.split(r"\s+", text)) for text in texts)
    np.testing.assert_allclose(found["local_rolling"]["bits_per_byte,none"], nats / num_bytes / math.log(2), rtol=1e-5)
    np.testing.assert_allclose(math.log(found["local_rolling"]["word_perplexity,none"]), nats / words, rtol=1e-5)
    assert found["local_writing"]["exact_match,none"] == 0.75
    assert run_command("local_choice,local_rolling,local_writing", *cache)["results"] == found
    limited = run_command("local_choice", "--limit", "1")
    assert limited["config"]["batch_size"] == "auto"
    assert limited["results"]["local_choice"]["acc,none"] == correct[0]


def test_the_command_refuses_in_one_line(run_command, workdirs, monkeypatch):
    for tasks, flags, message in [
        ("no_such_task", (), "Tasks not found: no_such_task"),
        ("local_choice", ("--apply_chat_template",), "--apply_chat_template: a run has no chat template"),
        ("local_writing", ("--gen_kwargs", "num_beams=2"), "generation_kwargs: num_beams=2 is not supported"),
    ]:
        with pytest.raises(ConfigError, match=message) as error:
            run_command(tasks, *flags)
        assert "\n" not in str(error.value)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(ConfigError, match=r"lm-eval is not installed: pip install -e '\.\[lm_eval\]'"):
        run_command("local_choice")
