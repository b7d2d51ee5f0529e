"""Paths of this machine and of buckets, gs://bucket/key and s3://bucket/key, through fsspec.

gcsfs and s3fs (extras `gcs` and `s3`) make the requests, and find the credentials of the machine by themselves: those
of `gcloud auth application-default login`, GOOGLE_APPLICATION_CREDENTIALS or the Google VM; and AWS_ACCESS_KEY_ID,
~/.aws/credentials with AWS_PROFILE or the role of the AWS VM. AWS_ENDPOINT_URL is the address of another store with
the interface of S3.

An object is replaced as a whole. Buckets have no renames, no appends, no links and no file locks; a folder is a common
beginning of keys up to a "/", and exists while it has files.
"""

import contextlib
import errno
import glob
import importlib.util
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

from contract.errors import ConfigError

EXTRAS = {"gs": ("gcs", "gcsfs"), "s3": ("s3", "s3fs")}  # scheme -> the extra, and the module that it installs
_ADDRESS = re.compile(r"(gs|s3)://([^/]+)(?:/(.*))?", re.DOTALL)
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*):/")
_PROBE = ".cloze-access"  # an object that `check_writable` makes and deletes
_LOGIN = {
    "gs": "log in with 'gcloud auth application-default login', or set GOOGLE_APPLICATION_CREDENTIALS",
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
}
_REMEDIES = {
    errno.ENOENT: "name a file in an existing folder",
    errno.ENOTDIR: "name a file in an existing folder",
    errno.EEXIST: "name another one",
    errno.EISDIR: "name another one",
    errno.ELOOP: "name another one",
    errno.ENAMETOOLONG: "name a shorter one",
    errno.ENOSPC: "free space on that disk, or choose a folder on another one",
    errno.EDQUOT: "delete files, or choose a folder with another quota",
    errno.EROFS: "choose a folder that can be written",
    errno.EACCES: "change the permissions, or choose another folder",
    errno.EPERM: "change the permissions, or choose another folder",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EIO: "check the disk, or the network to it",
    errno.ENOLCK: "choose a folder on another disk",  # a network disk without locks of files
    errno.ENOTSUP: "choose a folder on another disk",
}

PathLike = str | os.PathLike


def in_bucket(path: PathLike) -> bool:
    """Returns whether `path` is an address of an object or a folder in a bucket."""
    return _ADDRESS.fullmatch(os.fspath(path)) is not None


def check_path(path: PathLike, where: str) -> None:
    """Raises ConfigError for an address that is not of a bucket, such as hdfs://host/x, gs:/bucket/x or gs://.

    No such path is written as a folder of this machine. Also raises ConfigError where the extra of the bucket is
    missing.

    where: the flag or config field with its value, for messages.
    """
    address = os.fspath(path)
    match = _SCHEME.match(address)
    if match is None:
        return
    scheme = match[1]
    if in_bucket(address):
        extra, module = EXTRAS[scheme]
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"{where}: {scheme}:// needs {module}: pip install -e '.[{extra}]'")
        return
    if scheme in EXTRAS:
        raise ConfigError(f"{where} names no bucket: write {scheme}://BUCKET/FOLDER")
    raise ConfigError(f"{where} has the scheme {scheme}: use a folder of this machine, or gs:// or s3:// of a bucket")


def check_local(path: PathLike, where: str) -> None:
    """Raises ConfigError for an address, also that of a bucket, where only a path of this machine can be used."""
    if _SCHEME.match(os.fspath(path)):
        raise ConfigError(f"{where} must be a path on this machine: write to a folder here, and copy it to the bucket")


def check_access(path: PathLike, where: str) -> None:
    """Raises ConfigError as `check_path` does, and where the bucket does not exist or gives this user no access."""
    check_path(path, where)
    if in_bucket(path):
        _check_bucket(path, where)


def check_writable(folder: PathLike, where: str) -> None:
    """Raises ConfigError as `check_access` does, and where this user cannot write in a bucket."""
    check_path(folder, where)
    if in_bucket(folder):
        _check_bucket(folder, where, probe=f"{absolute(folder)}/{_PROBE}.{os.getpid()}")


def absolute(path: PathLike) -> str:
    """Returns the absolute path of a file or folder, without doubled and trailing slashes."""
    if not in_bucket(path):
        return os.path.abspath(path)
    match = _ADDRESS.fullmatch(os.fspath(path))
    return f"{match[1]}://{'/'.join([match[2], *filter(None, (match[3] or '').split('/'))])}"


