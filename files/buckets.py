"""Objects in buckets: gs://bucket/key of Google Cloud Storage, s3://bucket/key of Amazon S3 and compatible stores.

files/storage.py has the functions for paths of both kinds, local ones and these.

TensorStore makes the requests. It is installed with Orbax, and finds the credentials of the machine by itself: those of
`gcloud auth application-default login`, GOOGLE_APPLICATION_CREDENTIALS or the Google VM; and AWS_ACCESS_KEY_ID,
~/.aws/credentials with AWS_PROFILE or the role of the AWS VM. AWS_REGION is the region of an S3 bucket, and
AWS_ENDPOINT_URL the address of another store with the interface of S3.

An object is replaced as a whole. Buckets have no folders, no renames, no appends, no links and no file locks; a folder
is a common beginning of keys up to a "/". A write can be conditional on the version of the object, and is atomic.

Every error is an OSError, whose filename is the address.
"""

import contextlib
import errno
import functools
import os
import re
import sys
import tempfile
import uuid
from collections.abc import Iterator
from typing import Any

from contract.errors import ConfigError

SCHEMES = {"gs": "gcs", "s3": "s3"}  # of addresses, and TensorStore's driver for each
_ADDRESS = re.compile(r"(gs|s3)://([^/]+)(?:/(.*))?", re.DOTALL)
_ACCESS_SECONDS = 30.0
# A request without an answer for this long is made again. TensorStore has no limit by default.
_STALLED_SECONDS = 60
_FEW_RETRIES = 2  # of the first request of a process: 3 s
_RETRIES = 12  # of others, so that an interruption of two minutes does not end a run
_PROBE = ".cloze-access"  # an object that does not exist
_LOGIN = {
    "gs": "log in with 'gcloud auth application-default login', or set GOOGLE_APPLICATION_CREDENTIALS",
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
}
_LOG_LINE = re.compile(rb"[IWE]\d{4} \d\d:\d\d:")
# Words in TensorStore's errors -> (number, reason). Of the first match.
_REASONS = (
    (("NoSuchBucket", "bucket does not exist", "NOT_FOUND"), errno.ENXIO, "there is no such bucket"),
    (("PERMISSION_DENIED", "UNAUTHENTICATED", "HTTP response code: 401", "HTTP response code: 403"), errno.EACCES, ""),
    (("DEADLINE_EXCEEDED", "UNAVAILABLE", "CURL error", "ABORTED"), errno.EIO, "the bucket cannot be reached"),
)


def in_bucket(path: str | os.PathLike) -> bool:
    """Returns whether `path` is an address of an object or a folder in a bucket."""
    return _ADDRESS.fullmatch(os.fspath(path)) is not None


def check_access(path: str, where: str) -> None:
    """Raises ConfigError, after one request, if the bucket of `path` does not exist or gives this user no access.

    where: the flag or config field with its value, for the message.
    """
    scheme, bucket, _ = _split(path)
    try:
        _probe(scheme, bucket)
    except OSError as error:
        raise _no_access(path, where, error) from error


def check_writable(folder: str, where: str) -> None:
    """Raises ConfigError, after three requests, if this user cannot write in `folder`, or the bucket does not exist."""
    check_access(folder, where)
    scheme, bucket, key = _split(folder)
    store, name = _connect(scheme, bucket, _FEW_RETRIES), f"{key}/{_PROBE}.{uuid.uuid4().hex}"
    try:
        for contents in (b"", None):
            _result(folder, store.write(name.lstrip("/"), contents), timeout=_ACCESS_SECONDS)
    except OSError as error:
        raise _no_access(folder, where, error) from error


def read(path: str) -> bytes:
    """Returns the contents of an object. Raises FileNotFoundError if it does not exist."""
    contents, _ = read_version(path)
    if contents is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return contents


def read_version(path: str, *, unless: bytes | None = None) -> tuple[bytes | None, bytes]:
    """Returns the contents of an object, None if it does not exist, and its version, which `write` takes.

    unless: a version. The contents are not transferred, and are None, if the object still has this version.
    """
    scheme, bucket, key = _split(path)
    found = _result(path, _open(scheme, bucket).read(key, if_not_equal=unless))
    if found.state == "unspecified" and unless is not None:
        return None, unless
    return (bytes(found.value) if found.state == "value" else None), found.stamp.generation


def write(path: str, contents: bytes | None, *, version: bytes | None = None) -> bytes | None:
    """Writes an object, or deletes the object for contents None, and returns its new version.

    version: of `read_version`. Without effect, and returns None, if the object has another version by now.
    """
    scheme, bucket, key = _split(path)
    stamp = _result(path, _open(scheme, bucket).write(key, contents, if_equal=version))
    return stamp.generation or None


def keys(folder: str) -> list[str]:
    """Returns the addresses of all objects in `folder`, at any depth, sorted."""
    scheme, bucket, key = _split(folder)
    prefix = f"{key}/" if key else ""
    store = _open(scheme, bucket)
    found = _result(folder, store.list(_beginning_with(prefix)))
    if not found and scheme == "gs":  # TensorStore has an empty list also for an answer such as "403 Forbidden"
        _result(folder, store.read(_PROBE))
    return sorted(f"{scheme}://{bucket}/{name.decode('utf-8')}" for name in found if not name.endswith(b"/"))


def exists(path: str) -> bool:
    """Returns whether `path` is the address of an object."""
    scheme, bucket, key = _split(path)
    store = _open(scheme, bucket)
    if not key or _result(path, store.list(_exact(key))):
        return bool(key)
    if scheme == "gs":  # as in `keys`
        _result(path, store.read(_PROBE))
    return False


