"""JAX's persistent compilation cache, in a folder of its own: a run that continues does not compile again."""

import contextlib
import hashlib
import os
import pathlib
import platform
import re
import warnings

import jax

_FOLDER = "~/.cache/cloze/compiled"
_MOST_BYTES = 10 * 2**30


def use_compilation_cache(folder: str = _FOLDER, *, most_bytes: int = _MOST_BYTES) -> None:
    """Makes JAX keep compiled programs in a folder of `folder` for this kind of processor. Call before JAX's first use.

    JAX reads a program whose source, options, devices and versions are equal, and writes those that took a second or
    more to compile; with several processes, process 0 writes. Programs for the CPU run on equal processors only.
    Deletes the programs that were written first while all are larger than `most_bytes`.

    Changes nothing where JAX_COMPILATION_CACHE_DIR names a folder, or JAX_ENABLE_COMPILATION_CACHE=false turns the
    cache off, and where the folder cannot be written: then programs are compiled at each start.
    """
    if jax.config.jax_compilation_cache_dir is not None or not jax.config.jax_enable_compilation_cache:
        return
    path = pathlib.Path(folder).expanduser() / _processor()
    try:
        path.mkdir(parents=True, exist_ok=True)
        _delete_oldest(path, most_bytes)
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        return
    if not os.access(path, os.W_OK | os.X_OK):
        return
    # A full disk, or a program that another process deletes at this moment.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    jax.config.update("jax_compilation_cache_dir", str(path))


def _processor() -> str:
    """Returns a name that hosts share if their processors have the same instructions."""
    instructions = platform.processor() or platform.node()
    with contextlib.suppress(OSError):  # not on macOS
        found = re.search(r"^(flags|Features)\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        instructions = " ".join(sorted(found[2].split())) if found else instructions
    return f"{platform.machine()}-{hashlib.blake2b(instructions.encode(), digest_size=4).hexdigest()}"


def _delete_oldest(folder: pathlib.Path, most_bytes: int) -> None:
    """Deletes the files of `folder` that were written first until the others have at most `most_bytes`."""
    files = []
    for file in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process deleted it
            status = file.stat()
            files.append((status.st_mtime, status.st_size, file))
    total = sum(size for _, size, _ in files)
    for _, size, file in sorted(files):
        if total <= most_bytes:
            return
        file.unlink(missing_ok=True)
        total -= size
