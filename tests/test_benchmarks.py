"""Benchmarks: each prints its JSON lines at small sizes, and runs of this project and of a peer alternate."""

import json
import sys

import pytest

from benchmarks import corruption, measuring, pipeline, prepare, step
from benchmarks.measuring import every_variant, named_config
from contract.errors import ConfigError

SHAPE = "benchmarks/shapes.py:d_model=16,num_layers=1,num_heads=2,d_ff=16,batch_size=2,length=32,target_length=16"


def lines_of(module, arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
    module.main()
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "params", "positions"),
    [
        # GPT-2: embeddings of 512 tokens and 32 positions; four attention matrices of 16 * 16 with biases; two
        # feed-forward matrices of 16 * 16 with biases; three norms with scale and bias.
        ("decoder_only", 512 * 16 + 32 * 16 + 4 * (256 + 16) + 2 * (256 + 16) + 3 * 32, 2 * 32),
        # T5 v1.1: two embedding tables; 32 position buckets * 2 heads in both stacks; seven norms; three attention
        # layers of four matrices; two gated feed-forward layers of three matrices.
        ("encoder_decoder", 2 * 512 * 16 + 2 * 64 + 7 * 16 + 3 * 4 * 256 + 2 * 3 * 256, 2 * (32 + 16)),
    ],
)
def test_step_reports_parameters_speed_and_overrides(architecture, params, positions, monkeypatch, capsys):
    override = "--config.optimizer.learning_rate=1e-3"
    arguments = [f"--config={SHAPE},architecture={architecture}", "--steps=1", override]
    (line,) = lines_of(step, arguments, monkeypatch, capsys)
    assert line["benchmark"] == "step" and line["architecture"] == architecture
    assert line["params"] == params
    assert line["tokens_per_second"] * line["step_milliseconds"] == pytest.approx(1000 * positions, rel=0.05)
    assert line["overrides"] == {"optimizer.learning_rate": 1e-3} and line["mfu"] is None
    assert line["first_step_seconds"] > 0.001 * line["step_milliseconds"]


@pytest.mark.slow
def test_start_counts_the_requests_of_a_copy_and_of_reads_by_range(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (line,) = measuring.json_lines([sys.executable, "-m", "benchmarks.start", "--documents=2000", "--latency_ms=0"])
    names = ("copy", "first_range", "range", "range_again")
    requests, megabytes = (
        {name: {part: counts[unit] for part, counts in line[name].items()} for name in names}
        for unit in ("requests", "megabytes")
    )
    assert requests["copy"]["batch"] == requests["copy"]["summary"] == requests["range_again"]["start"] - 5 == 0
    assert requests["range"]["batch"] > 8 and 0.003 < megabytes["range"]["batch"] <= 8 * 256 * 2 / 1e6
    tokens, columns = megabytes["copy"]["start"] - megabytes["range"]["start"], 69 * 2000 / 1e6
    assert tokens == pytest.approx(2000 * 64 * 2 / 1e6, rel=0.1)
    assert columns < megabytes["range"]["start"] < columns + 0.02
    assert megabytes["first_range"]["start"] == pytest.approx(megabytes["copy"]["start"], rel=0.01)


def parsed_experiment(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["step", *arguments])
    return step.parsed_experiment()


def test_step_has_the_shapes_of_a_preset_or_another_config(monkeypatch):
    arguments = ["--config=configs/ul2.py:base", "--vocab_size=600", "--config.train.batch_size=16"]
    experiment = parsed_experiment(monkeypatch, *arguments)
    assert (experiment.objective_name, experiment.train.batch_size, experiment.model.vocab_size) == ("mixture", 16, 640)
    experiment = parsed_experiment(monkeypatch, "--config.model.num_layers=3")
    model, data = experiment.model, experiment.data
    assert (model.architecture, model.d_model, model.head_dim, model.num_layers) == ("decoder_only", 256, 64, 3)
    assert (model.vocab_size, model.d_ff, data.inputs_length) == (512, 1024, 256)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config=benchmarks/shapes.py:d_model=9,num_heads=2"], "d_model=9 must be a multiple of num_heads=2"),
        (["--config=benchmarks/shapes.py:width=8"], "unknown part of a shape 'width'"),
        (["--config.train.batch=4"], r"unknown config field in --config\.train\.batch=4"),
        (["--config.mesh.backend=pmap"], "mesh.backend='pmap' cannot be measured here"),
    ],
)
def test_invalid_command_lines_of_step_raise(arguments, message, monkeypatch):
    with pytest.raises(ConfigError, match=message):
        parsed_experiment(monkeypatch, *arguments)


