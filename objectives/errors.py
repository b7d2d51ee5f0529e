"""The one error that is the user's to mend."""


class ConfigError(ValueError):
    """A setting or an input that cannot work: one line that says what, where and what to do.

    Programs print the message without a traceback and exit with a status other than 0.
    """
