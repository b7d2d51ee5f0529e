"""The end of a program: what it prints to standard error, and its exit status, for each kind of error and signal.

| end | status |
|---|---|
| `main` returns | 0 |
| ConfigError, an error of the operating system, too little memory | 1, after one line |
| the reader of the output has ended, as in `| head -1` | 141 |
| Ctrl-C | 130, after one line |
| SIGTERM, Stopped | 143, after one line |

Other exceptions are errors in the program, and propagate.
"""

import contextlib
import multiprocessing
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from contract.errors import ConfigError, Stopped, Terminated, one_line, text_of
from files.paths import describe_os_error

_EXIT_SECONDS = 3.0
# What XLA, TensorStore, the C++ library and the dynamic loader write where memory is short; NumPy raises MemoryError.
_TOO_LITTLE_MEMORY = (
    "RESOURCE_EXHAUSTED",
    "ut of memory",
    "bad_alloc",
    "annot allocate memory",
    "failed to map segment",
)


def run_program(main: Callable[[], None], *, memory_remedy: str = "") -> None:
    """Runs `main`, and exits as the table above says.

    SIGTERM raises an exception, as Ctrl-C does, so that temporary files are removed. Code that installs handlers of its
    own, as the training loop does, decides what the signals do. Characters that the terminal cannot show are escaped in
    the output, as in "\\xe9". Only for the main thread.

    memory_remedy: what to change in this command's flags or config where memory is too small.
    """
    # Python has None for a stream that is closed, as by `>&-`.
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # notebooks and tests replace the streams
            stream.reconfigure(errors="backslashreplace")
    before = signal.getsignal(signal.SIGTERM)
    if before != signal.SIG_IGN:  # an ignored signal stays ignored, as Python leaves an ignored SIGINT
        signal.signal(signal.SIGTERM, _terminate)
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_has_ended():
            raise  # a connection of the program to something else
        # The interpreter flushes the stream when it exits, and would report the same error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except BaseException as error:
        message, status = _describe_end(error, memory_remedy)
        if message is None:  # SystemExit, or an error in the program
            _check_rich(error)
            raise
        _end(message, status)
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_rich(error: BaseException) -> None:
    """Ends the program if its reader has ended, where rich has seen this and would end the program with status 1."""
    if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):
        sys.exit(128 + signal.SIGPIPE)


def _describe_end(error: BaseException, memory_remedy: str) -> tuple[str | None, int]:
    """Returns the line with which an error ends the program, and the status; (None, 1) if it propagates."""
    if isinstance(error, KeyboardInterrupt):
        return "stopped by Ctrl-C", 128 + signal.SIGINT
    if isinstance(error, Terminated):
        return "stopped by SIGTERM", 128 + signal.SIGTERM
    if isinstance(error, ConfigError):
        return str(error), 128 + signal.SIGTERM if isinstance(error, Stopped) else 1
    if isinstance(error, OSError):
        message = describe_os_error(error)
        if message and error.filename is None:  # of a file that is open, which Python does not name
            message = f"standard output or an open file failed: {message}"
        return message, 1
    if not isinstance(error, Exception | SystemExit | GeneratorExit):  # of a native library, such as a panic of Rust
        return one_line(error), 1
    message = describe_out_of_memory(error)
    return (f"{message}. {memory_remedy}" if message and memory_remedy else message), 1


def describe_out_of_memory(error: BaseException) -> str | None:
    """Returns what was out of memory and which allocation failed, in one line; None for an error of another kind."""
    text = " ".join(text_of(error).split())
    if isinstance(error, MemoryError):
        return f"this machine has too little memory{f': {text}' if text else ''}".rstrip(".")
    # jax.errors.JaxRuntimeError is a RuntimeError, TensorStore's errors are ValueErrors; neither is imported here.
    # TensorStore calls a full disk RESOURCE_EXHAUSTED too, with the number of the system's error.
    is_memory = any(words in text for words in _TOO_LITTLE_MEMORY) and "os_error_code" not in text
    if not is_memory or not isinstance(error, RuntimeError | ValueError | ImportError):
        return None
    what = "this machine" if isinstance(error, ImportError) else "a device"
    detail = re.sub(r"^.*?RESOURCE_EXHAUSTED:?\s*", "", text)
    return f"{what} has too little memory: {detail[:300].rstrip('. ')}"


def visible(text: str) -> str:
    """Returns `text` for a terminal or a page: what does not print becomes a Python escape, such as \\x1b or \\u202e.

    Such characters move the cursor, change colors or turn the direction of writing. Line ends, tabs and spaces stay.
    """
    return "".join(c if c.isprintable() or c in "\n\t\xa0\u3000" else ascii(c)[1:-1] for c in text)


def print_note(text: str) -> None:
    """Prints "note: `text`" to standard error."""
    print(f"note: {visible(text)}", file=sys.stderr, flush=True)


def plural(count: int, noun: str) -> str:
    """Returns "1 span", "2 spans" or "1,000 spans" for the noun "span"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def end_with_parent() -> None:
    """Ends this process, if it is a child by multiprocessing, when its parent ends, also where the parent is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


def _terminate(*_) -> None:
    raise Terminated


def _end(message: str, status: int) -> NoReturn:
    """Prints "error: `message`" to standard error, after standard output's buffer, and exits with `status`.

    Line ends and characters that do not print are escaped in the message.
    """
    message = visible(message).replace("\n", "\\n")
    for stream, text in ((sys.stdout, ""), (sys.stderr, f"error: {message}\n")):
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError):  # no file, a closed one, or a full disk, which the exit would report again
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    _limit_exit(status)
    sys.exit(status)


def _reader_has_ended() -> bool:
    """Returns whether standard output is a pipe that is not read any more."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _limit_exit(status: int) -> None:
    """Ends the program with `status` if the interpreter waits more than `_EXIT_SECONDS` for threads at its exit.

    After an error, threads of libraries may wait for what the main thread will not do any more. In a program that goes
    on, such as a notebook, nothing happens.
    """

    def watch() -> None:
        threading.main_thread().join()  # returns when the interpreter begins to wait for the other threads
        time.sleep(_EXIT_SECONDS)
        os._exit(status)

    threading.Thread(target=watch, daemon=True, name="exit").start()
