"""Written tokenizers: transformers loads them, and they encode and decode as the tokenizer that was written."""

import json
import os
import re

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")
import transformers

from contract.errors import ConfigError
from data.tokenizers.export import write_huggingface_tokenizer
from data.tokenizers.tokenizer import ByteTokenizer, HuggingFaceTokenizer, SentencePieceTokenizer
from tests.data.tiny_tokenizers import KINDS, SPECIAL_LOOKING, hostile_texts, sentencepiece

OPTIONS = {"num_sentinels": 10, "mode_tokens": ("[R]", "[S]")}
LOSSLESS = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "add_dummy_prefix": False}
MODELS = {
    "lossless": LOSSLESS,
    "dummy_prefix": LOSSLESS | {"add_dummy_prefix": True},
    "extra_whitespaces": LOSSLESS | {"remove_extra_whitespaces": True, "add_dummy_prefix": True},
    "without_bytes": LOSSLESS | {"byte_fallback": False},
    "nfkc": {},
}


def written(tokenizer, folder, model_type="t5", **options):
    """The tokenizer that transformers loads from the folder into which `tokenizer` was written."""
    write_huggingface_tokenizer(tokenizer, folder, **options)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return transformers.AutoTokenizer.from_pretrained(folder)


def check_equal(tokenizer, loaded, texts):
    assert len(loaded) == tokenizer.vocab.size
    for text in texts:
        ids = tokenizer.encode(text)
        assert loaded.encode(text, add_special_tokens=False) == ids.tolist(), text
        assert loaded.decode(ids) == tokenizer.decode(ids), text


def check_specials(tokenizer, loaded):
    """Every special token has its id, its name and its role."""
    vocab = tokenizer.vocab
    for id_, name in vocab.names().items():
        assert loaded.convert_tokens_to_ids(name) == id_
        assert loaded.encode(name, add_special_tokens=False) == [id_] or "unused" in name
    for role in ("pad", "eos", "unk", "mask", "cls", "sep", "bos"):
        id_ = getattr(vocab, role)
        assert getattr(loaded, f"{role}_token_id") == (id_ if id_ >= 0 else None), role
    text = f"the<extra_id_0> fox[R]{vocab.names()[vocab.eos]}"
    # transformers encodes what follows the hole as a new text, before which these models put a space.
    written_text = text.replace("> fox", ">fox") if tokenizer.dummy_bytes else text
    assert loaded.encode(written_text, add_special_tokens=False) == tokenizer.encode_with_specials(text).tolist()


def test_bytes(tmp_path):
    tokenizer = ByteTokenizer(**OPTIONS)
    vocab = tokenizer.vocab
    loaded = written(tokenizer, tmp_path, begin=(), end=(vocab.eos,), max_length=512)
    check_equal(tokenizer, loaded, hostile_texts(200))
    check_specials(tokenizer, loaded)
    assert loaded.model_max_length == 512
    assert loaded("aé", "b") == {"input_ids": [100, 198, 172, 1, 101, 1], "attention_mask": [1] * 6}
    split = transformers.AutoTokenizer.from_pretrained(tmp_path, split_special_tokens=True)
    assert split.encode(SPECIAL_LOOKING, add_special_tokens=False) == tokenizer.encode(SPECIAL_LOOKING).tolist()


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
@pytest.mark.parametrize("name", MODELS)
def test_sentencepiece(tmp_path, name, model_type):
    path = sentencepiece(tmp_path / "m.model", model_type=model_type, **MODELS[name])
    tokenizer = SentencePieceTokenizer(path, **OPTIONS)
    (tmp_path / "out").mkdir()
    loaded = written(tokenizer, tmp_path / "out")
    texts = hostile_texts(200)
    if name == "nfkc":  # tokenizers composes characters by grapheme, SentencePiece by code point
        texts = [text for text in texts if "\u0301" not in text and "\u200d" not in text and "\r\n" not in text]
    check_equal(tokenizer, loaded, [text.replace("\u2581", "") for text in texts])
    check_specials(tokenizer, loaded)
    assert (tmp_path / "out" / "spiece.model").read_bytes() == (tmp_path / "m.model").read_bytes()


