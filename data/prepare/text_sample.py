"""Random documents of both sides of the split of a corpus as text, before a tokenizer exists."""

import dataclasses

import numpy as np

from contract.errors import ConfigError
from contract.rng import mix64, seed_bits
from data.sources import Source
from data.sources.files import text_digest
from data.sources.filters import DocumentFilters, FilterConfig
from data.sources.source import Skipped
from data.windows.split import Split, is_heldout, label_digests, unit_of_texts

_DOCUMENT = np.dtype(
    [("num_bytes", np.int64), ("file_digest", np.uint64), ("digest", np.uint64), ("is_heldout", np.bool_)]
)


@dataclasses.dataclass(frozen=True)
class TextSample:
    """Random documents of one side of a split.

    Attributes:
      texts: prompts and texts, in the order of the source.
      num_documents: how many documents `texts` is from.
      num_bytes: of `texts` in UTF-8.
      is_whole: whether these are all documents of that side.
    """

    texts: list[str]
    num_documents: int
    num_bytes: int
    is_whole: bool


@dataclasses.dataclass(frozen=True)
class Limits:
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
    remove_duplicates. seed: any int. has_heldout_text: whether the source has data.heldout_path, which
    is then what is held out, and `split` is not read.

    Raises ConfigError as `split_documents` does, for a source that cannot be read, and for a side without text.
    """
    skipped = Skipped()
    documents, labels, num_removed = _first_pass(source, filters, skipped)
    if has_heldout_text or not len(documents):
        is_held = documents["is_heldout"]
    else:
        is_one_text = bool((documents["file_digest"] == documents["file_digest"][0]).all())
        unit = unit_of_texts(split, source.cut, is_one_text=is_one_text)
        digests = documents["file_digest" if unit == "file" else "digest"]
        is_held = is_heldout(label_digests(labels) if unit == "label" else digests, unit, split)
    numbers = np.arange(len(documents), dtype=np.uint64)
    order = np.argsort(mix64(mix64(numbers ^ np.uint64(seed_bits(seed, "tokenizer")))))
    chosen = []
    for limits, side, purpose in ((train, ~is_held, "to train a tokenizer on"), (heldout, is_held, "to hold out")):
        if not side.any():
            unreadable = f"{len(skipped.files)} unreadable files and {skipped.lines} unreadable lines"
            raise ConfigError(
                f"{source.where} contains no document with text {purpose} (skipped {skipped.empty} empty documents, "
                f"{unreadable}; data.filters removed {num_removed} documents): name another corpus"
            )
        in_order = order[side[order]]
        enough = np.searchsorted(np.cumsum(documents["num_bytes"][in_order]), limits.max_bytes) + 1
        chosen.append(in_order[: min(enough, limits.num_documents)])
    texts = _texts_of(source, filters, {int(number) for numbers in chosen for number in numbers})
    samples = [
        TextSample(
            [text for number in np.sort(numbers).tolist() for text in texts[number]],
            len(numbers),
            int(documents["num_bytes"][numbers].sum()),
            len(numbers) == np.count_nonzero(is_held == held),
        )
        for held, numbers in enumerate(chosen)
    ]
    return samples[0], samples[1]


def _first_pass(source: Source, filters: FilterConfig, skipped: Skipped) -> tuple[np.ndarray, list[str], int]:
    """Returns _DOCUMENT [n] and the labels of the documents that no filter removes, and how many are removed."""
    measured, rows, labels, num_removed = DocumentFilters(filters), [], [], 0
    for document in source.documents(skipped):
        if measured.removed_by_text(document):
            num_removed += 1
            continue
        prompt, text = document.prompt.encode("utf-8"), document.text.encode("utf-8")
        rows.append((len(prompt) + len(text), document.file_digest, text_digest(prompt or text), document.is_heldout))
        labels.append(document.label)
    return np.array(rows, _DOCUMENT), labels, num_removed


def _texts_of(source: Source, filters: FilterConfig, numbers: set[int]) -> dict[int, list[str]]:
    """Returns the prompt and the text of the documents with these numbers among those that no filter removes."""
    measured, texts, number = DocumentFilters(filters), {}, 0
    for document in source.documents(Skipped()):
        if not measured.removed_by_text(document):
            if number in numbers:
                texts[number] = [text for text in (document.prompt, document.text) if text]
            number += 1
    return texts
