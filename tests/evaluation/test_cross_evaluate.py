"""A checkpoint scored under another config: the same model's numbers, or one line that says why it cannot be."""

import json
import re
import sys

import numpy as np
import pytest

from contract.errors import ConfigError
from evaluation import __main__ as evaluate
from evaluation.cross_evaluate import scoring_experiment
from experiment.experiment import make_experiment
from run.compiled_run import make_run
from run.restore import load_experiment, load_params
from tests.table import small_config
from tests.train.small_runs import save_random_run
from tests.train.subprocesses import ROOT
from train.loop import train_and_evaluate
from workdir.run_config import read_config

RUNS = {  # name -> objective, architecture and config fields
    "clm": ("clm", "decoder_only", {"optimizer__learning_rate": 1e-2}),
    "ul2": ("ul2", "decoder_only", {"seed": 3}),
    "seq2seq": ("ul2", "encoder_decoder", {}),
    "mtp": ("multi_token_prediction", "decoder_only", {}),
    "mtp_and_fim": ("multi_token_prediction:deepseek_v3", "decoder_only", {}),
    "mlm": ("mlm", "encoder_only", {"model__positions": "learned"}),
    "electra": ("electra", "encoder_only", {}),
    "simcse": ("simcse", "encoder_only", {"model__dropout_rate": 0.1, "objective__mlm_weight": 0.0}),
}


@pytest.fixture(scope="module")
def workdirs(corpus, tmp_path_factory):
    """Name of RUNS -> the folder of a run: clm is trained for two steps, the others have random parameters."""
    folders = {}
    for name, (objective, architecture, fields) in RUNS.items():
        seed = fields.get("seed", 0)
        fields = {field: value for field, value in fields.items() if field != "seed"}
        text = {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}
        config = small_config(objective, architecture, **text, **fields) | {"seed": seed}
        folders[name] = str(tmp_path_factory.mktemp(name))
        if name == "clm":
            train_and_evaluate(make_experiment(config), folders[name])
            continue
        save_random_run(config, folders[name])
    return folders


@pytest.fixture
def score(workdirs, corpus, monkeypatch, capsys):
    """(name of RUNS, config or None, arguments) -> the printed JSON line, and the notes on standard error."""
    monkeypatch.chdir(ROOT)

    def score(name, config=None, *arguments):
        capsys.readouterr()
        if config is not None:
            text = [f"--config.data.path={corpus / 'text'}"] if "data.path" not in " ".join(arguments) else []
            text += ["--config.data.source=text", f"--config.data.cache_dir={corpus / 'cache'}"]
            arguments = (f"--config={config}", *text, *arguments)
        monkeypatch.setattr(sys, "argv", ["evaluate", f"--workdir={workdirs[name]}", *arguments])
        evaluate.main()
        out, err = capsys.readouterr()
        return json.loads(out), err

    return score


def small(pair):
    return f"{ROOT}/tests/small_config.py:{pair}"


def assert_same_metrics(found, expected):
    """Every metric of `expected` is in `found` and equal."""
    for name, value in expected.items():
        if name not in ("split", "config", "overrides"):
            assert found[name] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-6)), name


@pytest.mark.parametrize(
    ("name", "pair"), [("clm", "clm,decoder_only"), ("ul2", "ul2,decoder_only"), ("seq2seq", "ul2,encoder_decoder")]
)
def test_under_its_own_config_a_run_has_its_own_numbers(score, name, pair):
    """The run of ul2 has seed 3, on which held-out documents and corruption do not depend."""
    own, _ = score(name)
    found, notes = score(name, small(pair), "--config.model.d_model=32", "--config.model.attention=xla")
    assert_same_metrics(found, own)
    assert found["config"] == small(pair) and found["overrides"]["data.source"] == "text" and "config" not in own
    assert notes == ""


def test_the_next_token_loss_of_multi_token_prediction_is_that_of_clm(score):
    own, _ = score("mtp")
    found, _ = score("mtp", small("clm,decoder_only"))
    assert found["loss"] == pytest.approx(own["loss"], rel=1e-5) and found["accuracy"] == own["accuracy"]
    assert found["bits_per_byte"] > 0 and "loss/future_2" in own and "loss/future_2" not in found


def test_a_mixture_with_a_further_head_is_scored_as_each_of_its_parts(score):
    """Its own numbers, those of its model alone, and those of its model and head on plain text."""
    own, _ = score("mtp_and_fim")
    found, _ = score("mtp_and_fim", small("multi_token_prediction:deepseek_v3,decoder_only"))
    assert_same_metrics(found, own)
    assert {"loss/fim", "loss/mtp", "loss/future_2"} <= own.keys() and "bits_per_byte" not in own
    clm, _ = score("mtp_and_fim", small("clm,decoder_only"))
    mtp, _ = score("mtp_and_fim", small("multi_token_prediction:sequential,decoder_only"))
    assert clm["loss"] == pytest.approx(mtp["loss"], rel=1e-5) and "loss/future_2" in mtp and "bits_per_byte" in clm


