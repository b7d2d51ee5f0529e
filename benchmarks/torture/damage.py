"""Damages each file of a checkpoint and of a token store, and continues the run."""

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.torture.trial import STEPS, Difference, Trial, check_equal


def _truncate(path: Path, _: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _zero(path: Path, _: random.Random) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _flip(path: Path, chance: random.Random) -> None:
    contents = bytearray(path.read_bytes())
    contents[chance.randrange(len(contents))] ^= 1 << chance.randrange(8)
    path.write_bytes(contents)


def _remove(path: Path, _: random.Random) -> None:
    path.unlink()


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "truncated": _truncate,
    "zeroed": _zero,
    "bit_flipped": _flip,
    "removed": _remove,
}


def damage(seed: int, folder: Path) -> dict[str, Any]:
    """Damages each file of a finished run in each way, continues the run, and returns the fields of the JSON line.

    The run has its two newest checkpoints. A start may refuse the run in one line that names a file or a checkpoint,
    and then nothing may have changed; or the run goes on from the checkpoint before, or with a file that nothing reads,
    to an end that equals the untouched run's.

    Raises Difference for anything else.
    """
    chance = random.Random(seed)
    untouched = Trial(folder / "untouched", folder / "compiled")
    if untouched.run_to_end():
        raise Difference(f"{untouched.folder}: failed: {untouched.errors()}")
    counts: Counter[str] = Counter()
    newest = untouched.checkpoints / str(STEPS)
    files = [path for root in (newest, untouched.cache) for path in sorted(root.rglob("*")) if path.is_file()]
    for path in files:
        for name, harm in DAMAGES.items():
            if not path.stat().st_size and name != "removed":
                continue
            trial = Trial(folder / "damaged", folder / "compiled")
            shutil.rmtree(trial.folder, ignore_errors=True)
            shutil.copytree(untouched.folder, trial.folder)
            harm(trial.folder / path.relative_to(untouched.folder), chance)
            outcome = _continue(trial, untouched)
            counts[outcome] += 1
            print(f"{path.relative_to(untouched.folder)} {name}: {outcome}", flush=True)
    return {"damages": counts.total(), "files": len(files), **dict(sorted(counts.items()))}


def _continue(trial: Trial, untouched: Trial) -> str:
    """Continues a damaged run, and returns how: "refused", "returned to the checkpoint before" or "not read"."""
    status = trial.run_to_end()
    printed = trial.output(0, "out").read_text()
    if status:
        errors = trial.errors()
        if len(errors) != 1 or not errors[0].startswith("error: "):
            raise Difference(f"{trial.folder}: status {status} and {len(errors)} lines of errors: {errors[-3:]}")
        return "refused"
    check_equal(trial, untouched)
    return "returned to the checkpoint before" if "damaged" in printed else "not read"
