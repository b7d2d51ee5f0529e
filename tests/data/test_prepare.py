"""`python -m data.prepare`: its flags, what it prints, that training finds the store, and its errors."""

import dataclasses
import os
import re
import resource
import signal

import pytest

from configs.base import get_config
from contract.errors import ConfigError
from data.prepare import __main__ as prepare
from data.prepare.__main__ import main
from data.prepare.flags import read_corpus
from data.sources.config import CorpusConfig
from data.sources.filters import FilterConfig
from tests.data.corpus import corpus_config, opened, write_texts
from tests.data.tiny_tokenizers import sentencepiece


def test_every_field_of_the_corpus_has_a_flag():
    config = get_config().data.to_dict()
    special = {"num_sentinels": 0, "append_special_tokens": True, "decoder_start_token": "pad"}
    filters = {name: value + 0.25 if isinstance(value, float) else 7 for name, value in config["filters"].items()}
    filters["remove_duplicates"] = "near"
    fields = {field.name: f"a {field.name}" for field in dataclasses.fields(CorpusConfig)} | special
    fields |= {"document_per": "line", "on_unreadable": "skip", "filters": FilterConfig(**filters | {"jaccard": 0.5})}
    given = {name: value for name, value in fields.items() if name not in special and name != "filters"}
    fields["mode_tokens"] = ("a mode_tokens",)
    given |= {f"filters.{name}": value for name, value in dataclasses.asdict(fields["filters"]).items()}
    found = read_corpus(prepare._FLAGS, ["prepare", *(f"--{name}={value}" for name, value in given.items())], "")
    assert found == CorpusConfig(**fields)
    defaults = {field: config[field] for field in fields} | special | {"filters": FilterConfig(**config["filters"])}
    assert read_corpus(prepare._FLAGS, ["prepare"], "") == CorpusConfig(**defaults)


def test_training_finds_what_was_prepared(tmp_path, capsys, monkeypatch):
    write_texts(tmp_path, ["ab", "", "b"])
    corpus = corpus_config(tmp_path, num_sentinels=100)
    main(["prepare", "--source=text", f"--path={corpus.path}", f"--cache_dir={corpus.cache_dir}"])
    printed = capsys.readouterr().out
    monkeypatch.setattr("data.store.store.write_store", None)  # building again would raise
    store = opened(corpus)
    assert re.search(rf"store +{store.folder}\n", printed)
    for line in (r"documents +2", r"tokens +5 as uint16", r"bytes of text +3", r"unigram entropy +0\.6365 nats"):
        assert re.search(line, printed)
    assert re.search(r"skipped +1 empty documents, 0 unreadable files", printed)


def test_training_finds_the_store_of_a_tokenizer_with_mode_tokens_of_its_own(tmp_path, capsys, monkeypatch):
    write_texts(tmp_path, [f"a text [R] number {i}" for i in range(50)])
    model = sentencepiece(tmp_path / "a.model", user_defined_symbols=["[R]"])
    corpus = corpus_config(tmp_path, tokenizer=model)
    given = ["--source=text", f"--path={corpus.path}", f"--cache_dir={corpus.cache_dir}", f"--tokenizer={model}"]
    main(["prepare", *given])
    main(["prepare", *given, "--mode_tokens=[NLU],[S2S]"])
    monkeypatch.setattr("data.store.store.write_store", None)  # building again would raise
    stores = {opened(corpus), opened(dataclasses.replace(corpus, mode_tokens=("[NLU]", "[S2S]")))}
    assert set(re.findall(r"store +(\S+)", capsys.readouterr().out)) == {str(store.folder) for store in stores}
    assert len(stores) == 2


@pytest.mark.parametrize("size", [100, 24_050], ids=["tokens.bin", "offsets.npy"])
def test_a_full_disk_says_so(tmp_path, size):
    (tmp_path / "lines.txt").write_text("a\n" * 3000)  # offsets.npy, 8 bytes a document, is the largest file
    flags = [f"--path={tmp_path / 'lines.txt'}", "--document_per=line", f"--cache_dir={tmp_path / 'cache'}"]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        with pytest.raises(ConfigError, match=r"^--cache_dir=.* cannot be written \(File too large\)"):
            main(["prepare", "--source=text", *flags])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert os.listdir(tmp_path / "cache") == []


def test_errors_name_flags_and_keep_what_the_user_wrote(tmp_path):
    (tmp_path / "data.source").mkdir()
    for path in (f"{tmp_path}/data.source/nope", "data.path"):
        with pytest.raises(ConfigError, match=f"^--path='{path}' does not exist"):
            main(["prepare", "--source=text", f"--path={path}", f"--cache_dir={tmp_path}"])
    (tmp_path / "a.txt").write_text("some words")
    with pytest.raises(ConfigError, match=r"^--filters\.\* leaves no document of --path="):
        main(["prepare", f"--path={tmp_path}/a.txt", "--source=text", "--filters.min_characters=99"])
