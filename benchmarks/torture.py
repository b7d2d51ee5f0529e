"""Kills small runs at random moments and compares them with an untouched one: python -m benchmarks.torture [--kills=20]

A run of configs/ul2.py on a corpus of its own is killed with SIGKILL at random moments, up to 6 times, while it builds
the token store, compiles, steps, evaluates or saves, and is then continued to its end. Its metrics, all arrays of its
last checkpoint and its token store must then equal those of the untouched run bit for bit. The first difference ends
the command with status 1, and the folder of the run remains for inspection. Prints one JSON line.
"""

import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from absl import flags

from command.flags import parse_flags, run_command
from contract.errors import ConfigError

ROOT = Path(__file__).parents[1]
STEPS = 60
MOST_KILLS_OF_A_RUN = 6
TIME_LIMIT = 300.0  # seconds of one start; a start that takes more hangs
_TIMED = ("tokens_per_second", "data_wait_fraction", "seconds", "mfu")  # metrics that measure time
_FIELDS = (
    "data.source=text",
    f"data.path={Path(json.__file__).parents[1] / 'asyncio' / '*.py'}",  # 0.5 MB of Python in 33 files
    "data.inputs_length=32",
    "data.targets_length=32",
    *("model.num_layers=1", "model.d_model=32", "model.num_heads=2", "model.num_kv_heads=2", "model.head_dim=16"),
    *("model.d_ff=32", "model.dropout_rate=0.1"),
    "optimizer.warmup_steps=4",
    f"train.steps={STEPS}",
    *("train.batch_size=8", "train.grad_accum_steps=2", "train.ema_decay=0.9", "train.log_every=1"),
    *("train.eval_every=6", "train.eval_windows=32", "train.checkpoint_every=20"),
)

_FLAGS = flags.FlagValues()
_KILLS = flags.DEFINE_integer("kills", 20, "Number of kills.", lower_bound=1, flag_values=_FLAGS)
_PLATFORMS = flags.DEFINE_string("platforms", "cpu", 'JAX_PLATFORMS of the runs; "": what JAX chooses.', _FLAGS)
_SEED = flags.DEFINE_integer("seed", 0, "Of the random moments.", flag_values=_FLAGS)


class Difference(Exception):
    """A run that was killed and continued differs from the untouched run, or a start did not end as it must."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """A run and its token store, both in `folder`.

    fields: of the config, in addition to _FIELDS, as "seed=1". platforms: JAX_PLATFORMS; "" lets JAX choose.
    """

    folder: Path
    fields: tuple[str, ...] = ()
    platforms: str = "cpu"

    def run(self, seconds: float = TIME_LIMIT) -> int | None:
        """Starts the run or continues it, for so many seconds at most. Returns its exit status; None if it was killed.

        All trials of a folder share JAX's compiled programs.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
        environment = os.environ | {"JAX_PLATFORMS": self.platforms, "PYTHONPATH": path}
        environment["JAX_COMPILATION_CACHE_DIR"] = str(self.folder.with_name("compiled"))
        if self.platforms != "cpu":  # GPUs otherwise add some gradients in any order
            options = f"{environment.get('XLA_FLAGS', '')} --xla_gpu_deterministic_ops=true"
            environment["XLA_FLAGS"] = options.strip()
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        fields = (*_FIELDS, f"data.cache_dir={self.folder / 'cache'}", *self.fields)
        command = [sys.executable, "-m", "train.main", "--config=configs/ul2.py"]
        command += [f"--workdir={self.folder / 'workdir'}", *(f"--config.{field}" for field in fields)]
        with open(self.folder / "out", "w") as out, open(self.folder / "err", "w") as err:
            try:
                done = subprocess.run(command, cwd=ROOT, env=environment, stdout=out, stderr=err, timeout=seconds)
            except subprocess.TimeoutExpired:  # subprocess.run has sent SIGKILL
                return None
        return done.returncode

    def run_to_end(self) -> None:
        """Raises Difference unless the run makes all of its steps, on a CPU with nothing on standard error."""
        status = self.run()
        errors = (self.folder / "err").read_text(errors="replace").strip()
        if status != 0 or (errors and self.platforms == "cpu"):  # drivers and compilers of accelerators print there
            raise Difference(f"{self.folder}: ended with status {status}: {errors}")

    def contents(self) -> dict[str, Any]:
        """Returns name -> bytes or values: each line of metrics, each file of the store and of the last checkpoint.

        Metrics that measure time are left out.
        """
        found: dict[str, Any] = {}
        for number, line in enumerate((self.folder / "workdir" / "metrics.jsonl").read_text().splitlines(), 1):
            metrics = json.loads(line).items()
            found[f"line {number} of the metrics"] = {name: value for name, value in metrics if name not in _TIMED}
        for path in sorted((self.folder / "cache").glob("[!.]*/*")):
            is_json = path.suffix == ".json"  # whose order of fields may differ
            found[f"{path.name} of the store"] = json.loads(path.read_bytes()) if is_json else path.read_bytes()
        last = self.folder / "workdir" / "checkpoints" / str(STEPS)
        with_times = ("_CHECKPOINT_METADATA", "commit_success.txt", "record.json")
        for path in sorted(last.rglob("*")):
            if path.is_file() and path.name not in with_times:
                found[f"{path.relative_to(last)} of the checkpoint"] = path.read_bytes()
        return found


def check_equal(trial: Trial, untouched: dict[str, Any]) -> None:
    """Raises Difference unless a finished run has the contents `untouched`."""
    ours = trial.contents()
    for name in [*untouched, *ours]:
        if name not in ours or name not in untouched or ours[name] != untouched[name]:
            raise Difference(f"{trial.folder}: {name} differs from the untouched run's")


def torture(kills: int, seed: int, folder: Path, platforms: str = "cpu") -> dict[str, Any]:
    """Kills runs `kills` times, continues them to their end, and returns the fields of the JSON line.

    Raises Difference at the first run that differs from the untouched one, and keeps its folder.
    """
    chance, done, runs = random.Random(seed), 0, 0
    untouched = Trial(folder / "untouched", platforms=platforms)
    untouched.run_to_end()  # compiles
    shutil.rmtree(untouched.folder)
    began = time.monotonic()
    untouched.run_to_end()
    length, expected = time.monotonic() - began, untouched.contents()
    while done < kills:
        trial = Trial(folder / f"run-{runs}", platforms=platforms)
        for _ in range(min(kills - done, chance.randint(1, MOST_KILLS_OF_A_RUN))):
            status = trial.run(chance.uniform(0, length))
            if status:
                raise Difference(f"{trial.folder}: a run that was not killed ended with status {status}")
            done += status is None
        trial.run_to_end()
        check_equal(trial, expected)
        shutil.rmtree(trial.folder)
        runs += 1
        print(f"{done} of {kills} kills, {runs} runs equal", file=sys.stderr, flush=True)
    return {"kills": done, "runs": runs, "equal": runs, "seed": seed}


def main() -> None:
    """Kills the runs and prints the line."""
    parse_flags(_FLAGS, __doc__)
    folder = Path(tempfile.mkdtemp(prefix="cloze-torture-"))
    try:
        line = torture(_KILLS.value, _SEED.value, folder, _PLATFORMS.value)
    except Difference as error:
        raise ConfigError(f"{error} (the runs are in {folder})") from error
    print(json.dumps({"benchmark": "torture"} | line), flush=True)


if __name__ == "__main__":
    run_command(main)
