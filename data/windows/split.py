"""The split of a corpus into training and held-out documents."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from contract.errors import ConfigError
from contract.rng import mix64, seed_bits
from data.sources.files import text_digest
from data.store.store import TokenStore
from data.windows.documents import Documents
from data.windows.epoch_orders import order_by
from data.windows.membership import digests_of, is_in
from files.mapped_arrays import blocks, new_array, select

Unit = Literal["file", "document", "label"]
SplitBy = Literal["auto", "file", "document", "label"]


@dataclasses.dataclass(frozen=True)
class Split:
    """How the documents of a corpus are split. The attributes are the fields of config.data, except `seed`.

    Attributes:
      heldout_fraction: expected share of the units on the held-out side, between 0 and 1.
      seed: data.split_seed, any int.
      split_by: the unit that is on one side as a whole; "auto" as in `unit_of`.
    """

    heldout_fraction: float
    seed: int
    split_by: SplitBy


def split_documents(store: TokenStore, split: Split) -> tuple[Documents, Documents]:
    """Returns the training and the held-out documents of a store.

    A unit's side depends on its contents, the seed and the fraction alone, and not on the rest of the corpus. So a file
    is on the same side whatever is cut out of it (lines, functions, windows), in every corpus that contains the file,
    and the held-out side at one fraction contains that at a smaller fraction. The number of held-out units is therefore
    random, with the fraction as its mean; but each side has at least one unit. Units with equal contents are on the
    same side.

    If the corpus has its own held-out text (data.heldout_path), that text is the held-out side, and all other documents
    are the training side.

    The order of each side is a seeded shuffle, so that consecutive documents in joined text are random documents and
    not consecutive on disk.

    Raises ConfigError for a fraction outside (0, 1), for fewer than two different units, and for documents without
    labels that are split by label.
    """
    if store.is_heldout.any():
        heldout: np.ndarray = store.is_heldout
        if heldout.all():
            raise ConfigError("data.path has no document besides those of data.heldout_path: name other text")
    else:
        heldout = _is_heldout(store, split)
    # Equal documents have equal digests; without their numbers they would be next to each other.
    seed = np.uint64(seed_bits(split.seed, "order"))

    def keys_of(block: slice) -> np.ndarray:
        numbers = np.arange(block.start, block.stop, dtype=np.uint64)
        return mix64(mix64(store.digests[block] ^ seed) + numbers)

    order = order_by(keys_of, len(store), store.folder)
    return (
        Documents(store, select(order, lambda block: ~heldout[order[block]], store.folder), "training"),
        Documents(store, select(order, lambda block: heldout[order[block]], store.folder), "held-out"),
    )


def unit_of(store: TokenStore, split: Split) -> Unit:
    """Returns the unit of the split: that of `unit_of_texts` for the texts that the documents are cut from."""
    first = store.file_digests[0]
    is_one_text = all(bool((store.file_digests[block] == first).all()) for block in blocks(len(store)))
    return unit_of_texts(split, store.meta["cut"], is_one_text=is_one_text)


def unit_of_texts(split: Split, cut: str, *, is_one_text: bool) -> Unit:
    """Returns the unit of the split.

    "auto" is "file", the text that documents are cut from: a file, or an example of a TFDS dataset. It is "document"
    for JSON lines, and for a corpus of a single file.

    cut: Source.cut. is_one_text: whether all documents are cut from equal texts.
    """
    if split.split_by != "auto":
        return split.split_by
    return "document" if cut == "JSON line" or is_one_text else "file"


def unit_digests(store: TokenStore, unit: Unit) -> Callable[[slice], np.ndarray]:
    """Returns a function: some documents -> a digest of the contents of the unit of each, uint64 [n]."""
    if unit == "label":
        of_label = label_digests(store.labels)
        return lambda block: of_label[store.label_ids[block]]
    digests = store.file_digests if unit == "file" else store.digests
    return lambda block: digests[block]


def label_digests(labels: Sequence[str]) -> np.ndarray:
    """Returns a digest of each label, uint64 [labels]. Raises ConfigError for a document without a label, ""."""
    if not all(labels):
        raise ConfigError(
            "data.split_by='label' needs a label for every document: set it to 'file' or 'document', or add labels"
        )
    return np.array([text_digest(label.encode("utf-8")) for label in labels], np.uint64)


def heldout_digest(heldout: Documents, split: Split) -> str:
    """Returns a digest of the held-out text: equal for all runs that hold out the same text.

    In a split by file it is a digest of the files' contents, however documents are cut from them.
    """
    store = heldout.store
    contents = store.file_digests if unit_of(store, split) == "file" else store.text_digests
    return hashlib.blake2b(np.unique(contents[heldout.index]).tobytes(), digest_size=8).hexdigest()


def is_trained_on(
    documents: Documents, train: Documents, heldout: Documents, *, not_by_chance: int | None = None
) -> np.ndarray:
    """Returns which of `documents` are text of `train`, where a corpus is split into `train` and `heldout`: bool [n].

    The stores may differ. A document that is equal to one of the training side is such text. A document of a file that
    the corpus contains is such text too if the file is on the training side. If the file is on both sides, because its
    documents were split, the document must be on neither, because it was cut in another way. JSON lines are documents
    however they are read, and with another data.text_key they are other text: they are compared as documents alone.
    Text that is contained in a longer document or was edited is not found.

    not_by_chance: for the training text of another run, the bytes from which on a document of a file that the corpus
      does not contain counts if it is equal to one of the training side: shorter texts may be equal by chance. A text
      of a file of the corpus that is on both sides then counts as held out. None: every equal text counts.
    """
    store, result = documents.store, new_array(documents.store.folder, len(documents), np.bool_)
    kinds = ("file_digests", "text_digests")
    in_sides = [is_in(digests_of(documents, kind), digests_of(train, kind), store.folder) for kind in kinds]
    # For documents of which neither file nor text is on the training side, the held-out side makes no difference.
    parts = [b.start + np.flatnonzero(in_sides[0][b] | in_sides[1][b]) for b in blocks(len(documents))]
    chosen = np.concatenate([np.zeros(0, np.int64), *parts])
    in_train, text_in_train = (in_side[chosen] for in_side in in_sides)
    in_heldout, text_in_heldout = (
        is_in(digests_of(documents, kind).at(chosen), digests_of(heldout, kind), store.folder) for kind in kinds
    )
    is_trained = in_train & ~(in_heldout & text_in_heldout)
    if store.meta["cut"] == train.store.meta["cut"] == "JSON line":
        is_trained &= text_in_train
    if not_by_chance is None:
        result[chosen] = is_trained | text_in_train
    else:
        is_long = store.text_bytes[documents.index[chosen]] >= not_by_chance
        result[chosen] = is_trained | (~in_train & ~in_heldout & text_in_train & is_long)
    return result


def _is_heldout(store: TokenStore, split: Split) -> np.ndarray:
    """bool [documents]."""
    check_fraction(split)
    unit = unit_of(store, split)
    digests_of = unit_digests(store, unit)
    least, greatest = np.uint64(2**64 - 1), np.uint64(0)
    for block in blocks(len(store)):
        ranks = ranks_of(digests_of(block), split)
        least, greatest = min(least, ranks.min()), max(greatest, ranks.max())
    check_two_units(unit, len(store), least, greatest)
    result = new_array(store.folder, len(store), np.bool_)
    for block in blocks(len(store)):
        result[block] = is_heldout(ranks_of(digests_of(block), split), split, least, greatest)
    return result


def check_fraction(split: Split) -> None:
    """Raises ConfigError for a fraction outside (0, 1)."""
    if not 0 < split.heldout_fraction < 1:
        raise ConfigError(f"data.heldout_fraction={split.heldout_fraction} must lie between 0 and 1, both excluded")


def ranks_of(digests: np.ndarray, split: Split) -> np.ndarray:
    """Returns the places of units in a random order, uint64 [n], which depend on the seed and the units alone.

    digests: uint64 [n], of the units' contents.
    """
    return mix64(digests ^ np.uint64(seed_bits(split.seed, "split")))


def check_two_units(unit: Unit, num_documents: int, least: np.uint64, greatest: np.uint64) -> None:
    """Raises ConfigError where a corpus has one unit, whose rank is `least` and `greatest`."""
    if least != greatest:
        return
    remedy = "add text to data.path, or set data.heldout_path"
    if unit != "document" and num_documents > 1:
        remedy = "set data.split_by='document', or data.heldout_path"
    elif num_documents == 1:
        remedy = f"set data.document_per='line' or 'paragraph', or {remedy}"
    raise ConfigError(
        f"nothing can be held out: data.split_by={unit!r} needs two different {unit}s, and the corpus of "
        f"{num_documents:,} document{'s' * (num_documents > 1)} has one: {remedy}"
    )


def is_heldout(ranks: np.ndarray, split: Split, least: np.uint64, greatest: np.uint64) -> np.ndarray:
    """Returns which units are held out, bool [n]: those below the fraction, but one at least, and not all.

    ranks: uint64 [n], of `ranks_of`. least, greatest: the extremes of the ranks of all units of the corpus.
    """
    return (is_below_fraction(ranks, split) | (ranks == least)) & (ranks != greatest)


def is_below_fraction(ranks: np.ndarray, split: Split) -> np.ndarray:
    """Returns which units a corpus with many units holds out, bool [n]."""
    return ranks < np.uint64(min(int(split.heldout_fraction * 2.0**64), 2**64 - 1))
