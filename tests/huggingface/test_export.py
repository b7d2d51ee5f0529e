"""Exports of runs: `transformers` loads them and generates the same greedy text, and every refusal is one line."""

import json
import re
import shutil
import sys

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

import transformers

from configs import architectures
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from generate import __main__ as generate
from generate.sample import readable
from huggingface import export_command as export
from huggingface.folder import open_folder
from models.parameters import array_types
from run.restore import load_experiment, load_params
from tests.huggingface.exported_runs import run_export, shape, text_fields
from tests.table import small_config
from tests.train.small_runs import save_random_run

CLASSES = {"t5": "T5ForConditionalGeneration", "gpt2": "GPT2LMHeadModel"}
CLASSES |= dict.fromkeys(("llama", "span_decoder"), "LlamaForCausalLM")
RAW_TOKENS = 1_232_000  # of a step of `trained`


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """The folder of a UL2 run with checkpoints of the steps 2 and 4, without the training, which takes long."""
    workdir = tmp_path_factory.mktemp("trained") / "run"
    fields = small_config("ul2", "encoder_decoder", **text_fields(corpus), train__steps=4, train__ema_decay=0.9)
    save_random_run(fields, str(workdir), steps=(2, 4), raw_tokens=RAW_TOKENS)
    totals = {step: {"raw_tokens": RAW_TOKENS * step, "loss": 5.0 / step} for step in (2, 4)}
    lines = [{"step": step, "split": "eval", **values} for step, values in totals.items()]
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return workdir


def printed_by_generate(capsys, run, prompt, *arguments):
    sys.argv = ["train.generate", f"--workdir={run}", f"--prompt={prompt}", *arguments]
    capsys.readouterr()
    generate.main()
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        ("t5", "def f<extra_id_0>return 1"),
        ("gpt2", "def f"),
        ("llama", "def f"),
        ("span_decoder", "def f<extra_id_0>return 1"),
    ],
)
def test_transformers_generates_the_same_greedy_text(exported, capsys, name, prompt):
    run, out = exported(name)
    printed = printed_by_generate(capsys, run, prompt, "--temperature=0", "--max_tokens=12")
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    auto = transformers.AutoModelForSeq2SeqLM if name == "t5" else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(out)
    assert type(model).__name__ == CLASSES[name]
    inputs = tokenizer(prompt, return_tensors="pt")
    assert inputs.input_ids[0].tolist()[-1 if name == "t5" else 0] == (1 if name == "t5" else 0)
    tokens = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0].numpy()
    experiment = load_experiment(str(run))
    answer = tokens[1 if name == "t5" else inputs.input_ids.shape[1] :]
    answer = answer[: np.append(np.flatnonzero(answer == experiment.vocab.eos), len(answer))[0]]
    assert len(set(answer.tolist())) > 1
    text = readable(experiment, answer)
    expected = f"answer: {text}\n" if name in ("t5", "span_decoder") else f"{prompt}{text}\n"
    assert printed.startswith(expected)


