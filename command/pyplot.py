"""matplotlib's pyplot, which the extra `plot` installs."""

from typing import Any

from contract.errors import ConfigError

# Okabe and Ito (2008), which colour-blind readers distinguish, without yellow, which is too light for lines on white.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")


def import_pyplot(command: str) -> Any:
    """Returns matplotlib.pyplot, which draws into files and opens no windows. command: for the message.

    Raises ConfigError if matplotlib is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot
    except ImportError:
        raise ConfigError(f"{command} needs matplotlib: pip install -e '.[plot]'") from None
    return pyplot
