"""`python -m data.train_tokenizer`: its files, that they are reproducible, and what it prints and refuses."""

import contextlib
import io
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ConfigError
from data.tokenizers.tokenizer import make_tokenizer
from data.train_tokenizer import main
from tests.data.corpus import corpus_config, write_texts
from tests.data.tiny_tokenizers import SPECIAL_LOOKING

ROOT = Path(__file__).parents[2]
KINDS = {"unigram": "u.model", "bpe": "b.model", "byte-level bpe": "b.json", "wordpiece": "w.json"}
LOSSLESS = ["unigram", "bpe", "byte-level bpe"]
CHARACTERS = "\u2585\u2581\u2047<s>\x00\t\r"  # of which SentencePiece reserves some


def arguments(kind, folder, out=None, **flags):
    """The command line for a tokenizer of `kind`, in `folder` by default, on folder/text."""
    values = {"source": "text", "path": folder / "text", "out": (out or folder) / KINDS[kind], "vocab_size": 450}
    values |= {"kind": kind.split()[-1], "num_sentinels": 5, "special_tokens": "[CLS],[SEP],[MASK],[NLU]"}
    return ["command", *(f"--{name}={value}" for name, value in (values | flags).items())]


def train(kind, folder, **flags):
    """Trains, and returns what is printed."""
    pytest.importorskip("sentencepiece")
    pytest.importorskip("tokenizers")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main(arguments(kind, folder, **flags))
    return out.getvalue()


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What the command prints for each kind, and the folder of the tokenizers, which has their corpus."""
    folder, generator = tmp_path_factory.mktemp("trained"), random.Random(0)
    words = ["".join(generator.choices("abcdefghijklmno", k=generator.randint(1, 8))) for _ in range(300)]
    texts = [" ".join(generator.choices(words, k=60)) + f"\n    é{CHARACTERS} {k}" for k in range(60)]
    write_texts(folder, texts)
    return {kind: train(kind, folder) for kind in KINDS} | {"folder": folder}


@pytest.fixture(scope="module")
def folder(printed):
    return printed["folder"]


@pytest.fixture(scope="module")
def trained(folder):
    return {kind: tokenizer_of(folder, KINDS[kind]) for kind in KINDS}


def tokenizer_of(folder, name, **changes):
    fields = {"num_sentinels": 5, "mode_tokens": ("[NLU]",)} | changes
    return make_tokenizer(corpus_config(folder, tokenizer=str(folder / name), **fields))


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_has_the_special_tokens_and_as_many_ids_as_were_asked_for(trained, kind):
    vocab, own = trained[kind].vocab, dict(trained[kind].vocab.own_names)
    assert max(vocab.content_end, *own) == 450 or vocab.content_end == 450
    names = {role: own.get(getattr(vocab, role)) for role in ("pad", "eos", "mask", "cls", "sep")}
    as_bert = {"pad": "[PAD]", "eos": "[SEP]"} if kind == "wordpiece" else {"pad": "<pad>", "eos": "</s>"}
    assert names == as_bert | {"mask": "[MASK]", "cls": "[CLS]", "sep": "[SEP]"}
    assert [own[id_] for id_ in vocab.sentinel_ids] == [f"<extra_id_{k}>" for k in range(5)]
    assert own[vocab.mode("[NLU]")] == "[NLU]"
    assert (vocab.unk >= 0) == (kind != "byte-level bpe")
    assert vocab.size == 450 and vocab.bos == vocab.cls, "nothing is appended: [CLS] is BOS too, as in BERT"


@pytest.mark.parametrize("kind", LOSSLESS)
@settings(deadline=None, max_examples=60)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_every_text_round_trips(trained, kind, text):
    tokenizer = trained[kind]
    # SentencePiece writes a space as U+2581, so that it reads this character as a space.
    expected = text.replace("\u2581", " ") if kind != "byte-level bpe" else text
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == expected
    assert tokenizer.num_bytes(ids) == len(expected.encode())
    assert not (ids == tokenizer.vocab.unk).any()


CONTROLS = "".join(map(chr, [*range(32), *range(0x7F, 0xA0)]))
HOSTILE = [
    CONTROLS,
    "\u2028\u2029\ufeff\ufffd\uffff\ufdd0\U0010ffff \u202eעולם\u202c",
    SPECIAL_LOOKING + " <0x0A> [NLU]",
    "",
]


@pytest.mark.parametrize("kind", LOSSLESS)
def test_spaces_round_trip_where_the_training_text_has_none(tmp_path, kind):
    write_texts(tmp_path, ["".join(chr(0x4E00 + i * k % 97) for i in range(60)) for k in range(1, 40)])
    train(kind, tmp_path, vocab_size=366)
    tokenizer = tokenizer_of(tmp_path, KINDS[kind])
    for text in ("hello world", "一 二  三", " "):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text and tokenizer.num_bytes(ids) == len(text.encode())


def test_wordpiece_loses_white_space_and_what_it_lacks_and_says_so(trained, printed):
    tokenizer = trained["wordpiece"]
    assert tokenizer.decode(tokenizer.encode("abc\r\n\t abc")) == "abc abc"
    assert tokenizer.encode("漢").tolist() == [tokenizer.vocab.unk]
    for text in HOSTILE:
        assert not np.isin(tokenizer.encode(text), [tokenizer.vocab.cls, *tokenizer.vocab.sentinel_ids]).any()
    assert re.search(r"round trip +0 of \d+ texts are the same", printed["wordpiece"])
    assert re.search(r"the tokens spell [78]\d\.\d\d% of its bytes", printed["wordpiece"])
    assert float(re.search(r"coverage +([\d.]+)%", printed["wordpiece"])[1]) > 0, "the characters after the words"


def test_another_process_writes_the_same_files(folder, tmp_path):
    """WordPiece's trainer alone would not: its ids follow the order of a hash map."""
    commands = [arguments(kind, folder, out=tmp_path) for kind in KINDS]
    program = f"from data.train_tokenizer import main\nfor command in {commands}: main(command)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, timeout=120)
    for name in KINDS.values():
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


CASES = [(kind, size) for kind in KINDS for size in (370, 30_000) if (kind, size) != ("byte-level bpe", 370)]


@pytest.mark.parametrize(("kind", "size"), CASES)  # byte-level BPE needs no more ids than the bytes
def test_a_size_that_does_not_fit_the_text_is_one_line_that_names_one_that_does(tmp_path, kind, size):
    size = 40 if kind == "wordpiece" and size < 1000 else size  # a wordpiece needs no bytes
    write_texts(tmp_path, ["".join(chr(1000 + k) for k in range(100)) + " one two three", "four"])
    message = rf"^--vocab_size={size} is too (large|small) for .*: set --vocab_size=(\d+) or (less|more)[^:]*$"
    with pytest.raises(ConfigError, match=message) as error:
        train(kind, tmp_path, vocab_size=size, max_bytes=5000)
    train(kind, tmp_path, vocab_size=re.search(r"set --vocab_size=(\d+)", str(error.value))[1])
