"""Sources of records: parquet, ArrayRecord and JSON lines of the same documents, and invalid ones."""

import json
import pickle
import random
import re

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ConfigError
from data.sources import open_source
from data.sources.raw import RawDocument, Skipped
from data.store.store import open_or_build
from data.tokenizers.tokenizer import make_tokenizer
from data.windows.split import Split, unit_of
from tests.data.corpus import corpus_config, write_texts
from tests.data.record_files import example, write_examples, write_jsonl, write_parquet, write_records

TEXTS = [f"Text {i}, é.\n\nIts second paragraph." for i in range(20)]
WRITE = {"jsonl": write_jsonl, "parquet": write_parquet, "array_record": write_examples}


def corpus_of(tmp_path, source, records, **changes):
    WRITE[source](tmp_path / f"a.{source}", records)
    return corpus_config(tmp_path, **({"source": source, "path": str(tmp_path / f"a.{source}")} | changes))


def read(corpus):
    skipped = Skipped()
    return list(open_source(corpus).documents(skipped)), skipped


def store_of(corpus):
    return open_or_build(corpus, make_tokenizer(corpus))


def contents_of(store):
    names = [store.labels[i] for i in store.label_ids]
    return store.tokens.tolist(), store.offsets.tolist(), store.prompt_lengths.tolist(), names


@pytest.mark.parametrize("document_per", ["file", "paragraph"])
def test_texts_are_the_same_corpus_in_every_format(tmp_path, document_per):
    write_texts(tmp_path, TEXTS)
    as_files = store_of(corpus_config(tmp_path, document_per=document_per))
    for source in ("parquet", "array_record"):
        store = store_of(corpus_of(tmp_path, source, [{"text": text} for text in TEXTS], document_per=document_per))
        assert store.content_digest == as_files.content_digest and store.meta["cut"] == as_files.meta["cut"]
        assert unit_of(store, Split(0.1, 0, "auto")) == "file"
    if document_per == "file":
        lines = store_of(corpus_of(tmp_path, "jsonl", [{"text": text} for text in TEXTS]))
        assert contents_of(lines) == contents_of(as_files)  # the unit of its split is a line, of one file


@pytest.mark.parametrize(
    "records", [{"prompt": "ab", "response": "c"}, {"text": "c", "label": "x"}], ids=["pair", "label"]
)
def test_pairs_and_labels_are_the_same_in_every_format(tmp_path, records):
    records = [{key: value + str(i % 3) for key, value in records.items()} for i in range(9)]
    found = [contents_of(store_of(corpus_of(tmp_path, source, records))) for source in WRITE]
    assert found[0] == found[1] == found[2] and (sum(found[0][2]) > 0 or "x1" in found[0][3])


@pytest.mark.parametrize("source", WRITE)
def test_another_key_of_the_text(tmp_path, source):
    records = [{"content": text, "text_id": "7", "label": "x"} for text in TEXTS]
    documents, _ = read(corpus_of(tmp_path, source, records, text_key="content"))
    assert [document.text for document in documents] == TEXTS and documents[0].label == "x"
    with pytest.raises(ConfigError, match=r"data\.text_key") as error:
        read(corpus_of(tmp_path, source, records))
    assert str(tmp_path / f"a.{source}") in str(error.value) and "\n" not in str(error.value)


def test_stores_keep_their_names_unless_the_key_differs(tmp_path):
    records = [{"text": "a", "b": "c"}, {"text": "b", "b": "d"}]
    names = {store_of(corpus_of(tmp_path, "jsonl", records)).name}
    (tmp_path / "a.jsonl").touch()
    corpus = corpus_config(tmp_path, source="jsonl", path=str(tmp_path / "a.jsonl"), text_key="b")
    store = store_of(corpus)
    assert store.name not in names and store.tokens.tolist() == [102, 1, 103, 1]


@pytest.mark.parametrize("source", ["text", "stdlib"])
def test_texts_have_no_keys(tmp_path, source):
    path = "" if source == "stdlib" else "x"
    with pytest.raises(ConfigError, match=rf"data\.text_key='b' is not read by data\.source='{source}'"):
        open_source(corpus_config(tmp_path, source=source, path=path, text_key="b"))


def test_integer_labels_and_empty_texts_of_tables(tmp_path):
    records = [{"text": "a", "label": 1}, {"text": " ", "label": 2}, {"text": "b", "label": None}]
    for source, rows in (("parquet", records), ("array_record", [*records[:2], {"text": "b"}])):
        documents, skipped = read(corpus_of(tmp_path, source, rows))
        assert [(document.text, document.label) for document in documents] == [("a", "1"), ("b", "")]
        assert skipped.empty == 1 and not skipped.lines