@pytest.mark.parametrize(("architecture", "scored"), [("decoder_only", 32), ("encoder_only", 5)])
def test_full_batches_score_every_position_that_has_logits(architecture, scored, monkeypatch):
    """All 32 of a row of CLM, and 0.15 * 32 of MLM."""
    experiment = parsed_experiment(monkeypatch, f"--config={SHAPE},architecture={architecture}")
    batch = step.full_batch(experiment, step.sharding.batch_sharding(step.sharding.make_mesh(experiment.mesh)))
    side = architecture.removesuffix("_only")
    assert batch[f"{side}_loss_weights"].sum() == 2 * scored and batch[f"{side}_segment_ids"].min() == 1
    assert batch[f"{side}_positions"][1, -1] == 31


def test_pipeline_reports_the_median_slowest_and_fastest_run(corpus, monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "ROWS", 2)
    data = ["--source=text", f"--path={corpus / 'text'}", f"--cache_dir={corpus / 'cache'}"]
    lines = lines_of(pipeline, ["ul2", *data, "--seconds=0.01", "--threads=1"], monkeypatch, capsys)
    assert [line["objective"] for line in lines] == ["ul2"]
    assert 0 < lines[0]["slowest_run"] <= lines[0]["raw_tokens_per_second"] <= lines[0]["fastest_run"]
    with pytest.raises(ConfigError, match="'ul3' must be a file of configs/"):
        lines_of(pipeline, ["ul3", *data], monkeypatch, capsys)


def test_pipeline_counts_raw_tokens(corpus):
    data = {"source": "text", "path": str(corpus / "text"), "cache_dir": str(corpus / "cache"), "reader_threads": 0}
    batch = next(pipeline.train_batches(pipeline.make_benchmark_experiment("span_corruption", **data)))
    assert batch["raw_tokens"].tolist() == [568] * pipeline.ROWS  # T5's raw length for rows of 512 and 114


def test_corruption_reports_the_speed_of_each_named_config(monkeypatch, capsys):
    monkeypatch.setattr(corruption, "SECONDS", 0.01)
    monkeypatch.delattr("os.sched_setaffinity", raising=False)  # macOS has none
    lines = lines_of(corruption, ["bart:token_deletion", "clm"], monkeypatch, capsys)
    assert [(line["objective"], line["row_length"]) for line in lines] == [("bart:token_deletion", 512), ("clm", 512)]
    assert all(0 < line["raw_tokens_per_second"] <= line["fastest_run"] for line in lines)


def test_corruption_fills_planned_rows():
    experiment = corruption.make_benchmark_experiment("ul2:packed")
    windows = corruption.random_windows(experiment, corruption.source_text(experiment.tokenizer), seed=0)
    batch = experiment.collate(windows, corruption.ROWS)
    assert len(windows.lengths) == 4 * corruption.ROWS
    assert (batch["encoder_segment_ids"] > 0).mean() > 0.95
    assert (batch["encoder_segment_ids"].max(axis=1) == 4).all()


def test_a_config_name_contains_its_preset_and_unknown_names_raise():
    names = list(every_variant())
    assert {"clm", "bart:token_deletion", "ul2:packed"} <= set(names) and len(names) == len(set(names))
    assert all(named_config(name, "tiny") for name in names)
    assert named_config("ul2:base", "tiny").model.d_model == named_config("ul2", "base").model.d_model == 768
    for name in ("ul3", "base", "ul2:huge"):
        with pytest.raises(ConfigError, match=f"{name!r} must be a file of configs/"):
            named_config(name, "tiny")


