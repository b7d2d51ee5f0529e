"""metrics.jsonl and TensorBoard's files: their contents, continued runs and errors."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

from contract.errors import ConfigError
from workdir.metrics import MetricsWriter

CONFIG = {"seed": 3, "train": {"trackers": ["tensorboard"], "tracker_project": "cloze"}}


def writer_of(workdir, resume_step=0, trackers=("tensorboard",)):
    config = CONFIG | {"train": CONFIG["train"] | {"trackers": list(trackers)}}
    return MetricsWriter(workdir, config, resume_step=resume_step, warn=pytest.fail)


def lines(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def write(workdir, resume_step, steps, trackers=("tensorboard",)):
    writer = writer_of(workdir, resume_step, trackers)
    for step in steps:
        writer.write(step, "train", {"loss": np.float32(1 / step), "tokens": step})
        if step % 2 == 0:
            writer.write(step, "eval", {"loss": 2.0 / step})
    writer.close()


def test_lines_contain_step_split_and_the_metrics_in_their_order(tmp_path):
    write(tmp_path, 0, [2])
    assert (tmp_path / "metrics.jsonl").read_text() == (
        '{"step": 2, "split": "train", "loss": 0.5, "tokens": 2}\n{"step": 2, "split": "eval", "loss": 1.0}\n'
    )


def test_nan_and_infinity_are_null(tmp_path):
    writer = writer_of(tmp_path)
    writer.write(1, "train", {"loss": jnp.float32("nan"), "perplexity": math.inf, "accuracy": 0.5})
    writer.close()
    strict = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert strict == {"step": 1, "split": "train", "loss": None, "perplexity": None, "accuracy": 0.5}


@pytest.mark.parametrize("killed_after", [3, 4, 5, 6])
def test_a_resumed_runs_file_is_the_uninterrupted_runs(tmp_path, killed_after):
    write(tmp_path / "whole", 0, range(1, 9))
    write(tmp_path / "killed", 0, range(1, killed_after + 1))  # the last checkpoint is of step 2 or of step 4
    checkpoint = 2 if killed_after < 4 else 4
    with open(tmp_path / "killed" / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "split": "tra')  # SIGKILL
    write(tmp_path / "killed", checkpoint, range(checkpoint + 1, 9))
    assert (tmp_path / "killed" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


def test_a_run_that_starts_again_from_step_0_removes_all_lines(tmp_path):
    writer = writer_of(tmp_path)
    writer.write(0, "eval", {"loss": 1.0})
    writer.close()
    write(tmp_path, 0, [1])
    assert [line["step"] for line in lines(tmp_path)] == [1]


def test_lines_are_written_before_the_file_is_closed(tmp_path):
    writer = writer_of(tmp_path)
    writer.write(1, "train", {"loss": 1.0})
    assert len(lines(tmp_path)) == 1
    writer.close()


def test_tensorboard_has_the_same_scalars_and_hides_repeated_steps(tmp_path):
    write(tmp_path, 0, [1, 2, 3])
    write(tmp_path, 2, [3])
    events = [list(events_of(path)) for path in event_files(tmp_path)]
    scalars = [
        [
            (event.step, value.tag, value.simple_value)
            for event in file
            for value in event.summary.value
            if "/" in value.tag
        ]
        for file in events
    ]
    scalars = [[one for one in file if "text_summary" not in one[1]] for file in scalars]
    assert scalars[0][:2] == [(1, "train/loss", 1.0), (1, "train/tokens", 1.0)]
    assert (2, "eval/loss", 1.0) in scalars[0]
    assert scalars[1] == [(3, "train/loss", pytest.approx(1 / 3)), (3, "train/tokens", 3.0)]
    assert [event.step for event in events[1] if event.HasField("session_log")] == [3]


def test_tensorboard_has_the_config_and_texts_as_blocks_of_code(tmp_path):
    writer = writer_of(tmp_path)
    writer.write_text(7, "sample", "a <b>\n\n# c")
    writer.close()
    [file] = event_files(tmp_path)
    texts = {
        (event.step, value.tag): (value.metadata.plugin_data.plugin_name, value.tensor.string_val[0].decode())
        for event in events_of(file)
        for value in event.summary.value
    }
    assert texts[7, "sample/text_summary"] == ("text", "    a <b>\n    \n    # c")
    plugin, config = texts[0, "config/text_summary"]
    assert plugin == "text" and json.loads(config) == CONFIG


def test_events_are_in_the_file_before_it_is_closed(tmp_path):
    writer = writer_of(tmp_path)
    writer.write(1, "train", {"loss": 1.0})
    [file] = event_files(tmp_path)
    assert [value.tag for event in events_of(file) for value in event.summary.value][-1] == "train/loss"
    writer.close()


def event_files(workdir):
    """TensorBoard's files by the step that they continue from: .from_0, .from_2."""
    return sorted((workdir / "tensorboard").iterdir(), key=lambda path: path.suffix)


def events_of(path):
    """The events of a TFRecord file: uint64 length, uint32 checksum, the bytes, uint32 checksum."""
    data = path.read_bytes()
    while data:
        length = int.from_bytes(data[:8], "little")
        yield Event.FromString(data[12 : 12 + length])
        data = data[12 + length + 4 :]


def test_without_trackers_there_is_the_file_of_metrics_alone(tmp_path):
    write(tmp_path, 0, [1], trackers=())
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_other_processes_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    write(tmp_path, 0, [1, 2])
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_other_lines_is_an_error_and_unchanged(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("my notes\n")
    with pytest.raises(ConfigError, match=r"metrics.jsonl, line 1 is not a line of metrics"):
        writer_of(tmp_path, 4)
    assert (tmp_path / "metrics.jsonl").read_text() == "my notes\n"


def test_a_workdir_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--workdir=.*file cannot be written"):
        writer_of(tmp_path / "file")
