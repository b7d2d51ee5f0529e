"""examples/one_file.py trains to the losses of train.main, bit for bit."""

import importlib.util
import json
import pathlib

import pytest

from configs import base
from experiment.experiment import make_experiment
from train.loop import train_and_evaluate

FILE = pathlib.Path(__file__).parent.parent / "examples" / "one_file.py"
STEPS = 4


@pytest.fixture(scope="module")
def one_file():
    spec = importlib.util.spec_from_file_location("one_file", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_short():
    assert len(FILE.read_text(encoding="utf-8").splitlines()) <= 250


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["mlm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("clm", "span_corruption"))]
)
def test_its_losses_are_those_of_train_main(one_file, name, corpus, tmp_path, monkeypatch, capsys):
    for field, value in {"WARMUP_STEPS": 1, "LENGTH": 48, "BATCH_SIZE": 4}.items():
        monkeypatch.setattr(one_file, field, value)
    monkeypatch.setenv("HOME", str(tmp_path))  # the default data.cache_dir
    objective, architecture = one_file.EXAMPLES[name]
    config = base.get_config()
    config.data.update({"source": "text", "path": str(corpus / "text"), "inputs_length": one_file.LENGTH})
    config.data.targets_length = one_file.LENGTH
    config.model.architecture = architecture
    config.optimizer.update({"name": "adamw", "learning_rate": one_file.PEAK_RATE, "warmup_steps": 1})
    config.train.update({"steps": STEPS, "batch_size": one_file.BATCH_SIZE, "log_every": 1, "eval_windows": 16})
    config.train.trackers = ()
    fields = config.to_dict() | {"objective": {"name": name} | vars(objective)}
    train_and_evaluate(make_experiment(fields), str(tmp_path / "run"))
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    expected = [line["loss"] for line in lines if line["split"] == "train"]
    assert one_file.train(name, path=str(corpus / "text"), steps=STEPS, log_every=2) == expected
    assert len(expected) == STEPS and expected[-1] < expected[0]
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed[-3:]] == ["2", "4", "held-out"]