def test_padding_and_rows_that_are_no_token_are_never_generated(exported, capsys):
    run, out = exported("gpt2")
    experiment = load_experiment(str(run))
    vocab, rows = experiment.vocab, experiment.model.vocab_size
    assert vocab.size % 128 and rows == -(-vocab.size // 128) * 128
    never = [vocab.pad, *range(vocab.size, rows)]
    assert json.loads((out / "generation_config.json").read_text())["suppress_tokens"] == never
    # Nearly uniform draws: 200 of them without a row of `never` by chance have a probability of 2 in 100,000.
    printed = printed_by_generate(capsys, run, "def f", "--temperature=99", "--max_tokens=25", "--num_samples=8")
    assert len(printed) > 200 and "<id " not in printed and "<pad>" not in printed
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    inputs = transformers.AutoTokenizer.from_pretrained(out)("def f", return_tensors="pt")
    transformers.set_seed(0)
    drawn = model.generate(**inputs, do_sample=True, temperature=99.0, max_new_tokens=25, num_return_sequences=8)
    new = drawn[:, inputs.input_ids.shape[1] :].numpy()
    until_end = np.cumsum(new == vocab.eos, axis=1) - (new == vocab.eos) == 0  # then transformers writes pad
    assert until_end.sum() > 150 and not np.isin(new[until_end], never).any()


def test_transformers_fills_the_same_masks(exported, capsys):
    run, out = exported("bert")
    prompt = "import [MASK][MASK]s"
    printed = printed_by_generate(capsys, run, prompt)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    model = transformers.AutoModelForMaskedLM.from_pretrained(out)
    inputs = tokenizer(prompt, return_tensors="pt")
    probabilities = model(**inputs).logits[0, inputs.input_ids[0] == tokenizer.mask_token_id].softmax(-1)
    shown = [float(value) for value in re.findall(r"^mask \d: .*? (\d\.\d{3})  ", printed, re.MULTILINE)]
    vocab = load_experiment(str(run)).vocab
    likeliest = [max(p for id_, p in enumerate(row.tolist()) if 0 < id_ < vocab.size) for row in probabilities]
    np.testing.assert_allclose(shown, likeliest, atol=1e-3)


def test_all_steps_are_named_by_step_and_words_seen(trained, tmp_path, capsys):
    out = tmp_path / "out"
    run_export(f"--workdir={trained}", f"--out={out}", "--all_steps", "--words_per_token=0.5")
    assert sorted(path.name for path in out.iterdir()) == ["step_2-words_1.23M", "step_4-words_2.46M"]
    first, last = sorted(out.iterdir())
    tensors = [open_folder(folder, "").tensors for folder in (first, last)]
    assert any((tensors[0][name] != tensors[1][name]).any() for name in tensors[0])
    assert capsys.readouterr().out.count("exported step") == 2


def test_the_card_and_the_tensors_are_those_of_the_step(trained, tmp_path):
    run_export(f"--workdir={trained}", f"--out={tmp_path / 'out'}", "--step=2", "--dtype=bfloat16")
    out = tmp_path / "out"
    card = (out / "README.md").read_text()
    for expected in (
        "| held-out loss | 2.5000 nats per scored token |",
        "| tokens seen | 2,464,000 of training text |",
        "| steps | 2 of 8 rows |",
        "whitespace-separated words per token, measured on all",
        "yes, train.ema_decay=0.9",
        "- `s` (continue): the encoder reads `[S]The capital of</s>`",
        "python -m train.main --config=configs/ul2.py",
    ):
        assert expected in card, expected
    # The averaged parameters, rounded.
    experiment = load_experiment(str(trained))
    params = load_params(experiment, str(trained), 2)[0]["transformer"]
    saved = open_folder(out, "").tensors["shared.weight"]
    np.testing.assert_allclose(saved, params["token_embedder"]["embedding"], rtol=2**-8)
    assert (saved != params["token_embedder"]["embedding"]).any()
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"


def test_only_an_earlier_export_of_the_same_run_is_replaced(trained, exported, tmp_path):
    out = tmp_path / "out"
    run_export(f"--workdir={trained}", f"--out={out}")
    (out / "model-00001-of-00002.safetensors").touch()  # of an earlier, larger export
    with pytest.raises(ConfigError, match=r"--out=.* is an earlier export of this run: set --overwrite to replace it"):
        run_export(f"--workdir={trained}", f"--out={out}")
    other, _ = exported("t5")
    with pytest.raises(ConfigError, match=r"--out=.* is no earlier export of this run, which writes no such cloze.jso"):
        run_export(f"--workdir={other}", f"--out={out}", "--overwrite")
    run_export(f"--workdir={trained}", f"--out={out}", "--overwrite")
    assert sorted(path.name for path in out.glob("*.safetensors")) == ["model.safetensors"]
    run_export(f"--workdir={trained}", f"--out={out}", "--overwrite", "--all_steps")
    assert len(list(out.iterdir())) == 2
    with pytest.raises(ConfigError, match=r"--out=.* is an earlier export of this run: set --overwrite to replace it"):
        run_export(f"--workdir={trained}", f"--out={out}")


STEP = "step_2-words_1M"


@pytest.mark.parametrize(
    ("at", "other", "entry"),
    [
        (".", "notes.txt", "notes.txt"),
        (".", "checkpoint/", "checkpoint"),
        (STEP, "notes.txt", "notes.txt"),
        (STEP, ".git/HEAD", ".git"),
        (STEP, f"{STEP}/notes.txt", f"{STEP}/notes.txt"),
        (STEP, "step_4-words_2M/", "step_4-words_2M"),
        (STEP, "step_4-words_2M/README.md", "step_4-words_2M/README.md"),
        (f"{STEP}/generator", f"{STEP}/notes.txt", f"{STEP}/notes.txt"),
        ("my_export", "", "my_export"),
        ("my_export", "thesis/notes.txt", "my_export"),
    ],
)
def test_a_folder_with_anything_else_is_not_replaced(exported, tmp_path, at, other, entry):
    """An export of the run at `at`, and another entry."""
    run, out = exported("t5")
    folder = tmp_path / "out"
    shutil.copytree(out, folder / at)
    path = folder / other
    if other:
        (path if other.endswith("/") else path.parent).mkdir(exist_ok=True)
    if not path.is_dir():
        path.touch()
    before = sorted(folder.rglob("*"))
    with pytest.raises(ConfigError, match=f"is no earlier export of this run, which writes no such {entry}: name a"):
        run_export(f"--workdir={run}", f"--out={folder}", "--overwrite")
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step=3"], r"--step=3 has no checkpoint in .*: choose one of the steps \[2, 4\]$"),
        (["--step=2", "--all_steps"], "--step=2 and --all_steps exclude each other"),
        (["--words_per_token=0"], r"--words_per_token=0.0 must be above 0"),
        (["--architecture=BertForMaskedLM"], r"model.architecture='encoder_decoder': BertForMaskedLM of transformers"),
        (["--architecture=Mamba"], r"--architecture=Mamba is not one of T5ForConditionalGeneration, "),
        (["--dtype=int8"], "--dtype"),
        (["--discriminator_only"], "--discriminator_only is for runs of ELECTRA: remove it"),
    ],
)
def test_arguments_that_cannot_work_are_one_line(trained, tmp_path, arguments, message):
    with pytest.raises(ConfigError, match=message) as error:
        run_export(f"--workdir={trained}", f"--out={tmp_path / 'out'}", *arguments)
    assert len(str(error.value).splitlines()) == 1 and not list(tmp_path.iterdir())


