"""The end of a program: what it prints to standard error, and its exit status, for each kind of error and signal.

| end | status |
|---|---|
| `main` returns | 0 |
| ConfigError, an error of the operating system, too little memory | 1, after one line |
| the reader of the output has ended, as in `| head -1` | 141 |
| Ctrl-C | 130, after one line |
| SIGTERM | 143, after one line |

Other exceptions are errors in the program, and propagate.
"""

import contextlib
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

from contract.errors import ConfigError
from files.paths import describe_os_error

_UNWIND_SECONDS, _EXIT_SECONDS = 5.0, 3.0
_STOPPED: dict[int, str] = {signal.SIGINT: "stopped by Ctrl-C", signal.SIGTERM: "stopped by SIGTERM"}
# What XLA, TensorStore, the C++ library and the dynamic loader write where memory is short; NumPy raises MemoryError.
_TOO_LITTLE_MEMORY = (
    "RESOURCE_EXHAUSTED",
    "ut of memory",
    "bad_alloc",
    "annot allocate memory",
    "failed to map segment",
)


class Terminated(BaseException):
    """SIGTERM within `run_program`. No Exception, which libraries may catch."""


def run_program(main: Callable[[], None], *, memory_remedy: str = "") -> None:
    """Runs `main`, and exits as the table above says.

    Characters that the terminal cannot show are escaped in the output, as in "\\xe9". Only for the main thread.

    memory_remedy: what to change in this command's flags or config where memory is too small.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by >&-
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif hasattr(getattr(sys, name), "reconfigure"):  # notebooks and tests replace the streams
            getattr(sys, name).reconfigure(errors="backslashreplace")
    try:
        with _terminated_by_signals():
            try:
                main()
            except SystemExit:  # --help
                sys.stdout.flush()
                raise
            sys.stdout.flush()
    except ConfigError as error:
        fail(str(error))
    except BrokenPipeError:
        if not _reader_has_ended():
            raise
        # The interpreter flushes both streams when it exits, and would report the same error again.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # no file, or a closed one
                os.dup2(nowhere, stream.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except KeyboardInterrupt:
        _end(_STOPPED[signal.SIGINT], 128 + signal.SIGINT)
    except Terminated:
        _end(_STOPPED[signal.SIGTERM], 128 + signal.SIGTERM)
    except OSError as error:
        message = describe_os_error(error)
        if message is None:
            raise
        if error.filename is None:  # of a file that is open, which Python does not name
            message = f"standard output or an open file failed: {message}"
        fail(message)
    except Exception as error:
        message = describe_out_of_memory(error)
        if message is None:
            raise
        fail(f"{message}. {memory_remedy}" if memory_remedy else message)


def quiet_while_importing() -> None:
    """Makes Ctrl-C print one line while `python -m` imports the modules of a command, which takes seconds.

    For the __init__.py of a package with commands. Does nothing in other programs that import the package.
    """
    if sys.argv[:1] != ["-m"]:  # sys.argv[0] is "-m" while Python looks for the module
        return
    before = sys.excepthook

    def hook(error_type, error, trace) -> None:
        if issubclass(error_type, KeyboardInterrupt):
            _print_error(_STOPPED[signal.SIGINT])
        else:
            before(error_type, error, trace)

    sys.excepthook = hook


def describe_out_of_memory(error: Exception) -> str | None:
    """Returns what was out of memory and which allocation failed, in one line; None for an error of another kind."""
    text = " ".join(str(error).split())
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


def fail(message: str) -> NoReturn:
    """Prints "error: `message`" to standard error and exits with status 1. Line ends in the message are escaped."""
    _end(message.replace("\r", "\\r").replace("\n", "\\n"), 1)


def plural(count: int, noun: str) -> str:
    """Returns "1 span", "2 spans" or "1,000 spans" for the noun "span"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _end(message: str, status: int) -> NoReturn:
    """Prints "error: `message`" to standard error and exits with `status`."""
    _print_error(message)
    _limit_exit(status)
    sys.exit(status)


def _print_error(message: str) -> None:
    """Prints a line to standard error, after what is in the buffer of standard output, as far as possible."""
    for stream, text in ((sys.stdout, ""), (sys.stderr, f"error: {message}\n")):
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


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


def _reader_has_ended() -> bool:
    """Returns whether standard output or standard error is a pipe that is not read any more."""
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        poll.register(stream.fileno(), select.POLLOUT)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


@contextlib.contextmanager
def _terminated_by_signals() -> Iterator[None]:
    """Within this context SIGTERM raises Terminated, as Ctrl-C raises KeyboardInterrupt, so that temporary files go.

    A program that has not ended `_UNWIND_SECONDS` after the signal ends then: compilers and collectives run in C++,
    where no Python handler runs. Code that installs handlers of its own, as the training loop does, decides what the
    signals do. Only the main thread can have handlers; in another one, the context does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # An ignored signal stays ignored, as in the background of a shell, and under nohup.
    handled = [number for number in _STOPPED if signal.getsignal(number) is not signal.SIG_IGN]
    reader, writer = os.pipe()  # C code writes the number of each signal to it, whatever the main thread does
    os.set_blocking(writer, False)

    def ignore(*_) -> None:
        """Handles signals while the program cleans up."""

    def handle(number: int, _) -> None:
        for other in handled:
            signal.signal(other, ignore)
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    def watch() -> None:
        while received := os.read(reader, 1):  # empty at the end of the context
            if signal.getsignal(received[0]) in (handle, ignore):
                if select.select([reader], [], [], _UNWIND_SECONDS)[0] and not os.read(reader, 1):
                    break
                _print_error(_STOPPED[received[0]])
                os._exit(128 + received[0])
        os.close(reader)

    before = {number: signal.signal(number, handle) for number in handled}
    wakeup_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=watch, daemon=True, name="signals").start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writer)
