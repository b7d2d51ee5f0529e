"""Runs as points, counted parameters, and the command `python -m train.scaling` from folders to its JSON line."""

import functools
import json
import math
import os
import shutil
import sys

import numpy as np
import pytest

from configs import clm
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from studies.scaling import __main__ as command
from studies.scaling.fit import fit
from studies.scaling.law import Law
from studies.scaling.runs import count_params, folders_of, read_points
from studies.study import load_study
from workdir.run_config import write_config

STUDY = "configs/studies/scaling.py"
LAW = Law(E=1.2, A=40.0, B=300.0, alpha=0.35, beta=0.4)
CORPUS = {"heldout": "aa", "tokenizer": "bytes", "fingerprint": "cc"}
STEPS = (250, 500, 1000)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Three folders of the study, with runs of two seeds whose losses are those of LAW up to 0.2%."""
    root, rng = tmp_path_factory.mktemp("studies"), np.random.default_rng(0)
    for variant, fields in load_study(STUDY).variants.items():
        for steps in STEPS:
            config = config_of(fields.overrides, steps)
            experiment = make_experiment(config)
            params = count_params(experiment.params_shapes, "total")
            for seed in range(2):
                loss = float(LAW.loss(params, 2048 * steps)) * math.exp(0.002 * rng.standard_normal())
                line = {"raw_tokens": 2048 * steps, "flops": steps * experiment.train_step_flops}
                folder = root / f"scaling_{steps:04d}" / "runs" / f"{variant}-seed{seed}"
                write_run(folder, config | {"seed": seed, "corpus": CORPUS}, [(steps // 2, 9.0), (steps, loss)], line)
    return root


@pytest.fixture
def studies(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "studies")


def config_of(overrides, steps):
    config = clm.get_config()
    config.update_from_flattened_dict(overrides)
    config.train.steps = steps
    return config.to_dict()


def write_run(folder, config, losses, totals):
    write_config(folder, config)
    lines = [{"step": step, "split": "eval", "loss": loss} | totals for step, loss in losses]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def run(monkeypatch, capsys, *arguments):
    """Runs the command with few resamples, and returns its JSON line and what it prints to standard error."""
    monkeypatch.setattr(command, "fit", functools.partial(fit, num_resamples=40))
    monkeypatch.setattr(sys, "argv", ["train.scaling", *map(str, arguments)])
    command.main()
    printed = capsys.readouterr()
    return json.loads(printed.out), printed.err


def test_parameters_by_hand():
    """A Llama block of 64 with 4 heads of 16 and 128 hidden: 4 x 64^2 + 3 x 64 x 128, and two norms of 64."""
    overrides = load_study(STUDY).variants["layers_2_width_64"].overrides
    shapes = make_experiment(config_of(overrides, steps=100)).params_shapes
    blocks = 2 * (4 * 64**2 + 3 * 64 * 128 + 2 * 64) + 64
    assert count_params(shapes, "non_embedding") == blocks
    assert count_params(shapes, "total") == blocks + 2 * 384 * 64


def test_positions_and_tied_tables_are_embeddings():
    shapes = make_experiment(clm.get_config("small").to_dict(), vocab_size=50257).params_shapes
    total, rest = (count_params(shapes, count) for count in ("total", "non_embedding"))
    assert total - rest == 768 * (50304 + 1024)


def test_a_point_is_the_last_evaluation(studies):
    points, left_out = read_points(load_study(STUDY), folders_of(f"{studies}/scaling_*"), "total")
    assert left_out == [] and len(points) == 30
    assert len({point.configuration for point in points}) == 15
    assert len({point.params for point in points}) == 5
    assert {point.tokens for point in points} == {2048.0 * steps for steps in STEPS}
    assert max(point.loss for point in points) < 9.0


def test_the_command_recovers_the_law_and_draws_it(studies, monkeypatch, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    figure = tmp_path / "scaling.svg"
    out = f"--out={studies}/scaling_0250,{studies}/scaling_0500,{studies}/scaling_1000"
    line, printed = run(monkeypatch, capsys, f"--study={STUDY}", out, f"--figure={figure}", "--advise", "--flops=1e13")
    assert (line["runs"], line["configurations"]) == (30, 15)
    for name in ("E", "A", "B", "alpha", "beta"):
        assert line[name]["low"] <= getattr(LAW, name) <= line[name]["high"], name
    assert line["optimum"]["tokens_per_param"]["low"] <= LAW.optimum(1e13).tokens_per_param
    assert line["optimum"]["chinchilla_tokens_per_param"] == 20
    assert "Besiroglu et al. (2024)" in line["published"] and "Besiroglu" in printed and "alpha" in printed
    assert figure.read_text().startswith("<?xml")
    assert all(1 < ratio < 2 for ratio in line["counted_flops_over_6nd"])


def test_advice_needs_no_study(monkeypatch, capsys):
    line, printed = run(monkeypatch, capsys, "--advise", "--flops=1e21")
    assert list(line) == ["published", "warnings"] and line["warnings"] == []
    assert "2.78B" in printed and "clm.py:xl" in printed


def test_runs_without_a_point_are_named(studies, monkeypatch, capsys):
    runs = studies / "scaling_0500" / "runs"
    config = json.loads((runs / "layers_2_width_32-seed0" / "config.json").read_text())
    totals = {"raw_tokens": 1, "flops": 1.0}
    write_run(runs / "layers_2_width_32-seed0", config, [(250, 3.0)], totals)
    write_run(runs / "layers_2_width_32-seed1", config, [(500, None)], totals)
    (runs / "layers_2_width_64-seed0" / "metrics.jsonl").write_text('{"step": 5, "sp\n')
    (runs / "layers_2_width_64-seed1" / "config.json").write_text('{"train": 3}')
    os.remove(runs / "layers_3_width_96-seed0" / "metrics.jsonl")
    shutil.rmtree(runs / "layers_6_width_192-seed0")
    shutil.rmtree(runs / "layers_6_width_192-seed1")
    line, printed = run(monkeypatch, capsys, f"--study={STUDY}", f"--out={studies}/scaling_*")
    assert line["runs"] == 23
    expected = [
        f"{runs.parent} has no run of variant layers_6_width_192",
        f"{runs}/layers_2_width_32-seed0: unfinished: the last evaluation is at step 250 of 500",
        f"{runs}/layers_2_width_32-seed1: the last evaluation has no finite loss",
        f"{runs}/layers_2_width_64-seed0: not started, or damaged: {runs}/layers_2_width_64-seed0/metrics.jsonl, "
        "line 1 is not a line of metrics: move the file away",
        f"{runs}/layers_2_width_64-seed1: damaged: config.json does not have the fields of a run",
        f"{runs}/layers_3_width_96-seed0: not started, or damaged: {runs}/layers_3_width_96-seed0 is not the folder "
        f"of a run: {runs}/layers_3_width_96-seed0/metrics.jsonl: No such file or directory",
    ]
    assert line["warnings"][:6] == [f"not in the fit: {text}" for text in expected]
    assert all(f"warning: not in the fit: {text}" in printed for text in expected)


@pytest.mark.parametrize(
    ("section", "field", "value", "message"),
    [
        ("corpus", "heldout", "bb", r"differ in corpus.heldout \(aa and bb\), so they are not points of one law: fit"),
        ("corpus", "fingerprint", "dd", r"differ in corpus.fingerprint \(cc and dd\)"),
        ("optimizer", "name", "adamw", r"differ in optimizer.name \(rms_scaled_adamw and adamw\)"),
        ("optimizer", "schedule", "constant", r"differ in optimizer.schedule \(cosine and constant\)"),
        ("optimizer", "warmup_steps", 10, "differ in optimizer.warmup_steps"),
        ("train", "batch_size", 99, "differ in train.batch_size"),
        ("train", "ema_decay", 0.9, "differ in train.ema_decay"),
        ("model", "mlp", "relu", "differ in model.mlp"),
        ("data", "documents", "whole", "differ in data.documents"),
        ("loss", "label_smoothing", 0.1, "differ in loss.label_smoothing"),
        ("loss", "of_a_later_version", 1, r"differ in loss.of_a_later_version \(absent and 1\)"),
        ("data", "inputs_length", 128, r"differ in data.inputs_length \(256 and 128\)"),
    ],
)
def test_runs_that_are_not_of_one_law_are_refused(studies, section, field, value, message):
    folder = studies / "scaling_1000" / "runs" / "layers_6_width_192-seed1"
    config = json.loads((folder / "config.json").read_text())
    config[section][field] = value
    write_config(folder, config)
    with pytest.raises(ConfigError, match=message) as error:
        read_points(load_study(STUDY), folders_of(f"{studies}/*"), "total")
    assert "\n" not in str(error.value)


def test_precisions_are_not_mixed_and_cadence_and_machine_may_differ(studies):
    folder = studies / "scaling_1000" / "runs" / "layers_6_width_192-seed1"
    config = json.loads((folder / "config.json").read_text())
    config["train"] |= {"eval_every": 7, "grad_accum_steps": 2}
    config["data"] |= {"cache_dir": "elsewhere", "path": "a copy"}
    config["mesh"]["fsdp"] = 4
    write_config(folder, config)
    assert len(read_points(load_study(STUDY), folders_of(f"{studies}/*"), "total")[0]) == 30
    write_config(folder, config | {"precision": "bfloat16"})
    with pytest.raises(ConfigError, match=r"differ in precision \(float32 and bfloat16\)"):
        read_points(load_study(STUDY), folders_of(f"{studies}/*"), "total")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--study is missing: write --study=configs/studies/scaling.py --out=DIR, or --advise --flops=1e21"),
        ([f"--study={STUDY}"], "--out is missing: name the folders of the study"),
        (["--study=nowhere.py", "--out=DIR"], "--study=nowhere.py is not a file: name one of configs/studies"),
        ([f"--study={STUDY}", "--out=nowhere"], "--out=nowhere is not a folder: name the --out of"),
        ([f"--study={STUDY}", "--out=nowhere/*"], r"--out=nowhere/\* is not a folder: name the --out of"),
        ([f"--study={STUDY}", "--out=tests"], "--out=tests: tests/runs has no runs of this study's variants"),
        (["--advise"], "--advise needs --flops: for example --flops=1e21"),
        (["--advise", "--flops=-1"], "--flops=-1 must be above 0 and finite"),
        (["--advise", "--flops=1e300"], r"--flops=1e\+300 has no optimum in the range of floats: set a budget such as"),
        (["--advise", "--flops=1e-300"], "--flops=1e-300 has no optimum"),
        (["--advise", "--flops=inf"], "--flops=inf must be above 0 and finite"),
        (["--advise", "--flops=1e21", "--out=tests"], "--out=tests needs --study"),
        (["--advise", "--flops=1e21", "--figure=a.svg"], "--figure=a.svg needs --study"),
        ([f"--study={STUDY}", "--out=tests", "--figure=a.txt"], r"--figure=a.txt must end in \.svg, \.png or \.pdf"),
        (
            [f"--study={STUDY}", "--out=tests", "--figure=nowhere/a.svg"],
            "cannot be written: name a file",
        ),
        ([f"--study={STUDY}", "--out=tests", "--params=all"], "params.*non_embedding"),
    ],
)
def test_bad_input_is_one_line(monkeypatch, capsys, arguments, message):
    with pytest.raises(ConfigError, match=message) as error:
        run(monkeypatch, capsys, *arguments)
    assert "\n" not in str(error.value)


def test_one_folder_has_too_few_token_counts(studies, monkeypatch, capsys):
    with pytest.raises(
        ConfigError, match=r"1 different numbers of tokens \(1.02e.06\), and the fit needs 3 or more: run"
    ):
        run(monkeypatch, capsys, f"--study={STUDY}", f"--out={studies}/scaling_0500")
