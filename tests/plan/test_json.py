"""train.plan --json where the search for a remedy does not end."""

import json
import os
import sys

import pytest

from plan import __main__ as command


@pytest.mark.parametrize("destination", ["file", "pipe"])
def test_the_json_file_is_there_if_the_search_for_a_remedy_is_interrupted(destination, tmp_path, monkeypatch):
    """A pipe, which cannot be replaced, gets one object, after the search."""

    def interrupted(*_):
        if destination == "file":
            searched.append(json.loads(path.read_text()))
        raise KeyboardInterrupt

    searched, path = [], tmp_path / "plan.json"
    reader = None
    if destination == "pipe":
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setattr(command, "find_remedy", interrupted)
    arguments = ["--config=configs/clm.py:base", "--topology=h100:1", "--vocab_size=50257", f"--json={path}"]
    arguments += ["--config.model.remat=none", "--config.train.grad_accum_steps=1"]  # more than an H100 has
    monkeypatch.setattr(sys, "argv", ["train.plan", *arguments])
    with pytest.raises(KeyboardInterrupt):
        command.main()
    if reader is None:
        plan = json.loads(path.read_text())
        assert searched == [plan] and (plan["fits"], plan["fits_with"]) == (False, None)
        assert plan["memory"] and [file.name for file in tmp_path.iterdir()] == ["plan.json"]
    else:
        assert os.read(reader, 1) == b""
        os.close(reader)
