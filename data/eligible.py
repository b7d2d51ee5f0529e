"""Which documents a spec can use: those that fit a row whole, and are of one of its classes."""

import numpy as np

from contract.errors import ConfigError
from contract.windows import WindowSpec
from data.documents import Documents


def eligible(documents: Documents, spec: WindowSpec) -> tuple[Documents, list[str]]:
    """The documents that `spec` can use, in their order, and for people what is left out.

    Raises ConfigError where that is any and spec.on_unusable is "error", where nothing is left, and where the corpus
    has no prompts, or no document of a class, that the spec wants.
    """
    excluded = []
    if "labels" in spec.extra_columns:
        _check_classes(documents, spec)
        documents = _without(documents, classes_of(documents, spec) < 0, spec, excluded, _other_labels)
    if "prompt_lengths" in spec.extra_columns and not documents.store.prompt_lengths.any():
        raise ConfigError(
            f"{spec.name!r} learns responses to prompts, and no document has a prompt: "
            "set data.source to 'jsonl' or 'stdlib_functions'"
        )
    if spec.documents == "whole":
        too_long = (sizes_of(documents, spec) > [room.positions for room in spec.capacities]).any(axis=1)
        documents = _without(documents, too_long, spec, excluded, _too_long)
    return documents, excluded


def sizes_of(documents: Documents, spec: WindowSpec) -> np.ndarray:
    """int64 [D, rooms], at least 1: the positions that each document takes in each of the spec's rooms."""
    prompt = documents.store.prompt_lengths[documents.index].astype(np.int64)
    rest = np.diff(documents.ends(spec.eos), prepend=0) - prompt
    sizes = [room.prompt * prompt + room.rest * rest + room.added for room in spec.capacities]
    return np.maximum(np.stack(sizes, axis=1), 1)  # an encoder without a prompt reads one EOS


def classes_of(documents: Documents, spec: WindowSpec) -> np.ndarray:
    """int32 [D]: the class of each document among the spec's; -1 where it is none of them."""
    number = {name: k for k, name in enumerate(spec.classes)}
    of_label = np.array([number.get(label, -1) for label in documents.store.labels], np.int32)
    return of_label[documents.store.label_ids[documents.index]]


def _check_classes(documents: Documents, spec: WindowSpec) -> None:
    there = {name: None for name in documents.store.labels if name}
    for name in spec.classes:
        if name not in there:
            some = ", ".join(map(repr, list(there)[:8])) + (", ..." if len(there) > 8 else "")
            instead = f"use some of {some}" if there else "set data.source to 'stdlib', or 'jsonl' with labels"
            raise ConfigError(f"objective.classes names {name!r}, and no document has that label: {instead}")


def _without(documents: Documents, is_out: np.ndarray, spec: WindowSpec, excluded: list[str], describe) -> Documents:
    if not is_out.any():
        return documents
    what, remedy = describe(documents.subset(is_out), spec)
    what = f"{is_out.sum():,} of {len(documents):,} {documents.label} documents {what}"
    if spec.on_unusable == "error" or is_out.all():
        skip = "" if is_out.all() else ", or data.on_unusable='skip' to leave them out"
        raise ConfigError(f"{what}: {remedy}{skip}")
    excluded.append(what)
    return documents.subset(~is_out)


def _too_long(documents: Documents, spec: WindowSpec) -> tuple[str, str]:
    longest = sizes_of(documents, spec).max(axis=0).tolist()
    over = [(size, room) for size, room in zip(longest, spec.capacities, strict=True) if size > room.positions]
    have = " and ".join(f"{size:,} positions of {room.field}={room.positions}" for size, room in over)
    instead = " and ".join(f"{room.field}={size}" for size, room in over)
    return f"are too long to stand whole in a row (the longest takes {have})", f"set {instead} or more"


def _other_labels(documents: Documents, spec: WindowSpec) -> tuple[str, str]:
    labels = documents.store.labels
    counts = np.bincount(documents.store.label_ids[documents.index], minlength=len(labels))
    names = [repr(label) if label else "none at all" for label in labels]
    most = [f"{names[k]} {counts[k]:,}" for k in np.argsort(-counts, kind="stable")[:3] if counts[k]]
    return f"have a label that is none of objective.classes (mostly: {', '.join(most)})", "add their labels there"
