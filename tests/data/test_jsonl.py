"""JSON-lines files: pairs and labelled texts by hand, and the error for each invalid line."""

import gzip
import json
import re

import numpy as np
import pytest

from contract.errors import ConfigError
from data.prepare.__main__ import main as prepare
from data.sources import jsonl, open_source
from data.sources.files import file_digest
from data.sources.raw import RawDocument, Skipped
from data.store.store import open_or_build
from data.tokenizers.tokenizer import make_tokenizer
from data.windows.split import Split, split_documents
from tests.data.corpus import corpus_config
from tests.data.test_tokenizer import T5_LIKE, train_model

GOOD = '{"prompt": "ab", "response": "c"}'


def jsonl_corpus(tmp_path, *lines, **changes):
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return corpus_config(tmp_path, **({"source": "jsonl", "path": str(path)} | changes))


def store_of_lines(tmp_path, *lines, **changes):
    corpus = jsonl_corpus(tmp_path, *lines, **changes)
    return open_or_build(corpus, make_tokenizer(corpus))


def test_pairs_and_texts_in_the_files_order(tmp_path):
    lines = [
        GOOD,
        "",
        '{"text": "x\\ny", "label": "news", "id": 7}',
        ' {"prompt": "", "response": "z"} ',
        '{"text": "é"}',
    ]
    source = open_source(jsonl_corpus(tmp_path, *lines))
    path = str(tmp_path / "pairs.jsonl")
    documents = list(source.documents(Skipped()))
    assert {document.file_digest for document in documents} == {file_digest(path)}
    assert [document._replace(file_digest=0) for document in documents] == [
        RawDocument(path, "c", "ab"),
        RawDocument(path, "x\ny", label="news"),
        RawDocument(path, "z"),
        RawDocument(path, "é"),
    ]


def test_store_by_hand(tmp_path):
    store = store_of_lines(tmp_path, GOOD, '{"text": "x", "label": "news"}', '{"text": "y"}')
    assert store.tokens.tolist() == [100, 101, 102, 1, 123, 1, 124, 1]
    assert store.offsets.tolist() == [0, 4, 6, 8]
    assert store.prompt_lengths.tolist() == [2, 0, 0] and store.prompt_lengths.dtype == np.int32
    assert [store.labels[i] for i in store.label_ids] == ["", "news", ""]
    assert store.meta["num_bytes"] == 5


def test_texts_without_prompts_have_prompts_of_no_token(tmp_path):
    store = store_of_lines(tmp_path, '{"text": "x"}', '{"prompt": "", "response": "y"}')
    assert store.prompt_lengths.tolist() == [0, 0]


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
    text, model = "the quick brown fox", train_model(tmp_path / "t5.model", **T5_LIKE)
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
        ('{"prompt": "a" "response": "b"}', "is not JSON (Expecting ',' delimiter, column 16)"),
        ("[" * 100_000, "is not JSON (nested too deeply)"),
        ("[1]", "must be an object with the keys 'prompt' and 'response', or 'text' (data.text_key) and"),
        ('{"prompt": "a"}', "must be an object with the keys"),
        ('{"text": "a", "response": "b"}', "must be an object with the keys"),
        ('{"prompt": "a", "response": 7}', "has 7 for 'response', which must be a string"),
        ('{"prompt": null, "response": "a"}', "has None for 'prompt', which must be a string"),
        ('{"text": "a", "label": true}', "has True for 'label', which must be a string"),
        ('{"text": "a", "label": 1.5}', "has 1.5 for 'label', which must be a string"),
        ('{"text": {"a": 1, "a": 2}}', "has {'a': 2} for 'text', which must be a string"),
        (
            '{"content": "a", "id": 1}',
            "must be an object with the keys 'prompt' and 'response', or 'text' (data.text_key) "
            "and optionally 'label', and has the keys 'content', 'id': fix",
        ),
        ('{"text": null}', "has None for 'text', which must be a string"),
        ('{"prompt": "a", "response": " \\n"}', "has no text in 'response'"),
        ('{"text": ""}', "has no text in 'text'"),
        ('{"prompt": "a", "response": "b\\ud800"}', "has half of a surrogate pair in 'response', at character 1"),
        ('{"text": "a", "text": "b"}', "has the key 'text' more than once: fix"),
        ('{"text": "a", "id": 1, "tag": {}, "id": 1}', "has the key 'id' more than once: fix"),
        ('\ufeff{"text": "a"}', "begins with a byte order mark (U+FEFF): a file may have one, at its start: fix"),
        ('{"text": "a", "id": ' + "9" * 5000 + "}", "is not JSON that can be read (Exceeds the limit (4300 digits)"),
    ],
)
def test_an_invalid_line_is_an_error_or_skipped_and_counted(tmp_path, line, message):
    with pytest.raises(ConfigError) as error:
        store_of_lines(tmp_path, GOOD, "", line)
    text = str(error.value)
    assert text.startswith(f"{tmp_path}/pairs.jsonl:3 {message}") and "\n" not in text
    assert text.endswith("fix that line, or set data.on_unreadable='skip'")
    store = store_of_lines(tmp_path, GOOD, line, GOOD, line, on_unreadable="skip")
    assert len(store) == 2 and store.meta["skipped_lines"] == 2
    assert store.meta["first_skipped_line"] == f"{tmp_path}/pairs.jsonl:2"


def test_keys_of_objects_that_are_ignored_may_repeat(tmp_path):
    store = store_of_lines(tmp_path, '{"text": "a", "meta": {"x": 1, "x": [{"text": 2}]}, "more": {"text": 3}}')
    assert store.tokens.tolist() == [100, 1]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize("rest", ["", "\n"])
def test_a_byte_order_mark_at_the_start_of_a_file_is_no_text(tmp_path, name, rest):
    contents = f"\ufeff{rest}{GOOD}\n{GOOD}".encode()
    (tmp_path / name).write_bytes(gzip.compress(contents) if name.endswith(".gz") else contents)
    corpus = corpus_config(tmp_path, source="jsonl", path=str(tmp_path / name))
    assert [(document.prompt, document.text) for document in open_source(corpus).documents(Skipped())] == [
        ("ab", "c"),
        ("ab", "c"),
    ]


def test_no_valid_line(tmp_path):
    message = r"no document with text \(.*, 0 unreadable files and 2 unreadable lines or records\): name"
    with pytest.raises(ConfigError, match=message):
        store_of_lines(tmp_path, "{", "[]", on_unreadable="skip")


def test_documents_are_lines_and_nothing_else(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.document_per='line' does not go with data\.source='jsonl', whose"):
        open_source(jsonl_corpus(tmp_path, GOOD, document_per="line"))


def test_prepare_prints_how_many_lines_it_skips(tmp_path, capsys):
    jsonl_corpus(tmp_path, GOOD, "{")
    flags = ["--source=jsonl", f"--path={tmp_path}/*.jsonl", f"--cache_dir={tmp_path}/c", "--on_unreadable=skip"]
    prepare(["prepare", *flags])
    printed = capsys.readouterr().out
    assert re.search(r"skipped +0 empty documents, 0 unreadable files, 1 unreadable lines", printed)
    assert f"unreadable: {tmp_path}/pairs.jsonl:2\n" in printed


def test_stores_of_other_rules_of_lines_have_other_names(tmp_path, monkeypatch):
    corpus = jsonl_corpus(tmp_path, GOOD)
    now = open_or_build(corpus, make_tokenizer(corpus))
    monkeypatch.setattr(jsonl, "_RULES", jsonl._RULES - 1)
    assert open_or_build(corpus, make_tokenizer(corpus)).name != now.name
