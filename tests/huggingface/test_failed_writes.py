"""train.convert and train.export leave nothing behind after a full disk or a signal, and say why in one line."""

import contextlib
import os
import resource
import signal
import sys

import pytest

pytest.importorskip("transformers")
pytest.importorskip("safetensors")

from command.program import run_program
from contract.errors import ConfigError
from huggingface import convert, export
from tests.huggingface.hub_folders import make_hub_folder
from workdir.checkpoint import Checkpoints

LENGTHS = ("--config.data.inputs_length=40", "--config.data.targets_length=40")


def run_command(command, *arguments):
    sys.argv = ["command", *map(str, arguments)]
    command.main()


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    return make_hub_folder(tmp_path_factory.mktemp("hub") / "hub", "t5_v1_1")


@contextlib.contextmanager
def largest_file(size):
    """Within this context writes beyond `size` bytes of a file fail, as they do on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_one_line(hub, tmp_path):
    run_command(convert, f"--from={hub}", f"--workdir={tmp_path / 'run'}", *LENGTHS)
    commands = [
        (export, f"--workdir={tmp_path / 'run'}", f"--out={tmp_path / 'out'}"),
        (convert, f"--from={hub}", f"--workdir={tmp_path / 'out'}", *LENGTHS),
    ]
    for command in commands:
        # Orbax divides arrays among files as its threads happen to finish, so that one array has to be too large: the
        # embedding has 12,032 bytes, tokenizer.json 8,501.
        with pytest.raises(ConfigError, match="File too large") as error, largest_file(10_000):
            run_command(*command)
        assert len(str(error.value).splitlines()) == 1 and os.listdir(tmp_path) == ["run"]


def test_sigterm_removes_the_temporary_folder(hub, tmp_path, monkeypatch, capsys):
    found, saved = [], Checkpoints.save

    def save(*arguments, **options):
        saved(*arguments, **options)
        found.extend(os.listdir(tmp_path))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Checkpoints, "save", save)
    with pytest.raises(SystemExit) as error:
        run_program(lambda: run_command(convert, f"--from={hub}", f"--workdir={tmp_path / 'out'}", *LENGTHS))
    assert error.value.code == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "error: stopped by SIGTERM\n"
    assert len(found) == 1 and found[0].startswith(".out.new-") and not os.listdir(tmp_path)
