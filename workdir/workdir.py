"""The folder of a run: the one place that knows what is in it and under which name."""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

from data.tokenizers.base import Tokenizer
from files.atomic import read_json, write_json
from files.paths import exists, is_folder
from workdir.bucket_lock import lock_of
from workdir.checkpoint import Checkpoints
from workdir.lost_checkpoints import checkpoints_path
from workdir.metrics_file import metrics_path, read_metrics
from workdir.run_config import IMPORTED_FILE, read_config, write_config
from workdir.run_tokenizer import with_own_tokenizer, write_tokenizer


class Workdir:
    """The folder of a run, on this machine or in a bucket (gs://bucket/run, s3://bucket/run).

    Commands make it from their flag; everything else receives it. Nothing is read or created before a method is called,
    and no other module joins a name to its path:

        config.json       config(), write_config()         what the run was started with, resolved
        metrics.jsonl     metrics("eval")                  one dict a line
        checkpoints/      checkpoints(), steps(), counters(step)
        tokenizer/        write_tokenizer(), config_with_own_tokenizer()
        imported.json     is_imported, imported(), write_imported()   of a model that train.convert wrote
        run.lock          lock()
        tensorboard/, wandb/                               of the trackers

    `str(workdir)` is the path, for messages. A Workdir may be made from another one.

    Args:
      path: of the folder.
      named_by: the flag or config field that names the folder, for messages.
    """

    def __init__(self, path: str | os.PathLike, *, named_by: str = "--workdir"):
        self.path, self.named_by = os.fspath(path), named_by

    def __str__(self) -> str:
        return self.path

    def __fspath__(self) -> str:
        return self.path

    @property
    def exists(self) -> bool:
        """Whether there is such a folder."""
        return is_folder(self.path)

    @property
    def has_config(self) -> bool:
        """Whether a run was started here, or a model imported."""
        return exists(os.path.join(self.path, "config.json"))

    def config(self) -> dict[str, Any]:
        """Returns the resolved config of the run with its section "corpus", as nested dicts.

        Raises ConfigError if the folder has no readable config.json.
        """
        return read_config(self.path, named_by=self.named_by)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Writes the config, nested mappings of JSON values. Raises ConfigError if it cannot be written."""
        write_config(self.path, config)

    def config_with_own_tokenizer(self) -> dict[str, Any]:
        """Returns `config()` with the path of the run's own copy of the tokenizer, if it has one."""
        return with_own_tokenizer(self.config(), self.path)

    def write_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Writes a copy of the tokenizer, which every reader of the run uses. Raises ConfigError if it cannot."""
        write_tokenizer(self.path, tokenizer)

    @property
    def has_metrics(self) -> bool:
        """Whether metrics.jsonl exists."""
        return exists(metrics_path(self.path))

    def metrics(self, split: Literal["train", "eval"] | None = None) -> list[dict[str, Any]]:
        """Returns the lines of metrics.jsonl in their order: those of `split`, or all.

        An incomplete last line, which a killed run leaves, is omitted. A value that is not finite is None.

        Raises ConfigError if the file cannot be read, or has a line that is not one of metrics.
        """
        return read_metrics(self.path, split)

    @contextmanager
    def checkpoints(self, *, keep: int | None = None) -> Iterator[Checkpoints]:
        """Yields the checkpoints, and waits at the end until those that were saved are on disk.

        keep: how many of the newest a save leaves; None opens them for reading only, also while the run trains.
        """
        checkpoints = Checkpoints(checkpoints_path(self.path), keep=keep)
        try:
            yield checkpoints
        finally:
            checkpoints.close()

    def steps(self) -> list[int]:
        """Returns the steps that have a checkpoint, ascending; [] where there is none."""
        if not is_folder(checkpoints_path(self.path)):
            return []
        with self.checkpoints() as checkpoints:
            return checkpoints.steps()

    def counters(self, step: int) -> dict[str, Any]:
        """Returns the totals of examples, tokens and seconds up to the checkpoint `step` (run.counters.Counters)."""
        with self.checkpoints() as checkpoints:
            return checkpoints.counters(step)

    @property
    def is_complete(self) -> bool:
        """Whether the run has made all of its steps."""
        return self.has_config and max(self.steps(), default=-1) >= self.config()["train"]["steps"]

    @property
    def is_imported(self) -> bool:
        """Whether train.convert wrote the folder: no run, but a model whose training text is unknown."""
        return exists(os.path.join(self.path, IMPORTED_FILE))

    def imported(self) -> dict[str, Any]:
        """Returns what `write_imported` wrote; {} for a run. Raises ConfigError if the file is damaged."""
        if not self.is_imported:
            return {}
        return read_json(os.path.join(self.path, IMPORTED_FILE), remedy="convert the Hugging Face folder again")

    def write_imported(self, origin: Mapping[str, Any]) -> None:
        """Writes where the model is from, JSON values."""
        write_json(os.path.join(self.path, IMPORTED_FILE), origin)

    def lock(self) -> AbstractContextManager:
        """Returns a context in which this process alone writes to the folder.

        Entering raises ConfigError, one line that names the other process and its host, if the folder is in use.
        """
        return lock_of(self.path)
