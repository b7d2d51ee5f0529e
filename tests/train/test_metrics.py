import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event

from contract.errors import ConfigError
from train.metrics import MetricsWriter, byte_metrics, summarize


def sums(loss=(6.0,), weight=(4.0,), correct=(1.0,)):
    return {
        "loss_sum": jnp.float32(sum(loss)),
        "weight_sum": jnp.float32(sum(weight)),
        "correct_sum": jnp.float32(sum(correct)),
        "loss_sum_by_group": jnp.array(loss, jnp.float32),
        "weight_sum_by_group": jnp.array(weight, jnp.float32),
        "correct_sum_by_group": jnp.array(correct, jnp.float32),
    }


def test_summary_by_hand():
    # The true tokens have probabilities 0.7, 0.9 and 0.25, whose -ln sum to 1.84833; two of them are the likeliest.
    loss = -(math.log(0.7) + math.log(0.9) + math.log(0.25))
    summary = summarize(sums((loss,), (3.0,), (2.0,)), ["clm"])
    assert summary == {
        "loss": pytest.approx(0.61611, abs=1e-5),
        "perplexity": pytest.approx(1.85170, abs=1e-4),
        "accuracy": pytest.approx(2 / 3),
        "loss/clm": pytest.approx(0.61611, abs=1e-5),
        "accuracy/clm": pytest.approx(2 / 3),
    }


def test_the_loss_weights_tokens_and_not_denoisers():
    summary = summarize(sums((1.0, 9.0), (1.0, 3.0), (1.0, 0.0)), ["r", "x"])
    assert (summary["loss"], summary["loss/r"], summary["loss/x"]) == (2.5, 1.0, 3.0)  # not (1 + 3) / 2
    assert (summary["accuracy"], summary["accuracy/r"], summary["accuracy/x"]) == (0.25, 1.0, 0.0)


def test_a_denoiser_without_scored_tokens_is_omitted():
    assert not {"loss/s", "accuracy/s"} & set(summarize(sums((1.0, 0.0), (1.0, 0.0), (0.0, 0.0)), ["r", "s"]))


def test_no_scored_tokens_are_nan_and_overflow_is_infinity():
    assert math.isnan(summarize(sums((0.0,), (0.0,), (0.0,)), ["r"])["loss"])
    assert summarize(sums((4000.0,), (4.0,)), ["r"])["perplexity"] == math.inf


def test_byte_metrics_by_hand():
    # 6 nats over 4 bytes that the tokens spell.
    bits = 6 / math.log(2) / 4
    found = {"loss_sum": 6.0, "bytes_sum": 4.0}
    assert byte_metrics("bits_per_byte", found, 1.0) == {"bits_per_byte": pytest.approx(bits), "bytes_covered": 1.0}
    # Unknown tokens: 2% of the text's bytes are in no token.
    assert byte_metrics("bits_per_byte", found, 0.98) == {"bits_per_byte": pytest.approx(bits), "bytes_covered": 0.98}


def lines(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def write(workdir, resume_step, steps):
    writer = MetricsWriter(workdir, resume_step=resume_step)
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
    writer = MetricsWriter(tmp_path, resume_step=0)
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
    writer = MetricsWriter(tmp_path, resume_step=0)
    writer.write(0, "eval", {"loss": 1.0})
    writer.close()
    write(tmp_path, 0, [1])
    assert [line["step"] for line in lines(tmp_path)] == [1]


def test_lines_are_written_before_the_file_is_closed(tmp_path):
    writer = MetricsWriter(tmp_path, resume_step=0)
    writer.write(1, "train", {"loss": 1.0})
    assert len(lines(tmp_path)) == 1
    writer.close()


def test_tensorboard_has_the_same_scalars_and_hides_repeated_steps(tmp_path):
    write(tmp_path, 0, [1, 2, 3])
    write(tmp_path, 2, [3])
    files = sorted((tmp_path / "tensorboard").iterdir(), key=lambda path: path.suffix)  # .from_0, .from_2
    events = [[Event.FromString(record) for record in records(path)] for path in files]
    scalars = [[(e.step, v.tag, v.simple_value) for e in file for v in e.summary.value] for file in events]
    assert scalars[0][:2] == [(1, "train/loss", 1.0), (1, "train/tokens", 1.0)]
    assert (2, "eval/loss", 1.0) in scalars[0]
    assert scalars[1] == [(3, "train/loss", pytest.approx(1 / 3)), (3, "train/tokens", 3.0)]
    assert [e.step for e in events[1] if e.HasField("session_log")] == [3]


def records(path):
    """The records of a TFRecord file: uint64 length, uint32 checksum, the bytes, uint32 checksum."""
    data = path.read_bytes()
    while data:
        length = int.from_bytes(data[:8], "little")
        yield data[12 : 12 + length]
        data = data[12 + length + 4 :]


def test_other_processes_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    write(tmp_path, 0, [1, 2])
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_other_lines_is_an_error_and_unchanged(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("my notes\n")
    with pytest.raises(ConfigError, match=r"metrics.jsonl, line 1 is not a line of metrics"):
        MetricsWriter(tmp_path, resume_step=4)
    assert (tmp_path / "metrics.jsonl").read_text() == "my notes\n"


def test_a_workdir_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--workdir=.*file cannot be written"):
        MetricsWriter(tmp_path / "file", resume_step=0)
