"""The split of a corpus into training and held-out documents."""

import dataclasses
import hashlib
from typing import Literal

import numpy as np

from command.program import plural
from contract.errors import ConfigError
from contract.rng import argsort, mix64, parts, seed_bits
from data.sources.files import text_digest
from data.store.store import TokenStore
from data.windows.documents import Documents
from data.windows.leak_guard import copies_of

_FEW_FILES = 5
_SAMPLE = 1 << 14  # of the held-out documents, which are in a random order

Unit = Literal["file", "document", "label"]
SplitBy = Literal["auto", "file", "document", "label"]
HeldoutText = Literal["test", "validation"]  # the values of data.heldout


@dataclasses.dataclass(frozen=True)
class Split:
    """How the documents of a corpus are split. The attributes are the fields of config.data, except `seed`.

    Attributes:
      heldout_fraction: expected share of the units on the held-out side, between 0 and 1.
      seed: data.split_seed, any int.
      split_by: the unit that is on one side as a whole; "auto" as in `unit_of`.
      heldout: the text on the held-out side: "test", or "validation", which is cut from the training side of "test".
    """

    heldout_fraction: float
    seed: int
    split_by: SplitBy
    heldout: HeldoutText = "test"


def split_documents(store: TokenStore, split: Split) -> tuple[Documents, Documents]:
    """Returns the training and the held-out documents of a store.

    A unit's side depends on its contents, the seed and the fraction alone, and not on the rest of the corpus. So a file
    is on the same side whatever is cut out of it (lines, functions, windows), in every corpus that contains the file,
    and the held-out side at one fraction contains the held-out side at a smaller one. The number of held-out units is
    therefore random, with the fraction as its mean; but each side has at least one unit. Units with equal contents are
    on the same side.

    If the corpus has its own held-out text (data.heldout_path), that text is the held-out side, and all other documents
    are the training side.

    With heldout="validation" the sides are cut again from the training side, by other ranks of the same units: the
    fraction is that of its units, and the test text is on neither side. Validation documents that are identical to test
    text, or near-identical where the store has such pairs, are on neither side either: what is chosen on the validation
    text is not chosen on the test text.

    The order of each side is a seeded shuffle, so that consecutive documents in joined text are random documents and
    not consecutive on disk.

    Raises ConfigError for a fraction outside (0, 1), for fewer than two different units (three with "validation"), and
    for documents without labels that are split by label.
    """
    if store.is_heldout.any():
        test: np.ndarray = store.is_heldout
        if test.all():
            raise ConfigError("data.path has no document besides those of data.heldout_path: name other text")
    else:
        unit = unit_of(store, split)
        test = is_heldout(unit_digests(store, unit), unit, split)
    # Equal documents have equal digests; without their numbers they would be next to each other.
    seed = np.uint64(seed_bits(split.seed, "order"))
    order = argsort(lambda numbers: mix64(mix64(store.digests[numbers] ^ seed) + numbers.astype(np.uint64)), len(store))
    test = test[order]
    train = Documents(store, order[~test].astype(np.int64), "training")
    heldout = Documents(store, order[test].astype(np.int64), "held-out")
    return (train, heldout) if split.heldout == "test" else _cut_validation(train, heldout, split)


def _cut_validation(train: Documents, test: Documents, split: Split) -> tuple[Documents, Documents]:
    """Returns the training and the validation documents that are cut from the training side of the test text."""
    unit = unit_of(train.store, split)
    digests = unit_digests(train.store, unit)[train.index]
    if (digests == digests[0]).all():
        raise ConfigError(
            f"data.heldout='validation' needs two different {unit}s outside the test text, and there is one: add text "
            "to data.path, or set data.split_by or data.document_per to a smaller unit"
        )
    chosen = is_heldout(digests, unit, split, stream="validation")
    validation = Documents(train.store, train.index[chosen], "validation")
    copies = np.logical_or(*copies_of(validation, test))  # files may share documents
    if copies.all():
        raise ConfigError(
            f"data.heldout='validation': all {len(validation):,} validation documents are copies of test text: set "
            "data.filters.remove_duplicates='near', or another data.split_seed"
        )
    return train.subset(~chosen), validation.subset(~copies)


