"""The documents that are eligible for a WindowSpec: those that fit a row whole, and have one of the spec's classes."""

from collections.abc import Callable, Sequence

import numpy as np

from contract.errors import ConfigError
from contract.windows import WindowSpec
from data.store.store import TokenStore
from data.windows.documents import Documents


def eligible(documents: Documents, spec: WindowSpec) -> tuple[Documents, list[str]]:
    """The documents that `spec` can use, in their order, and a sentence for each reason to exclude documents.

    Raises ConfigError where documents are excluded and spec.on_unusable is "error", where all are excluded, and where
    the spec needs prompts and no document has one.
    """
    reasons: list[str] = []
    if "labels" in spec.extra_columns:
        documents = _exclude(documents, classes_of(documents, spec) < 0, spec, reasons, _describe_other_labels)
    if "prompt_lengths" in spec.extra_columns:
        _check_prompts(documents, spec)
    if spec.documents == "whole":
        positions = [capacity.positions for capacity in spec.capacities]
        is_too_long = (sizes_of(documents, spec) > positions).any(axis=1)
        documents = _exclude(documents, is_too_long, spec, reasons, _describe_too_long)
    return documents, reasons


def _check_prompts(documents: Documents, spec: WindowSpec) -> None:
    if not documents.store.prompt_lengths.any():
        raise ConfigError(
            f"{spec.name!r} learns responses to prompts, and no document has a prompt: "
            "set data.source to 'jsonl', 'gym' or 'stdlib_functions'"
        )


def describe_excluded(documents: Documents, specs: Sequence[WindowSpec]) -> list[str]:
    """A sentence for each reason for which the specs exclude documents. Raises ConfigError as `eligible` does."""
    return list(dict.fromkeys(reason for spec in specs for reason in eligible(documents, spec)[1]))


def sizes_of(documents: Documents, spec: WindowSpec) -> np.ndarray:
    """int64 [n, C], at least 1: the positions that each document takes of each of the spec's C capacities."""
    prompt = documents.store.prompt_lengths[documents.index].astype(np.int64)
    response = documents.lengths(spec.eos) - prompt
    columns = [c.prompt * prompt + c.response * response + c.special for c in spec.capacities]
    # For an empty prompt the encoder reads one EOS.
    return np.maximum(np.stack(columns, axis=1), [c.least for c in spec.capacities])


def classes_of(documents: Documents, spec: WindowSpec) -> np.ndarray:
    """int32 [n]: the index of each document's label in spec.classes; -1 for other labels."""
    class_id = {name: k for k, name in enumerate(spec.classes)}
    of_label = np.array([class_id.get(label, -1) for label in documents.store.labels], np.int32)
    return of_label[documents.store.label_ids[documents.index]]


def check_classes(stores: Sequence[TokenStore], spec: WindowSpec) -> None:
    """Raises ConfigError for a class of `spec` that no document has. stores: of all corpora that its denoiser reads."""
    labels = {label: None for store in stores for label in store.labels if label}
    for name in spec.classes:
        if name not in labels:
            some = ", ".join(map(repr, list(labels)[:8])) + (", ..." if len(labels) > 8 else "")
            remedy = (
                f"use labels of the corpus: {some}" if labels else "set data.source to 'stdlib', or 'jsonl' with labels"
            )
            raise ConfigError(f"objective.classes contains {name!r}, and no document has that label: {remedy}")


def _exclude(
    documents: Documents,
    is_excluded: np.ndarray,
    spec: WindowSpec,
    reasons: list[str],
    describe: Callable[[Documents, WindowSpec], tuple[str, str]],
) -> Documents:
    """`documents` without those where `is_excluded`, bool [n], is True. Adds a sentence about these to `reasons`.

    describe: excluded documents -> what is wrong with them, and what to do about it.
    """
    count = int(np.count_nonzero(is_excluded))
    if not count:
        return documents
    problem, remedy = describe(documents.subset(is_excluded), spec)
    reason = f"{count:,} of {len(documents):,} {documents.label} documents {problem}"
    if spec.on_unusable == "error" or count == len(documents):
        skip = "" if count == len(documents) else ", or set data.on_unusable='skip' to exclude them"
        raise ConfigError(f"{reason}: {remedy}{skip}")
    reasons.append(reason)
    return documents.subset(~is_excluded)


def _describe_too_long(documents: Documents, spec: WindowSpec) -> tuple[str, str]:
    longest = sizes_of(documents, spec).max(axis=0).tolist()
    exceeded = [
        (size, capacity) for size, capacity in zip(longest, spec.capacities, strict=True) if size > capacity.positions
    ]
    needed = " and ".join(f"{size:,} positions of {capacity.field}={capacity.positions}" for size, capacity in exceeded)
    fields = " and ".join(f"{capacity.field}={size}" for size, capacity in exceeded)
    return f"are longer than a row (the longest needs {needed})", f"set {fields} or more"


def _describe_other_labels(documents: Documents, spec: WindowSpec) -> tuple[str, str]:
    labels = documents.store.labels
    counts = np.bincount(documents.store.label_ids[documents.index], minlength=len(labels))
    names = [repr(label) if label else "no label" for label in labels]
    most = [f"{names[k]}: {counts[k]:,}" for k in np.argsort(-counts, kind="stable")[:3] if counts[k]]
    return (
        f"have a label that is not in objective.classes (most frequent: {', '.join(most)})",
        "add the labels to objective.classes",
    )