def test_integer_and_null_labels_of_json(tmp_path):
    records = [{"text": "a", "label": 1}, {"text": "b", "label": None}, {"text": "c", "label": -2}, {"text": "d"}]
    write_records(tmp_path / "json.array_record", [json.dumps(record).encode() for record in records])
    of_records = corpus_config(tmp_path, source="array_record", path=str(tmp_path / "json.array_record"))
    for corpus in (corpus_of(tmp_path, "jsonl", records), of_records):
        assert [(document.text, document.label) for document in read(corpus)[0]] == [
            ("a", "1"),
            ("b", ""),
            ("c", "-2"),
            ("d", ""),
        ]


def test_a_null_of_a_table_is_an_empty_text(tmp_path):
    documents, skipped = read(corpus_of(tmp_path, "parquet", [GOOD, {"text": None}, {"text": ""}]))
    assert [document.text for document in documents] == ["good"] and skipped.empty == 2 and not skipped.lines
    pairs = [("p", "r"), (None, "s"), ("q", None), (None, None)]
    rows = [{"prompt": prompt, "response": response} for prompt, response in pairs]
    documents, skipped = read(corpus_of(tmp_path, "parquet", rows))
    assert [(document.prompt, document.text) for document in documents] == [("p", "r"), ("", "s")]
    assert skipped.empty == 2 and not skipped.lines


def test_columns_of_bytes_are_read_as_text(tmp_path):
    documents, _ = read(corpus_of(tmp_path, "parquet", [{"text": "é".encode(), "label": b"x"}, {"text": b"b"}]))
    assert [(document.text, document.label) for document in documents] == [("é", "x"), ("b", "")]
    with pytest.raises(ConfigError, match=r"a\.parquet, row 1 is not UTF-8 in 'text' \(byte 1\): fix that record"):
        read(corpus_of(tmp_path, "parquet", [{"text": b"a"}, {"text": b"a\xff"}]))


def test_two_columns_of_one_name(tmp_path):
    column, path = pyarrow.array(["a"]), tmp_path / "a.parquet"
    for names, is_ambiguous in ((["text", "text"], True), (["text", "n", "n"], False)):
        pyarrow.parquet.write_table(pyarrow.table([column] * len(names), names=names), path)
        corpus = corpus_config(tmp_path, source="parquet", path=str(path))
        if is_ambiguous:
            with pytest.raises(ConfigError, match=r"a\.parquet has 2 columns 'text': rename all but one of them, ex"):
                read(corpus)
        else:
            assert [document.text for document in read(corpus)[0]] == ["a"]


def test_a_prompt_is_not_cut(tmp_path):
    corpus = corpus_of(tmp_path, "parquet", [{"prompt": "a", "response": "b"}], document_per="line")
    with pytest.raises(ConfigError, match=r"data\.document_per='line' does not go with prompts and responses, which"):
        read(corpus)


def test_array_records_of_text_and_of_json(tmp_path):
    path = tmp_path / "a.array_record"
    for group_size in (1, 8):
        write_records(path, [text.encode() for text in TEXTS], group_size)
        corpus = corpus_config(tmp_path, source="array_record", path=str(path), text_key="")
        assert [document.text for document in read(corpus)[0]] == TEXTS
    write_records(path, [json.dumps({"text": text}).encode() for text in TEXTS])
    corpus = corpus_config(tmp_path, source="array_record", path=str(path))
    documents, _ = read(corpus)
    assert [document.text for document in documents] == TEXTS
    assert documents[0] == RawDocument(str(path), TEXTS[0], file_digest=documents[0].file_digest)


def test_columns_of_every_type_of_text(tmp_path):
    for kind in (pyarrow.large_string(), pyarrow.string_view(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())):
        table = pyarrow.table({"text": pyarrow.array(["a", "b", "a"]).cast(kind), "n": [1, 2, 3]})
        pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
        documents, _ = read(corpus_config(tmp_path, source="parquet", path=str(tmp_path / "a.parquet")))
        assert [document.text for document in documents] == ["a", "b", "a"]


GOOD = {"text": "good"}
INVALID = {
    ("parquet", "UTF-8"): ([{"text": b"good"}, {"text": b"\xff"}], "a.parquet, row 1 is not UTF-8 in 'text' (byte 0)"),
    ("parquet", "column"): ([{"texts": "a"}], "a.parquet has no column 'text' (data.text_key), and no 'prompt' and"),
    ("parquet", "type"): ([{"text": 5}], "a.parquet has the type int64 in column 'text', which must be text: set data"),
    ("parquet", "label"): ([{"text": "a", "label": 0.5}], "a.parquet has the type double in column 'label', which"),
    ("array_record", "UTF-8"): ([GOOD, {"text": b"\xff"}], "a.array_record, record 1 is not UTF-8 in 'text' (byte 0)"),
    ("array_record", "type"): (
        [GOOD, {"text": 5}],
        "a.array_record, record 1 has 5 for 'text', which must be a string",
    ),
    ("array_record", "lacks"): ([GOOD, {"texts": "a"}], "a.array_record, record 1 must be an object with the keys"),
}


