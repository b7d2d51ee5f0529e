"""Documents of records: JSON lines, parquet and ArrayRecord of the same documents, and invalid ones."""

import gzip
import json
import re

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ConfigError
from data.sources import open_source
from data.sources.files import File, file_digest
from data.sources.source import RawDocument, Skipped
from data.tokenizers.tokenizer import make_tokenizer
from data.windows.split import Split, split_documents, unit_of
from tests.data.corpus import corpus_config, opened, read, write_texts
from tests.data.record_files import write_examples, write_jsonl, write_parquet, write_records
from tests.data.test_tokenizer import train_model

PAIR = '{"prompt": "ab", "response": "c"}'


def jsonl_corpus(tmp_path, *lines, **changes):
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return corpus_config(tmp_path, **({"source": "jsonl", "path": str(path)} | changes))


def store_of_lines(tmp_path, *lines, **changes):
    corpus = jsonl_corpus(tmp_path, *lines, **changes)
    return opened(corpus)


def test_pairs_and_texts_in_the_files_order(tmp_path):
    lines = [
        PAIR,
        "",
        '{"text": "x\\ny", "label": "news", "id": 7}',
        ' {"prompt": "", "response": "z"} ',
        '{"text": "é"}',
    ]
    source = open_source(jsonl_corpus(tmp_path, *lines))
    path = str(tmp_path / "pairs.jsonl")
    documents = list(source.documents(Skipped()))
    assert {document.file_digest for document in documents} == {file_digest(File(path, path))}
    assert [document._replace(file_digest=0) for document in documents] == [
        RawDocument(path, "c", "ab"),
        RawDocument(path, "x\ny", label="news"),
        RawDocument(path, "z"),
        RawDocument(path, "é"),
    ]


def test_responses_to_one_prompt_are_on_one_side_of_the_split(tmp_path):
    lines = [json.dumps({"prompt": f"p{k % 10}", "response": f"r{k}"}) for k in range(40)]
    store = store_of_lines(tmp_path, *lines)
    train, heldout = split_documents(store, Split(0.3, 0, "auto"))

    def prompts(documents):
        return {tuple(documents.tokens(i)[:2].tolist()) for i in range(len(documents))}

    assert prompts(heldout) and prompts(train) and not prompts(heldout) & prompts(train)
    assert len(heldout) == 4 * len(prompts(heldout)) and len(heldout) + len(train) == 40


def test_a_token_never_spans_the_boundary(tmp_path):
    """The prompt ends inside what would be one token of the two together."""
    text, model = "the quick brown fox", train_model(tmp_path / "t5.model")
    encode = make_tokenizer(corpus_config(tmp_path, tokenizer=model)).encode
    together = encode(text).tolist()
    cut = next(k for k in range(2, len(text)) if encode(text[:k]).tolist() != together[: len(encode(text[:k]))])
    prompt, response = encode(text[:cut]), encode(text[cut:])
    line = json.dumps({"prompt": text[:cut], "response": text[cut:]})
    store = store_of_lines(tmp_path, line, tokenizer=model)
    assert store.prompt_lengths.tolist() == [len(prompt)]
    assert store.tokens.tolist() == [*prompt, *response, 1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"prompt": "\xff", "response": "a"}', "is not UTF-8 (byte 12 of the line)"),
        ('{"prompt": "a" "response": "b"}', "is not JSON (Expecting ',' delimiter, column 16"),
        ('{"text": "a", "id": 1, "text": "b"}', "has the key 'text' more than once: fix"),
        ("[1]", "must be an object with the keys 'prompt' and 'response', or 'text' (data.text_key) and"),
        ('{"text": "a", "response": "b"}', "must be an object with the keys"),
        ('{"id": 1}', "must be an object with the keys 'prompt' and 'response', or 'text' (data.text_key) "
         "and optionally 'label', and has the keys ['id']: fix"),
        ('{"prompt": "a", "response": 7}', "has 7 for 'response', which must be a string"),
        ('{"text": "a", "label": true}', "has True for 'label', which must be a string"),
        ('{"prompt": "a", "response": "b\\ud800"}', "has half of a surrogate pair in 'response', at character 1"),
    ],
)  # fmt: skip
def test_an_invalid_line_is_an_error_or_skipped_and_counted(tmp_path, line, message):
    with pytest.raises(ConfigError) as error:
        store_of_lines(tmp_path, PAIR, "", line)
    text = str(error.value)
    assert text.startswith(f"{tmp_path}/pairs.jsonl:3 {message}") and "\n" not in text
    assert text.endswith("fix that record, or set data.on_unreadable='skip'")
    store = store_of_lines(tmp_path, PAIR, line, PAIR, line, on_unreadable="skip")
    assert len(store) == 2 and store.meta["skipped_lines"] == 2
    assert store.meta["first_skipped_line"] == f"{tmp_path}/pairs.jsonl:2"


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_byte_order_mark_at_the_start_of_a_file_is_no_text(tmp_path, name):
    contents = f"\ufeff{PAIR}\n{PAIR}".encode()
    (tmp_path / name).write_bytes(gzip.compress(contents) if name.endswith(".gz") else contents)
    documents, _ = read(corpus_config(tmp_path, source="jsonl", path=str(tmp_path / name)))
    assert [(document.prompt, document.text) for document in documents] == [("ab", "c")] * 2


