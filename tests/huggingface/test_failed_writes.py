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
from huggingface import export as exporting
from tests.huggingface.hub_folders import make_hub_folder
from workdir.checkpoint import Checkpoints


def run_command(command, *arguments):
    sys.argv = ["command", *map(str, arguments)]
    command.main()


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    return make_hub_folder(tmp_path_factory.mktemp("hub") / "hub", "t5_v1_1")


@pytest.fixture(scope="module")
def run(hub, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run") / "run"
    run_command(convert, f"--from={hub}", f"--workdir={workdir}", *LENGTHS)
    return workdir


LENGTHS = ("--config.data.inputs_length=40", "--config.data.targets_length=40")


@contextlib.contextmanager
def largest_file(size):
    """Within this context writes beyond `size` bytes of a file fail, as they do on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("command", ["export", "convert"])
def test_a_full_disk_is_one_line(hub, run, tmp_path, command):
    # Orbax divides arrays among files as its threads happen to finish, so that one array has to be too large: the
    # embedding has 12,032 bytes, tokenizer.json 8,501.
    with pytest.raises(ConfigError, match="File too large") as error, largest_file(10_000):
        if command == "export":
            run_command(export, f"--workdir={run}", f"--out={tmp_path / 'out'}")
        else:
            run_command(convert, f"--from={hub}", f"--workdir={tmp_path / 'out'}", *LENGTHS)
    assert len(str(error.value).splitlines()) == 1 and not os.listdir(tmp_path)
    if command == "export":
        assert str(error.value).startswith(f"--out={tmp_path / 'out'} cannot be written: ")


@pytest.fixture
def refuse_to_die():
    """The handler of SIGTERM around a test, so that a command without a handler of its own fails the test alone."""

    def handle(number, _):
        raise AssertionError("SIGTERM would have ended the process")

    before = signal.signal(signal.SIGTERM, handle)
    yield handle
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("command", ["export", "convert"])
def test_sigterm_removes_the_temporary_folder(hub, run, tmp_path, monkeypatch, capsys, refuse_to_die, command):
    target, found = tmp_path / "out", []

    def write_weights(*arguments, **options):
        written(*arguments, **options)
        found.extend(os.listdir(tmp_path))
        signal.raise_signal(signal.SIGTERM)

    def save(*arguments, **options):  # Orbax's threads are not interrupted: the signal has an effect after they end
        signal.raise_signal(signal.SIGTERM)
        saved(*arguments, **options)
        found.extend(os.listdir(tmp_path))

    written, saved = exporting.write_weights, Checkpoints.save
    if command == "export":
        monkeypatch.setattr(exporting, "write_weights", write_weights)
    else:
        monkeypatch.setattr(Checkpoints, "save", save)
    with pytest.raises(SystemExit) as error:
        if command == "export":
            run_program(lambda: run_command(export, f"--workdir={run}", f"--out={target}"))
        else:
            run_program(lambda: run_command(convert, f"--from={hub}", f"--workdir={target}", *LENGTHS))
    assert error.value.code == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "error: stopped by SIGTERM\n"
    assert len(found) == 1 and found[0].startswith(".out.new-") and not os.listdir(tmp_path)
    assert signal.getsignal(signal.SIGTERM) is refuse_to_die
