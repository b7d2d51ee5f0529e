"""What an error of the operating system, or of too little memory, is in one line."""

import errno
import os
import re

_REMEDIES = {
    errno.ENOENT: "name a file in an existing folder",
    errno.ENOTDIR: "name a file in an existing folder",
    errno.EISDIR: "name a file, not a folder",
    errno.ENOSPC: "free space on that disk, or choose a folder on another one",
    errno.EDQUOT: "delete files, or choose a folder with another quota",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f), or choose a folder on another disk",
    errno.EROFS: "choose a folder that can be written",
    errno.EACCES: "change the permissions, or choose another folder",
    errno.EPERM: "change the permissions, or choose another folder",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close programs that have many files open",
    errno.EIO: "check the disk, or the network to it",
    errno.ESTALE: "check the network file system, then run the command again",
    errno.ENOMEM: "run the command on a machine with more memory",
}
# What XLA, TensorStore and the C++ library write where memory is short; NumPy raises MemoryError.
_TOO_LITTLE_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory", "bad_alloc", "Cannot allocate memory")
# What the dynamic loader writes, within an ImportError.
_LIBRARY_MEMORY = ("failed to map segment", "annot allocate memory")


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


def describe_out_of_memory(error: Exception) -> str | None:
    """Returns what was out of memory and which allocation failed, in one line; None for an error of another kind."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError):
        return f"this machine has too little memory{f': {text}' if text else ''}".rstrip(".")
    if isinstance(error, ImportError) and any(words in text for words in _LIBRARY_MEMORY):
        return f"this machine has too little memory: {text}".rstrip(".")
    # jax.errors.JaxRuntimeError is a RuntimeError, TensorStore's errors are ValueErrors; neither is imported here.
    if not isinstance(error, RuntimeError | ValueError) or not any(words in text for words in _TOO_LITTLE_MEMORY):
        return None
    if "os_error_code" in text:  # TensorStore calls a full disk RESOURCE_EXHAUSTED too
        return None
    detail = re.sub(r"^.*?RESOURCE_EXHAUSTED:?\s*", "", text)
    return f"a device has too little memory: {detail[:300].rstrip('. ')}"
