"""The Python interface: against train.evaluate, the model's own functions, and each text alone."""

import dataclasses
import itertools
import json
import pathlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

import cloze
from contract.errors import ConfigError
from evaluation import __main__ as evaluate_command
from evaluation.scorer import _logits
from experiment.experiment import make_experiment
from generate import __main__ as generate_command
from huggingface import export
from models.transformer import apply
from objectives import CLM, OBJECTIVES
from run.compiled_run import make_run
from run.evaluation import evaluate
from tests.in_process import run_here
from tests.table import small_config
from tests.train.small_runs import save_random_run

ROOT = pathlib.Path(__file__).parents[2]
TEXTS = ["def f(x):", "the quick brown fox", "é", "import os, sys, re"]


def run_of(corpus, folder, name, architecture, *, eval_windows):
    config = small_config(name, architecture)
    config["data"] |= {"source": "text", "path": str(corpus / "text"), "cache_dir": str(corpus / "cache")}
    # A window ends where its document ends, so that windows of a text are those of the document.
    config["data"] |= {"inputs_length": 48, "targets_length": 48, "documents": "split"}
    config["data"]["heldout_fraction"] = 0.1
    config["train"] |= {"eval_windows": eval_windows}
    config["model"] |= {"num_layers": 1}
    save_random_run(config, str(folder))
    return cloze.load(folder)


@pytest.fixture(scope="module")
def causal(corpus, tmp_path_factory):
    return run_of(corpus, tmp_path_factory.mktemp("clm"), "clm", "decoder_only", eval_windows=0)


@pytest.fixture(scope="module")
def ul2(corpus, tmp_path_factory):
    return run_of(corpus, tmp_path_factory.mktemp("ul2"), "ul2", "encoder_decoder", eval_windows=28)


def test_losses_of_the_heldout_documents_are_those_of_train_evaluate(causal):
    experiment, run = causal.experiment, make_run(causal.experiment, show_progress=False)
    documents = run.corpora.heldout_documents
    tokens = [np.asarray(documents.tokens(k)) for k in range(len(documents))]
    texts = [experiment.tokenizer.decode(ids[ids != experiment.vocab.eos]) for ids in tokens]
    losses, expected = causal.losses(texts), evaluate(run, causal.params)
    nats, tokens = (sum(getattr(loss, name) for loss in losses) for name in ("nats", "tokens"))
    assert tokens == expected["tokens/clm"] and len(losses) == len(documents) > 1
    np.testing.assert_allclose(nats / tokens, expected["loss"], rtol=1e-5)
    num_bytes = sum(loss.bytes for loss in losses)
    np.testing.assert_allclose(nats / num_bytes / np.log(2), expected["bits_per_byte"], rtol=1e-5)


def test_the_denoiser_of_a_text_is_drawn_or_chosen(ul2):
    assert len({loss.denoiser for loss in ul2.losses([f"text {k}" for k in range(20)])}) > 2
    assert {loss.denoiser for loss in ul2.losses(TEXTS, denoiser="x1")} == {"x1"}
    assert ul2.losses(TEXTS[1], denoiser="x1", seed=1) != ul2.losses(TEXTS[1], denoiser="x1", seed=2)


def test_the_losses_of_a_causal_model_are_its_log_likelihoods_and_those_of_its_logits(causal):
    batch = causal.batch(TEXTS)
    log_probs = np.asarray(jax.nn.log_softmax(causal.logits(batch)))
    of_targets = np.take_along_axis(log_probs, batch["decoder_target_tokens"][..., None], axis=-1)[..., 0]
    with_eos = -(of_targets * batch["decoder_loss_weights"]).sum(axis=1)
    losses, lengths = causal.losses(TEXTS), [len(text.encode()) for text in TEXTS]
    np.testing.assert_allclose([loss.nats for loss in losses], with_eos, rtol=1e-5)
    assert [loss.tokens for loss in losses] == [length + 1 for length in lengths]
    by_hand = [-of_text[:length].sum() for of_text, length in zip(of_targets, lengths, strict=True)]
    likelihoods = causal.log_likelihood([""] * 4, TEXTS)
    np.testing.assert_allclose([found.nats for found in likelihoods], by_hand, rtol=1e-5)
    np.testing.assert_allclose([found.nats for found in causal.text_log_likelihood(TEXTS)], by_hand, rtol=1e-5)


def test_a_batch_made_by_hand_may_have_several_segments_in_a_row(causal, monkeypatch):
    """cuDNN's attention would read lengths alone for the rows of this run, which have one segment each."""
    configs = []

    def record(config, *rest):
        configs.append(config)
        return _logits(config, *rest)

    monkeypatch.setattr("evaluation.scorer._logits", record)
    causal.logits(causal.batch(TEXTS))
    assert [config.one_segment for config in configs] == [False]


