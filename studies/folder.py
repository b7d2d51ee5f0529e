"""The folder of a study: its files, and the outcomes that jobs leave in it.

DIR/study.json                   the study as resolved
DIR/runs/VARIANT-seed0/          a run's workdir; VARIANT-seed0-start: of its start; VARIANT-seed0-MEASURE: of a
                                     fine-tuning
DIR/outcomes/VARIANT-seed0.json  what was measured, written when all of it is complete
DIR/failures/VARIANT-seed0.json  why the last try failed
DIR/logs/VARIANT-seed0.log       what the runs printed
DIR/report.md, report.html       the report
"""

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not on this system: two commands on one study are not noticed
    fcntl = None  # type: ignore[assignment]

from contract.errors import ConfigError
from files.atomic import read_json, write_json
from files.paths import check_local
from studies.plan import Plan
from studies.results import Curve, Outcome
from workdir.run_config import flatten

_FOLDERS = ("runs", "outcomes", "failures", "sweeps", "logs")
_MEASURE_AGAIN = "delete it to measure the run again"


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a job failed, one line. diverged: whether its gradients were not finite."""

    error: str
    diverged: bool


class StudyFolder:
    """Paths and files of a study's folder."""

    def __init__(self, out: str | os.PathLike):
        check_local(os.fspath(out), f"--out={out}")
        self.path = Path(out)

    def workdir(self, name: str) -> str:
        """The workdir of a run."""
        return str(self.path / "runs" / name)

    def log(self, name: str) -> Path:
        """What the runs of a job printed."""
        return self.path / "logs" / f"{name}.log"

    def begin(self, name: str, plan: Plan, path: str, overrides: Mapping[str, str]) -> None:
        """Creates the folder for a study, or checks that it is this study's. Several workers may do so at once.

        The number of seeds may change. name: of the study; path: its file; overrides: those of the command line.

        Raises ConfigError if the folder has another study, or other files alone, or cannot be written.
        """
        fields, file = _fields(name, plan, overrides), self.path / "study.json"
        try:
            if not file.exists():
                strangers = [item.name for item in _items(self.path) if not item.name.startswith("study.json")]
                if any(other not in _FOLDERS or any((self.path / other).iterdir()) for other in strangers):
                    raise ConfigError(f"--out={self.path} has other files and no study: choose another folder")
                self.path.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileExistsError):  # another worker was faster
                    write_json(file, fields, replace=False)
            self._check_same(fields, path)
            for folder in _FOLDERS:
                (self.path / folder).mkdir(exist_ok=True)
            if read_json(file) != fields:  # with another number of seeds, or other notes
                write_json(file, fields)
        except OSError as error:
            raise ConfigError(f"--out={self.path} cannot be written: {error.strerror}: {error.filename}") from error

    def arguments(self) -> tuple[int, float, dict[str, str]]:
        """Returns the seeds, the budget and the overrides of the command that ran the study last.

        Raises ConfigError if the folder is not that of a study.
        """
        file = self.path / "study.json"
        if not file.exists():
            raise ConfigError(f"--out={self.path} is not the folder of a study: run the study without --report first")
        fields = read_json(file, remedy="choose another --out")
        try:
            return fields["study"]["seeds"], fields["study"]["budget"]["amount"], fields["overrides"]
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{file} is damaged: {error} is missing: choose another --out") from error

    def check(self, name: str, plan: Plan, path: str) -> None:
        """Raises ConfigError unless the folder is that of the study."""
        self._check_same(_fields(name, plan, {}), path)

    def _check_same(self, fields: dict[str, Any], path: str) -> None:
        saved = read_json(self.path / "study.json", remedy="choose another --out")
        old, new = (_comparable(one) for one in (saved, fields))
        for field in {**old, **new}:
            if old.get(field) != new.get(field):
                raise ConfigError(
                    f"--out={self.path} has another study than --study={path}: {field} is "
                    f"{_shorten(old.get(field))} there and {_shorten(new.get(field))} here: repeat the flags of that "
                    "study, or choose another --out"
                )

    def outcome(self, name: str) -> Outcome | None:
        """Returns the outcome of a complete job; None if there is none. Raises ConfigError if its file is damaged."""
        file = self.path / "outcomes" / f"{name}.json"
        if not file.exists():
            return None
        fields = read_json(file, remedy=_MEASURE_AGAIN)
        try:
            outcome = Outcome(**fields | {"curve": Curve(**fields["curve"])})
            numbers = [*outcome.values.values(), *outcome.curve.loss, outcome.raw_tokens, outcome.flops]
            if not all(map(math.isfinite, numbers)):
                raise ValueError("a value is not finite")
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ConfigError(f"{file} is damaged: {error}: {_MEASURE_AGAIN}") from error
        return outcome

    def is_complete(self, name: str) -> bool:
        """Whether a job is complete. Raises ConfigError if its outcome is damaged."""
        return self.outcome(name) is not None

    def write_outcome(self, name: str, outcome: Outcome) -> None:
        """Writes the outcome of a complete job, and removes the note of an earlier failure."""
        write_json(self.path / "outcomes" / f"{name}.json", dataclasses.asdict(outcome))
        self.clear_failure(name)

    def clear_failure(self, name: str) -> None:
        """Removes the note that the last try of a job failed."""
        (self.path / "failures" / f"{name}.json").unlink(missing_ok=True)

    def failure(self, name: str) -> Failure | None:
        """Returns why the last try of a job failed; None if it did not."""
        file = self.path / "failures" / f"{name}.json"
        try:
            return Failure(**read_json(file)) if file.exists() else None
        except (ConfigError, TypeError) as error:
            return Failure(f"the note of the failure cannot be read: {error}", diverged=False)

    def write_failure(self, name: str, failure: Failure) -> None:
        """Writes why a job failed."""
        write_json(self.path / "failures" / f"{name}.json", dataclasses.asdict(failure))

    def chosen(self, variant: str) -> dict[str, Any] | None:
        """Returns what the sweep of a variant has chosen; None if it has not."""
        file = self.path / "sweeps" / f"{variant}.json"
        return read_json(file) if file.exists() else None

    def write_chosen(self, variant: str, values: Mapping[str, Any]) -> None:
        """Writes what the sweep of a variant has chosen. All seeds of the variant use it."""
        write_json(self.path / "sweeps" / f"{variant}.json", values)

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


def _items(path: Path) -> list[Path]:
    return list(path.iterdir()) if path.is_dir() else []


def _fields(name: str, plan: Plan, overrides: Mapping[str, str]) -> dict[str, Any]:
    """Returns the contents of study.json: the study, and the config of every run as resolved."""
    runs = {
        variant.name: {
            "sweep": variant.sweep,
            "start": variant.start.fields if variant.start is not None else {},
            "main": variant.main.fields,
            **{measure: run.fields for measure, run in variant.fine_tunings.items()},
        }
        for variant in plan.variants.values()
    }
    study = dataclasses.asdict(plan.study)
    return json.loads(json.dumps({"name": name, "overrides": overrides, "study": study, "runs": runs}, default=str))


def _comparable(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns field -> value of what makes two studies different."""
    study = fields.get("study", {})
    return {
        "name": fields.get("name"),
        **{name: study.get(name) for name in ("baseline", "budget", "measures")},
        **flatten({"runs": fields.get("runs", {})}),
    }


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
