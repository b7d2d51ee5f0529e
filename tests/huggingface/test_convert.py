"""Hugging Face folders as folders of runs: the same tensors back, the same text, and every refusal is one line."""

import contextlib
import functools
import json
import os
import resource
import shutil
import sys

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

import torch
import transformers
from safetensors.numpy import load_file, save_file

from contract.errors import ConfigError
from evaluation import __main__ as evaluate
from experiment.experiment import make_experiment
from huggingface import convert, export
from huggingface.importing import open_model
from run.restore import load_experiment
from tests.huggingface.hub_folders import change_config, make_hub_folder
from tests.table import small_config
from train.init_from import open_origin, plan_start
from train.loop import train_and_evaluate
from workdir.run_config import read_config

LENGTHS = ("--config.data.inputs_length=40", "--config.data.targets_length=40")
# Rows of the position tables of RoBERTa and BART that no position has: models here do not hold them.
UNUSED_ROWS = {"roberta": 2, "bart": 2}


def run_command(command, *arguments):
    sys.argv = ["command", *map(str, arguments)]
    command.main()


def run_convert(folder, workdir, *arguments):
    run_command(convert, f"--from={folder}", f"--workdir={workdir}", *LENGTHS, *arguments)


def small_text(corpus):
    """Fields of config.data for a few modules of the tests' corpus."""
    return {"source": "text", "path": str(corpus / "text" / "_[a-co]*.txt"), "cache_dir": str(corpus / "cache")}


def load_tokenizer(folder):
    """The tokenizer.json as it is: AutoTokenizer's classes for T5 and others change it."""
    return transformers.PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """name -> a Hugging Face folder with random weights; tests do not change it."""
    return functools.cache(lambda name: make_hub_folder(tmp_path_factory.mktemp(name) / "hub", name, extra_rows=3))


@pytest.fixture(scope="module")
def imported(folders, tmp_path_factory):
    """name -> the workdir that train.convert made of the folder `name`."""

    @functools.cache
    def make(name):
        workdir = tmp_path_factory.mktemp(name) / "run"
        run_convert(folders(name), workdir)
        return workdir

    return make


@pytest.mark.parametrize(
    ("name", "objective"),
    [
        ("t5_v1_0", "span_corruption"),
        ("bart", "bart"),
        ("bert", "mlm"),
        ("bert_pretraining", "nsp"),
        ("roberta", "mlm"),
        ("gpt2", "clm"),
        ("llama", "clm"),
        ("modernbert", "mlm"),
        ("t5gemma", "prefix_lm"),
    ],
)
def test_a_folder_comes_back_bit_for_bit(folders, imported, tmp_path, name, objective):
    folder, workdir = folders(name), imported(name)
    assert sorted(os.listdir(workdir.parent)) == ["run"]
    experiment = load_experiment(str(workdir))
    assert experiment.objective_name == objective
    shutil.move(workdir, tmp_path / "moved")
    run_command(export, f"--workdir={tmp_path / 'moved'}", f"--out={tmp_path / 'out'}")
    shutil.move(tmp_path / "moved", workdir)
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "out"))
    assert before.keys() == after.keys()
    for tensor in before:
        first = UNUSED_ROWS.get(name, 0) if "position" in tensor else 0
        rounded = 1e-7 * ("gemma" in name and "norm" in tensor)  # scales are 1 plus the tensor
        np.testing.assert_allclose(after[tensor][first:], before[tensor][first:], 0, rounded, err_msg=tensor)
    configs = [json.loads((path / "config.json").read_text()) for path in (folder, tmp_path / "out")]
    for option in ("architectures", "vocab_size", "eos_token_id", "bos_token_id", "decoder_start_token_id"):
        assert configs[0].get(option) == configs[1].get(option), option
    texts = ["the quick  fox</s>", "dozen jugs!"]
    tokenizers = [load_tokenizer(path) for path in (folder, tmp_path / "out")]
    assert tokenizers[0](texts).input_ids == tokenizers[1](texts).input_ids


def test_the_positions_of_a_roberta_count_from_the_pad_of_its_folder(folders, tmp_path):
    """Also where the tokenizer has another pad."""
    folder = shutil.copytree(folders("roberta"), tmp_path / "hub")
    tensors = load_file(folder / "model.safetensors")
    name = "roberta.embeddings.position_embeddings.weight"
    table = tensors[name]
    save_file(tensors | {name: np.concatenate([np.zeros_like(table[:2]), table])}, folder / "model.safetensors")
    change_config(folder, pad_token_id=3, max_position_embeddings=len(table) + 2)
    run_convert(folder, tmp_path / "run")
    run_command(export, f"--workdir={tmp_path / 'run'}", f"--out={tmp_path / 'out'}")
    _, info = transformers.RobertaForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values())
    assert json.loads((tmp_path / "out" / "config.json").read_text())["max_position_embeddings"] == len(table) + 2