def test_runs_of_the_benchmark_and_of_the_peer_alternate(tmp_path, monkeypatch):
    """The benchmark prints 10, 40, 30; the peer 10, 10, 20."""
    order = tmp_path / "order"
    (tmp_path / "ours.py").write_text(_program(order, "ours", [10, 40, 30]))
    (tmp_path / "peer.py").write_text(_program(order, "peer", [10, 10, 20]))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    values = measuring.flags.FlagValues()
    measuring.define_peer(values)
    monkeypatch.setattr(sys, "argv", ["pipeline", f"--peer={sys.executable} {tmp_path}/peer.py", "--pairs=3"])
    values(sys.argv)
    (line,) = measuring.peer_lines("ours", values, rate="rate")
    assert order.read_text().split() == ["ours", "peer"] * 3
    assert line == {"rate": 30, "peer_rate": 10, "ratio": 1.5, "ratios": [1.0, 4.0, 1.5], "peer": {"rate": 20}}
    with pytest.raises(ConfigError, match="has no 'speed'"):
        measuring.peer_lines("ours", values, rate="speed")


def test_a_benchmark_that_the_benchmark_runs_has_no_peer():
    given = ["ul2", "--peer", "peer.py {}", "-peer=x", "--pairs", "3", "--pairs=4", "--peers=5", "--steps=6"]
    assert measuring._without_peer(given) == ["ul2", "--peers=5", "--steps=6"]


@pytest.mark.parametrize(
    ("peer", "error"), [("import sys; sys.exit(3)", "status 3 and 0"), ("print({'rate': 1})", "not JSON: {'rate': 1}")]
)
def test_our_line_is_printed_where_the_peer_fails(peer, error, tmp_path, monkeypatch, capsys):
    (tmp_path / "ours.py").write_text(_program(tmp_path / "order", "ours", [10]))
    (tmp_path / "peer.py").write_text(peer)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    values = measuring.flags.FlagValues()
    measuring.define_peer(values)
    values(["x", f"--peer={sys.executable} {tmp_path}/peer.py"])
    monkeypatch.setattr(sys, "argv", ["x"])
    with pytest.raises(ConfigError, match=error):
        measuring.peer_lines("ours", values, rate="rate")
    assert capsys.readouterr().out == '{"rate": 10}\n'
    values["peer"].value = "no-such-peer"
    with pytest.raises(ConfigError, match=r"^--peer='no-such-peer': there is no program"):
        measuring.peer_lines("ours", values, rate="rate")
    assert (tmp_path / "order").read_text() == "ours\n"


def _program(order, name, rates):
    return (
        f"order = open({str(order)!r}, 'a+')\norder.seek(0)\n"
        f"turn = order.read().count({name!r})\nprint({name!r}, file=order)\n"
        f"print('a warning')\nprint('{{\"rate\": %d}}' % {[*rates, 1, 1, 1]}[turn])\n"
    )


@pytest.mark.slow
def test_prepare_measures_a_run_of_data_prepare(tmp_path, capsys):
    (tmp_path / "text").mkdir()
    for k in range(3):
        (tmp_path / "text" / f"{k}.txt").write_text("the same words in every file")
    arguments = ["--source=text", f"--path={tmp_path}/text", "--workers=1", "--filters.remove_duplicates=exact"]
    prepare._measure(tmp_path, {"measured": "filter"}, arguments)
    line = json.loads(capsys.readouterr().out)
    assert (line["benchmark"], line["measured"], line["documents"]) == ("prepare", "filter", 1)
    assert line["mb_per_second"] >= 0 and line["peak_mb"] > 10
    with pytest.raises(ConfigError, match=r"-m data\.prepare .* failed: error: .*--filters\.jaccard=2"):
        prepare._measure(tmp_path, {}, [*arguments, "--filters.jaccard=2"])
