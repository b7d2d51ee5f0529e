"""--probe=exact_match: right and wrong answers of oracles, greedy decoding, every family of objectives, bad input."""

import json
import sys
import types

import jax
import numpy as np
import pytest

from configs.base import corpus as corpus_of
from contract.errors import ConfigError
from data.sources.gym import make_task
from evaluation import __main__ as evaluate
from evaluation import likelihood
from evaluation.probes import exact_match
from evaluation.probes.command import check_probe
from evaluation.probes.exact_match import ExactMatch, Item
from evaluation.scorer import LanguageModel, Scores
from experiment.experiment import make_experiment
from generate.prompts import make_prompt
from generate.sampling import Request, Sampling, generate_answers
from generate.texts import Options, read_texts
from run.corpus import open_corpora
from run.restore import language_model, reading_mesh
from studies.measures import make_measure
from tests.small_fields import small_config
from tests.train.small_runs import save_random_run
from tests.train.subprocesses import ROOT

TASK = "reversal:facts=6"
FAMILIES = {  # config -> architecture
    "clm": "decoder_only",
    "multi_token_prediction": "decoder_only",
    "sft": "decoder_only",
    "teacherless": "decoder_only",
    "block_diffusion": "decoder_only",
    "prefix_lm": "encoder_decoder",
    "span_corruption": "decoder_only",
    "ul2": "encoder_decoder",
    "mlm": "encoder_only",
    "electra": "encoder_only",
    "unilm": "encoder_only",
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("stores"))


def fields_of(config, architecture, cache, task=TASK, **fields):
    documents = "whole" if config in ("sft", "teacherless") else "split"
    data = {"data__source": "gym", "data__path": task, "data__documents": documents, "data__cache_dir": cache}
    return small_config(config, architecture, **data | fields)


@pytest.fixture(scope="module")
def model_of(cache):
    """(config, architecture, task, further fields) -> its random language model and the corpora."""

    def model_of(config, architecture, task=TASK, **fields):
        experiment = make_experiment(fields_of(config, architecture, cache, task, **fields))
        draws = np.random.default_rng(0)
        params = jax.tree.map(
            lambda leaf: draws.normal(0.0, 0.1, leaf.shape).astype(leaf.dtype), experiment.params_shapes
        )
        corpora = open_corpora(experiment, show_progress=False)
        return LanguageModel(*language_model(experiment, params), reading_mesh(experiment)), corpora

    return model_of


def oracle(model, right):
    """`model` with perfect scores for the answers in `right`, of the texts that it is shown."""

    def score(examples, **options):
        decode, vocab = model.experiment.tokenizer.decode, model.experiment.vocab
        for number, example in examples:
            shown = np.concatenate([example.inputs, example.targets_start])
            is_text = (shown >= vocab.content_start) & (shown < vocab.content_end)
            text = decode(shown[is_text]), decode(example.hidden)
            asked.add((text[0], text[1]))
            likeliest = np.array([True] * (len(example.hidden) - 1) + [text in right])
            yield number, example, Scores(np.zeros(len(example.hidden)), likeliest)

    asked = set()
    return types.SimpleNamespace(experiment=model.experiment, score=score), asked


@pytest.mark.parametrize("config", ["clm", "sft", "span_corruption"])
def test_an_answer_is_right_if_every_token_is_the_likeliest(config, model_of):
    model, corpora = model_of(config, FAMILIES[config])
    forward = {(prompt, answer) for prompt, answer, kind in make_task(TASK).test() if kind == "forward"}
    every = {(prompt, answer) for prompt, answer, _ in make_task(TASK).test()}
    for right, shares in ((every, (1.0, 1.0, 1.0)), (forward, (0.5, 1.0, 0.0)), (set(), (0.0, 0.0, 0.0))):
        answers, asked = oracle(model, right)
        found = ExactMatch().measure(answers, corpora)
        assert asked == every and found["instances"] == 8
        groups = found["groups"]
        assert (found["exact_match"], *(groups[kind]["exact_match"] for kind in ("forward", "backward"))) == shares
        assert groups["forward"]["instances"] == 4 and groups["forward"]["exact_match_stderr"] is None
    assert found["exact_match_interval"] == pytest.approx([0.0, 0.3244], abs=1e-4)  # Wilson: z^2 / (n + z^2)
    # A group has two answers in lower case and two in upper case, and the prompt says in which.
    assert found["floors"] == {"chance": 1 / 2} and groups["backward"]["floors"] == {"chance": 1 / 2}


