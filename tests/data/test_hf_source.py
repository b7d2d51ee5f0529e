"""Datasets of the Hugging Face library: saved ones, folders of files, and names that cannot be loaded."""

import contextlib
import json
import os
import pickle
import re
import sys

import pyarrow
import pytest

from contract.errors import ConfigError
from data.sources import open_source
from data.sources.raw import Skipped
from data.store.store import open_or_build
from data.tokenizers.tokenizer import make_tokenizer
from tests.data.corpus import corpus_config, write_texts

datasets = pytest.importorskip("datasets")

TEXTS = [f"Text {i}, é.\n\nIts second paragraph." for i in range(20)]


@pytest.fixture(autouse=True)
def offline(tmp_path_factory, monkeypatch):
    """A cache of the tests, and no requests."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def read(corpus):
    skipped = Skipped()
    return list(open_source(corpus).documents(skipped)), skipped


def hf_config(tmp_path, path, **changes):
    return corpus_config(tmp_path, source="hf", path=str(path), **changes)


def save(folder, records, features=None):
    datasets.Dataset.from_list(records, features=features).save_to_disk(folder)


def save_splits(folder):
    split = datasets.Dataset.from_list([{"text": text} for text in TEXTS])
    datasets.DatasetDict({"train": split, "test": datasets.Dataset.from_list([{"text": "held"}])}).save_to_disk(folder)


def test_the_store_is_that_of_files(tmp_path):
    write_texts(tmp_path, TEXTS)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    save(tmp_path / "saved", [{"text": text} for text in TEXTS])
    corpora = [
        corpus_config(tmp_path),
        hf_config(tmp_path, tmp_path / "saved"),
        hf_config(tmp_path, f"{tmp_path}/files:train"),
    ]
    stores = [open_or_build(corpus, make_tokenizer(corpus)) for corpus in corpora]
    assert len({store.content_digest for store in stores}) == 1 and len({store.name for store in stores}) == 3


def test_splits_and_held_out_splits(tmp_path):
    save_splits(tmp_path / "saved")
    documents, _ = read(hf_config(tmp_path, tmp_path / "saved", heldout_path="test"))
    assert [document.text for document in documents if document.is_heldout] == ["held"] and len(documents) == 21
    documents, _ = read(hf_config(tmp_path, f"{tmp_path}/saved:test"))
    assert [document.text for document in documents] == ["held"]
    for path, heldout in ((tmp_path / "saved", "train"), (f"{tmp_path}/saved:test", "test")):
        with pytest.raises(ConfigError, match=r"held-out text must not be trained on"):
            open_source(hf_config(tmp_path, path, heldout_path=heldout))


def test_classes_have_their_names(tmp_path):
    kinds = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    records = [{"text": "a", "label": 1}, {"text": " ", "label": 0}, {"text": "b", "label": -1}]
    save(tmp_path / "saved", records, datasets.Features(kinds))
    documents, skipped = read(hf_config(tmp_path, tmp_path / "saved"))
    assert [(document.text, document.label) for document in documents] == [("a", "pos"), ("b", "")]
    assert skipped.empty == 1


def test_parts_are_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("data.sources.hf._ROWS_OF_PART", 8)
    monkeypatch.setattr("data.sources.hf._ROWS", 3)
    save(tmp_path / "saved", [{"text": text, "n": 1} for text in TEXTS[:19]] + [{"text": None, "n": 2}])
    source = open_source(hf_config(tmp_path, tmp_path / "saved", on_unreadable="skip"))
    parts = pickle.loads(pickle.dumps(source)).parts
    assert [part.name.rpartition(", ")[2] for part in parts] == ["rows 0 to 7", "rows 8 to 15", "rows 16 to 19"]
    skipped = Skipped()
    assert [document.text for part in parts for document in part.read(skipped)] == TEXTS[:19]
    assert skipped.empty == 1 and not skipped.lines
    assert source.num_bytes == pytest.approx(sum(len(text.encode()) for text in TEXTS), rel=0.8)


def test_identity_follows_the_files(tmp_path):
    (tmp_path / "files").mkdir()
    path = tmp_path / "files" / "a.jsonl"
    identities = []
    for text in ("a", "a", "b"):
        if not path.exists() or text not in path.read_text():
            path.write_text(json.dumps({"text": text}))
        identities.append(open_source(hf_config(tmp_path, tmp_path / "files")).identity)
    assert identities[0] == identities[1] != identities[2]
    save_splits(tmp_path / "saved")
    splits = [open_source(hf_config(tmp_path, f"{tmp_path}/saved:{split}")).identity for split in ("train", "test")]
    assert splits[0] != splits[1]


def test_a_saved_dataset_that_changes_while_it_is_read(tmp_path):
    save(tmp_path / "saved", [{"text": text} for text in TEXTS])
    documents = open_source(hf_config(tmp_path, tmp_path / "saved")).documents(Skipped())
    next(documents)
    os.utime(next((tmp_path / "saved").glob("*.arrow")), ns=(1, 1))
    with pytest.raises(ConfigError, match=r"\.arrow has changed while it was read"):
        list(documents)


def test_what_cannot_be_loaded(tmp_path, capfd):
    save_splits(tmp_path / "saved")
    for name, contents in (("torn", '{"text": '), ("void", None), ("numbers", '{"text": 3}')):
        (tmp_path / name).mkdir()
        if contents is not None:
            (tmp_path / name / "a.jsonl").write_text(contents)
    save(tmp_path / "cut", [{"text": "a"}])
    [arrow] = (tmp_path / "cut").glob("*.arrow")
    arrow.write_bytes(arrow.read_bytes()[:100])
    expected = {
        "owner/name": r"split 'train' cannot be loaded \(Couldn't reach 'owner/name' on the Hub.*check the name and",
        "owner/name/config@main:test": r"split 'test' cannot be loaded \(Couldn't reach 'owner/name' on the Hub",
        "a/b/c/d": r"is no folder and no dataset's name: write OWNER/NAME",
        "@:": r"is no folder and no dataset's name",
        f"{tmp_path}/missing": r"is no folder and no dataset's name",
        "gs://bucket/data": r"is in a bucket: copy the dataset to this machine",
        "hdfs://host/data": r"has the scheme hdfs",
        f"{tmp_path}/saved:valid": r"cannot be loaded \(it has no split 'valid', only \['test', 'train'\]\)",
        f"{tmp_path}/torn": r"cannot be loaded \(.*JSON.*\): fix the folder",
        f"{tmp_path}/torn:test": r"split 'test' cannot be loaded",
        f"{tmp_path}/void": r"doesn't contain any data files",
        f"{tmp_path}/cut": r": .*/cut/data-00000-of-00001\.arrow is incomplete: save the dataset again",
        f"{tmp_path}/numbers": r"has the type int64 in column 'text', which must be text",
    }
    for path, message in expected.items():
        capfd.readouterr()
        with pytest.raises(ConfigError, match=re.escape(f"data.path={path!r}") + ".*" + message) as error:
            open_source(hf_config(tmp_path, path))
        assert "\n" not in str(error.value) and not capfd.readouterr().err


def batch_ends(path):
    """The sizes of an Arrow stream that is cut off before its first batch, and after each."""
    source = pyarrow.BufferReader(path.read_bytes())
    stream = pyarrow.ipc.open_stream(source)
    ends = [source.tell()]
    with contextlib.suppress(StopIteration):
        while stream.read_next_batch():
            ends.append(source.tell())
    return ends


@pytest.mark.parametrize("split", ["", "train"])
def test_a_file_that_is_cut_off_between_batches_is_no_shorter_corpus(tmp_path, split):
    texts = datasets.Dataset.from_dict({"text": [str(k) for k in range(2500)]})
    (datasets.DatasetDict({split: texts, "other": texts}) if split else texts).save_to_disk(tmp_path / "saved")
    corpus = hf_config(tmp_path, tmp_path / "saved")
    assert len(read(corpus)[0]) == 2500
    [path] = (tmp_path / "saved" / split).glob("*.arrow")
    whole, ends = path.read_bytes(), batch_ends(path)
    assert len(ends) == 4  # 1,000 rows in each batch
    for size in (*ends, len(whole) - 1, 0):
        path.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match=re.escape(f"{path} is incomplete: save the dataset again")) as error:
            open_source(corpus)
        assert "\n" not in str(error.value)


def test_a_dataset_that_was_not_saved_to_its_end(tmp_path):
    texts = datasets.Dataset.from_dict({"text": TEXTS})
    texts.save_to_disk(tmp_path / "one", num_shards=3)
    datasets.DatasetDict({"train": texts, "test": texts}).save_to_disk(tmp_path / "two")
    for folder, path in (("one", "one"), ("two/test", "two"), ("two/test", "two/test")):
        (tmp_path / folder / "state.json").unlink(missing_ok=True)
        (tmp_path / folder / "dataset_info.json").unlink(missing_ok=True)
        with pytest.raises(ConfigError, match=rf"{folder} has data-00000-of-\d+\.arrow and no state\.json, so save_to"):
            open_source(hf_config(tmp_path, tmp_path / path))


def test_a_saved_dataset_without_rows(tmp_path):
    kinds = datasets.Features({"text": datasets.Value("string")})
    datasets.Dataset.from_dict({"text": []}, features=kinds).save_to_disk(tmp_path / "saved")
    with pytest.raises(ConfigError, match=r"/saved is a saved dataset without rows: save one that has rows"):
        open_source(hf_config(tmp_path, tmp_path / "saved"))


def test_the_package_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"needs Hugging Face's datasets: pip install -e '\.\[hf\]'"):
        open_source(hf_config(tmp_path, "owner/name"))