def test_sentencepieces_own_sentinels(tmp_path):
    symbols = [f"<extra_id_{k}>" for k in range(10)]
    path = sentencepiece(tmp_path / "m.model", user_defined_symbols=symbols, **LOSSLESS)
    tokenizer = SentencePieceTokenizer(path, **OPTIONS)
    loaded = written(tokenizer, tmp_path)
    check_specials(tokenizer, loaded)
    assert tokenizer.vocab.sentinel_ids == tuple(range(3, 13)) == tuple(loaded.convert_tokens_to_ids(symbols))


MODEL_TYPES = ["gpt2", "roberta", "t5", "llama", "gemma", "bert"]


@pytest.mark.parametrize(("kind", "model_type"), zip(KINDS, MODEL_TYPES, strict=True))
def test_tokenizer_json(tmp_path, kind, model_type):
    path = KINDS[kind](tmp_path / "in")
    tokenizer = HuggingFaceTokenizer(path, **OPTIONS)
    (tmp_path / "out").mkdir()
    loaded = written(tokenizer, tmp_path / "out", model_type)
    loaded.backend_tokenizer.no_truncation()
    loaded.backend_tokenizer.no_padding()
    check_equal(tokenizer, loaded, hostile_texts(100))
    check_specials(tokenizer, loaded)
    # A second reading has the same vocabulary, all of it the model's own.
    again = HuggingFaceTokenizer(str(tmp_path / "out"), **OPTIONS)
    assert again.vocab.names() == tokenizer.vocab.names()
    for field in ("size", "pad", "eos", "mask", "cls", "sep", "bos", "unk", "modes", "sentinel_ids", "marks"):
        assert getattr(again.vocab, field) == getattr(tokenizer.vocab, field), field
    texts = hostile_texts(50)
    assert all((again.encode(text) == tokenizer.encode(text)).all() for text in texts)


def test_the_first_additional_special_token_is_the_first_sentinel(tmp_path):
    write_huggingface_tokenizer(ByteTokenizer(**OPTIONS), tmp_path)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        listed = json.loads((tmp_path / name).read_text())["additional_special_tokens"]
        assert listed == [*(f"<extra_id_{k}>" for k in range(10)), "[R]", "[S]"], name


def test_white_space_before_sentinels_stays(tmp_path):
    """FIM's prompts of code have line breaks and indentation before their sentinels."""
    for kind in ("gpt2", "byte"):
        folder = tmp_path / kind
        options = {"num_sentinels": 3, "mode_tokens": (), "append_special_tokens": True}
        tokenizer = ByteTokenizer(**options) if kind == "byte" else HuggingFaceTokenizer(KINDS[kind](folder), **options)
        (folder / "out").mkdir(parents=True)
        text = "<extra_id_0>def f(x):\n    if x:\n        <extra_id_1>\n    return 0\n\n<extra_id_2>"
        found = written(tokenizer, folder / "out", "llama").encode(text, add_special_tokens=False)
        assert tokenizer.decode(found) == text and (kind == "byte" or found == tokenizer_ids(tokenizer, text))


def test_a_mask_of_the_models_own_strips_the_space_before_it_in_transformers_too(tmp_path):
    path = KINDS["gemma"](tmp_path / "gemma")  # whose <mask> has no lstrip in its file
    tokenizer = HuggingFaceTokenizer(path, num_sentinels=3, mode_tokens=(), append_special_tokens=True)
    text = f"the {tokenizer.vocab.names()[tokenizer.vocab.mask]} fox"
    found = written(tokenizer, tmp_path, "llama").encode(text, add_special_tokens=False)
    assert found == tokenizer.encode_with_specials(text).tolist()


def tokenizer_ids(tokenizer, text):
    """The ids of FIM's training: sentinels, and the texts between them encoded apart."""
    _, prefix, suffix, _ = re.split(r"<extra_id_[0-9]>", text)
    first, second, third = (tokenizer.vocab.sentinel(k) for k in range(3))
    return [first, *tokenizer.encode(prefix).tolist(), second, *tokenizer.encode(suffix).tolist(), third]


