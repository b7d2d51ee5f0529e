"""The error that reports invalid input, the exceptions that end a program, and the texts of foreign exceptions."""

import contextlib
from collections.abc import Iterator


class ConfigError(ValueError):
    """Invalid configuration or input, reported in one line without a traceback.

    The message says what is wrong, where (the config field or flag with its value), and what to do about it. Commands
    print the message to standard error and exit with status 1. A notebook shows it without a traceback too.
    """

    def _render_traceback_(self) -> list[str]:  # IPython shows these lines in place of a traceback
        return [f"ConfigError: {self}"]


@contextlib.contextmanager
def errors_naming(where: str) -> Iterator[None]:
    """Within this context, the message of a ConfigError begins with `where`."""
    try:
        yield
    except ConfigError as error:
        message = str(error)
        raise ConfigError(message if message.startswith(where) else f"{where}: {message}") from error


class Stopped(ConfigError):
    """A signal has stopped a command that saved its work: its exit status is that of SIGTERM, for schedulers."""


class Terminated(BaseException):
    """SIGTERM within `command.program.run_program`. Not an Exception, because libraries may catch these."""


# What foreign code, such as a library, a tracker or a config file, must not keep from ending the program. Whatever else
# it raises is its failure: panics of Rust code and sys.exit() are no Exceptions either.
STOPS = (KeyboardInterrupt, Terminated)


def text_of(error: BaseException) -> str:
    """Returns str(error), also for the exception of foreign code whose `__str__` raises."""
    try:
        return str(error)
    except STOPS:
        raise
    except BaseException as failure:
        return f"(its text cannot be read: {type(failure).__name__})"


def one_line(error: BaseException) -> str:
    """Returns the type and the text of an exception in one line."""
    return " ".join([f"{type(error).__name__}:", *text_of(error).split()]).removesuffix(":")


@contextlib.contextmanager
def programs_of_users(fault: str) -> Iterator[None]:
    """Within this context, what a program of a user raises, but STOPS, is a ConfigError of `fault` and its text."""
    try:
        yield
    except STOPS:
        raise
    except BaseException as error:  # a program can raise anything
        raise ConfigError(f"{fault}: {one_line(error)}") from error