def real_path(path: PathLike) -> str:
    """Returns the absolute path of a file or folder, with links followed."""
    return absolute(path) if in_bucket(path) else os.path.realpath(path)


def exists(path: PathLike) -> bool:
    """Returns whether `path` is a file or a folder."""
    return _call("exists", path) if in_bucket(path) else os.path.exists(path)


def is_file(path: PathLike) -> bool:
    """Returns whether `path` is a file."""
    return _call("isfile", path) if in_bucket(path) else os.path.isfile(path)


def is_folder(path: PathLike) -> bool:
    """Returns whether `path` is a folder."""
    return _call("isdir", path) if in_bucket(path) else os.path.isdir(path)


def make_folder(path: PathLike) -> None:
    """Makes the folder `path` unless it exists; a bucket needs none."""
    if not in_bucket(path):
        os.makedirs(path, exist_ok=True)


def list_names(folder: PathLike) -> list[str]:
    """Returns the names of the files and folders in `folder`, sorted. Raises FileNotFoundError if it does not exist."""
    if not in_bucket(folder):
        return sorted(os.listdir(folder))
    return sorted({found.rstrip("/").rpartition("/")[2] for found in _call("ls", folder, detail=False)})


def find_objects(pattern: str) -> list[str]:
    """Returns the addresses of the objects in buckets that an address names, sorted.

    pattern: the address of an object; of a folder, for all objects in it at any depth that are not hidden; or a glob of
    such addresses, as fsspec reads it: *, ?, [...] and **. A name that begins with a dot is hidden, and is found by a
    pattern with such a name.
    """
    address = absolute(pattern)
    scheme, _, key = address.partition("://")
    is_glob = glob.has_magic(address) and not exists(address)  # a name may have the characters of a glob
    fixed = len(re.split(r"[*?\[]", key)[0].rpartition("/")[0])  # what all names have
    found = set()
    for root in _call("glob", address) if is_glob else [key]:
        if "/." not in root[fixed:] or "/." in key[fixed:]:
            found |= {path for path in _call("find", f"{scheme}://{root}") if "/." not in path.removeprefix(root)}
    # An object whose name ends in "/" is no file: the consoles of buckets make it when they make a folder.
    return sorted(f"{scheme}://{path}" for path in found if not path.endswith("/"))


def size_and_version(address: PathLike) -> tuple[int, str]:
    """Returns the size of an object of a bucket, and a text that changes when it is replaced, the same on all hosts."""
    info = _call("info", address)
    version = next(filter(None, map(info.get, ("generation", "ETag", "etag", "mtime"))), "")
    return info["size"], str(version).strip('"')


def version_of(address: PathLike) -> str:
    """Returns the version of `size_and_version`."""
    return size_and_version(address)[1]


def read_bytes(path: PathLike) -> bytes:
    """Returns the contents of a file. Raises FileNotFoundError if it does not exist."""
    if in_bucket(path):
        return _call("cat_file", path)
    with open(path, "rb") as file:
        return file.read()


def read_ranges(address: PathLike, begins: Sequence[int], ends: Sequence[int]) -> list[bytes]:
    """Returns the bytes of an object of a bucket from each of `begins` to each of `ends`, requested at the same time.

    Raises OSError if one of them cannot be read whole.
    """
    with _naming(address):
        parts = _fs(address).cat_ranges([absolute(address)] * len(begins), begins, ends, on_error="raise")
        if any(len(part) != end - begin for part, begin, end in zip(parts, begins, ends, strict=True)):
            raise OSError("fewer bytes came than were requested")
        return parts


def read_text(path: PathLike, *, errors: str = "strict") -> str:
    """Returns the contents of a file in UTF-8, with "\\n" at line ends."""
    return read_bytes(path).decode("utf-8", errors).replace("\r\n", "\n").replace("\r", "\n")


def write_object(address: PathLike, contents: bytes) -> None:
    """Writes or replaces an object of a bucket: a reader sees the old contents or the new ones."""
    _call("pipe_file", address, contents)


def remove(path: PathLike) -> None:
    """Deletes a file."""
    _call("rm_file", path) if in_bucket(path) else os.unlink(path)


def remove_folder(path: PathLike) -> None:
    """Deletes a folder with all its files."""
    _call("rm", path, recursive=True) if in_bucket(path) else shutil.rmtree(path)