def remove_all(folder: str) -> None:
    """Deletes all objects in `folder`."""
    scheme, bucket, key = _split(folder)
    _result(folder, _open(scheme, bucket).delete_range(_beginning_with(f"{key}/")))


def driver(path: str) -> dict[str, Any]:
    """Returns TensorStore's specification of the key-value store whose keys begin with `path`."""
    scheme, bucket, key = _split(path)
    return _driver(scheme, bucket) | {"path": key}


def normalized(path: str) -> str:
    """Returns an address without doubled and trailing slashes in its key."""
    scheme, bucket, key = _split(path)
    return f"{scheme}://{bucket}{'/' if key else ''}{key}"


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    """Removes the lines of TensorStore's log from what is written to standard error within this context.

    The first request of a process looks for credentials, and logs each place that has none.
    """
    sys.stderr.flush()
    before = os.dup(2)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
            written.seek(0)
            for line in written:
                if not _LOG_LINE.match(line):
                    os.write(2, line)


def _no_access(path: str, where: str, error: OSError) -> ConfigError:
    scheme, bucket, _ = _split(path)
    remedy = _LOGIN[scheme] if error.errno == errno.EACCES else "correct the address, or check the network"
    return ConfigError(f"{where}: {scheme}://{bucket}: {error.strerror}: {remedy}")


def dots_in(address: str) -> str | None:
    """Returns the first component of an address of a bucket that is "." or "..", None if there is none."""
    return next((part for part in address.split("/")[2:] if part in (".", "..")), None)


def _split(path: str | os.PathLike) -> tuple[str, str, str]:
    """Returns scheme, bucket and key of an address. Raises OSError for an address with a component "." or ".."."""
    match = _ADDRESS.fullmatch(os.fspath(path))
    assert match is not None, path
    if dots_in(match[0]):
        # In S3's requests curl resolves these components, and another object would be read, written or deleted.
        raise OSError(errno.EINVAL, 'an address in a bucket has no components "." and ".."', match[0])
    return match[1], match[2], "/".join(part for part in (match[3] or "").split("/") if part)


def _driver(scheme: str, bucket: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"driver": SCHEMES[scheme], "bucket": bucket}
    if scheme == "s3":
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if endpoint:  # the region is a part of signatures; stores other than Amazon's accept this one
            spec |= {"endpoint": endpoint, "aws_region": region or "us-east-1"}
        elif region:
            spec["aws_region"] = region
        if "AWS_ACCESS_KEY_ID" in os.environ:  # otherwise a line on standard error for each file that does not exist
            spec["aws_credentials"] = {"type": "environment"}
    return spec


@functools.cache
def _open(scheme: str, bucket: str) -> Any:
    """Returns TensorStore's key-value store of a bucket, which has answered. Raises OSError if it does not, soon."""
    _probe(scheme, bucket)
    return _connect(scheme, bucket, _RETRIES)


def _probe(scheme: str, bucket: str) -> None:
    """Makes one request. Raises OSError if the bucket does not exist or gives this user no access."""
    address = f"{scheme}://{bucket}"
    with _without_logs():
        store = _connect(scheme, bucket, _FEW_RETRIES)
        # Google Cloud Storage has one answer for a missing object and a missing bucket, and TensorStore none for the
        # list of a missing bucket: `check_writable` notices it.
        future = store.list(_exact(_PROBE)) if scheme == "s3" else store.read(_PROBE)
        _result(address, future, timeout=_ACCESS_SECONDS)


def _connect(scheme: str, bucket: str, retries: int) -> Any:
    import tensorstore  # takes a tenth of a second, and most runs have no bucket

    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", str(_STALLED_SECONDS))
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")
    wait = {"max_retries": retries, "initial_delay": "500ms", "max_delay": "16s"}
    context = tensorstore.Context({"gcs_request_retries": wait, "s3_request_retries": wait})
    try:
        future = tensorstore.KvStore.open(_driver(scheme, bucket), context=context)
    except ValueError as error:  # of a name that no bucket can have
        raise _os_error(f"{scheme}://{bucket}", error) from error
    return _result(f"{scheme}://{bucket}", future)


def _exact(key: str) -> Any:
    import tensorstore

    return tensorstore.KvStore.KeyRange(key, key + "\0")


def _beginning_with(prefix: str) -> Any:
    import tensorstore

    end = prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else ""
    return tensorstore.KvStore.KeyRange(prefix, end)


def _result(path: str | os.PathLike, future: Any, *, timeout: float | None = None) -> Any:
    try:
        return future.result(timeout=timeout)
    except TimeoutError as error:
        raise OSError(errno.EIO, f"the bucket has not answered within {timeout:.0f} s", os.fspath(path)) from error
    except (ValueError, NotImplementedError, RuntimeError) as error:
        raise _os_error(path, error) from error


def _os_error(path: str | os.PathLike, error: Exception) -> OSError:
    """Returns the OSError for an error of TensorStore, whose message has the status, the answer and source lines."""
    text = " ".join(str(error).split())
    matching = (row[1:] for row in _REASONS if any(word in text for word in row[0]))
    number, reason = next(matching, (errno.EIO, ""))
    if number == errno.EACCES:
        reason = "this user has no access to the bucket"
    detail = text.partition(" [")[0][:160]
    return OSError(number, f"{reason} ({detail})" if reason else detail, os.fspath(path))