def test_a_folder_without_checkpoints_or_a_run(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    with pytest.raises(ConfigError, match="has no checkpoint: train this run first"):
        run_export(f"--workdir={tmp_path / 'run'}", f"--out={tmp_path / 'out'}")
    with pytest.raises(ConfigError, match="is not the folder of a run"):
        run_export(f"--workdir={tmp_path / 'none'}", f"--out={tmp_path / 'out'}")


def test_all_steps_need_the_words_seen(trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["data"]["path"] = str(tmp_path / "moved")
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ConfigError, match="--all_steps names folders by words seen, which are unknown, because the corp"
    ):
        run_export(f"--workdir={tmp_path / 'run'}", f"--out={tmp_path / 'out'}", "--all_steps")
    run_export(f"--workdir={tmp_path / 'run'}", f"--out={tmp_path / 'out'}")
    assert "note: the words seen are unknown, because the corpus cannot be read here" in capsys.readouterr().err
    assert "| words seen | unknown: " in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("config", "architecture", "overrides", "message"),
    [
        (
            "prefix_lm",
            "decoder_only",
            shape(architectures.LLAMA["7b"]),
            r"data.bidirectional_inputs=True: LlamaForCausalLM of transformers has False",
        ),
        ("clm", "decoder_only", {"model__positions": "none"}, r"model.positions='none': \w+ of transformers has"),
        ("span_corruption", "encoder_decoder", {"model__norm": "layer"}, r"model.norm='layer': T5For"),
        ("classification", "encoder_only", {}, "ClassificationLearner trains no language model"),
        ("multi_token_prediction", "decoder_only", {}, "in addition to the Transformer, and no class of transformers"),
    ],
)
def test_models_that_no_class_can_hold_are_refused_with_the_field(
    tmp_path, monkeypatch, config, architecture, overrides, message
):
    experiment = make_experiment(small_config(config, architecture, **overrides))
    monkeypatch.setattr(export, "load_experiment", lambda workdir: experiment)
    with pytest.raises(ConfigError, match=message) as error:
        run_export(f"--workdir={tmp_path / 'run'}", f"--out={tmp_path / 'out'}")
    assert len(str(error.value).splitlines()) == 1 and not list(tmp_path.iterdir())


def test_electra_has_a_folder_for_each_model(tmp_path, corpus, monkeypatch, capsys):
    electra = text_fields(corpus) | shape(architectures.BERT["base"])
    save_random_run(small_config("electra", "encoder_only", **electra), str(tmp_path / "tanh"))
    with pytest.raises(ConfigError, match=r"model.mlp='gelu': ElectraForMaskedLM .*: --discriminator_only leaves"):
        run_export(f"--workdir={tmp_path / 'tanh'}", f"--out={tmp_path / 'out'}")
    run_export(f"--workdir={tmp_path / 'tanh'}", f"--out={tmp_path / 'alone'}", "--discriminator_only")
    assert [path.name for path in (tmp_path / "alone").iterdir()] == ["discriminator"]
    loaded, info = transformers.ElectraForPreTraining.from_pretrained(
        tmp_path / "alone" / "discriminator", output_loading_info=True
    )
    assert not any(info.values()) and loaded.config.hidden_act == "gelu_new"
    params, _ = load_params(load_experiment(str(tmp_path / "tanh")), str(tmp_path / "tanh"), 0)
    expected = params["discriminator_head"]["logits"]["kernel"]
    np.testing.assert_array_equal(loaded.discriminator_predictions.dense_prediction.weight.detach().T, expected)
    assert "a generator too" in (tmp_path / "alone" / "discriminator" / "README.md").read_text()
    save_random_run(
        small_config("electra", "encoder_only", **electra | {"model__mlp": "exact_gelu"}), str(tmp_path / "run")
    )
    run_export(f"--workdir={tmp_path / 'run'}", f"--out={tmp_path / 'out'}")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["discriminator", "generator"]


def test_the_language_model_alone(tmp_path, corpus):
    fields = small_config("multi_token_prediction", "decoder_only", **text_fields(corpus))
    save_random_run(fields, str(tmp_path / "run"))
    run_export(f"--workdir={tmp_path / 'run'}", f"--out={tmp_path / 'out'}", "--language_model_only")
    experiment = load_experiment(str(tmp_path / "run"))
    exported = sum(tensor.size for tensor in open_folder(tmp_path / "out", "").tensors.values())
    everything = array_types(experiment.params_shapes)
    assert exported < experiment.num_params and any(not name.startswith("transformer/") for name in everything)
    assert "The run trained more than this language model" in (tmp_path / "out" / "README.md").read_text()
