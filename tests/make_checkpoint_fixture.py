"""Makes tests/fixtures/run, a run of the present version. Later versions must read it.

    python -m tests.make_checkpoint_fixture

Trains two steps of a tiny decoder-only CLM on tests/fixtures/text.txt. written_by.json has the versions, and a digest
of each array of the parameters. Make the fixture again where a change of this project makes other files, and not
because a newer Orbax writes other files: those of earlier versions must remain readable. Runs of releases, such as
tests/fixtures/run_v1, are copies of it that are never made again (docs/dependencies.md).
"""

import hashlib
import importlib.metadata
import io
import os
import pathlib
import platform
import shutil
import tempfile
from typing import Any

import jax
import numpy as np
from rich.console import Console

from experiment.experiment import Experiment, make_experiment
from files.atomic import write_json
from models.parameters import leaf_name
from run.restore import load_experiment, load_params, reading_mesh
from train.loop import train_and_evaluate

ROOT = pathlib.Path(__file__).parent.parent
RUN = ROOT / "tests" / "fixtures" / "run"
STEPS = 2


def fixture_experiment(steps: int, cache_dir: str) -> Experiment:
    """The fixture's experiment; `steps` and `cache_dir` may differ between runs. The current folder must be ROOT."""
    from configs import clm

    config = clm.get_config("tiny")
    config.model.update(
        dict(num_layers=1, d_model=8, num_heads=2, num_kv_heads=2, head_dim=4, d_ff=8, tie_embeddings=True)
    )
    config.data.update(dict(source="text", path="tests/fixtures/text.txt", document_per="paragraph", inputs_length=16))
    config.data.update(dict(heldout_fraction=0.3, num_sentinels=1, cache_dir=cache_dir))
    config.optimizer.update(dict(schedule="constant", warmup_steps=1))
    config.train.update(dict(steps=steps, batch_size=8, log_every=1, eval_every=2, eval_windows=8, checkpoint_every=2))
    config.train.update(dict(keep_checkpoints=1, trackers=()))
    return make_experiment(config.to_dict())


def digests(params: Any) -> dict[str, str]:
    """Returns the SHA-256 of each array's bytes, by name."""
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(params))
    return {leaf_name(path): hashlib.sha256(np.ascontiguousarray(leaf).tobytes()).hexdigest() for path, leaf in leaves}


def main() -> None:
    """Trains the run and writes what a test expects of it."""
    os.chdir(ROOT)
    shutil.rmtree(RUN, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:  # Orbax writes the path of a checkpoint into its files
        workdir, console = os.path.join(folder, "run"), Console(file=io.StringIO())
        train_and_evaluate(fixture_experiment(STEPS, os.path.join(folder, "cache")), workdir, console=console)
        experiment = load_experiment(workdir)
        params, _ = load_params(experiment, workdir, mesh=reading_mesh(experiment, batch_size=8))
        shutil.copytree(workdir, RUN)
    packages = ("orbax-checkpoint", "jax", "flax", "optax", "numpy")
    versions = {name: importlib.metadata.version(name) for name in packages}
    write_json(RUN / "written_by.json", {"python": platform.python_version(), **versions, "params": digests(params)})
    print(f"{RUN.relative_to(ROOT)}: {sum(path.stat().st_size for path in RUN.rglob('*') if path.is_file())} bytes")


if __name__ == "__main__":
    main()
