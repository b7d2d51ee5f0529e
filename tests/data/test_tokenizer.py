"""Ids by hand, round trips, and the error for each invalid model file."""

import pathlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import ConfigError
from contract.vocab import BLANK, CONTINUATION, NEWLINE, PUNCTUATION, SPACE, STOP
from data.tokenizers.tokenizer import ByteTokenizer, HuggingFaceTokenizer, SentencePieceTokenizer, make_tokenizer
from tests.data.corpus import corpus_config
from tests.data.tiny_tokenizers import KINDS, sentencepiece

BYTE = ByteTokenizer(num_sentinels=100, mode_tokens=("[R]", "[S]", "[X]"))


def test_byte_ids_are_byt5s():
    # ByT5: pad 0, eos 1, unk 2, then the 256 bytes. "a" is byte 97, "é" the bytes 0xC3 0xA9.
    assert BYTE.encode("a\x00é").tolist() == [100, 3, 198, 172]
    assert BYTE.encode("").shape == (0,) and BYTE.encode("a").dtype == np.int32


def test_byte_special_ids_follow_the_bytes_and_sentinels_come_last():
    vocab = BYTE.vocab
    assert (vocab.pad, vocab.eos, vocab.unk, vocab.content_start, vocab.content_end) == (0, 1, 2, 3, 259)
    assert (vocab.mask, vocab.cls, vocab.sep, vocab.bos) == (259, 260, 261, 262)
    assert vocab.modes == (("[R]", 263), ("[S]", 264), ("[X]", 265))
    assert vocab.size == 366 and vocab.sentinel(0) == 365 and vocab.sentinel(99) == 266


def test_byte_marks_by_hand():
    ids = BYTE.encode("a. Hé!\n")
    marks = {STOP: "01000010", NEWLINE: "00000001", SPACE: "00100001", CONTINUATION: "00000100"}
    marks |= {BLANK: "00100001", PUNCTUATION: "01000010"}
    for mark, expected in marks.items():
        assert BYTE.vocab.marked(ids, mark).tolist() == [digit == "1" for digit in expected], mark
    assert not BYTE.vocab.marked(
        np.array([0, 1, 2, *range(259, 366)]), STOP | NEWLINE | SPACE | CONTINUATION | BLANK | PUNCTUATION
    ).any()


@settings(deadline=None, max_examples=50)
@given(st.text())
def test_bytes_round_trip_and_raw_text_is_never_special(text):
    ids = BYTE.encode(text)
    assert BYTE.decode(ids) == text
    assert ((ids >= 3) & (ids < 259)).all()
    assert BYTE.num_bytes(ids) == len(ids) == len(text.encode())


def test_encode_with_specials_by_hand():
    ids = BYTE.encode_with_specials("[X]a<extra_id_0>b<extra_id_10></s>[MASK]<extra_id_100>")
    spelled = [ord(c) + 3 for c in "<extra_id_100>"]  # there is no sentinel 100 of 100
    assert ids.tolist() == [265, 100, 365, 101, 355, 1, 259, *spelled]
    assert BYTE.encode_with_specials("").shape == (0,)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 365), max_size=20).filter(lambda ids: all(i < 3 + 128 or i >= 259 for i in ids)))
def test_decode_and_encode_with_specials_are_inverses(ids):
    # ASCII bytes and specials, but not bytes that themselves spell "<..." or "[...": those read back as specials.
    ids = [i for i in ids if i not in (ord("<") + 3, ord("[") + 3)]
    assert BYTE.encode_with_specials(BYTE.decode(np.array(ids, np.int32))).tolist() == ids


def test_decode_shows_invalid_bytes_and_unknown_ids():
    # 0xC3 starts a two-byte character; the sentinel cuts it from its second byte.
    assert BYTE.decode(np.array([0xC3 + 3, 365, 0xA9 + 3, 366, 999])) == "\ufffd<extra_id_0>\ufffd<id 366><id 999>"


def test_prompt_that_is_not_unicode_is_a_config_error():
    with pytest.raises(ConfigError, match="not valid UTF-8 at character 2"):
        BYTE.encode_with_specials("ab\udcff")


@pytest.mark.parametrize("modes", [("[R]", "[R]"), ("[MASK]",), ("",), ("<extra_id_3>",)])
def test_mode_tokens_that_cannot_be_told_apart(modes):
    with pytest.raises(ConfigError, match=r"data\.mode_tokens"):
        ByteTokenizer(num_sentinels=5, mode_tokens=modes)


