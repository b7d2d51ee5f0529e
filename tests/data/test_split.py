"""The train/held-out split: which documents are held out, and that nothing else changes it."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from contract.errors import ConfigError
from data.sources import open_source
from data.sources.filters import OFF
from data.store.store import open_or_build
from data.tokenizers.tokenizer import make_tokenizer
from data.train_tokenizer import draw_samples
from data.windows.split import (
    Split,
    heldout_digest,
    split_documents,
    split_warnings,
    unit_of,
)
from tests.data.corpus import corpus_config, opened, write_texts


class Store(SimpleNamespace):
    """A store in memory, without tokens."""

    def __len__(self):
        return len(self.digests)


def first_with(digests):
    """The first document with the text of each one."""
    _, first, inverse = np.unique(digests, return_index=True, return_inverse=True)
    return first[inverse]


def memory_store(digests, file_digests=None, cut="file"):
    digests = np.asarray(digests, np.uint64)
    files = digests if file_digests is None else np.asarray(file_digests, np.uint64)
    is_heldout = np.zeros(len(digests), bool)
    return Store(
        folder=Path(),
        digests=digests,
        text_digests=digests,
        file_digests=files,
        is_heldout=is_heldout,
        text_bytes=np.full(len(digests), 200),
        meta={"cut": cut, "near_duplicates_searched": True},
        labels=[""],
        duplicate_ids=first_with(digests),
        near_duplicate_pairs=np.zeros((0, 2), np.int64),
    )


def split(digests, fraction, seed=0, split_by="auto", heldout="test", **fields):
    """The numbers of the training and of the held-out documents."""
    store = memory_store(digests, **fields)
    return [documents.index for documents in split_documents(store, Split(fraction, seed, split_by, heldout))]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=60).filter(lambda digests: len(set(digests)) > 1),
    st.floats(0.001, 0.999),
    st.integers(-(2**70), 2**70),
)
def test_sides_are_disjoint_complete_and_never_share_a_text(digests, fraction, seed):
    train, heldout = split(digests, fraction, seed)
    assert sorted([*train, *heldout]) == list(range(len(digests)))
    assert len(train) and len(heldout)
    digests = np.array(digests, np.uint64)
    assert not set(digests[train].tolist()) & set(digests[heldout].tolist())
    again = split(digests, fraction, seed)
    assert train.tolist() == again[0].tolist() and heldout.tolist() == again[1].tolist()


def test_the_test_text_is_that_of_earlier_versions():
    """Literals of the code before there was validation text: runs of that time hold out the same text."""
    train, test = split(RANDOM[:40], 0.1)
    assert test.tolist() == [36, 22] and train[:8].tolist() == [21, 27, 5, 10, 11, 7, 19, 17]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=3, max_size=60).filter(lambda digests: len(set(digests)) > 4),
    st.floats(0.001, 0.6),
    st.integers(-(2**70), 2**70),
)
def test_train_validation_and_test_share_no_text(digests, fraction, seed):
    numbers = np.array(digests, np.uint64)
    assume(len(set(numbers[split(digests, fraction, seed)[0]].tolist())) > 1)
    train, test = split(digests, fraction, seed)
    rest, validation = split(digests, fraction, seed, heldout="validation")
    assert sorted([*rest, *validation, *test]) == list(range(len(digests))) and len(rest) and len(validation)
    for one, other in itertools.combinations([rest, validation, test], 2):
        assert not set(numbers[one].tolist()) & set(numbers[other].tolist())
    assert [*rest] == [number for number in train if number not in set(validation)]  # in the order of training


def test_documents_of_a_file_are_on_one_side_of_validation_too():
    files = np.repeat(RANDOM[:100], 10)
    sides = [
        *split(RANDOM[:1000], 0.2, file_digests=files, cut="line", heldout="validation"),
        split(RANDOM[:1000], 0.2, file_digests=files, cut="line")[1],
    ]
    assert sum(map(len, sides)) == 1000 == 10 * sum(len(set(files[side].tolist())) for side in sides)


def test_the_validation_text_is_the_fraction_of_the_training_text_whatever_else_the_corpus_has():
    train, validation = split(RANDOM, 0.3, heldout="validation")
    assert abs(len(validation) / len(RANDOM) - 0.3 * 0.7) < 0.02 and abs(len(train) / len(RANDOM) - 0.49) < 0.02
    part = split(RANDOM[:300], 0.3, heldout="validation")[1]
    assert set(RANDOM[:300][part]) == set(RANDOM[validation]) & set(RANDOM[:300])


def test_copies_of_test_text_are_in_no_validation_text():
    """Files may share documents, and near-identical documents are other units."""
    store = memory_store(RANDOM[:1000])
    _, test = split_documents(store, Split(0.2, 0, "auto"))
    _, validation = split_documents(store, Split(0.2, 0, "auto", "validation"))
    copy, near = validation.index[:2]
    store.duplicate_ids[copy] = store.duplicate_ids[test.index[0]]
    store.near_duplicate_pairs = np.array([sorted([near, test.index[1]])])
    rest, kept = split_documents(store, Split(0.2, 0, "auto", "validation"))
    assert [*kept.index] == [*validation.index[2:]] and not {copy, near} & {*rest.index}
    store.duplicate_ids[:] = 0
    with pytest.raises(ConfigError, match=r"all \d+ validation documents are copies of test text") as error:
        split_documents(store, Split(0.2, 0, "auto", "validation"))
    assert "\n" not in str(error.value)


RANDOM = np.random.default_rng(0).integers(0, 2**63, 10_000, dtype=np.uint64)


def test_a_side_does_not_depend_on_the_rest_of_the_corpus():
    """So corpora that share a file hold it out together, and a larger fraction holds out more."""
    whole, part = set(RANDOM[split(RANDOM, 0.1)[1]]), set(RANDOM[:300][split(RANDOM[:300], 0.1)[1]])
    assert part == whole & set(RANDOM[:300])
    assert whole < set(RANDOM[split(RANDOM, 0.2)[1]])


@pytest.mark.parametrize(
    ("files", "cut", "unit"),
    [([1, 2], "line", "file"), ([1, 1], "paragraph", "document"), ([1, 2], "JSON line", "document")],
)
def test_the_automatic_unit(files, cut, unit):
    store = memory_store([5, 6], files, cut)
    assert unit_of(store, Split(0.5, 0, "auto")) == unit
    assert unit_of(store, Split(0.5, 0, "label")) == "label"


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_fractions_that_leave_a_side_empty(fraction):
    with pytest.raises(ConfigError, match=r"data\.heldout_fraction=.* must lie between 0 and 1"):
        split(np.arange(4), fraction)


def test_few_files_are_held_out_with_a_warning():
    def warnings(files, split_by="auto", **fields):
        store = memory_store(np.arange(1, len(files) + 1), files)
        store.offsets, store.meta["num_tokens"] = np.arange(len(files) + 1) * 10, 10 * len(files)
        vars(store).update(fields)
        chosen = Split(0.1, 0, split_by)
        return split_warnings(split_documents(store, chosen)[1], chosen)

    [line] = warnings([1, 1, 1, 2, 2, 2])
    assert (
        line.startswith("the held-out text is 1 of 2 files (50% of the tokens), ")
        and "data.split_by='document'" in line
    )
    [line] = warnings([1, *[2] * 9])
    assert " is 1 of 2 files (10%" in line or " is 1 of 2 files (90%" in line
    assert warnings([1] * 6) == warnings([*range(200)]) == []  # by document; many files
    for chosen in ("file", "document"):
        assert warnings([1, 1, 1, 2, 2, 2], chosen) == []
    assert warnings([1, 1, 2, 2], is_heldout=np.array([0, 0, 1, 1], bool)) == []


@pytest.mark.parametrize(
    ("digests", "fields", "message"),
    [
        ([0], {}, r"the corpus of 1 document has one: set data\.document_per='line' or 'paragraph', or add text to"),
        ([0, 0, 0], {}, r"data\.split_by='document' needs two different documents.* of 3 documents has one: add text"),
        ([0, 1], {"file_digests": [7, 7], "split_by": "file"}, r"two different files.* set data\.split_by='document'"),
        ([0, 1], {"split_by": "label"}, r"data\.split_by='label' needs a label for every document"),
    ],
)
def test_a_corpus_too_small_to_hold_out_a_unit(digests, fields, message):
    with pytest.raises(ConfigError, match=message):
        split(digests, 0.5, **fields)


def test_lines_and_files_of_a_corpus_are_held_out_together(tmp_path):
    texts = [f"first of {k}\nsecond of {k}\n" for k in range(40)]
    files = [f"{k:03}.txt" for k in range(40)]
    write_texts(tmp_path, texts)

    def heldout_files(**changes):
        corpus = corpus_config(tmp_path, **changes)
        heldout = split_documents(open_or_build(corpus, make_tokenizer(corpus)), Split(0.2, 0, "auto"))[1]
        return heldout, {heldout.name(i)[-7:] for i in range(len(heldout))}

    (whole, names), (lines, names_of_lines) = heldout_files(), heldout_files(document_per="line")
    assert names == names_of_lines and 0 < len(names) < 20 and names <= set(files)
    assert len(lines) == 2 * len(whole)
    auto = Split(0.2, 0, "auto")
    assert heldout_digest(whole, auto) == heldout_digest(lines, auto)
    assert heldout_digest(lines, auto) != heldout_digest(lines, Split(0.2, 0, "document"))


def test_held_out_text_of_its_own(tmp_path):
    write_texts(tmp_path, ["abc", "def"])
    (tmp_path / "valid.txt").write_text("xyz")
    corpus = corpus_config(tmp_path, heldout_path=str(tmp_path / "valid.txt"))
    train, heldout = split_documents(open_or_build(corpus, make_tokenizer(corpus)), Split(0.9, 0, "auto"))
    assert len(train) == 2 and len(heldout) == 1 and heldout.name(0).endswith("valid.txt")
    # It is the test text, and the validation text is cut from the training text.
    cut = split_documents(open_or_build(corpus, make_tokenizer(corpus)), Split(0.5, 0, "auto", "validation"))
    assert sorted(side.name(0)[-7:] for side in cut) == ["000.txt", "001.txt"] and [len(side) for side in cut] == [1, 1]


def test_a_single_file_is_cut_into_training_and_validation_documents_whatever_the_test_file(tmp_path):
    write_texts(tmp_path, ["\n".join(f"line {i}" for i in range(50)), "a test line\nanother"])
    paths = {"path": f"{tmp_path}/text/000.txt", "heldout_path": f"{tmp_path}/text/001.txt"}
    store = opened(corpus_config(tmp_path, document_per="line", **paths))
    splits = [Split(0.2, seed, "auto", "validation") for seed in (0, 1)]
    (train, validation), (_, other) = (split_documents(store, split) for split in splits)
    assert sorted([*train.index, *validation.index]) == list(range(50)) and len(validation) > 1
    assert heldout_digest(validation, splits[0]) != heldout_digest(other, splits[1])
    with pytest.raises(ConfigError, match="needs two different files outside the test text"):
        split_documents(store, Split(0.2, 0, "file", "validation"))


def test_where_held_out_text_is_skipped_nothing_else_is_held_out_instead(tmp_path):
    write_texts(tmp_path, ["abc", "def"])
    (tmp_path / "held.txt").write_bytes(b"a\xff")
    corpus = corpus_config(tmp_path, heldout_path=str(tmp_path / "held.txt"), on_unreadable="skip")
    for _ in range(2):  # also where the store exists
        with pytest.raises(ConfigError, match=r"data\.heldout_path='.*' has no document with text: name other text"):
            open_or_build(corpus, make_tokenizer(corpus))
    with pytest.raises(ConfigError, match="contains no document with text to hold out"):
        draw_samples(open_source(corpus), Split(0.5, 0, "auto"), OFF, seed=0, max_bytes=(9, 9))


def test_files_on_both_sides(tmp_path):
    write_texts(tmp_path, ["abc", "def"])
    corpus = corpus_config(tmp_path, heldout_path=str(tmp_path / "text" / "001.txt"))
    with pytest.raises(ConfigError, match=r"data\.path=.* and data\.heldout_path=.* both name .*001\.txt: held-"):
        open_or_build(corpus, make_tokenizer(corpus))
    missing = corpus_config(tmp_path, heldout_path=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r"data\.heldout_path=.* does not exist"):
        open_or_build(missing, make_tokenizer(missing))
    stdlib = corpus_config(tmp_path, source="stdlib", path="", heldout_path="a")
    with pytest.raises(ConfigError, match=r"data\.heldout_path='a' is not read by data\.source='stdlib'"):
        open_or_build(stdlib, make_tokenizer(stdlib))