def unit_of(store: TokenStore, split: Split) -> Unit:
    """Returns the unit of the split.

    "auto" is "file", the text that documents are cut from: a file, or an example of a TFDS dataset. For JSON lines, and
    for a corpus of a single file, "auto" is "document".
    """
    if split.split_by != "auto":
        return split.split_by
    # Validation text is cut from that of data.path.
    digests = store.file_digests[~store.is_heldout] if split.heldout == "validation" else store.file_digests
    return "document" if store.meta["cut"] == "JSON line" or (digests == digests[0]).all() else "file"


def split_warnings(heldout: Documents, split: Split) -> list[str]:
    """Returns a warning where data.split_by="auto" holds out so few files that they may be unlike the other ones."""
    store, digests = heldout.store, heldout.store.file_digests
    by_file = split.split_by == "auto" and not store.is_heldout.any() and unit_of(store, split) == "file"
    if not by_file or len(np.unique(digests[heldout.index[:_SAMPLE]])) >= _FEW_FILES:
        return []
    share = heldout.num_tokens(eos=True) / store.meta["num_tokens"]
    files, all_files = (len(np.unique(found)) for found in (digests[heldout.index], digests))
    return [
        f"the held-out text is {files} of {all_files} files ({share:.0%} of the tokens), and may be of another kind "
        "than the rest: data.split_by='document' holds out a part of each file, and 'file' accepts this split"
    ]


def unit_digests(store: TokenStore, unit: Unit) -> np.ndarray:
    """Returns a digest of the contents of the unit of each document, uint64 [n].

    Raises ConfigError for a document without a label that is split by label.
    """
    if unit != "label":
        return store.file_digests if unit == "file" else store.digests
    if not all(store.labels):
        raise ConfigError(
            "data.split_by='label' needs a label for every document: set it to 'file' or 'document', or add labels"
        )
    return np.array([text_digest(label.encode("utf-8")) for label in store.labels], np.uint64)[store.label_ids]


def heldout_digest(heldout: Documents, split: Split) -> str:
    """Returns a digest of the held-out text: equal for all runs that hold out the same text.

    In a split by file it is a digest of the files' contents, however documents are cut from them.
    """
    store = heldout.store
    contents = store.file_digests if unit_of(store, split) == "file" else store.text_digests
    return hashlib.blake2b(np.unique(contents[heldout.index]).tobytes(), digest_size=8).hexdigest()


def is_heldout(digests: np.ndarray, unit: Unit, split: Split, *, stream: str = "split") -> np.ndarray:
    """Returns which documents are held out, bool [n]: those of a random share of the units, but one at least, not all.

    digests: uint64 [n], of the contents of each document's unit. The place of a unit in a random order depends on the
    seed, the name of the random stream and the unit's contents alone.

    Raises ConfigError for a fraction outside (0, 1), and for fewer than two different units.
    """
    if not 0 < split.heldout_fraction < 1:
        raise ConfigError(f"data.heldout_fraction={split.heldout_fraction} must lie between 0 and 1, both excluded")
    key = np.uint64(seed_bits(split.seed, stream))
    ranks = np.concatenate([mix64(digests[numbers] ^ key) for numbers in parts(len(digests))])
    least, greatest = ranks.min(), ranks.max()
    if least == greatest:
        raise _nothing_held_out(len(digests), unit)
    bound = np.uint64(min(int(split.heldout_fraction * 2.0**64), 2**64 - 1))
    return ((ranks < bound) | (ranks == least)) & (ranks != greatest)


def _nothing_held_out(num_documents: int, unit: Unit) -> ConfigError:
    remedy = "add text to data.path, or set data.heldout_path"
    if num_documents == 1:
        remedy = f"set data.document_per='line' or 'paragraph', or {remedy}"
    elif unit != "document":
        remedy = "set data.split_by='document', or data.heldout_path"
    return ConfigError(
        f"nothing can be held out: data.split_by={unit!r} needs two different {unit}s, and the corpus of "
        f"{plural(num_documents, 'document')} has one: {remedy}"
    )
