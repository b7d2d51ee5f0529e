"""Datasets of TFDS, read without TensorFlow, and of the Hugging Face library."""

import json
import pickle
import re

import numpy as np
import pytest

from contract.errors import ConfigError
from data.sources import open_source
from data.sources.source import Skipped
from data.store.store import open_or_build
from data.tokenizers.tokenizer import make_tokenizer
from data.windows.split import Split, split_documents
from tests.data.corpus import corpus_config, opened, read, write_texts
from tests.data.record_files import write_examples
from tests.data.tfds_datasets import read_from, write_dataset

tfds = pytest.importorskip("tensorflow_datasets")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    text = tfds.features.Text()
    examples = [{"text": "one\n\ntwo", "n": 0}, {"text": "  ", "n": 1}, {"text": "drüben", "n": 2}]
    write_dataset("tiny_texts", examples, folder, text=text, n=tfds.features.Scalar(np.int32))
    lines = [{"text": f"first of {k}\n\nsecond of {k}"} for k in range(9)]
    write_dataset("tiny_splits", lines[:6], folder, other_split=("validation", lines[6:]), text=text)
    write_dataset("tiny_labels", [{"label": 3}], folder, label=tfds.features.Scalar(np.int32))
    write_dataset("tiny_latin", [{"text": b"\xff"}], folder, text=text)
    classes = {"text": text, "label": tfds.features.ClassLabel(names=["neg", "pos"])}
    labels = {"a": "pos", "b": "neg", "c": -1}
    write_dataset("tiny_classes", [{"text": t, "label": k} for t, k in labels.items()], folder, **classes)
    numbers = [{"text": "a", "label": 7, "prompt": "unread"}]
    integers = {"text": text, "label": tfds.features.Scalar(np.int32), "prompt": text}
    write_dataset("tiny_integers", numbers, folder, **integers)
    pairs = [{"prompt": f"p{k} ", "response": f"r{k}", "label": "unread"} for k in range(4)]
    write_dataset("tiny_pairs", pairs, folder, prompt=text, response=text, label=text)
    scores = {"text": text, "label": tfds.features.Scalar(np.float32)}
    write_dataset("tiny_scores", [{"text": "a", "label": 0.5}], folder, **scores)
    read_from(folder)
    return folder


def split_of(corpus, fraction=0.3):
    """The texts of the training and the held-out documents."""
    tokenizer = make_tokenizer(corpus)
    sides = split_documents(open_or_build(corpus, tokenizer), Split(fraction, 0, "auto"))
    return [{tokenizer.decode(side.tokens(i)) for i in range(len(side))} for side in sides]


def test_a_split_of_the_dataset_is_held_out(prepared, tmp_path):
    corpus = corpus_config(tmp_path, source="tfds", path="tiny_splits", heldout_path="validation")
    train, heldout = split_of(corpus)
    assert len(train) == 6 and heldout == {f"first of {k}\n\nsecond of {k}" for k in (6, 7, 8)}
    with pytest.raises(ConfigError, match=r"has no split 'test', only .*: set data\.heldout_path to one of these"):
        open_source(corpus_config(tmp_path, source="tfds", path="tiny_splits", heldout_path="test"))


def test_shards_are_parts_and_have_their_number_of_examples(prepared, tmp_path):
    corpus = corpus_config(tmp_path, source="tfds", path="tiny_splits")
    [part] = pickle.loads(pickle.dumps(open_source(corpus))).parts
    assert len(list(part.read(Skipped()))) == 6
    [shard] = (prepared / "tiny_splits").glob("*/*train*")
    whole = shard.read_bytes()
    write_examples(shard, [{"text": "a"}] * 5)
    with pytest.raises(ConfigError, match=rf"{shard} is not a whole ArrayRecord file \(5 records instead of 6\)"):
        list(open_source(corpus).documents(Skipped()))
    shard.write_bytes(whole)


def test_paragraphs_follow_their_example(prepared, tmp_path):
    train, heldout = split_of(corpus_config(tmp_path, source="tfds", path="tiny_splits", document_per="paragraph"))
    assert len(train) + len(heldout) == 12 and heldout
    assert not {text[-1] for text in train} & {text[-1] for text in heldout}


def documents_of(tmp_path, name):
    parts = pickle.loads(pickle.dumps(open_source(corpus_config(tmp_path, source="tfds", path=name)))).parts
    return sorted((doc.text, doc.prompt, doc.label) for part in parts for doc in part.read(Skipped()))


