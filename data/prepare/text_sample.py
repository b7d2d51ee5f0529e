"""Random documents of both sides of the split of a corpus as text, before a tokenizer exists."""

import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from contract.errors import ConfigError
from contract.rng import mix64, seed_bits
from data.sources import Source
from data.sources.files import text_digest
from data.sources.filters import DocumentFilters, FilterConfig
from data.sources.source import RawDocument, Skipped
from data.windows.split import Split, is_heldout, unit_digests, unit_of


class TextSample(NamedTuple):
    """Random documents of one side of a split."""

    texts: list[str]  # prompts and texts, in the order of the source
    num_documents: int  # that `texts` is from
    num_bytes: int  # of `texts` in UTF-8
    is_whole: bool  # whether these are all documents of that side


class Limits(NamedTuple):
    """How large a sample is: random documents are added until it has one of these.

    The document that reaches `max_bytes` is whole.
    """

    max_bytes: int
    num_documents: int


def draw_samples(
    source: Source,
    split: Split,
    filters: FilterConfig,
    *,
    seed: int,
    train: Limits,
    heldout: Limits,
    has_heldout_text: bool,
) -> tuple[TextSample, TextSample]:
    """Returns samples of the documents that a run trains on, and of those that it holds out.

    The samples depend on the corpus, the filters, the split and the seed alone. Reads the corpus twice: once to choose
    documents, for which it holds 25 bytes of each, and once for the text of those that are chosen.

    split: as in a run's config. filters: as well, with those off that do not measure text: min_tokens, max_tokens and
    remove_duplicates. seed: any int. has_heldout_text: whether the source has held-out text of its own
    (data.heldout_path), which is then what is held out, and `split` is not read.

    Raises ConfigError as `split_documents` does, for a source that cannot be read, and for a side without text.
    """
    skipped = Skipped()
    documents = _columns(_kept(source, filters, skipped), source.cut)
    is_held, num_bytes = documents.is_heldout, documents.num_bytes
    if len(is_held) and not has_heldout_text:
        unit = unit_of(documents, split)
        is_held = is_heldout(unit_digests(documents, unit), unit, split)
    numbers = np.arange(len(is_held), dtype=np.uint64)
    order = np.argsort(mix64(mix64(numbers ^ np.uint64(seed_bits(seed, "tokenizer")))))
    chosen = []
    for limits, side, purpose in ((train, ~is_held, "to train a tokenizer on"), (heldout, is_held, "to hold out")):
        if not side.any():
            raise ConfigError(
                f"{source.where} contains no document with text {purpose} that data.filters leaves ({skipped}): "
                "name another corpus, or change the filters"
            )
        in_order = order[side[order]]
        enough = np.searchsorted(np.cumsum(num_bytes[in_order]), limits.max_bytes) + 1
        chosen.append(np.sort(in_order[: min(enough, limits.num_documents)]))
    wanted, texts = set(np.concatenate(chosen).tolist()), {}
    for number, document in enumerate(_kept(source, filters, Skipped())):
        if number in wanted:
            texts[number] = [text for text in (document.prompt, document.text) if text]
    train_sample, heldout_sample = (
        TextSample(
            [text for number in numbers.tolist() for text in texts[number]],
            len(numbers),
            int(num_bytes[numbers].sum()),
            len(numbers) == np.count_nonzero(is_held == held),
        )
        for held, numbers in enumerate(chosen)
    )
    return train_sample, heldout_sample


def _kept(source: Source, filters: FilterConfig, skipped: Skipped) -> Iterator[RawDocument]:
    """Yields the documents that no filter removes."""
    measured = DocumentFilters(filters)
    return (document for document in source.documents(skipped) if not measured.removed_by_text(document))


def _columns(documents: Iterator[RawDocument], cut: str) -> Any:
    """Returns the columns that a TokenStore of `documents` would have and that a split reads, and their sizes."""
    rows, labels = [], []
    for document in documents:
        prompt, text = document.prompt.encode("utf-8"), document.text.encode("utf-8")
        rows.append((len(prompt) + len(text), document.file_digest, text_digest(prompt or text), document.is_heldout))
        labels.append(document.label)
    names = ("num_bytes", "file_digests", "digests", "is_heldout")
    columns = np.array(rows, list(zip(names, (np.int64, np.uint64, np.uint64, bool), strict=True)))
    fields = {name: columns[name] for name in names} | {"labels": labels, "label_ids": np.arange(len(rows))}
    return types.SimpleNamespace(**fields, meta={"cut": cut})