@pytest.mark.parametrize("case", INVALID, ids=" ".join)
def test_invalid_records_are_named_or_skipped_and_counted(tmp_path, case):
    records, message = INVALID[case]
    corpus = corpus_of(tmp_path, case[0], records)
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        read(corpus)
    assert "\n" not in str(error.value) and str(error.value).endswith("or set data.on_unreadable='skip'")
    documents, skipped = read(corpus_config(tmp_path, source=case[0], path=corpus.path, on_unreadable="skip"))
    assert len(documents) + skipped.lines + len(skipped.files) * len(records) == len(records)
    assert skipped.files or skipped.first_line == message[: message.index(" 1 ")].join([f"{tmp_path}/", " 1"])


def test_records_that_are_no_examples(tmp_path):
    path = tmp_path / "a.array_record"
    write_records(path, [example(GOOD), b"plain text", b"{]"])
    with pytest.raises(ConfigError, match=r"record 1 is neither a tf.train.Example nor a JSON object \(data\."):
        read(corpus_config(tmp_path, source="array_record", path=str(path)))
    documents, skipped = read(corpus_config(tmp_path, source="array_record", path=str(path), on_unreadable="skip"))
    assert len(documents) == 1 and skipped.lines == 2


@pytest.mark.parametrize("source", ["parquet", "array_record"])
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_no_damage_makes_a_corpus_shorter(tmp_path_factory, source, data):
    tmp_path = tmp_path_factory.mktemp("damaged")
    corpus = corpus_of(tmp_path, source, [{"text": text, "n": i} for i, text in enumerate(TEXTS)])
    path = tmp_path / f"a.{source}"
    damaged = bytearray(path.read_bytes())
    if data.draw(st.booleans(), label="cut off"):
        del damaged[data.draw(st.integers(0, len(damaged) - 1)) :]
    else:
        place = data.draw(st.integers(0, len(damaged) - 1) | st.integers(len(damaged) - 600, len(damaged) - 1))
        damaged[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(damaged)
    try:
        documents, _ = read(corpus)
    except ConfigError as error:
        assert "\n" not in str(error) and str(path) in str(error)
        skipping = corpus_config(tmp_path, source=source, path=str(path), on_unreadable="skip")
        documents, skipped = read(skipping)
        assert (skipped.files == [str(path)] and not documents) or len(documents) + skipped.lines == len(TEXTS)
    else:
        assert len(documents) == len(TEXTS)  # no format has checksums of everything


@pytest.mark.parametrize("source", ["parquet", "array_record"])
def test_files_of_something_else(tmp_path, source):
    path = tmp_path / "a"
    for contents in (b"", b"text" * 20_000):
        path.write_bytes(contents)
        with pytest.raises(ConfigError, match=rf"{path} is not a whole \w+ file \(.*: fix the file, exclude it"):
            read(corpus_config(tmp_path, source=source, path=str(path)))
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=rf"{path} cannot be read \(No such file"):
        read(corpus_config(tmp_path, source=source, path=f"{tmp_path}/*"))


@pytest.mark.parametrize("source", ["parquet", "array_record"])
def test_files_without_documents(tmp_path, source):
    if source == "parquet":
        pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), tmp_path / "a")
    else:
        write_records(tmp_path / "a", [])
    with pytest.raises(ConfigError, match=r"data\.path='.*/a' contains no document with text \(skipped 0 empty"):
        store_of(corpus_config(tmp_path, source=source, path=str(tmp_path / "a")))
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize("source", ["parquet", "array_record"])
def test_sources_can_be_pickled(tmp_path, source):
    corpus = corpus_of(tmp_path, source, [GOOD] * 9)
    copy = pickle.loads(pickle.dumps(open_source(corpus)))
    assert list(copy.documents(Skipped())) == read(corpus)[0]


def test_memory_does_not_grow_with_a_row_group(tmp_path):
    texts = [random.Random(i).randbytes(500).hex() for i in range(16_000)]  # 16 MB, random
    write_parquet(tmp_path / "a", ({"text": text} for text in texts), row_group_size=16_000, use_dictionary=False)
    documents = open_source(corpus_config(tmp_path, source="parquet", path=str(tmp_path / "a"))).documents(Skipped())
    del texts
    before = pyarrow.total_allocated_bytes()
    assert max(pyarrow.total_allocated_bytes() - before for _ in documents) < 6e6
