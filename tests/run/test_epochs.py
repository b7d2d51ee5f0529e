"""`train.epochs`: resolved to steps once the corpus is open, for the schedule, the config and the summary of a run."""

import json
import re
import types

import numpy as np
import pytest

from configs import sft
from contract.errors import ConfigError
from evaluation.__main__ import main as evaluate
from experiment.experiment import make_experiment
from experiment.schedules import make_schedule
from run.compiled_run import make_run
from run.corpus import steps_of
from run.restore import load_experiment
from tests.in_process import run_here
from tests.table import reads_corpus, small_config
from train.loop import train_and_evaluate
from workdir.run_config import read_config


def fields(corpus, name="sft", architecture="decoder_only", **overrides):
    run = {"train__steps": 0, "train__epochs": 3.0, "train__eval_every": 1000, "train__checkpoint_every": 1000}
    return small_config(name, architecture, **reads_corpus(name, corpus), **run | overrides)


def run_of(corpus, **overrides):
    """The run, whose epochs are resolved."""
    return make_run(make_experiment(fields(corpus, **overrides)), show_progress=False)


@pytest.mark.parametrize("batch_size", [8, 5])
def test_every_document_is_read_once_per_epoch(batch_size, corpus):
    run = run_of(corpus, train__batch_size=batch_size)
    steps, documents = run.experiment.train.steps, run.corpora.train_documents
    made = run.experiment.batches(documents, transform=lambda windows, rows: windows)
    examples = [
        windows.tokens[k, : windows.lengths[k]].tobytes()
        for windows in map(made.__getitem__, range(steps))
        for k in range(len(windows.lengths))
    ]
    counts = [examples.count(documents.tokens(i).astype(np.int32).tobytes()) for i in range(len(documents))]
    assert len(set(counts)) <= 2 and min(counts) == 3, "three epochs; the last batch reads on into the fourth"
    without_last = run.train_dataset.count_windows(0, steps - 1).examples.sum()
    assert without_last < 3 * len(documents) <= len(examples)


@pytest.mark.parametrize(
    ("epochs", "windows", "batch_size", "steps"),
    [(3.0, 52_000 // 4, 32, 1219), (1.0, 32, 32, 1), (0.25, 10, 8, 1), (1.1, 10, 1, 11), (1e-9, 10, 8, 1)],
)
def test_steps_by_hand(epochs, windows, batch_size, steps, corpus, monkeypatch):
    monkeypatch.setattr("run.corpus.windows_per_epoch", lambda documents, spec: windows)
    experiment = make_experiment(fields(corpus, train__epochs=epochs, train__batch_size=batch_size))
    assert steps_of(experiment, None) == steps


@pytest.mark.slow
def test_a_run_of_epochs_and_its_continuation(corpus, tmp_path, capsys):
    experiment = make_experiment(fields(corpus, optimizer__schedule="cosine", train__epochs=2))
    train_and_evaluate(experiment, str(tmp_path))
    saved, out = read_config(tmp_path), capsys.readouterr().out
    steps = saved["train"]["steps"]
    assert saved["train"]["epochs"] == 2 and steps > 2
    rows = re.search(rf"steps  {steps}: 2 epochs of (\d+) rows, 8 per step", out)
    assert rows and steps == -(-2 * int(rows[1]) // 8)
    assert f"To sample: python -m train.generate --workdir={tmp_path}" in out
    assert f"done: {steps} steps" in out
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == steps
    rate = make_schedule(experiment.optimizer, steps)(steps - 1)
    assert [line["learning_rate"] for line in lines if "learning_rate" in line][-1] == pytest.approx(float(rate))

    train_and_evaluate(experiment, str(tmp_path))  # the same command again: finished
    out = capsys.readouterr().out
    assert "changed config" not in out and f"continuing from step {steps}" in out
    with pytest.raises(ConfigError, match=rf"^train\.epochs=2\.5, .* changes .* optimizer\.cycles=0-{steps} \("):
        train_and_evaluate(make_experiment(fields(corpus, train__epochs=2.5)), str(tmp_path))
    longer = fields(corpus, train__epochs=2.5, optimizer__cycles=f"0-{steps}")
    train_and_evaluate(make_experiment(longer), str(tmp_path))
    out = capsys.readouterr().out
    more = read_config(tmp_path)["train"]["steps"]
    assert more > steps and f"train.steps: {steps} -> {more}" in out and "train.epochs: 2 -> 2.5" in out
    assert f"done: {more} steps" in out

    reading = load_experiment(str(tmp_path))  # evaluate, generate and train.init_from read a run so
    assert reading.train.steps == more and reading.train.epochs == 0
    assert json.loads(run_here(evaluate, f"--workdir={tmp_path}")[1])["step"] == more


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"train__steps": 5}, r"train\.steps=5 and train\.epochs=3\.0 both set the length of the run: set one"),
        ({"train__epochs": 0.0}, r"train\.steps=0 must be 1 or more, or 0 with train\.epochs above 0"),
        ({"train__epochs": float("inf")}, r"train\.epochs=inf must be 0"),
        (
            {"name": "ul2r:clm_then_ul2r"},
            r"train\.epochs=3\.0 does not go with objective\.end_step, which",
        ),
        ({"optimizer__b2": 1.0}, r"optimizer\.b2=1\.0 must be in"),  # checked before the corpus is read
    ],
)
def test_a_length_that_is_not_clear_is_refused(overrides, message, corpus):
    with pytest.raises(ConfigError, match=message):
        make_experiment(fields(corpus, **overrides))


def test_what_only_the_corpus_shows_is_refused_before_the_first_step(corpus):
    with pytest.raises(ConfigError, match=r"^train\.epochs needs windows of one kind, .*\(r1 \d+, r2 \d+, s \d+"):
        run_of(corpus, name="ul2", architecture="encoder_decoder")
    with pytest.raises(ConfigError, match=r"train\.epochs=3 is \d+ steps with this corpus, and optimizer\.warmup_step"):
        run_of(corpus, optimizer__warmup_steps=1000)


@pytest.mark.parametrize(("preset", "epochs", "rate"), [("small", 3, 2e-5), ("7b", 3, 2e-5), ("13b", 5, 1e-5)])
def test_sft_beyond_tiny_is_alpacas_recipe(preset, epochs, rate):
    config = sft.get_config(preset)
    assert (config.train.steps, config.train.epochs) == (0, epochs)
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.learning_rate, optimizer.b1, optimizer.b2) == ("adamw", rate, 0.9, 0.999)
    assert (optimizer.eps, optimizer.weight_decay, optimizer.clip_norm) == (1e-8, 0.0, 1.0)
    assert (optimizer.schedule, optimizer.final_learning_rate_fraction) == ("cosine", 0.0)
    assert make_experiment(config.to_dict()).train.epochs == epochs


def test_a_share_of_an_epoch_is_a_decimal_number(monkeypatch):
    """0.07 * 100 is 7.000000000000001 in float64, which would take an eighth step."""
    monkeypatch.setattr("run.corpus.windows_per_epoch", lambda *_: 100)
    train, data = types.SimpleNamespace(epochs=0.07, batch_size=1), types.SimpleNamespace(examples_per_row=1)
    assert steps_of(types.SimpleNamespace(train=train, data=data, batch_spec=None), None) == 7