def test_json_lines_and_responses_are_not_cut(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.document_per='line' is not read by data\.source='jsonl'"):
        open_source(jsonl_corpus(tmp_path, PAIR, document_per="line"))
    corpus = corpus_of(tmp_path, "parquet", [{"prompt": "a", "response": "b"}], document_per="line")
    with pytest.raises(ConfigError, match=r"data\.document_per='line' does not go with prompts and responses, which"):
        read(corpus)


TEXTS = [f"Text {i}, é.\n\nIts second paragraph." for i in range(20)]


WRITE = {"jsonl": write_jsonl, "parquet": write_parquet, "array_record": write_examples}


def corpus_of(tmp_path, source, records, **changes):
    WRITE[source](tmp_path / f"a.{source}", records)
    return corpus_config(tmp_path, **({"source": source, "path": str(tmp_path / f"a.{source}")} | changes))


def contents_of(store):
    names = [store.labels[i] for i in store.label_ids]
    return store.tokens.tolist(), store.offsets.tolist(), store.prompt_lengths.tolist(), names


@pytest.mark.parametrize("document_per", ["file", "paragraph"])
def test_texts_are_the_same_corpus_in_every_format(tmp_path, document_per):
    write_texts(tmp_path, TEXTS)
    as_files = opened(corpus_config(tmp_path, document_per=document_per))
    for source in ("parquet", "array_record"):
        store = opened(corpus_of(tmp_path, source, [{"text": text} for text in TEXTS], document_per=document_per))
        assert store.content_digest == as_files.content_digest and store.meta["cut"] == as_files.meta["cut"]
        assert unit_of(store, Split(0.1, 0, "auto")) == "file"
    if document_per == "file":
        lines = opened(corpus_of(tmp_path, "jsonl", [{"text": text} for text in TEXTS]))
        assert contents_of(lines) == contents_of(as_files)  # the unit of its split is a line, of one file


@pytest.mark.parametrize(
    "records", [{"prompt": "ab", "response": "c"}, {"text": "c", "label": "x"}], ids=["pair", "label"]
)
def test_pairs_and_labels_are_the_same_in_every_format(tmp_path, records):
    records = [{key: value + str(i % 3) for key, value in records.items()} for i in range(9)]
    found = [contents_of(opened(corpus_of(tmp_path, source, records))) for source in WRITE]
    assert found[0] == found[1] == found[2] and (sum(found[0][2]) > 0 or "x1" in found[0][3])


@pytest.mark.parametrize("source", WRITE)
def test_another_key_of_the_text(tmp_path, source):
    records = [{"content": text, "text_id": "7", "label": "x"} for text in TEXTS]
    documents, _ = read(corpus_of(tmp_path, source, records, text_key="content"))
    assert [document.text for document in documents] == TEXTS and documents[0].label == "x"
    with pytest.raises(ConfigError, match=r"data\.text_key") as error:
        read(corpus_of(tmp_path, source, records))
    assert str(tmp_path / f"a.{source}") in str(error.value) and "\n" not in str(error.value)


def test_integer_and_null_labels_of_json(tmp_path):
    records = [{"text": "a", "label": 1}, {"text": "b", "label": None}, {"text": "c", "label": -2}, {"text": "d"}]
    write_records(tmp_path / "json.array_record", [json.dumps(record).encode() for record in records])
    of_records = corpus_config(tmp_path, source="array_record", path=str(tmp_path / "json.array_record"))
    for corpus in (corpus_of(tmp_path, "jsonl", records), of_records):
        assert [document.label for document in read(corpus)[0]] == ["1", "", "-2", ""]


def test_two_columns_of_one_name_are_refused(tmp_path):
    corpus = corpus_of(tmp_path, "parquet", [{"text": "a"}])
    columns = [pyarrow.array(["a"]), pyarrow.array(["b"])]
    pyarrow.parquet.write_table(pyarrow.Table.from_arrays(columns, names=["text", "text"]), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=r"a\.parquet has 2 columns 'text': rename all but one of them"):
        read(corpus)


def test_columns_of_bytes_are_read_as_text(tmp_path):
    documents, _ = read(corpus_of(tmp_path, "parquet", [{"text": "é".encode(), "label": b"x"}, {"text": b"b"}]))
    assert [(document.text, document.label) for document in documents] == [("é", "x"), ("b", "")]
    with pytest.raises(ConfigError, match=r"a\.parquet, row 1 is not UTF-8 in 'text' \(byte 1\): fix that record"):
        read(corpus_of(tmp_path, "parquet", [{"text": b"a"}, {"text": b"a\xff"}]))


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


GOOD = {"text": "good"}


INVALID = {
    ("parquet", "UTF-8"): ([{"text": b"good"}, {"text": b"\xff"}], "a.parquet, row 1 is not UTF-8 in 'text' (byte 0)"),
    ("parquet", "column"): ([{"texts": "a"}], "a.parquet has no column 'text' (data.text_key), and no 'prompt' and"),
    ("array_record", "UTF-8"): ([GOOD, {"text": b"\xff"}], "a.array_record, record 1 is not UTF-8 in 'text' (byte 0)"),
    ("array_record", "type"): ([GOOD, {"text": 5}], "a.array_record, record 1 has 5 for 'text', which must be a str"),
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