def test_make_tokenizer(tmp_path):
    assert isinstance(make_tokenizer(corpus_config(tmp_path)), ByteTokenizer)
    with pytest.raises(ConfigError, match=r"data\.tokenizer='bytes' must be 'byte' or"):
        make_tokenizer(corpus_config(tmp_path, tokenizer="bytes"))


# SentencePiece

SENTENCES = ["the quick brown fox jumps over the lazy dog", "pack my box with five dozen liquor jugs"] * 20
LLAMA_LIKE = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}


def train_model(path, **options):
    return sentencepiece(path, SENTENCES, **options)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return train_model(tmp_path_factory.mktemp("spm") / "t5.model")


@pytest.fixture(scope="module")
def pieces(model_path):
    return SentencePieceTokenizer(model_path, num_sentinels=4, mode_tokens=("[R]",))


def test_tags_of_html_are_text_in_a_model_with_other_names(tmp_path):
    """Gemma has <eos> and <bos>, and the tags <s> and </s> as user-defined symbols among its pieces."""
    symbols = ["<mask>", "<b>", "<s>", "</s>"]
    ids = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "eos_piece": "<eos>", "bos_piece": "<bos>"}
    path = train_model(tmp_path / "gemma.model", user_defined_symbols=symbols, model_type="bpe", **ids)
    tokenizer = SentencePieceTokenizer(path, num_sentinels=4, mode_tokens=())
    vocab = tokenizer.vocab
    assert (vocab.pad, vocab.eos, vocab.bos, vocab.unk, vocab.mask) == (0, 1, 2, 3, 4)
    assert {6, 7} <= {*tokenizer.encode("<s>the</s>").tolist()} and vocab.content_start == 5


def test_sentencepiece_specials_come_after_the_pieces(pieces):
    vocab, size = pieces.vocab, pieces._model.get_piece_size()
    assert (vocab.pad, vocab.eos, vocab.unk, vocab.content_start, vocab.content_end) == (0, 1, 2, 3, size)
    assert (vocab.mask, vocab.cls, vocab.sep, vocab.bos) == (size, size + 1, size + 2, size + 3)
    assert vocab.modes == (("[R]", size + 4),) and vocab.size == size + 5 + 4


def test_sentencepiece_round_trip(pieces):
    text = "the fox jugs é"  # é is not in the model: its two bytes are
    ids = pieces.encode(text)
    assert pieces.decode(ids) == text
    assert ((ids >= pieces.vocab.content_start) & (ids < pieces.vocab.content_end)).all()
    # Every byte once, and one for the space that the model puts before the text.
    assert pieces.num_bytes(ids) == len(text.encode()) + 1
    assert pieces.num_bytes(np.array([pieces.vocab.eos, pieces.vocab.sentinel(0)])) == 0


def test_sentencepiece_marks(pieces):
    ids = pieces.encode("the fox é")  # é is not in the model: its two bytes are
    texts = [pieces.decode(ids[:i]) for i in range(len(ids))]
    marked = pieces.vocab.marked(ids, SPACE)
    assert marked[0] and marked.sum() == 3, texts  # three words, each led by the space that the model writes before it
    assert pieces.vocab.marked(ids, CONTINUATION).tolist() == [False] * (len(ids) - 1) + [True]
    assert pieces.vocab.marked(pieces.encode("("), PUNCTUATION).any()
    newline = pieces.encode_with_specials("<0x0A>")
    assert not pieces.vocab.marked(newline, NEWLINE).any()  # only text that looks like the byte's name
    assert pieces.vocab.marked(np.array([pieces._model.piece_to_id("<0x0A>")]), NEWLINE).all()


def test_sentencepiece_models_own_sentinels_are_not_found_in_text(tmp_path):
    # SentencePiece gives the ids after pad, eos and unk to the user-defined symbols, in their order.
    symbols = ["<extra_id_0>", "<extra_id_1>", "<extra_id_2>"]
    path = train_model(tmp_path / "own.model", user_defined_symbols=symbols)
    tokenizer = SentencePieceTokenizer(path, num_sentinels=2, mode_tokens=("[R]",))
    vocab, size = tokenizer.vocab, tokenizer._model.get_piece_size()
    assert vocab.sentinel_ids == (3, 4) and vocab.content_start == 6 and vocab.content_end == size
    assert vocab.size == size + 5 and vocab.modes == (("[R]", size + 4),), "mask, cls, sep, bos and [R] are appended"
    text = "fox <extra_id_0> </s>"
    assert tokenizer.encode(text).min() >= 6 and tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode_with_specials("fox<extra_id_1>")[-1] == 4
    assert tokenizer.decode(np.array([3, 4, 5])) == "<extra_id_0><extra_id_1><extra_id_2>"
    with pytest.raises(ConfigError, match=r"num_sentinels=4, and .*own\.model' has 3 sentinels of its own: set"):
        SentencePieceTokenizer(path, num_sentinels=4, mode_tokens=())


