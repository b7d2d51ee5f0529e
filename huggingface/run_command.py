"""The command that repeats a run, found from its resolved config."""

import importlib.util
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from command.flags import override_flags, resolve
from contract.errors import ConfigError
from workdir.run_config import flatten

_ROOT = Path(__file__).parents[1]
# Fields of the machine alone.
_OMITTED = ("data.cache_dir", "data.reader_threads", "data.prefetch_batches")


def run_command(config: Mapping[str, Any]) -> str:
    """Returns `python -m train.main --config=... --workdir=RUN` with the overrides that give `config`; "" if none does.

    The config file and variant is the one that needs the fewest overrides. A config whose table of denoisers is in no
    file of configs/ has no such command.

    config: as workdir.run_config.read_config returns it, without its entry "corpus".
    """
    wanted = flatten(config)
    best: tuple[int, str, dict[str, Any]] | None = None
    for name in _candidates(config):
        try:
            fields = flatten(resolve(str(_ROOT / name), {}, name))
        except ConfigError:  # a file of another version of this project
            continue
        if fields.keys() != wanted.keys():
            continue
        overrides = {field: value for field, value in wanted.items() if fields[field] != value}
        overrides = {field: value for field, value in overrides.items() if field not in _OMITTED}
        if best is None or len(overrides) < best[0]:
            best = len(overrides), name, overrides
    if best is None:
        return ""
    _, name, overrides = best
    return shlex.join(["python", "-m", "train.main", f"--config={name}", *override_flags(overrides), "--workdir=RUN"])


def _candidates(config: Mapping[str, Any]) -> list[str]:
    """Returns the files of configs/, with their variants and sizes, whose objective may be that of `config`."""
    names = []
    for path in sorted((_ROOT / "configs").glob("[!_]*.py")):
        if path.stem in ("base", "architectures", "machines", "recipes"):
            continue
        spec = importlib.util.spec_from_file_location(f"_config_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        if module.get_config().objective.name != config["objective"]["name"]:
            continue
        names.append(f"configs/{path.name}")
        names += [f"configs/{path.name}:{variant}" for variant in getattr(module, "VARIANTS", ())]
    return names