def test_logits_are_those_of_apply_and_a_causal_model_reads_no_prefix(causal, ul2):
    for model in (causal, ul2):
        batch = model.batch(TEXTS)
        read = {name: array for name, array in batch.items() if name != "decoder_bidirectional_mask"}
        expected = jax.jit(apply, static_argnums=0)(model.experiment.model, model.params["transformer"], read)
        np.testing.assert_allclose(model.logits(batch), expected, atol=1e-4)
    with pytest.raises(cloze.ConfigError, match="has no field 'encoder_input_tokens', which this encoder_decoder"):
        ul2.logits(causal.batch(TEXTS))


def test_show_is_text_and_html(ul2):
    shown = ul2.show(TEXTS[:2], denoiser="s")
    assert "example 2: s [S]" in str(shown) and "the quick brown" in repr(shown)
    assert "<iframe srcdoc=" in shown._repr_html_() and shown.to_html().startswith("<!DOCTYPE html>")
    assert (
        "statistics</span> of" not in shown.to_html() and "statistics</span> of" in ul2.show(num_examples=1).to_html()
    )
    assert "encoder_decoder, 1 layers a stack, " in repr(ul2) and ul2._repr_html_().startswith("<pre>model")
    deep = cloze.new(small_config("span_corruption", "encoder_decoder", model__num_decoder_layers=3))
    assert "encoder_decoder, 2 and 3 layers a stack, " in repr(deep)


def test_batches_are_those_of_training(causal):
    run = make_run(causal.experiment, show_progress=False)
    for found, expected in zip(causal.batches(start=3), [run.train_dataset[3], run.train_dataset[4]], strict=False):
        assert {name: array.tolist() for name, array in found.items()} == {
            name: array.tolist() for name, array in expected.items()
        }