def test_fingerprint_is_the_models_and_not_the_specials(pieces, model_path, tmp_path):
    assert SentencePieceTokenizer(model_path, num_sentinels=9, mode_tokens=()).fingerprint == pieces.fingerprint
    other = SentencePieceTokenizer(
        train_model(tmp_path / "o.model", **LLAMA_LIKE), num_sentinels=4, mode_tokens=("[R]",)
    )
    assert len({other.fingerprint, pieces.fingerprint, BYTE.fingerprint}) == 3


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"no model", r"cannot be read as a tokenizer \(RuntimeError: .*\): give the path of a whole file"),
        (b"", r"cannot be read as a tokenizer \(RuntimeError: "),
        (None, r"cannot be read \(No such file or directory\): give the path of a tokenizer's file"),
    ],
)
def test_files_that_are_no_sentencepiece_model(tmp_path, contents, message):
    if contents is not None:
        (tmp_path / "b.model").write_bytes(contents)
    with pytest.raises(ConfigError, match=rf"b\.model' {message}") as error:
        make_tokenizer(corpus_config(tmp_path, tokenizer=f"{tmp_path}/b.model"))
    assert "\n" not in str(error.value)


# Holes in texts of models that put a space before every text

KEPT = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
DUMMY_PREFIX = {
    "unigram": KEPT,
    "bpe": KEPT | {"model_type": "bpe"},
    "without_bytes": KEPT | {"byte_fallback": False},
    "nfkc": {"byte_fallback": False},  # as in T5: unknown characters, and spaces are removed
}
# Text, what a hole hides, text. The tokens of each are its own: no model here has pieces with Greek letters or braces.
HOLES = [
    ("the", " \u03a9", " fox jumps"),
    ("the", " \u03a9", "fox"),
    ("th", "\u03a9", "e fox"),
    ("th", "\u03a9", " fox "),
    ("", "\u03a9", " fox"),
    ("", "\u03a9", "fox "),
    ("the fox", " \u03a9", ""),
    ("the fox (", "\u03a9", ")"),
    ("the", " fox", "{ }"),
    ("the", " \u03a9", "  fox  jumps"),
    ("the", " \u03a9", "\n  fox\n"),
    ("the", " \u03a9", " "),
]


def _dummy_prefix_tokenizer(kind, folder):
    options = {"num_sentinels": 4, "mode_tokens": ()}
    if kind in DUMMY_PREFIX:
        return SentencePieceTokenizer(sentencepiece(folder / "m.model", **DUMMY_PREFIX[kind]), **options)
    pytest.importorskip("tokenizers")
    file = pathlib.Path(KINDS[kind](folder)) / "tokenizer.json"
    file.write_text(file.read_text().replace('"add_prefix_space": false', '"add_prefix_space": true'))  # of GPT-2's
    return HuggingFaceTokenizer(str(file), **options)


@pytest.mark.parametrize("kind", [*DUMMY_PREFIX, "llama", "t5", "gpt2"])
def test_a_text_with_a_hole_has_the_tokens_of_the_whole_text(kind, tmp_path):
    tokenizer = _dummy_prefix_tokenizer(kind, tmp_path)
    assert tokenizer.dummy_bytes == 1
    encode, vocab = tokenizer.encode, tokenizer.vocab
    for before, hidden, after in HOLES:
        whole, start = encode(before + hidden + after), encode(before)
        # No token has a part of two of the three texts, so those of the first two begin the whole text.
        end = len(encode(before + hidden))
        assert whole[:end].tolist() == encode(before + hidden).tolist() and (whole[: len(start)] == start).all()
        holes = [vocab.mask, vocab.sentinel(1)][: 1 if kind == "t5" else 2]  # T5's file: sentinels hide no space
        for hole in holes:
            text = before + " " * hidden.startswith(" ") + vocab.names()[hole] + after
            ids = tokenizer.encode_with_specials(text)
            assert ids.tolist() == [*start, hole, *whole[end:]], text
            if vocab.unk not in whole and kind != "nfkc":
                assert tokenizer.decode(ids) == tokenizer.decode(start) + vocab.names()[hole] + after
                assert tokenizer.decode(start).removeprefix(" ") == before  # GPT-2's decoder keeps the added space
