"""The folder of a study: its files, and the outcomes that jobs leave in it.

DIR/study.json                   the study as resolved
DIR/runs/VARIANT-seed0/          a run's workdir; VARIANT-seed0-start and VARIANT-seed0-MEASURE beside it
DIR/outcomes/VARIANT-seed0.json  what was measured, written when all of it is complete
DIR/failures/VARIANT-seed0.json  why the last try failed
DIR/logs/VARIANT-seed0.log       what the runs printed
DIR/report.md, report.html       the report
"""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not on this system: two commands on one study are not noticed
    fcntl = None  # type: ignore[assignment]

from contract.errors import ConfigError
from train.ablate.results import Curve, Outcome
from train.ablate.study import Study


class StudyFolder:
    """Paths and files of a study's folder."""

    def __init__(self, out: str | os.PathLike):
        self.path = Path(out)

    def workdir(self, name: str) -> str:
        """The workdir of a run."""
        return str(self.path / "runs" / name)

    def log(self, name: str) -> Path:
        """What the runs of a job printed."""
        return self.path / "logs" / f"{name}.log"

    def begin(self, name: str, study: Study, overrides: Mapping[str, Any], path: str) -> None:
        """Creates the folder for a study, or checks that it is this study's.

        The number of seeds may change. name: of the study; path: its file.

        Raises ConfigError if the folder has another study, or other files alone, or cannot be written.
        """
        fields = _fields(name, study, overrides)
        file = self.path / "study.json"
        try:
            if file.exists():
                self._check_same(fields, path)
            elif self.path.is_dir() and any(self.path.iterdir()):
                raise ConfigError(f"--out={self.path} has other files and no study: choose another folder")
            for folder in ("runs", "outcomes", "failures", "logs"):
                (self.path / folder).mkdir(parents=True, exist_ok=True)
            write_json(file, fields)
        except OSError as error:
            raise ConfigError(f"--out={self.path} cannot be written: {error.strerror}: {error.filename}") from error

    def check(self, name: str, study: Study, overrides: Mapping[str, Any], path: str) -> None:
        """Raises ConfigError unless the folder is that of the study."""
        fields = _fields(name, study, overrides)
        if not (self.path / "study.json").exists():
            raise ConfigError(f"--out={self.path} is not the folder of a study: run the study without --report first")
        self._check_same(fields, path)

    def _check_same(self, fields: dict[str, Any], path: str) -> None:
        saved = read_json(self.path / "study.json")
        for old, new, where in ((saved, fields, ""), (saved.get("study", {}), fields["study"], "study.")):
            for field in {**old, **new}:
                if field in ("study", "seeds", "published", "notes", "question") or old.get(field) == new.get(field):
                    continue
                raise ConfigError(
                    f"--out={self.path} has another study than --study={path}: {where}{field} is "
                    f"{_shorten(old.get(field))} there and {_shorten(new.get(field))} here: choose another --out"
                )

    def outcome(self, name: str) -> Outcome | None:
        """Returns the outcome of a complete job; None if there is none. Raises ConfigError if its file is damaged."""
        file = self.path / "outcomes" / f"{name}.json"
        if not file.exists():
            return None
        try:
            fields = read_json(file)
            return Outcome(**fields | {"curve": Curve(**fields["curve"])})
        except (TypeError, KeyError) as error:
            raise ConfigError(f"{file} is damaged: {error}: delete it to measure the run again") from error

    def write_outcome(self, name: str, outcome: Outcome) -> None:
        """Writes the outcome of a complete job, and removes the note of an earlier failure."""
        write_json(self.path / "outcomes" / f"{name}.json", dataclasses.asdict(outcome))
        self.clear_failure(name)

    def clear_failure(self, name: str) -> None:
        """Removes the note that the last try of a job failed."""
        (self.path / "failures" / f"{name}.json").unlink(missing_ok=True)

    def failure(self, name: str) -> str:
        """Returns why the last try of a job failed; "" if it did not."""
        file = self.path / "failures" / f"{name}.json"
        return read_json(file).get("error", "") if file.exists() else ""

    def write_failure(self, name: str, error: str) -> None:
        """Writes why a job failed."""
        write_json(self.path / "failures" / f"{name}.json", {"error": error})

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[bool]:
        """Yields whether this process has the lock of a job. The system frees the lock however the process ends."""
        with open(self.path / "runs" / f"{name}.lock", "w", encoding="utf-8") as file:
            try:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
                return
            yield True


def _fields(name: str, study: Study, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the contents of study.json."""
    return {"name": name, "overrides": dict(overrides), "study": json.loads(json.dumps(dataclasses.asdict(study)))}


def write_json(path: Path, fields: Mapping[str, Any]) -> None:
    """Writes nested mappings of JSON values atomically."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(fields, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_json(path: Path) -> dict[str, Any]:
    """Returns what `write_json` wrote. Raises ConfigError for a file that is not such."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is damaged: {error}: delete it to make it again") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"{path} is damaged: it has no fields: delete it to make it again")
    return fields


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