def test_labels_prompts_and_responses(prepared, tmp_path):
    assert documents_of(tmp_path, "tiny_classes") == [("a", "", "pos"), ("b", "", "neg"), ("c", "", "")]
    assert documents_of(tmp_path, "tiny_integers") == [("a", "", "7")]
    assert documents_of(tmp_path, "tiny_pairs") == [(f"r{k}", f"p{k} ", "") for k in range(4)]
    identity = open_source(corpus_config(tmp_path, source="tfds", path="tiny_classes")).identity
    assert identity["classes"] == ("neg", "pos")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", r"data\.source='tfds' reads data\.path, which is empty"),
        (
            "no_such_thing",
            r"'no_such_thing' is not a prepared TFDS dataset .* `tfds build no_such_thing --file",
        ),
        ("c4/en.noclean:3.1.0", r"`tfds build c4/en.noclean --file_format=array_record`, or set TFDS_DATA_DIR to"),
        ("tiny_texts/data_dir=run", r"data\.path='tiny_texts/data_dir=run' must be name\[/config\]\[:version\]"),
        ("imdb_reviews", r"data\.path='imdb_reviews' is not a prepared TFDS dataset"),  # TFDS could download it
        (
            "tiny_labels",
            r"data\.path='tiny_labels' has no feature 'text' \(data\.text_key\), and no 'prompt.* only \['label'\]",
        ),
        (
            "tiny_scores",
            r"/tiny_scores-train\.array_record-0+-of-0+1, record 0 has 0\.5 for 'label', which must",
        ),
        ("tiny_latin", r"/tiny_latin-train\.array_record-0+-of-0+1, record 0 is not UTF-8 in 'text' \(byte 0\): fix"),
    ],
)
def test_what_cannot_be_read(prepared, tmp_path, path, message):
    with pytest.raises(ConfigError, match=message) as error:
        list(open_source(corpus_config(tmp_path, source="tfds", path=path)).documents(Skipped()))
    assert "\n" not in str(error.value)


datasets = pytest.importorskip("datasets")


TEXTS = [f"Text {i}, é.\n\nIts second paragraph." for i in range(20)]


@pytest.fixture(autouse=True)
def offline(tmp_path_factory, monkeypatch):
    """A cache of the tests, and no requests."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


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
    stores = [opened(corpus) for corpus in corpora]
    assert len({store.content_digest for store in stores}) == 1 and len({store.folder.name for store in stores}) == 3


def test_splits_and_held_out_splits(tmp_path):
    save_splits(tmp_path / "saved")
    documents, _ = read(hf_config(tmp_path, tmp_path / "saved", heldout_path="test"))
    assert [document.text for document in documents if document.is_heldout] == ["held"] and len(documents) == 21
    documents, _ = read(hf_config(tmp_path, f"{tmp_path}/saved:test"))
    assert [document.text for document in documents] == ["held"]
    for path, heldout in ((tmp_path / "saved", "train"), (f"{tmp_path}/saved:test", "test")):
        with pytest.raises(ConfigError, match=r"held-out text must not be trained on"):
            open_source(hf_config(tmp_path, path, heldout_path=heldout))


def test_slices_of_a_split_are_held_out_and_text_of_a_whole_split_is_not(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    documents, _ = read(hf_config(tmp_path, f"{tmp_path}/files:train[:15]", heldout_path="train[15:]"))
    assert [document.text for document in documents] == TEXTS
    assert [document.is_heldout for document in documents] == [False] * 15 + [True] * 5
    for split, heldout in (
        ("", "train[:5]"),
        (":train[:15]", "train"),
        (":train", "test+train[15:]"),
        (":train+train[:5]", "train[15:]"),
        (":all", "train[:5]"),
    ):
        with pytest.raises(ConfigError, match=r"is text of it: held-out text must not be trained on"):
            open_source(hf_config(tmp_path, f"{tmp_path}/files{split}", heldout_path=heldout))


def test_classes_have_their_names(tmp_path):
    kinds = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    records = [{"text": "a", "label": 1}, {"text": " ", "label": 0}, {"text": "b", "label": -1}]
    save(tmp_path / "saved", records, datasets.Features(kinds))
    documents, skipped = read(hf_config(tmp_path, tmp_path / "saved"))
    assert [(document.text, document.label) for document in documents] == [("a", "pos"), ("b", "")]
    assert skipped.empty == 1


def test_what_cannot_be_loaded(tmp_path, capfd):
    with pytest.raises(ConfigError, match=r"data\.path='pandas:train' reads pickled files"):
        open_source(hf_config(tmp_path, "pandas:train"))
    save_splits(tmp_path / "saved")
    for name, contents in (("torn", '{"text": '), ("void", None)):
        (tmp_path / name).mkdir()
        if contents is not None:
            (tmp_path / name / "a.jsonl").write_text(contents)
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
    }
    for path, message in expected.items():
        capfd.readouterr()
        with pytest.raises(ConfigError, match=re.escape(f"data.path={path!r}") + ".*" + message) as error:
            open_source(hf_config(tmp_path, path))
        assert "\n" not in str(error.value) and not capfd.readouterr().err


def test_a_dataset_that_was_not_saved_to_its_end(tmp_path):
    texts = datasets.Dataset.from_dict({"text": TEXTS})
    texts.save_to_disk(tmp_path / "one", num_shards=3)
    datasets.DatasetDict({"train": texts, "test": texts}).save_to_disk(tmp_path / "two")
    for folder, path in (("one", "one"), ("two/test", "two"), ("two/test", "two/test")):
        (tmp_path / folder / "state.json").unlink(missing_ok=True)
        (tmp_path / folder / "dataset_info.json").unlink(missing_ok=True)
        with pytest.raises(ConfigError, match=rf"{folder} has no state\.json: save_to_disk was interrupted"):
            open_source(hf_config(tmp_path, tmp_path / path))