@pytest.mark.parametrize("name", ["ul2", "nsp", "simcse"])
def test_shards_in_order_are_the_batch(corpus, name):
    """Rows of several examples, of two sentences, and rows that are compared with each other."""
    architecture = "encoder_decoder" if name == "ul2" else "encoder_only"
    config = small_config(name, architecture, train__batch_size=8, data__reader_threads=0)
    config["data"] |= {"source": "text", "path": str(corpus / "text"), "cache_dir": str(corpus / "cache")}

    def three_batches(shard):
        return list(itertools.islice(cloze.batches(config, start=5, shard=shard), 3))

    whole = three_batches((0, 1))
    for count in (2, 4, 8):
        shards = [three_batches((index, count)) for index in range(count)]
        for n, batch in enumerate(whole):
            for field, rows in batch.items():
                parts = [shard[n][field] for shard in shards]
                assert {len(part) for part in parts} == {8 // count}
                np.testing.assert_array_equal(np.concatenate(parts), rows)


def test_a_shard_of_a_model_is_that_of_its_config(causal):
    half = next(causal.batches(1, shard=(1, 2)))
    whole = next(causal.batches(1))
    assert {name: array[len(array) // 2 :].tolist() for name, array in whole.items()} == {
        name: array.tolist() for name, array in half.items()
    }


@pytest.mark.parametrize(("name", "architecture"), [("clm", "decoder_only"), ("electra", "encoder_only")])
def test_saved_parameters_are_read_bit_for_bit(corpus, tmp_path, name, architecture, monkeypatch):
    """Also where the program has changed its folder after cloze.load."""
    monkeypatch.chdir(tmp_path)
    config = small_config(name, architecture, model__num_layers=1, train__eval_windows=7)
    config["data"] |= {"source": "text", "path": str(corpus / "text"), "cache_dir": str(corpus / "cache")}
    model = cloze.new(config)
    params = jax.tree.map(lambda array: np.asarray(array) * 1.5 + 0.01, model.params)
    model.save(tmp_path / "run", params)
    loaded = cloze.load("run")
    monkeypatch.chdir(corpus)
    jax.tree.map(np.testing.assert_array_equal, loaded.params, params)
    expected = evaluate(make_run(model.experiment, show_progress=False), params)
    assert loaded.evaluate() == expected != model.evaluate()


def test_a_saved_model_has_its_tokenizer_and_is_no_run_to_continue(corpus, tmp_path):
    pytest.importorskip("sentencepiece")
    from tests.data.test_tokenizer import train_model

    tokenizer = train_model(tmp_path / "own.model")
    config = small_config("clm", "decoder_only", model__num_layers=1, data__tokenizer=str(tokenizer))
    config["data"] |= {"source": "text", "path": str(corpus / "text"), "cache_dir": str(corpus / "cache")}
    model = cloze.new(config)
    model.save(tmp_path / "run", model.params)
    pathlib.Path(tokenizer).unlink()
    loaded = cloze.load(tmp_path / "run")
    assert (
        loaded.generate("the quick", temperature=0, max_tokens=4).text
        == model.generate("the quick", temperature=0, max_tokens=4).text
    )
    with pytest.raises(cloze.ConfigError, match=r"contains a model of train.convert or Model\.save, and no run"):
        cloze.train(config, tmp_path / "run", {"data.tokenizer": str(tmp_path / "run" / "tokenizer" / "own.model")})


def test_a_saved_model_names_an_objective_from_outside(monkeypatch, tmp_path):
    own = dataclasses.dataclass(frozen=True)(type("Own", (CLM,), {"__module__": __name__}))
    monkeypatch.setitem(OBJECTIVES, "own", own)
    model = cloze.new(small_config("clm", "decoder_only", objective={"name": "own"}, model__num_layers=1))
    model.save(tmp_path / "run", model.params)
    monkeypatch.delitem(OBJECTIVES, "own")
    with pytest.raises(cloze.ConfigError, match="the objective 'own' is not of this repository"):
        cloze.load(tmp_path / "run")


@pytest.mark.slow
def test_commands_read_saved_parameters(causal, tmp_path):
    pytest.importorskip("safetensors")
    params = jax.tree.map(lambda array: array * 1.5, causal.params)
    causal.save(tmp_path / "run", params)
    found = cloze.load(tmp_path / "run")
    (tmp_path / "prompts.txt").write_text("the quick\n")
    printed = []
    for command, *options in (
        (evaluate_command,),
        (generate_command, f"--prompts={tmp_path / 'prompts.txt'}", "--temperature=0", "--max_tokens=8"),
        (export, f"--out={tmp_path / 'exported'}"),
    ):
        status, out, errors = run_here(command.main, f"--workdir={tmp_path / 'run'}", *options)
        assert status == 0, errors
        printed.append(out)
    expected = evaluate(make_run(causal.experiment, show_progress=False), params)["loss"]
    assert f"{expected:.4f}" in printed[0]
    answer = found.generate("the quick", temperature=0, max_tokens=8).answer
    assert json.loads(printed[1])["answer"] == answer
    assert "unknown: imported, or trained in a loop of one's own" in (tmp_path / "exported" / "README.md").read_text()
    exported = cloze.load(tmp_path / "exported")
    np.testing.assert_allclose(exported.logits(found.batch(TEXTS)), found.logits(found.batch(TEXTS)), atol=1e-4)


def test_what_cannot_be_saved_is_one_line(causal, tmp_path):
    params, run = causal.params, causal.workdir
    for workdir, given, message in (
        (run, params, f"^workdir={re.escape(run)} has a run or a model already: name a new folder$"),
        (
            tmp_path,
            params["transformer"],
            r"^params is not a tree of this model: transformer/\S+ is missing there and float32\[",
        ),
        (
            tmp_path,
            params | {"head": np.zeros(2)},
            r"^params is not a tree of this model: head is float64\[2\] there and missing here: give",
        ),
        (params, tmp_path, "^workdir must be the name of a folder, not dict$"),
    ):
        with pytest.raises(cloze.ConfigError, match=message):
            causal.save(workdir, given)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_save_prints_nothing_of_orbax(tmp_path):
    """cloze imports data/ before Orbax, so data/ must not make the logger of absl that Orbax uses."""
    code = (
        "import sys, cloze, numpy as np; from workdir.workdir import Workdir\n"
        "with Workdir(sys.argv[1]).checkpoints(keep=1) as checkpoints: checkpoints.save(0, {'a': np.zeros(2)})"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "run"], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_make_experiment_takes_a_config_dict_and_names_what_it_cannot_take():
    from configs.clm import get_config

    assert make_experiment(get_config("tiny")).objective_name == "clm"
    with pytest.raises(cloze.ConfigError, match=r"not get_config: call it, as in get_config\(\)$"):
        make_experiment(get_config)
    with pytest.raises(cloze.ConfigError, match=r"a config must be a ConfigDict or a mapping .*, not str$"):
        make_experiment("configs/clm.py")


INVALID = {
    "value": (lambda model: model.generate("a", temperature=-1), "^--temperature=-1 must be 0"),
    "mode": (
        lambda model: model.generate("a", mode="[S]"),
        r"^--mode='\[S\]' is not a mode of this run: .*omit --mode",
    ),
    "long prompt": (lambda model: model.generate(["a", "a" * 48]), "^prompt 2 has 48 tokens, special tokens included"),
    "long text": (lambda model: model.batch(["a", "a" * 48]), "^text 2 has 49 tokens, and a window of 'clm' has 48"),
    "empty text": (lambda model: model.losses(["a", ""]), "^text 2 is empty"),
    "a number": (lambda model: model.losses([3]), "^text 1 must be a string or an array of ids, not int"),
    "one number": (lambda model: model.losses(3), "^3 must be a text or a list of texts, not int$"),
    "option": (
        lambda model: model.generate("a", temprature=0),
        r"^unknown option temprature=0: did you mean temperature\?$",
    ),
    "another option": (lambda model: model.generate("a", xyz=1), "^unknown option xyz=1: choose one of mode, max_"),
    "option's type": (lambda model: model.generate("a", temperature="hot"), "^temperature='hot' must be a number, not"),
    "whole number": (
        lambda model: model.generate("a", max_tokens=2.0),
        "^max_tokens=2.0 must be an integer",
    ),
    "no number": (lambda model: model.generate("a", top_p=None), "^top_p=None must be a number, not NoneType"),
    "prompt's type": (lambda model: model.generate(["a", 2]), "^prompt 2 must be a string, not int"),
    "mapping": (lambda model: model.losses({"a": "b"}), "must be a text or a list of texts, not dict"),
    "likelihood's type": (lambda model: model.log_likelihood("a", np.array([1])), "^continuation 1 must be a string"),
    "start": (lambda model: model.batches(-1), "^start=-1 must be the number of a batch"),
    "split": (lambda model: model.metrics("evals"), "^split='evals' must be 'train', 'eval' or None"),
    "examples": (lambda model: model.show("a", num_examples=5), "^num_examples is of the corpus"),
    "seed": (lambda model: model.show(seed=3), "^denoiser and seed are of given texts"),
    "shard": (lambda model: model.batches(shard=(2, 2)), r"^shard=\(2, 2\) must be two integers \(index, count\) with"),
    "no shard": (lambda model: model.batches(shard=2), r"^shard=2 must be two integers \(index, count\) with 0 <= ind"),
    "part of a row": (
        lambda model: model.batches(shard=(0, 3)),
        r"^train.batch_size=\d+ must be a multiple of 3, the",
    ),
    "ids": (lambda model: model.losses(np.array([1, 999])), "^text 1 must be ids from 0 to 3"),
    "denoiser": (lambda model: model.losses("a", denoiser="r"), "^denoiser='r' must be one of 'clm'"),
    "unicode": (lambda model: model.losses("\udcff"), "^text 1 is not valid UTF-8 at character 0"),
    "lists": (lambda model: model.log_likelihood(["a", "b"], "c"), "^there are 2 prompts and 1 continuations"),
    "step": (lambda model: cloze.load(model.workdir, step=7), "no checkpoint of step 7"),
    "folder": (lambda _: cloze.load("nowhere"), "^--workdir=nowhere is not the folder of a run"),
    "file": (lambda _: cloze.new("configs/ul3.py"), "^configs/ul3.py: --config=configs/ul3.py is not a file"),
    "field": (lambda _: cloze.new("configs/ul2.py", {"model.foo": 1}), "^configs/ul2.py: unknown config field .*foo"),
    "type": (lambda _: cloze.new("configs/ul2.py", {"model.d_ff": "x"}), "^configs/ul2.py: .*model.d_ff=x"),
    "field of a mapping": (
        lambda model: cloze.new(model.experiment.config, {"model.foo": 1}),
        "^unknown config field model.foo: choose one of",
    ),
}


@pytest.mark.parametrize(("call", "message"), INVALID.values(), ids=INVALID)
def test_invalid_input_raises_one_line(causal, call, message):
    with pytest.raises(cloze.ConfigError, match=message) as error:
        call(causal)
    assert "\n" not in str(error.value)


def test_numpy_numbers_are_numbers(causal):
    options = {"max_tokens": 2, "temperature": 0.5, "seed": 1}
    of_numpy = {"max_tokens": np.int64(2), "temperature": np.float64(0.5), "seed": np.int32(1)}
    assert causal.generate("a", **of_numpy) == causal.generate("a", **options)
    fields = causal.experiment.config
    assert cloze.new(fields, {"train.steps": np.int64(7)}).experiment.train.steps == 7


def test_no_prompts_have_no_answers(causal):
    assert causal.generate([]) == []
    with pytest.raises(cloze.ConfigError, match="--temperature=-1"):
        causal.generate([], temperature=-1)


def test_a_contrastive_run_has_no_losses_and_no_likelihoods():
    model = cloze.new(small_config("simcse", "encoder_only", model__num_layers=1))
    with pytest.raises(cloze.ConfigError, match=r"^objective\.name='simcse' compares each text with the other texts"):
        model.losses("a")
    with pytest.raises(
        cloze.ConfigError, match=r"^objective\.name='simcse' does not train the prediction of tokens: ch"
    ):
        model.log_likelihood("a", "b")
    assert len(model.batch(["a", "b"])["encoder_input_tokens"]) == 2


def test_a_notebook_shows_one_line():
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell()
    printed = []
    shell._showtraceback = lambda kind, value, lines: printed.extend(lines)
    shell.run_cell("import cloze; cloze.load('nowhere')")
    assert printed == ["ConfigError: --workdir=nowhere is not the folder of a run: nowhere/config.json does not exist"]


def test_pairs_of_prompt_and_response():
    model = cloze.new(small_config("sft", "decoder_only"))
    [loss] = model.losses([("2 + 2 =", " 4")])
    batch = model.batch([("2 + 2 =", " 4")])
    assert loss.tokens == batch["decoder_loss_weights"].sum() == 3 and loss.bytes == 9  # with the EOS
    assert model.losses(("2 + 2 =", " 4")) == loss
    with pytest.raises(cloze.ConfigError, match="text 1 must be a pair of strings, a prompt and its response, not str"):
        model.losses(["2 + 2 = 4"])
    with pytest.raises(cloze.ConfigError, match=r"text 1 takes .* positions of data.inputs_length=.*: shorten it"):
        model.losses([("a" * 1000, "b")])


def test_a_new_model_is_that_of_the_config_and_its_seed():
    config = small_config("clm", "decoder_only")
    first, second = cloze.new(config), cloze.new(config, {"seed": config["seed"] + 1})
    again = cloze.new(config)
    embedding = [
        np.asarray(model.params["transformer"]["token_embedder"]["embedding"]) for model in (first, second, again)
    ]
    assert (embedding[0] == embedding[2]).all() and (embedding[0] != embedding[1]).any()
    assert cloze.new(config, {"model.d_ff": 64}).experiment.model.d_ff == 64
    assert config["model"]["d_ff"] != 64  # the caller's config is unchanged


@pytest.mark.parametrize("name", ["train", "models"])
def test_a_file_that_shadows_a_package_is_named(tmp_path, name):
    (tmp_path / f"{name}.py").write_text("print('ran')")
    (tmp_path / "script.py").write_text("import cloze")
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=60)
    message = f"{tmp_path}/{name}.py shadows cloze's package {name!r} in {ROOT}: rename it, or run from elsewhere"
    assert done.stderr.rstrip().endswith(f"\nImportError: {message}") and "ran" not in done.stdout


@pytest.mark.slow
def test_the_packages_that_can_be_shadowed_are_those_that_are_imported():
    code = "import cloze, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"cloze"}
    assert packages & set(done.stdout.split()) <= set(cloze._PACKAGES.split()) <= packages


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cloze.load(None), r"^path must be the name of a folder, not NoneType$"),
        (lambda: cloze.load("runs/x", overrides=5), r"^overrides=5 must map dotted fields to values"),
        (lambda: cloze.new(5), r"^config=5 must be a file of configs/, a ConfigDict or a mapping of its fields$"),
        (lambda: cloze.train("configs/clm.py", None), r"^workdir must be the name of a folder, not NoneType$"),
        (lambda: cloze.new("configs/clm.py", {5: 1}), r"^overrides=\{5: 1\} must map dotted fields to values"),
    ],
)
def test_arguments_of_other_types_are_one_line(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def test_the_log_likelihood_of_a_response_is_its_loss_without_the_eos(tmp_path):
    """With a tokenizer that puts a space before each text: the response was encoded apart in training."""
    pytest.importorskip("sentencepiece")
    from tests.data.test_tokenizer import train_model

    model = cloze.new(small_config("sft", "decoder_only", data__tokenizer=train_model(tmp_path / "t5.model")))
    pair = ("the quick brown f", "ox jumps")
    batch, loss, found = model.batch([pair]), model.losses(pair), model.log_likelihood(*pair)
    [last] = np.flatnonzero(batch["decoder_target_tokens"][0] == model.tokenizer.vocab.eos)
    eos = jax.nn.log_softmax(model.logits(batch))[0, last, model.tokenizer.vocab.eos]
    assert found.tokens == loss.tokens - 1 and found.bytes == len(pair[1])
    np.testing.assert_allclose(found.nats, loss.nats + eos, rtol=1e-5)