def test_chance_is_the_commonest_answer_or_a_guess_among_those_that_the_prompt_leaves(model_of, tmp_path):
    model, corpora = model_of("clm", "decoder_only", "star_graph:degree=4,length=3,labels=9,train_size=20,test_size=16")
    assert ExactMatch().measure(oracle(model, set())[0], corpora)["floors"] == {"chance": 1 / 4}
    lines = [{"prompt": letter, "response": "abc"[k % 3 // 2]} for k, letter in enumerate("ABCDEF")]
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = ExactMatch(path=str(tmp_path / "items.jsonl")).measure(oracle(model, set())[0], None)
    assert found["floors"] == {"chance": 4 / 6}


def test_chance_of_several_tasks_is_the_mean_over_their_instances(model_of):
    """A quarter for the star graphs, 1/24 for the lists, of which there are as many."""
    sizes = {"mqar": "pairs=4,queries=4", "star_graph": "degree=4,length=3,labels=9"}
    sources = {
        task: corpus_of(source="gym", path=f"{task}:{given},train_size=20,test_size=16", documents="split")
        for task, given in sizes.items()
    }
    several = {"data__source": "", "data__path": "", "data__sources": sources}
    model, corpora = model_of("clm", "decoder_only", **several)
    found = ExactMatch().measure(oracle(model, set())[0], corpora)
    assert found["instances"] == 32 and found["floors"]["chance"] == pytest.approx((1 / 4 + 1 / 24) / 2)


@pytest.mark.parametrize(("order", "passes"), [("once", 1), ("left_to_right", 3), ("probability", 3), ("margin", 3)])
def test_masks_are_filled_in_until_one_is_wrong(order, passes, model_of, monkeypatch):
    """The oracle knows all answers but the second letter of "ESI"; its margins grow from right to left."""
    model, corpora = model_of("mlm", "encoder_only")
    vocab, tokenizer = model.experiment.vocab, model.experiment.tokenizer
    answer_of = {prompt: answer for prompt, answer, _ in make_task(TASK).test()}
    wrong = next(iter(answer_of))
    calls = []

    def probabilities(experiment, params, texts, *, batch_size, prompting):
        calls.append([int((text == vocab.mask).sum()) for text in texts])
        for text in texts:
            assert text[-1] == vocab.eos
            prompt = next(prompt for prompt in answer_of if tokenizer.decode(text[:-1]).startswith(prompt))
            hidden = tokenizer.encode(prompt + answer_of[prompt])
            places = np.flatnonzero(text == vocab.mask)
            found = np.zeros((len(places), vocab.size), np.float32)
            for row, place in enumerate(places):
                is_wrong = prompt == wrong and place == len(hidden) - 2
                found[row, hidden[place] + is_wrong] = 0.9 - place / 100
                found[row, hidden[place] + 2] = 0.05
            yield found

    monkeypatch.setattr(likelihood, "mask_probabilities", probabilities)
    found = ExactMatch(order=order).measure(model, corpora)
    assert found["exact_match"] == 7 / 8 and found["order"] == order and found["groups"]["forward"]["instances"] == 4
    assert len(calls) == passes and calls[0] == [3] * 8
    assert calls[1:] == [[2] * 8, [1] * 7][: passes - 1]  # the wrong letter is the second one from both ends


def test_the_random_order_of_a_text_does_not_depend_on_other_texts(model_of, monkeypatch):
    model, _ = model_of("mlm", "encoder_only")
    [denoiser], mask = model.experiment.denoisers, model.experiment.vocab.mask
    seen = []

    def probabilities(experiment, params, texts, *, batch_size, prompting):
        for text in texts:
            if text[-1] == 99:
                seen.append(np.flatnonzero(text == mask).tolist())
            yield np.tile(np.eye(model.experiment.vocab.size, dtype=np.float32)[7], ((text == mask).sum(), 1))

    monkeypatch.setattr(likelihood, "mask_probabilities", probabilities)
    text, others = np.array([7] * 8 + [99], np.int32), [np.full(length, 7, np.int32) for length in (3, 9)]
    for texts in ([text], [*others, text]):
        masked = [np.where(part == 7, mask, part) for part in texts]
        assert likelihood.are_filled_in(model, denoiser.objective.prompting, masked, texts, "random").all()
    assert len(seen) == 16 and seen[:8] == seen[8:]


def test_a_model_of_blocks_reads_the_true_tokens_of_earlier_blocks(model_of, monkeypatch):
    """In every order: the oracle knows the answers from texts whose earlier blocks have no mask, and no other mask."""
    model, corpora = model_of("block_diffusion", "decoder_only")
    vocab, tokenizer = model.experiment.vocab, model.experiment.tokenizer
    answer_of = {prompt: answer for prompt, answer, _ in make_task(TASK).test()}

    def probabilities(experiment, params, texts, *, batch_size, prompting):
        for text in texts:
            prompt = next(prompt for prompt in answer_of if tokenizer.decode(text[:-1]).startswith(prompt))
            hidden, places = tokenizer.encode(prompt + answer_of[prompt]), np.flatnonzero(text == vocab.mask)
            known = places // 4 == places[0] // 4
            found = np.zeros((len(places), vocab.size), np.float32)
            found[np.arange(len(places)), np.where(known, hidden[places], vocab.content_start)] = 0.5 + places / 100
            yield found

    monkeypatch.setattr(likelihood, "mask_probabilities", probabilities)
    for order in ("once", "margin", "random"):
        assert ExactMatch(order=order).measure(model, corpora)["exact_match"] == 1


@pytest.mark.parametrize(("config", "architecture"), [("clm", "decoder_only"), ("prefix_lm", "encoder_decoder")])
def test_an_answer_is_right_if_and_only_if_greedy_decoding_writes_it(config, architecture, model_of):
    model, corpora = model_of(config, architecture)
    experiment, denoiser = model.experiment, model.experiment.denoisers[0]
    prompts = [item.prompt for item in ExactMatch()._items(experiment, corpora.heldout_documents)]
    requests = [Request(make_prompt(denoiser, prompt, experiment.vocab), 3) for prompt in prompts]
    greedy = Sampling(temperature=0.0, top_k=0, top_p=1.0)
    answers = [
        answer.tokens
        for [answer] in generate_answers(experiment, model.params, requests, greedy, num_samples=1, seed=0)
    ]
    whole = [(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True) if len(answer) == 3]
    assert whole
    right = [Item(prompt, answer.astype(np.int32), "") for prompt, answer in whole]
    wrong = [item._replace(answer=item.answer + np.array([0, 0, 1], np.int32)) for item in right]
    found = exact_match._written(model, denoiser, right + wrong)
    assert found.tolist() == [True] * len(right) + [False] * len(wrong)


@pytest.mark.parametrize("config", FAMILIES)
def test_every_family_of_objectives_is_scored(config, model_of):
    model, corpora = model_of(config, FAMILIES[config], "mqar:pairs=2,queries=2,train_size=20,test_size=9")
    check_probe(ExactMatch(), model.experiment)
    found = ExactMatch().measure(model, corpora)
    assert found["instances"] == 9 and 0 <= found["exact_match"] <= 1 and found["groups"] == {}
    assert ("order" in found) == (FAMILIES[config] == "encoder_only" or config in ("teacherless", "block_diffusion"))
    assert found.get("order", "margin") == ("once" if config == "teacherless" else "margin")
    assert found["denoiser"] == {"ul2": "s"}.get(config, found["denoiser"])


def test_a_model_of_all_masks_at_once_has_no_other_order(model_of):
    """Neither in the probe nor in generation: it never read a token that was filled in."""
    model, _ = model_of("teacherless", FAMILIES["teacherless"], "mqar:pairs=2,queries=2,train_size=20,test_size=9")
    with pytest.raises(ConfigError, match=r"--order=margin fills in some masks before others.*set --order=once"):
        check_probe(ExactMatch(order="margin"), model.experiment)
    check_probe(ExactMatch(order="once"), model.experiment)
    with pytest.raises(ConfigError, match="--order=random fills in some masks before others"):
        read_texts(model.experiment, [("ab[MASK]", "--prompt")], Options(order="random"))


def test_the_command_prints_one_line(cache, tmp_path, monkeypatch, capsys):
    """Of the held-out documents, which need no flag, and of a file."""
    save_random_run(fields_of("clm", "decoder_only", cache), str(tmp_path / "run"))
    lines = [{"prompt": "ab", "response": "c", "group": "x"}, {"prompt": "b", "response": "cd"}]
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.chdir(ROOT)

    def printed(*arguments):
        monkeypatch.setattr(sys, "argv", ["", f"--workdir={tmp_path / 'run'}", "--probe=exact_match", *arguments])
        evaluate.main()
        return json.loads(capsys.readouterr().out)

    found = printed()
    assert found["instances"] == 8 and set(found["groups"]) == {"forward", "backward"} and "heldout_digest" in found
    found = printed(f"--path={tmp_path / 'items.jsonl'}")
    assert found["instances"] == 2 and found["groups"]["x"]["instances"] == 1 and "heldout_digest" not in found
    (tmp_path / "items.jsonl").write_text('{"prompt": "a"}')
    for arguments, message in {
        (f"--path={tmp_path / 'items.jsonl'}",): r"items.jsonl:1 has no 'prompt' or no 'response'",
        ("--order=margin",): r"--order=margin has no effect on clm, which writes answers: remove it",
        ("--order=best",): r"--order='best' must be one of '', 'margin'",
        ("--length=3",): r"unknown --length: choose one of mode, path, order",
    }.items():
        with pytest.raises(ConfigError, match=message):
            printed(*arguments)


def test_an_instance_longer_than_an_encoder_s_row_is_refused(model_of, tmp_path):
    model, _ = model_of("mlm", "encoder_only")
    (tmp_path / "items.jsonl").write_text(json.dumps({"prompt": "a" * 30, "response": "b" * 8}))
    with pytest.raises(ConfigError, match=r"an instance has 41 tokens, .*, but data\.inputs_length=40 allows 40"):
        ExactMatch(path=str(tmp_path / "items.jsonl")).measure(model, None)


@pytest.mark.parametrize("config", ["clm", "prefix_lm"])
def test_an_answer_that_does_not_fit_a_row_is_refused(config, model_of, tmp_path):
    model, _ = model_of(config, "decoder_only", model__positions="rope")
    (tmp_path / "items.jsonl").write_text(json.dumps({"prompt": "a" * 30, "response": "b" * 11}))
    with pytest.raises(
        ConfigError, match=r"^an instance has 30 tokens of context and 11 of .* for data\.inputs_length"
    ):
        ExactMatch(path=str(tmp_path / "items.jsonl")).measure(model, None)


@pytest.mark.parametrize("config", ["sft", "teacherless"])
def test_documents_that_training_skips_are_no_instances(config, tmp_path):
    lines = [{"prompt": "ab", "response": "c" * n} for n in (1, 60, 2, 70, 3)]
    (tmp_path / "heldout.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "train.jsonl").write_text(json.dumps({"prompt": "x", "response": "y"}))
    data = {"data__source": "jsonl", "data__path": str(tmp_path / "train.jsonl"), "data__on_unusable": "skip"}
    data |= {"data__heldout_path": str(tmp_path / "heldout.jsonl"), "data__cache_dir": str(tmp_path)}
    experiment = make_experiment(small_config(config, "decoder_only", data__documents="whole", **data))
    params = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.01, leaf.dtype), experiment.params_shapes)
    model = LanguageModel(*language_model(experiment, params), reading_mesh(experiment))
    found = ExactMatch().measure(model, open_corpora(experiment, show_progress=False))
    assert found["instances"] == 3 and found["skipped_instances"] == 2


def test_a_group_is_a_measure_of_a_study(cache):
    experiment = make_experiment(fields_of("clm", "decoder_only", cache))
    fields = {"kind": "probe", "probe": "exact_match", "better": "higher", "config": "", "overrides": {}, "fields": {}}
    for metric in ("exact_match", "groups.forward.exact_match", "groups.backward.exact_match"):
        make_measure("m", fields | {"metric": metric}).check(experiment)
    for metric in ("groups.sideways.exact_match", "forward", "bits_per_byte.exact_match"):
        with pytest.raises(ConfigError, match=r"name it as in 'groups\.backward\.exact_match'"):
            make_measure("m", fields | {"metric": metric}).check(experiment)


def test_instances_of_a_file_are_encoded_as_the_training_text(cache, tmp_path):
    """With a tokenizer that puts a space before each text: prompt and answer are one text, or were two in training."""
    pytest.importorskip("sentencepiece")
    from tests.data.test_tokenizer import train_model

    fields = {"data__tokenizer": train_model(tmp_path / "t5.model")}
    (tmp_path / "items.jsonl").write_text(json.dumps({"prompt": "the quick brown f", "response": "ox", "group": "g"}))
    probe = ExactMatch(path=str(tmp_path / "items.jsonl"))
    experiments = {
        "one text": [make_experiment(small_config(name, FAMILIES[name], **fields)) for name in ("clm", "mlm", "ul2")],
        "two texts": [
            make_experiment(small_config("sft", "decoder_only", **fields)),
            make_experiment(fields_of("clm", "decoder_only", cache, **fields)),
        ],
    }
    for kind, made in experiments.items():
        for experiment in made:
            [(prompt, answer, group, _)] = probe._items(experiment, None)
            encode = experiment.tokenizer.encode
            texts = ["the quick brown fox"] if kind == "one text" else ["the quick brown f", "ox"]
            assert [*prompt, *answer] == np.concatenate(list(map(encode, texts))).tolist() and group == "g"
            assert experiment.tokenizer.decode(answer) == "ox"


def test_chance_of_a_file_counts_answers_as_texts(tmp_path, monkeypatch):
    """The tokens of an answer may begin with the space that ends its prompt."""
    pytest.importorskip("sentencepiece")
    from tests.data.test_tokenizer import train_model

    tokenizer = train_model(tmp_path / "t5.model")
    experiment = make_experiment(small_config("clm", "decoder_only", data__tokenizer=tokenizer))
    prompts = ("the quick brown ", "the quick brown(", "a lazy dog ")
    lines = [{"prompt": prompt, "response": "fox"} for prompt in prompts]
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr(exact_match, "_written", lambda *_: np.zeros(3, bool))
    probe = ExactMatch(path=str(tmp_path / "items.jsonl"))
    assert len({item.answer.tobytes() for item in probe._items(experiment, None)}) == 2
    assert probe.measure(types.SimpleNamespace(experiment=experiment), None)["floors"] == {"chance": 1.0}


def test_an_answer_without_tokens_is_named(tmp_path):
    """SentencePiece reads a zero-width space as white space."""
    pytest.importorskip("sentencepiece")
    from tests.data.test_tokenizer import train_model

    tokenizer = train_model(tmp_path / "t5.model")
    lines = [{"prompt": "the quick", "response": response} for response in ("fox", "\u200b")]
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for config in ("clm", "sft"):
        experiment = make_experiment(small_config(config, "decoder_only", data__tokenizer=tokenizer))
        with pytest.raises(ConfigError, match=r"items\.jsonl:2 has no tokens in 'response': correct that line$"):
            ExactMatch(path=str(tmp_path / "items.jsonl"))._items(experiment, None)


def test_an_objective_that_writes_no_answer_is_refused_in_one_line():
    with pytest.raises(ConfigError, match=r"^--probe=exact_match .*"):
        check_probe(ExactMatch(), make_experiment(small_config("deshuffling", "encoder_decoder")))
