"""Reading metrics.jsonl: the lines of a split, and what is refused."""

import json

import pytest

from contract.errors import ConfigError
from workdir.metrics import read_metrics

LINES = [
    {"step": 1, "split": "train", "loss": 3.0},
    {"step": 1, "split": "eval", "loss": None},
    {"step": 2, "split": "train", "loss": 2.0},
]


def write(folder, text):
    (folder / "metrics.jsonl").write_text(text)


def test_lines_by_split_in_their_order(tmp_path):
    write(tmp_path, "".join(json.dumps(line) + "\n" for line in LINES))
    assert read_metrics(tmp_path) == LINES
    assert read_metrics(tmp_path, "train") == [LINES[0], LINES[2]]
    assert read_metrics(tmp_path, "eval") == [LINES[1]]


def test_an_incomplete_last_line_is_omitted(tmp_path):
    write(tmp_path, json.dumps(LINES[0]) + '\n{"step": 2, "split": "tra')
    assert read_metrics(tmp_path) == LINES[:1]


@pytest.mark.parametrize(
    "line", ["my notes", "[1]", '{"split": "train"}', '{"step": null, "split": "train"}', '{"step": 1}']
)
def test_other_lines_are_refused_by_number(tmp_path, line):
    write(tmp_path, f"{json.dumps(LINES[0])}\n{line}\n")
    with pytest.raises(ConfigError, match=r"metrics\.jsonl, line 2 is not a line of metrics: move the file away"):
        read_metrics(tmp_path)


def test_a_folder_without_metrics_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere is not the folder of a run: .*metrics\.jsonl: No such file"):
        read_metrics(tmp_path / "nowhere")
