"""The error that reports invalid configuration or input."""


class ConfigError(ValueError):
    """Invalid configuration or input, reported in one line without a traceback.

    The message says what is wrong, where (the config field or flag with its value), and what to do about it. Commands
    print the message to standard error and exit with status 1. In a notebook IPython prints `_render_traceback_`.
    """

    def _render_traceback_(self) -> list[str]:
        return [f"ConfigError: {self}"]
