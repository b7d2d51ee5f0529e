"""Interrupts small runs and compares them with an untouched one: python -m benchmarks.torture --kills=N

  --kills=N      A run is killed with SIGKILL at random moments of every stage (start, building the token store,
                 compiling, stepping, saving, evaluating) and continued, N kills in all, up to 6 a run. With
                 --processes=2 a random process is killed, and the other must end by itself.
  --damage       Each file of the newest checkpoint and of the token store is truncated, zeroed, has one bit flipped or
                 is removed; then the run is continued.
  --full_disk=N  A run on a file system of a random size that is too small, N times; then the file system grows, and
                 the run is continued. Needs root, for a tmpfs.

Each prints one JSON line. After every continuation the metrics, all arrays of the last checkpoint and the token store
must equal those of the untouched run bit for bit. The first difference ends the command with status 1, and the folder
of the run remains for inspection.
"""

import json
import tempfile
import time
from pathlib import Path

from absl import flags

from benchmarks.torture.damage import damage
from benchmarks.torture.full_disk import fill_disks
from benchmarks.torture.kills import torture
from benchmarks.torture.trial import Difference
from command.flags import parse_flags, run_command
from contract.errors import ConfigError

_FLAGS = flags.FlagValues()
_KILLS = flags.DEFINE_integer("kills", 0, "Number of kills.", lower_bound=0, flag_values=_FLAGS)
_PROCESSES = flags.DEFINE_integer("processes", 1, "Processes of a run.", lower_bound=1, flag_values=_FLAGS)
_DAMAGE = flags.DEFINE_bool("damage", False, "Damage each file.", _FLAGS)
_FULL_DISK = flags.DEFINE_integer("full_disk", 0, "Number of full disks.", lower_bound=0, flag_values=_FLAGS)
_SEED = flags.DEFINE_integer("seed", 0, "Of the random moments.", flag_values=_FLAGS)
_FOLDER = flags.DEFINE_string("folder", None, "Folder of the runs. Default: a temporary one.", _FLAGS)


def main() -> None:
    """Runs what the flags select, and prints a line of each."""
    parse_flags(_FLAGS, __doc__)
    if not (_KILLS.value or _DAMAGE.value or _FULL_DISK.value):
        raise ConfigError("nothing to do: give --kills=N, --damage or --full_disk=N")
    folder = Path(_FOLDER.value or tempfile.mkdtemp(prefix="cloze-torture-")).absolute()
    parts = []
    if _KILLS.value:
        parts.append(lambda: torture(_KILLS.value, _PROCESSES.value, _SEED.value, folder / "kills"))
    if _DAMAGE.value:
        parts.append(lambda: damage(_SEED.value, folder / "damage"))
    if _FULL_DISK.value:
        parts.append(lambda: fill_disks(_FULL_DISK.value, _SEED.value, folder / "full_disk"))
    for part in parts:
        began = time.monotonic()
        try:
            line = part()
        except Difference as error:
            raise ConfigError(f"{error} (the runs are in {folder})") from error
        line["minutes"] = round((time.monotonic() - began) / 60, 1)
        print(json.dumps({"benchmark": "torture"} | line), flush=True)


if __name__ == "__main__":
    run_command(main)
