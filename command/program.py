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
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, Self, TextIO

from contract.errors import ConfigError
from files.mapped_files import end_at_truncated_files
from files.os_errors import describe_os_error, describe_out_of_memory

_UNWIND_SECONDS, _SAME_SIGNAL_SECONDS, _EXIT_SECONDS = 5.0, 1.0, 3.0
_EXIT_THREAD = "exit"
_STOPPED: dict[int, str] = {signal.SIGINT: "stopped by Ctrl-C", signal.SIGTERM: "stopped by SIGTERM"}


class Terminated(BaseException):
    """SIGTERM within `run_program`. No Exception, which libraries may catch."""


def run_program(main: Callable[[], None], *, memory_remedy: str = "") -> None:
    """Runs `main`, and exits as the table above says.

    Characters that the terminal cannot show are escaped in the output, as in "\\xe9". Only for the main thread.

    memory_remedy: what to change in this command's flags or config where memory is too small.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed, as by >&-
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):  # notebooks and tests replace the streams
            stream.reconfigure(errors="backslashreplace")
    end_at_truncated_files()
    try:
        with _Signals():
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
        _discard(sys.stdout, sys.stderr)
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

    def hook(error_type: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(error_type, KeyboardInterrupt):
            _print_error(_STOPPED[signal.SIGINT])
        else:
            before(error_type, error, trace)

    sys.excepthook = hook


def fail(message: str) -> NoReturn:
    """Prints "error: `message`" to standard error and exits with status 1. Line ends in the message are escaped."""
    _end(message.replace("\r", "\\r").replace("\n", "\\n"), 1)


def _end(message: str, status: int) -> NoReturn:
    """Prints "error: `message`" to standard error and exits with `status`."""
    _print_error(message)
    _limit_exit(status)
    sys.exit(status)


def _print_error(message: str) -> None:
    """Prints a line to standard error, after what is in the buffer of standard output, as far as these can be written.

    The interpreter writes what is left in the buffers when it exits, and would report the same error again.
    """
    for stream, text in ((sys.stdout, ""), (sys.stderr, f"error: {message}\n")):
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError):
            _discard(stream)


def _limit_exit(status: int) -> None:
    """Ends the program with `status` if the interpreter waits more than `_EXIT_SECONDS` for threads at its exit.

    After an error, threads of libraries may wait for what the main thread will not do any more: those of Orbax wait
    for minutes for the folder of a checkpoint that could not be made. In a program that goes on, such as a notebook,
    nothing happens.
    """

    def watch() -> None:
        threading.main_thread().join()  # returns when the interpreter begins to wait for the other threads
        time.sleep(_EXIT_SECONDS)
        os._exit(status)

    if not any(thread.name == _EXIT_THREAD for thread in threading.enumerate()):
        threading.Thread(target=watch, daemon=True, name=_EXIT_THREAD).start()


def _discard(*streams: TextIO) -> None:
    """Makes the open streams write to nowhere, as the interpreter flushes them when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        with contextlib.suppress(OSError, ValueError):  # no file, or a closed one
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _reader_has_ended() -> bool:
    """Returns whether standard output or standard error is a pipe that is not read any more."""
    poll = select.poll()
    for stream in (sys.stdout, sys.stderr):
        poll.register(stream.fileno(), select.POLLOUT)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


class _Signals:
    """Within this context, SIGTERM raises Terminated, as Ctrl-C raises KeyboardInterrupt, so that temporary files go.

    A program that has not ended `_UNWIND_SECONDS` after the signal, or at the next signal, ends at once: compilers and
    collectives run in C++, where no Python handler runs. Code that installs handlers of its own in the block, as the
    training loop does, decides what the signals do. Only the main thread can have handlers; in another one, the
    context does nothing.
    """

    def __init__(self) -> None:
        self._handled: dict[int, Any] = {}  # number -> the handler before

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as in the background of a shell, and under nohup
                self._handled[number] = signal.signal(number, self._handle)
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        # C code writes the number of each signal to the pipe at once, whatever the main thread does.
        self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, daemon=True, name="signals").start()
        return self

    def __exit__(self, *_) -> None:
        if not hasattr(self, "_writer"):
            return
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._handled.items():
            signal.signal(number, handler)
        os.close(self._writer)  # ends the thread

    def _handle(self, number: int, _) -> None:
        for other in self._handled:
            signal.signal(other, self._ignore)  # blocks that clean up are not interrupted
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    def _ignore(self, *_) -> None:
        """Handles the signals after the first one. With signal.SIG_IGN, the thread would not receive them."""

    def _watch(self) -> None:
        number = 0
        while not number:
            received = os.read(self._reader, 1)
            if not received:
                os.close(self._reader)
                return
            if signal.getsignal(received[0]) in (self._handle, self._ignore):
                number = received[0]
        began = time.monotonic()
        while (left := began + _UNWIND_SECONDS - time.monotonic()) > 0:
            if not select.select([self._reader], [], [], left)[0]:
                break
            if not os.read(self._reader, 1):
                os.close(self._reader)
                return
            # A scheduler may signal a process and its parent, which forwards the signal: two signals, one request.
            if time.monotonic() - began > _SAME_SIGNAL_SECONDS:
                break
        _print_error(_STOPPED[number])
        os._exit(128 + number)
