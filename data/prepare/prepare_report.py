"""A report of what data.prepare did: counts as JSON, and pictures of what filters removed and of documents' lengths."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contract.errors import ConfigError
from data.store.store import TokenStore

_FIELDS = (
    *("name", "num_documents", "num_tokens", "num_bytes", "skipped_empty", "skipped_files", "skipped_lines"),
    *("filters", "removed", "bytes_before_filters", "bytes_of_documents", "tokens_of_documents"),
)


def check_report(folder: str) -> None:
    """Raises ConfigError where `write_report` could not draw, or `folder` is a file."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError(f"--report={folder} needs Matplotlib: pip install -e '.[plot]'") from None
    if Path(folder).exists() and not Path(folder).is_dir():
        raise ConfigError(f"--report={folder} is a file: name a folder")


def write_report(store: TokenStore, folder: str) -> list[Path]:
    """Writes report.json, lengths.svg and removed.svg into `folder`, and returns their paths.

    report.json has these fields of the store's meta.json. Raises ConfigError where the folder cannot be written, and
    for a store of an earlier version, which has no counts.
    """
    if "bytes_before_filters" not in store.meta:
        raise ConfigError(
            f"token store {store.folder} is of an earlier version, without counts for --report: delete that folder"
        )
    meta = {name: store.meta[name] for name in _FIELDS}
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        paths = [target / name for name in ("report.json", "lengths.svg", "removed.svg")]
        paths[0].write_text(json.dumps(meta, indent=1), encoding="utf-8")
        _draw_lengths(meta, paths[1])
        _draw_removed(meta["removed"], paths[2])
    except OSError as error:
        raise ConfigError(f"--report={folder} cannot be written: {error.strerror or error}") from error
    return paths


def _draw_lengths(meta: Mapping[str, Any], path: Path) -> None:
    """Draws how many documents have each length: in bytes before and after the filters, and in tokens after them."""
    figure, (left, right) = _figure(2)
    before, after = (_by_length(meta[name]) for name in ("bytes_before_filters", "bytes_of_documents"))
    left.stairs(*before, label="before", color="tab:gray")
    left.stairs(*after, label="in the store", color="tab:blue", fill=True, alpha=0.6)
    left.legend()
    right.stairs(*_by_length(meta["tokens_of_documents"]), color="tab:blue", fill=True, alpha=0.6)
    for axes, unit in ((left, "bytes of text"), (right, "tokens, without EOS")):
        axes.set(xscale="log", xlabel=f"length in {unit}", ylabel="documents")
    figure.savefig(path)


def _draw_removed(removed: Mapping[str, Mapping[str, int]], path: Path) -> None:
    """Draws how many documents each filter removed."""
    figure, (axes,) = _figure(1)
    names = list(removed) or ["nothing"]
    counts = [removed[name]["documents"] for name in removed] or [0]
    bars = axes.barh(names, counts, color="tab:blue")
    axes.bar_label(bars, labels=[f"{count:,}" for count in counts], padding=3)
    axes.set(xlabel="documents removed", xmargin=0.2)
    axes.invert_yaxis()
    figure.savefig(path)


def _by_length(counts: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """Returns counts and the edges of their classes, which are powers of two."""
    exponents = [int(length).bit_length() - 1 for length in counts]
    if not exponents:
        return [0], [1, 2]
    classes = range(min(exponents), max(exponents) + 1)
    return [counts.get(str(1 << k), 0) for k in classes], [1 << k for k in [*classes, classes.stop]]


def _figure(num_axes: int) -> tuple[Any, Any]:
    """Returns a figure, which belongs to no window, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * num_axes, 3.2), layout="constrained")
    return figure, figure.subplots(1, num_axes, squeeze=False)[0]