def test_ul2_is_scored_as_a_causal_language_model_and_back(score, workdirs, corpus):
    """The numbers are those of the same parameters in a run of the other objective."""
    found, _ = score("ul2", small("clm,decoder_only"))
    clm = read_config(workdirs["clm"]) | {"seed": 3}
    clm.pop("corpus")
    clm["model"] = read_config(workdirs["ul2"])["model"]
    run = make_run(make_experiment(clm), show_progress=False)
    params, _ = load_params(load_experiment(workdirs["ul2"]), workdirs["ul2"])
    expected = evaluate.evaluate(run, params)
    assert_same_metrics(found, expected)
    assert found["bits_per_byte"] == pytest.approx(expected["bits_per_byte"])

    found, _ = score("clm", small("ul2,decoder_only"))
    assert {f"loss/{name}" for name in ("r1", "s", "x4")} <= found.keys() and "bits_per_byte" not in found
    assert found["loss"] < 7


def test_an_encoder_decoder_has_a_left_to_right_loss_and_a_span_corruption_loss(score):
    lengths = ["--config.data.inputs_length=64", "--config.data.targets_length=64", "--config.train.eval_windows=16"]
    clm, _ = score("seq2seq", "configs/clm.py", *lengths)
    spans, _ = score("seq2seq", "configs/span_corruption.py", *lengths)
    assert np.isfinite(clm["loss"]) and np.isfinite(clm["bits_per_byte"]) and clm["config"] == "configs/clm.py"
    assert np.isfinite(spans["loss"]) and spans["overrides"]["data.inputs_length"] == 64


def test_electra_is_scored_under_mlm_by_its_generator(score):
    """With equal masking and the fields of ELECTRA's config, the generator's loss is ELECTRA's reported loss."""
    own, _ = score("electra")
    found, _ = score("electra", small("mlm,encoder_only"))
    assert abs(found["loss"] - own["loss"]) < 0.1  # other masks and replacements of the same text
    assert "discriminator_loss" in own and "discriminator_loss" not in found


def test_an_override_that_holds_out_other_documents_and_another_corpus_are_noted(score, corpus):
    other_split = ("--config.data.split_seed=1", "--config.data.heldout_fraction=0.4")
    _, notes = score("clm", small("clm,decoder_only"), *other_split)
    assert re.search(r"note: \d+ of \d+ held-out documents are training text of the run", notes)
    assert score("clm", small("clm,decoder_only"), "--config.seed=1")[1] == ""
    other = [f"--config.data.path={corpus / 'labelled.jsonl'}", "--config.data.document_per=line"]
    _, notes = score("clm", small("clm,decoder_only"), *other)
    assert "is not the corpus that the run was trained on" in notes and "labelled.jsonl" in notes


REFUSED = {
    "architecture": (
        ("mlm", "configs/clm.py"),
        r"--config=configs/clm.py: objective.name='clm' needs a model of architecture decoder_only or encoder_decoder, "
        r"and the model of this run \(mlm\) is encoder_only",
    ),
    "sentinels": (
        ("clm", "configs/clm.py", "--config.data.num_sentinels=64"),
        "data.num_sentinels=64 gives another vocabulary than the run's data.num_sentinels=100: add "
        '--config.data.num_sentinels="100"',
    ),
    "heads": (
        ("clm", "configs/multi_token_prediction.py"),
        r"trains heads in addition to the Transformer, and this run \(clm\) has transformer alone",
    ),
    "no language model": (("simcse", "configs/mlm.py"), "^objective.name='simcse' does not train the prediction of"),
    "positions": (
        ("mlm", "configs/mlm.py"),
        "data.inputs_length=128 must be at most model.max_length=40, the number of learned positions",
    ),
    "model": (
        ("clm", "configs/clm.py", "--config.model.d_model=64"),
        "--config.model.d_model=64 has no effect, because the model is the run's: remove it",
    ),
    "no config": (("clm", None, "--config.data.inputs_length=64"), "--config.data.inputs_length needs --config: name"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_scored_is_refused_in_one_line(score, case):
    arguments, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message) as error:
        score(*arguments)
    assert "\n" not in str(error.value)


def test_the_split_is_the_runs_but_for_fields_of_the_command_line():
    split = {"heldout_fraction": 0.3, "split_seed": 4, "split_by": "document", "heldout": "validation"}
    run = make_experiment(small_config("clm", "decoder_only", **{f"data__{name}": split[name] for name in split}))
    other = small_config("clm", "decoder_only")
    assert all(other["data"][name] != value for name, value in split.items())
    for given in (None, *split):
        overrides = {} if given is None else {f"data.{given}": other["data"][given]}
        data = scoring_experiment(run, other, name="other.py", overrides=overrides).config["data"]
        assert {name: data[name] for name in split} == split | ({given: data[given]} if given else {})
        assert given is None or data[given] == other["data"][given]
