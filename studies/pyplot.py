"""matplotlib's pyplot, which the extra `plot` installs, and figures as SVG text."""

import io
import os
import re
from typing import Any, BinaryIO

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


def save_figure(figure: Any, file: BinaryIO, path: str) -> None:
    """Writes the figure to an open file, in the format of the suffix of `path`, equal for equal figures."""
    suffix = os.path.splitext(path)[1].removeprefix(".")
    figure.savefig(file, format=suffix, metadata={"Date": None} if suffix == "svg" else None)


def to_svg(figure: Any, name: str) -> str:
    """Returns the figure as an SVG element without the XML header, equal for equal figures.

    name: of the figure. Every id begins with the name, so that several figures can be in one HTML page.
    """
    from matplotlib import rc_context

    file = io.StringIO()
    no_metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with rc_context({"svg.hashsalt": "cloze"}):
        figure.savefig(file, format="svg", metadata=no_metadata)
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}_", svg)