def copy_file(source: PathLike, target: PathLike) -> None:
    """Copies a file to a bucket, from a bucket to this machine, or within either, without holding it in memory."""
    if in_bucket(source) == in_bucket(target):
        _call("cp_file", source, absolute(target)) if in_bucket(source) else shutil.copyfile(source, target)
    elif in_bucket(source):
        _call("get_file", source, os.fspath(target))
    else:
        with _naming(target):
            _fs(target).put_file(os.fspath(source), absolute(target))


def copy_folder(folder: PathLike, target: PathLike) -> None:
    """Writes the files of a folder, at any depth, to the folder `target`. One of both is in a bucket."""
    with _naming(target if in_bucket(target) else folder):
        if in_bucket(target):
            _fs(target).put(f"{folder}/", absolute(target), recursive=True)
        else:
            _fs(folder).get(f"{absolute(folder)}/", os.fspath(target), recursive=True)


def rename_folder(folder: PathLike, target: PathLike) -> None:
    """Renames a folder. In a bucket, copies its files and then deletes them: an interruption leaves both folders."""
    if not in_bucket(folder):
        os.rename(folder, target)
        return
    _call("copy", folder, absolute(target), recursive=True)
    remove_folder(folder)


def reason(error: OSError) -> str:
    """Returns why a call of the operating system failed, such as "No space left on device"."""
    return error.strerror or " ".join(str(error).split()) or type(error).__name__


def reason_and_remedy(error: OSError) -> str:
    """Returns `reason`, with what to do about it if that is known: "No space left on device: free space on ..."."""
    remedy = _REMEDIES.get(error.errno or 0)
    return f"{reason(error)}: {remedy}" if remedy else reason(error)


def describe_os_error(error: OSError) -> str | None:
    """Returns "file: reason: remedy" in one line; None if the operating system did not raise the error.

    Python code raises OSErrors without a number, such as io.UnsupportedOperation. Their traceback is what helps.
    """
    if error.errno is None:
        return None
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return ": ".join([*([" -> ".join(names)] if names else []), reason_and_remedy(error)])


def os_error_in(text: str) -> str | None:
    """Returns the error of the operating system in a message of TensorStore, in one line; None if there is none.

    Such a message quotes the whole specification of an array, and ends with "No space left on device
    [os_error_code='28']".
    """
    found = re.search(r"os_error_code='(\d+)'", text)
    return describe_os_error(OSError(int(found[1]), os.strerror(int(found[1])))) if found else None


def _fs(path: PathLike) -> Any:
    """Returns fsspec's file system of an address in a bucket, without its cache of listings: other hosts write too."""
    import fsspec  # takes a tenth of a second, and most runs have no bucket

    scheme = os.fspath(path).partition("://")[0]
    options = fsspec.config.conf.setdefault(scheme, {})
    options["use_listings_cache"] = False
    if scheme == "s3":
        options.setdefault("config_kwargs", {"max_pool_connections": 100})  # as gcsfs has; 10 by default
    return fsspec.filesystem(scheme)


def _call(method: str, address: PathLike, *arguments: Any, **options: Any) -> Any:
    """Calls a method of an address's file system. Raises OSError with a number and the address."""
    with _naming(address):
        return getattr(_fs(address), method)(absolute(address), *arguments, **options)


@contextlib.contextmanager
def _naming(address: PathLike) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        numbers = {FileNotFoundError: errno.ENOENT, PermissionError: errno.EACCES, FileExistsError: errno.EEXIST}
        number = getattr(error, "errno", None) or numbers.get(type(error), errno.EIO)
        text = " ".join(str(error).split())[:160]
        raise OSError(number, os.strerror(number) if number != errno.EIO else text, os.fspath(address)) from error


def _check_bucket(path: PathLike, where: str, *, probe: str = "") -> None:
    """Raises ConfigError without access to a bucket. probe: an object to write and delete, if both must be possible."""
    scheme, bucket, _ = _ADDRESS.fullmatch(os.fspath(path)).groups()
    try:
        fs = _fs(path)
        if not fs.exists(bucket):
            raise ConfigError(f"{where}: there is no bucket {scheme}://{bucket}: correct the address")
        if probe:
            fs.pipe_file(probe, b"")
            fs.rm_file(probe)
    except ConfigError:
        raise
    except Exception as error:  # botocore's and google.auth's errors of credentials have types of their own
        message = " ".join(str(error).split())[:160] or type(error).__name__
        raise ConfigError(
            f"{where}: {scheme}://{bucket}: {message}: {_LOGIN[scheme]}, or correct the address"
        ) from error
