"""Checkpoints in buckets: what Orbax needs to write them to gs:// and s3://.

Orbax writes the arrays with TensorStore and everything else through etils.epath. Of buckets, Orbax knows gs:// alone,
for which epath needs further packages. So Orbax has paths of a scheme of this file, cloze-gs:// or cloze-s3://: for
epath BucketPath, which uses files/buckets.py, and for TensorStore the specification of the bucket.

A checkpoint in a bucket is written under its name, because nothing can be renamed, and is one once it has the file
commit_success.txt, which Orbax writes last. It is deleted in the opposite order.
"""

import functools
import io
import os
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Self

import orbax.checkpoint as ocp
from etils import epath

from contract.errors import ConfigError
from files import buckets, storage
from files.paths import in_bucket

COMMITTED = "commit_success.txt"  # Orbax's name
_PREFIX = "cloze-"  # of the schemes


def orbax_path(path: str) -> epath.Path:
    """Returns `path`, a local folder or one in a bucket, for Orbax. Raises ConfigError if Orbax cannot be extended."""
    if not in_bucket(path):
        return epath.Path(path)
    _extend_orbax()
    return BucketPath(_PREFIX + buckets.normalized(path))


def shown(path: epath.Path) -> str:
    """Returns a path of `orbax_path` as people write it."""
    return str(path).removeprefix(_PREFIX)


def manager_options(path: str) -> dict[str, Any]:
    """Returns the options of Orbax's CheckpointManager for a folder: how a checkpoint becomes one."""
    if not in_bucket(path):
        return {}
    return {"atomicity_options": ocp.options.AtomicityOptions(mode=ocp.options.AtomicityMode.COMMIT_FILE)}


def is_committed(folder: str) -> bool:
    """Returns whether the folder of a step, whose name is a number, is a complete checkpoint."""
    return not in_bucket(folder) or storage.is_file(f"{folder}/{COMMITTED}")


@epath.register_path_cls(tuple(f"{_PREFIX}{scheme}://" for scheme in buckets.SCHEMES))
class BucketPath(epath.Path):
    """A path of epath in a bucket. Its text is cloze-gs://bucket/key or cloze-s3://bucket/key."""

    def __str__(self) -> str:
        scheme, *parts = self.parts  # pathlib takes "cloze-gs:" for the name of a folder
        return f"{scheme}//{'/'.join(parts)}"

    def __fspath__(self) -> str:
        return str(self)

    def is_absolute(self) -> bool:
        return True

    def resolve(self, strict: bool = False) -> Self:
        return self

    def exists(self) -> bool:
        return storage.exists(shown(self))

    def is_dir(self) -> bool:
        return storage.is_folder(shown(self))

    def is_file(self) -> bool:
        return storage.is_file(shown(self))

    def iterdir(self) -> Iterator[Self]:
        try:
            names = storage.list_names(shown(self))
        except FileNotFoundError:  # a folder without files, which `mkdir` has made
            return
        yield from (self / name for name in names)

    def glob(self, pattern: str) -> Iterator[Self]:
        depth, root = pattern.count("/") + 1, shown(self) + "/"
        names = (key.removeprefix(root).split("/") for key in buckets.keys(shown(self)))
        for name in sorted({"/".join(parts[:depth]) for parts in names if len(parts) >= depth}):
            if PurePosixPath(name).match(pattern):
                yield self / name

    def mkdir(self, mode: int | None = None, parents: bool = False, exist_ok: bool = False) -> None:
        if not exist_ok and self.exists():
            raise FileExistsError(f"{shown(self)} exists")

    def rmtree(self, missing_ok: bool = False) -> None:
        if not missing_ok and not self.exists():
            raise FileNotFoundError(f"{shown(self)} does not exist")
        (self / COMMITTED).unlink(missing_ok=True)
        storage.remove_folder(shown(self))

    def rmdir(self) -> None:
        """Does nothing: a folder without files does not exist."""

    def unlink(self, missing_ok: bool = False) -> None:
        if not missing_ok and not self.is_file():
            raise FileNotFoundError(f"{shown(self)} does not exist")
        storage.remove(shown(self))

    def open(self, mode: str = "r", encoding: str | None = None, errors: str | None = None, **_: Any) -> Any:
        if mode not in ("r", "rb", "w", "wb"):
            raise ValueError(f"mode={mode!r}: an object is read or replaced as a whole")
        if "w" in mode:
            return _Written(shown(self)) if "b" in mode else _WrittenText(shown(self))
        contents = storage.read_bytes(shown(self))
        return io.BytesIO(contents) if "b" in mode else io.StringIO(contents.decode("utf-8"))

    def rename(self, target: Any) -> Any:
        storage.rename_folder(shown(self), shown(epath.Path(target)))
        return target

    def stat(self) -> epath.stat_utils.StatResult:
        length = 0 if self.is_dir() else len(storage.read_bytes(shown(self)))
        return epath.stat_utils.StatResult(self.is_dir(), length, 0, None, None, None)


class _WritesAtClose:
    """A file in memory that is written to an object when it is closed, unless an exception ends its context."""

    def __init__(self, path: str):
        super().__init__()
        self._path = path

    def __exit__(self, error_type: type[BaseException] | None, *rest: Any) -> None:
        if error_type is not None:
            self._path = ""
        self.close()

    def close(self) -> None:
        if not self.closed and self._path:
            contents = self.getvalue()
            storage.write_bytes(self._path, contents.encode("utf-8") if isinstance(contents, str) else contents)
        super().close()


class _Written(_WritesAtClose, io.BytesIO):
    """Bytes."""


class _WrittenText(_WritesAtClose, io.StringIO):
    """Text in UTF-8."""


@functools.cache
def _extend_orbax() -> None:
    """Makes Orbax's specifications for TensorStore know the schemes of this file; those of other paths stay."""
    try:
        from orbax.checkpoint._src.path import gcs_utils
        from orbax.checkpoint._src.serialization import tensorstore_utils

        uses_bucket, normalized = tensorstore_utils._use_gcs_driver, tensorstore_utils._normalize_path
        driver = gcs_utils.get_kvstore_for_gcs
        ocp.options.AtomicityOptions  # noqa: B018
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"this version of Orbax, {ocp.__version__}, cannot write to buckets ({error}): install the version that "
            "setup.py names, or choose a folder of this machine"
        ) from error
    ours = tuple(f"{_PREFIX}{scheme}:/" for scheme in buckets.SCHEMES)

    def is_ours(path: Any) -> bool:
        return os.fspath(path).startswith(ours)

    tensorstore_utils._use_gcs_driver = lambda path: is_ours(path) or uses_bucket(path)
    tensorstore_utils._normalize_path = lambda path: str(BucketPath(path)) if is_ours(path) else normalized(path)
    gcs_utils.get_kvstore_for_gcs = lambda path: (
        buckets.driver(str(path).removeprefix(_PREFIX)) if is_ours(path) else driver(path)
    )
