import io

import pytest
from rich.console import Console

from contract.errors import ConfigError
from data.store import checksums
from tests.train.subprocesses import ROOT
from tests.train.tiny_experiments import paragraph_experiment
from train.loop import train_and_evaluate


def test_damage_of_a_large_store_ends_the_training(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)  # data.path is relative
    monkeypatch.setattr(checksums, "SMALL_BYTES", 0)
    monkeypatch.setattr(checksums, "_VERIFIED_STORES", str(tmp_path / "verified"))
    steps = 100_000
    experiment = paragraph_experiment(steps, str(tmp_path / "cache"))

    class Damaging(io.StringIO):
        """Flips a bit of the store once the training has begun."""

        def write(self, text):
            if "parameters" in text:
                [tokens] = (tmp_path / "cache").glob("*/tokens.bin")
                contents = bytearray(tokens.read_bytes())
                contents[-1] ^= 1
                tokens.write_bytes(contents)
            return super().write(text)

    with pytest.raises(ConfigError, match=r"token store .* is damaged \(ValueError: tokens.bin differs") as error:
        train_and_evaluate(experiment, str(tmp_path / "run"), console=Console(file=Damaging(), width=200))
    assert "\n" not in str(error.value)
