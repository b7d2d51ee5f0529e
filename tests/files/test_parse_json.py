"""JSON that is nested too deeply or has an integer of thousands of digits: one line from every reader, no traceback."""

import pytest

from contract.errors import ConfigError
from data.sources.records import InvalidRecord, read_object
from files.atomic import parse_json, read_json
from generate.texts import read_prompts
from huggingface.folder import is_huggingface_folder, open_folder
from workdir.metrics import read_metrics
from workdir.run_config import read_config

DEEP = "[" * 100_000
DIGITS = "1" * 5_000


@pytest.mark.parametrize("text", [DEEP, DIGITS, "{"])
def test_every_reader_names_the_file_or_the_line(text, tmp_path):
    with pytest.raises(ValueError):
        parse_json(text)
    (tmp_path / "config.json").write_text(text)
    (tmp_path / "prompts.jsonl").write_text(text + "\n")
    (tmp_path / "metrics.jsonl").write_text(text + "\n")
    assert not is_huggingface_folder(tmp_path)
    with pytest.raises(InvalidRecord):
        read_object(text.encode())
    for read in (
        lambda: read_json(tmp_path / "config.json"),
        lambda: read_config(tmp_path),
        lambda: open_folder(tmp_path, "--from"),
        lambda: read_prompts(str(tmp_path / "prompts.jsonl")),
        lambda: read_metrics(tmp_path),
    ):
        with pytest.raises(ConfigError) as error:
            read()
        assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_an_integer_that_no_float_holds_is_no_metric(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "split": "eval", "loss": 1' + "0" * 400 + "}\n")
    with pytest.raises(ConfigError, match=r"metrics\.jsonl, line 1 is not a line of metrics"):
        read_metrics(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "split": "eval", "flops": 1' + "0" * 25 + '1, "loss": NaN}\n')
    assert read_metrics(tmp_path)[0]["flops"] == 10**26 + 1, "more digits than a float has"