def test_an_appended_name_that_is_an_ordinary_token_is_refused(tmp_path):
    path = sentencepiece(tmp_path / "m.model", model_type="bpe", split_by_unicode_script=False, **LOSSLESS)
    tokenizer = SentencePieceTokenizer(path, num_sentinels=3, mode_tokens=("[S]",))
    name = tokenizer.piece(tokenizer.encode("the fox")[0])
    tokenizer = SentencePieceTokenizer(path, num_sentinels=3, mode_tokens=(name,))
    with pytest.raises(ConfigError, match=rf"has the ordinary token '{name}' \(id .*\), and '{name}' was appended"):
        write_huggingface_tokenizer(tokenizer, tmp_path)


def test_padding_and_truncation_of_the_source_are_not_written(tmp_path):
    tokenizer = HuggingFaceTokenizer(KINDS["bert"](tmp_path / "bert"), **OPTIONS)
    write_huggingface_tokenizer(tokenizer, tmp_path)
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    assert (data["padding"], data["truncation"]) == (None, None) != (tokenizer.json["padding"], None)


def test_special_tokens_around_a_text(tmp_path):
    tokenizer = HuggingFaceTokenizer(KINDS["bert"](tmp_path / "in"), **OPTIONS)
    vocab = tokenizer.vocab
    loaded = written(tokenizer, tmp_path, "bert", begin=(vocab.cls,), end=(vocab.sep,), token_types=True)
    loaded.backend_tokenizer.no_truncation()
    loaded.backend_tokenizer.no_padding()
    ids = loaded("the", "the")
    (the,) = tokenizer.encode("the").tolist()
    assert ids["input_ids"] == [3, the, 4, the, 4] and ids["token_type_ids"] == [0, 0, 0, 1, 1]
    # Without begin and end, the tokenizer.json's own post-processor remains; it is the same here.
    kept = written(tokenizer, tmp_path, "bert")
    kept.backend_tokenizer.no_truncation()
    kept.backend_tokenizer.no_padding()
    assert kept("the")["input_ids"] == [3, the, 4] and set(kept("the")) == {"input_ids", "attention_mask"}


REFUSED = {
    "word": ({"model_type": "word"}, "consists of words"),
    "char": ({"model_type": "char"}, "consists of characters"),
    "suffix": ({"treat_whitespace_as_suffix": True}, "puts the space after a word"),
    "symbol": ({"user_defined_symbols": ["<html>"]}, "has the user-defined symbol '<html>'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_cannot_be_written(tmp_path, name):
    options, problem = REFUSED[name]
    tokenizer = SentencePieceTokenizer(sentencepiece(tmp_path / "m.model", **options), **OPTIONS)
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match=rf"m\.model' {problem}.*, which a Hugging Face tokenizer\.json cannot"):
        write_huggingface_tokenizer(tokenizer, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("problem", ["has unused pieces", r"does not escape spaces \(escape_whitespaces=false\)"])
def test_edited_models_that_cannot_be_written(tmp_path, problem):
    path = tmp_path / "m.model"
    proto = SentencePieceTokenizer(sentencepiece(path), **OPTIONS).proto()
    if "unused" in problem:
        proto.pieces[-1].type = proto.SentencePiece.UNUSED
    else:
        proto.normalizer_spec.escape_whitespaces = False
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ConfigError, match=rf"m\.model' {problem}, which a Hugging Face tokenizer\.json cannot"):
        write_huggingface_tokenizer(SentencePieceTokenizer(str(path), **OPTIONS), tmp_path)


def test_bpe_pieces_with_equal_scores(tmp_path):
    path = tmp_path / "m.model"
    tokenizer = SentencePieceTokenizer(sentencepiece(path, model_type="bpe"), **OPTIONS)
    proto = tokenizer.proto()
    merged = [piece for piece in proto.pieces if piece.type == proto.SentencePiece.NORMAL and len(piece.piece) == 2]
    merged[1].score = merged[0].score
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ConfigError, match=r"has the same score for '..' and '..'"):
        write_huggingface_tokenizer(SentencePieceTokenizer(str(path), **OPTIONS), tmp_path)
