"""Benchmarks: each prints its JSON line at sizes that take no time, and ours and a peer's run in turn."""

import json
import sys

import pytest

from benchmarks import compile as compile_benchmark
from benchmarks import pipeline, processes, step
from contract.errors import ConfigError

SHAPE = {"d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 16, "batch_size": 2, "length": 32, "target_length": 16}
ARGUMENTS = [f"--{name}={value}" for name, value in SHAPE.items()] + ["--steps=1"]


def lines_of(module, arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
    module.main()
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("architecture", "params", "positions"),
    [
        # GPT-2: tokens 512 * 16, positions 32 * 16; four matrices of 16 * 16 with biases, feed-forward 2 * 16 * 16 with
        # biases; three norms of scale and bias.
        ("decoder_only", 512 * 16 + 32 * 16 + 4 * (256 + 16) + 2 * (256 + 16) + 3 * 32, 2 * 32),
        # T5 v1.1: two tables, 32 buckets * 2 heads each; seven norms; attention three times, gated feed-forward twice.
        ("encoder_decoder", 2 * 512 * 16 + 2 * 64 + 7 * 16 + 3 * 4 * 256 + 2 * 3 * 256, 2 * (32 + 16)),
    ],
)
def test_step(architecture, params, positions, monkeypatch, capsys):
    override = "--config.optimizer.learning_rate=1e-3"
    arguments = [*ARGUMENTS, f"--architecture={architecture}", override]
    (line,) = lines_of(step, arguments, monkeypatch, capsys)
    assert line["benchmark"] == "step" and line["architecture"] == architecture
    assert line["params"] == params
    assert line["tokens_per_second"] * line["step_milliseconds"] == pytest.approx(1000 * positions, rel=0.05)
    assert line["overrides"] == [override] and line["mfu"] is None
    assert line["first_step_seconds"] > 0.001 * line["step_milliseconds"]


def test_step_takes_a_config_with_overrides():
    options, overrides = step.parse(
        ["--config=configs/ul2.py:base", "--vocab_size=600", "--config.train.batch_size=16"]
    )
    experiment = step.experiment_of(options, overrides)
    assert (experiment.objective_name, experiment.train.batch_size, experiment.model.vocab_size) == ("mixture", 16, 640)
    with pytest.raises(SystemExit):
        step.parse(["--config=configs/ul2.py", "--d_model=8"])  # which would count?
    with pytest.raises(ConfigError, match=r"unknown config field in --config\.train\.batch=4"):
        step.experiment_of(options, ["--config.train.batch=4"])
    with pytest.raises(ConfigError, match=r"config.mesh.backend='pmap' is not measured here: leave it 'jit'"):
        step.experiment_of(options, ["--config.mesh.backend=pmap"])


def test_full_batches_score_every_position():
    options, overrides = step.parse([*ARGUMENTS, "--architecture=encoder_only"])
    experiment = step.experiment_of(options, overrides)
    batch = step.full_batch(experiment, step.sharding.batch_sharding(step.sharding.make_mesh(experiment.mesh)))
    assert batch["encoder_loss_weights"].sum() == 2 * 32 and batch["encoder_segment_ids"].min() == 1
    assert batch["encoder_positions"][1, -1] == 31


def test_pipeline(corpus, monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "ROWS", 2)
    monkeypatch.setattr(pipeline, "RUNS", 3)
    data = ["--source=text", f"--path={corpus / 'text'}", f"--cache_dir={corpus / 'cache'}"]
    lines = lines_of(pipeline, ["ul2", *data, "--seconds=0.01", "--threads=1"], monkeypatch, capsys)
    assert [line["objective"] for line in lines] == ["ul2"]
    assert 0 < lines[0]["slowest_run"] <= lines[0]["raw_tokens_per_second"] <= lines[0]["fastest_run"]
    with pytest.raises(ConfigError, match="'ul3' must be a file of configs/"):
        lines_of(pipeline, ["ul3", *data], monkeypatch, capsys)


def test_pipeline_counts_raw_tokens(corpus):
    options = pipeline.argparse.Namespace(source="text", path=str(corpus / "text"), threads=0)
    options.cache_dir = str(corpus / "cache")
    batch = next(pipeline.make_run(pipeline.experiment_of("span_corruption", options)).train_batches(0))
    assert batch["raw_tokens"].tolist() == [568] * pipeline.ROWS  # T5's raw length for rows of 512 and 114


def test_compile_takes_the_first_steps_of_fresh_processes(monkeypatch, capsys):
    seconds = iter([2.0, 3.0, 2.0, 2.5, 4.0, 5.0])  # three turns of two depths

    def json_lines(command, environment):
        assert environment == {"JAX_ENABLE_COMPILATION_CACHE": "false"}
        options, overrides = step.parse(command[3:])
        depths.append(step.experiment_of(options, overrides).model.num_layers)
        return [{"first_step_seconds": next(seconds)}]

    depths = []
    monkeypatch.setattr(compile_benchmark, "json_lines", json_lines)
    (line,) = lines_of(compile_benchmark, ["1", "3"], monkeypatch, capsys)
    assert depths == [1, 3] * 3
    assert line["first_step_seconds"] == [2.0, 3.0] and line["ratio"] == 1.25


def test_ours_and_the_peer_run_in_turn(tmp_path, monkeypatch):
    """Ours prints 10, 40, 30; the peer 10, 10, 20."""
    order = tmp_path / "order"
    (tmp_path / "ours.py").write_text(_program(order, "ours", [10, 40, 30]))
    (tmp_path / "peer.py").write_text(_program(order, "peer", [10, 10, 20]))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    turns = {"peer": f"{sys.executable} {tmp_path}/peer.py", "pairs": 3, "rate": "rate"}
    (line,) = processes.in_turn("ours", [], **turns)
    assert order.read_text().split() == ["ours", "peer"] * 3
    assert line == {"rate": 30, "peer_rate": 10, "ratio": 1.5, "ratios": [1.0, 4.0, 1.5], "peer": {"rate": 20}}
    with pytest.raises(ConfigError, match="has no 'speed'"):
        processes.in_turn("ours", [], **turns | {"rate": "speed", "pairs": 1})


def _program(order, name, rates):
    return (
        f"order = open({str(order)!r}, 'a+')\norder.seek(0)\n"
        f"turn = order.read().count({name!r})\nprint({name!r}, file=order)\n"
        f"print('a warning')\nprint('{{\"rate\": %d}}' % {[*rates, 1]}[turn])\n"
    )


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["no-such-program"], "cannot be run"),
        ([sys.executable, "-c", "raise SystemExit(3)"], "ended with status 3"),
        ([sys.executable, "-c", "print('fast')"], "printed no JSON line"),
    ],
)
def test_commands_without_a_line(command, message):
    with pytest.raises(ConfigError, match=message):
        processes.json_lines(command)