def test_electra_comes_back_from_its_two_folders(tmp_path):
    """A generator of fewer layers than the discriminator's three."""
    for part, name, layers in (("discriminator", "electra", 3), ("generator", "electra_generator", 1)):
        make_hub_folder(tmp_path / "hub" / part, name, num_hidden_layers=layers)
    shutil.copy(tmp_path / "hub" / "generator" / "tokenizer.json", tmp_path / "hub" / "discriminator")
    paths = {part: tmp_path / "hub" / part / "model.safetensors" for part in ("discriminator", "generator")}
    tensors = {part: load_file(path) for part, path in paths.items()}
    shared = [name for name in tensors["generator"] if name.startswith("electra.embeddings.")]
    save_file(tensors["generator"] | {name: tensors["discriminator"][name] for name in shared}, paths["generator"])
    run_convert(tmp_path / "hub", tmp_path / "run")
    run_command(export, f"--workdir={tmp_path / 'run'}", f"--out={tmp_path / 'out'}")
    assert sorted(os.listdir(tmp_path / "out")) == ["cloze.json", "discriminator", "generator"]
    for part, path in paths.items():
        before, after = load_file(path), load_file(tmp_path / "out" / part / "model.safetensors")
        assert before.keys() == after.keys()
        for name in before:
            np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    save_file(tensors["generator"], paths["generator"])
    with pytest.raises(ConfigError, match="token_embedder of generator and discriminator differ"):
        run_convert(tmp_path / "hub", tmp_path / "other")


@pytest.fixture
def folder(folders, tmp_path):
    """A copy of the folder of a T5, for tests that damage it."""
    return shutil.copytree(folders("t5_v1_1"), tmp_path / "hub")


def change_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: change_config(f, attention_sinks=4), "the option attention_sinks=4 is unknown here and may be of"),
        (lambda f: change_config(f, vocab_size=7), "model.vocab_size=7 must be at least 94, the number of the"),
        (
            lambda f: change_tensors(f, lambda t: t["encoder.final_layer_norm.weight"].__setitem__(0, np.nan)),
            "transformer/encoder/final_norm/scale has values that are not finite",
        ),
        (
            lambda f: (f / "tokenizer.json").unlink(),
            r"has no tokenizer \(tokenizer.json, spiece.model, tokenizer.model\): write one",
        ),
    ],
)
def test_what_cannot_be_imported_is_one_line_and_nothing_is_written(folder, tmp_path, damage, message):
    damage(folder)
    with pytest.raises(ConfigError, match=message) as error:
        run_convert(folder, tmp_path / "run")
    assert str(error.value).startswith(f"--from={folder}") and len(str(error.value).splitlines()) == 1
    assert os.listdir(tmp_path) == ["hub"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.model.d_ff=48"], r"--config.model.d_ff=48 has no effect, because the model is that of --from"),
        (["--config.data.tokenizer=byte"], "--config.data.tokenizer=byte has no effect: the tokenizer is that of"),
        (["--config=configs/mlm.py"], r"needs the special token \[CLS\], which data.tokenizer='.*' lacks"),
        ([], "data.num_sentinels=10 is too few"),
    ],
)
def test_overrides_that_contradict_the_folder_are_refused(folders, tmp_path, arguments, message):
    with pytest.raises(ConfigError, match=message) as error:
        run_command(convert, f"--from={folders('t5_v1_1')}", f"--workdir={tmp_path / 'run'}", *arguments)
    assert len(str(error.value).splitlines()) == 1 and not os.listdir(tmp_path)


def test_a_causal_decoder_is_not_made_one_that_reads_inputs_in_both_directions(folders, tmp_path):
    with pytest.raises(ConfigError, match=r"bidirectional_inputs=True has no effect: the decoder of --from"):
        run_convert(folders("llama"), tmp_path / "run", "--config.data.bidirectional_inputs=True")


def test_other_paths_are_refused(folders, imported, tmp_path):
    with pytest.raises(ConfigError, match="is the folder of a run, not a Hugging Face folder"):
        run_convert(imported("t5_v1_1"), tmp_path / "run")
    with pytest.raises(ConfigError, match="ElectraForPreTraining alone predicts no tokens: to fine-tune it, set"):
        run_convert(folders("electra"), tmp_path / "run")
    assert not os.listdir(tmp_path)


