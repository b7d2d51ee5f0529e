"""The commands of docs/tokenizers.md that train a tokenizer, run as written with a smaller vocabulary."""

import json
import re
import shlex

import pytest

from data import train_tokenizer
from data.tokenizers.tokenizer import make_tokenizer
from tests.data.corpus import corpus_config
from tests.train.subprocesses import ROOT

PAGES = ("tokenizers", "data")


def test_the_commands_that_train(corpus, tmp_path, monkeypatch, capsys):
    pytest.importorskip("sentencepiece")
    pytest.importorskip("tokenizers")
    texts = [path.read_text() for path in sorted((corpus / "text").iterdir())]
    (tmp_path / "corpus.txt").write_text("\n\n".join(texts)[:300_000])
    (tmp_path / "english").mkdir()
    (tmp_path / "english" / "english.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    monkeypatch.chdir(tmp_path)
    text = "".join((ROOT / "docs" / f"{page}.md").read_text() for page in PAGES)
    commands = re.findall(r"^    python -m data\.train_tokenizer (.*)$", text, re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        train_tokenizer.main(
            ["train_tokenizer", *shlex.split(re.sub(r"--vocab_size=\d+", "--vocab_size=600", command))]
        )
        out = re.search(r"--out=(\S+)", command)[1]
        vocab = make_tokenizer(corpus_config(tmp_path, tokenizer=str(tmp_path / out), num_sentinels=100)).vocab
        assert vocab.content_end == 600
        assert ("[MASK]" in dict(vocab.own_names).values()) == out.endswith(".json")
    # WordPiece's are not.
    assert capsys.readouterr().out.count("all texts are the same") == 4