def test_the_discriminator_of_electra_starts_a_classifier(folders, corpus):
    """It has no output head, so the run's is a new one."""
    origin = open_origin(str(folders("electra")))
    fields = {f"model__{name}": getattr(origin.model, name) for name in small_config("mlm", "encoder_only")["model"]}
    vocabulary = {"tokenizer": str(folders("electra")), "append_special_tokens": False, "mode_tokens": ()}
    fields |= {f"data__{name}": value for name, value in vocabulary.items()}
    experiment = make_experiment(small_config("classification", "encoder_only", **fields))
    assert plan_start(origin, experiment).notes == ()
    with pytest.raises(ConfigError, match=r"has another vocabulary: id 0 is '.PAD.' there and '<pad>' here"):
        plan_start(origin, make_experiment(small_config("classification", "encoder_only")))


def test_training_does_not_continue_an_imported_model(imported, corpus):
    """A new run in its folder would start from random parameters, and write over its config."""
    workdir = imported("t5_v1_1")
    config = {name: value for name, value in read_config(workdir).items() if name != "corpus"}
    text = small_text(corpus)
    with pytest.raises(ConfigError, match=r"contains a model of train.convert or Model.save, and no run to continue"):
        train_and_evaluate(make_experiment(config | {"data": config["data"] | text}), str(workdir))


@pytest.mark.slow
def test_a_t5_is_imported_trained_and_exported_again(folders, corpus, tmp_path, capsys):
    folder, workdir = folders("t5_v1_1"), tmp_path / "run"
    imported = tmp_path / "im ported"
    text = small_text(corpus)
    fields = [f"--config.data.{name}={value}" for name, value in text.items()]
    run_convert(folder, imported, *fields, "--config.train.eval_windows=8")
    config = {name: value for name, value in read_config(imported).items() if name != "corpus"}
    steps = {"steps": 10, "batch_size": 8, "eval_every": 10, "eval_windows": 8, "checkpoint_every": 10, "log_every": 5}
    config["data"] |= {"tokenizer": str(folder / "tokenizer.json")}
    config["train"] |= steps | {"init_from": str(folder)}
    config["optimizer"] |= {"learning_rate": 3e-3, "warmup_steps": 1, "name": "adamw", "schedule": "constant"}
    train_and_evaluate(make_experiment(config), str(workdir))
    printed = capsys.readouterr().out.replace("\n", " ")
    assert f"train.evaluate --workdir='{imported}' " in printed
    assert f"held-out text was not compared with the training text of {folder}, which is unknown" in printed
    run_command(export, f"--workdir={workdir}", f"--out={tmp_path / 'out'}")
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "out"))
    assert before.keys() == after.keys()
    changes = {name: np.abs(after[name] - before[name]).max() for name in before}
    # A step of Adam is about the learning rate at most, and every tensor is trained.
    assert max(changes.values()) < 10 * 3e-3 * 1.5 and min(changes.values()) > 0
    model = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "out")
    assert torch.equal(model.shared.weight, torch.tensor(after["shared.weight"]))
    # Of the same windows: the imported model's loss has fallen.
    capsys.readouterr()
    run_command(evaluate, f"--workdir={imported}")
    loss = json.loads(capsys.readouterr().out)["loss"]
    assert json.loads((workdir / "metrics.jsonl").read_text().splitlines()[-1])["loss"] < loss - 0.01


@pytest.mark.parametrize("value", [-5, 10**9, "x", True, [1, -1], 2.0])
def test_a_special_id_that_no_token_has_is_refused(tmp_path, value):
    folder = make_hub_folder(tmp_path / "gpt2", "gpt2")
    open_model(folder, "--from=f")
    change_config(folder, eos_token_id=value)
    with pytest.raises(ConfigError, match=r"config.json: eos_token_id=.* must be an id of the token table's \d+ rows"):
        open_model(folder, "--from=f")


@contextlib.contextmanager
def largest_file(size):
    """Within this context writes beyond `size` bytes of a file fail, as they do on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_one_line(folders, tmp_path):
    hub = folders("t5_v1_1")
    run_convert(hub, tmp_path / "run")
    commands = [
        (export, f"--workdir={tmp_path / 'run'}", f"--out={tmp_path / 'out'}"),
        (convert, f"--from={hub}", f"--workdir={tmp_path / 'out'}", *LENGTHS),
    ]
    for command in commands:
        # Orbax divides arrays among files as its threads happen to finish, so that one array has to be too large: the
        # embedding has 12,032 bytes, tokenizer.json 8,501.
        with pytest.raises(ConfigError, match="File too large") as error, largest_file(10_000):
            run_command(*command)
        assert len(str(error.value).splitlines()) == 1 and os.listdir(tmp_path) == ["run"]
