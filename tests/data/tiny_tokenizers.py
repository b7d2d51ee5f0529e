"""Tiny tokenizers of every published kind, trained by Hugging Face's `tokenizers`, with their ids by hand."""

import io
import json
import random

import pytest

SENTENCES = [
    "the quick brown fox jumps over the lazy dog.",
    "pack my box with five dozen liquor jugs!",
    'def f(a):\n    return a + 1  # é, 漢字 and "quotes"',
    "<s> and </s> are HTML's; [MASK] and <extra_id_0> are words here; MASK] <unk> <pad> <mask> |endoftext|>",
] * 20
SPECIAL_LOOKING = "</s> <s>a[MASK] <mask> <pad><unk> [UNK][SEP] <extra_id_0><extra_id_12> <|endoftext|> [unused0] ##a"
# Characters of one, two, three and four bytes, parts of emoji, right-to-left, NUL, spaces of many kinds.
_ALPHABET = [*"abcdefghij  \n\t.<>_/\\\"'[]", *"é漢ש😀\x00\u200b\u3000\xa0\rß\ufeff", "e\u0301", "👨\u200d👩\u200d👧"]


def hostile_texts(count: int) -> list[str]:
    """Texts on which tokenizers differ."""
    generator = random.Random(0)
    words = [word for sentence in SENTENCES for word in sentence.split(" ")]
    fixed = ["", " ", "   ", "\n", " a", "a ", "  a  b  ", " \n \n ", "😀", "\x00", "a\x00b", "שלום עולם"]
    fixed += ["a" * 3000, "ab" * 50]
    mixed = ["".join(generator.choices(_ALPHABET, k=generator.randint(1, 30))) for _ in range(count)]
    spoken = [" ".join(generator.choices(words, k=generator.randint(1, 20))) for _ in range(count)]
    return [*fixed, *mixed, *(text for text in spoken if "<" not in text and "[" not in text)]


def sentencepiece(path, sentences=SENTENCES, **options) -> str:
    """Trains a SentencePiece model with T5's special ids, and returns its path."""
    spm = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    options = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "byte_fallback": True, "vocab_size": 330} | options
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, minloglevel=2, hard_vocab_limit=False, **options
    )
    path.write_bytes(model.getvalue())
    return str(path)


def _byte_level(specials):
    """Byte-level BPE whose first ids are those of `specials`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    options = {"initial_alphabet": alphabet, "special_tokens": specials, "show_progress": False}
    tokenizer.train_from_iterator(SENTENCES, trainers.BpeTrainer(vocab_size=300, **options))
    return tokenizer


def gpt2(folder, **settings):
    """Byte-level BPE with one special token, the last id; 256 bytes are the ids 0 to 255."""
    from tokenizers import processors

    tokenizer = _byte_level([])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    names = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    return _save(tokenizer, folder, names | settings)


def roberta(folder, **settings):
    """Byte-level BPE: <s> 0, <pad> 1, </s> 2, <unk> 3, bytes and merges from 4, <mask> last."""
    from tokenizers import AddedToken, processors

    tokenizer = _byte_level(["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    names = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "pad_token": "<pad>"}
    names |= {"unk_token": "<unk>", "mask_token": {"content": "<mask>", "lstrip": True}}
    return _save(tokenizer, folder, names | settings)


def t5(folder, ascending=False, **settings):
    """Unigram: <pad> 0, </s> 1, <unk> 2, pieces from 3, then ten sentinels, <extra_id_9> first as in T5."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_special_tokens([f"<extra_id_{k}>" for k in (range(10) if ascending else range(9, -1, -1))])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    names = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return _save(tokenizer, folder, names | settings)


def llama(folder, **settings):
    """BPE with byte fallback: <unk> 0, <s> 1, </s> 2, bytes 3 to 258, pieces from 259; no pad, a space before texts."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    letters = ["\u2581", *"abcdefghijklmnopqrstuvwxyz.<>[]/_"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    merges = [("t", "h"), ("th", "e"), ("\u2581", "the"), ("o", "x"), ("\u2581", "\u2581"), ("\u2581", "f")]
    pieces += ["".join(merge) for merge in merges]
    vocab = {piece: id_ for id_, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return _save(tokenizer, folder, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"} | settings)


def gemma(folder, **settings):
    """BPE with byte fallback: <pad> 0, <eos> 1, <bos> 2, <unk> 3, <mask> 4, a spare one, the ends of turns, pieces."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    ordinary = ["<mask>", "<unused0>", "\n", "\u2581\u2581"]  # added tokens that the file does not mark as special
    pieces = [*specials[:4], *ordinary[:2], *specials[4:], *ordinary[2:], *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["\u2581", *"abcdefghijklmnopqrstuvwxyz.<>[]/_"]
    merges = [("t", "h"), ("th", "e"), ("\u2581", "the"), ("o", "x"), ("\u2581", "f")]
    pieces += ["".join(merge) for merge in merges]
    vocab = {piece: id_ for id_, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in specials])
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in ordinary])
    names = {f"{role}_token": f"<{role}>" for role in ("pad", "eos", "bos", "unk")}
    return _save(tokenizer, folder, names | settings)


def bert(folder, **settings):
    """WordPiece: [PAD] 0, [unused0] 1, [UNK] 2, [CLS] 3, [SEP] 4, [MASK] 5, pieces from 6; lower case."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    specials = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 4), ("[CLS]", 3))
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=8)
    return _save(tokenizer, folder, settings)


KINDS = {"gpt2": gpt2, "roberta": roberta, "t5": t5, "llama": llama, "gemma": gemma, "bert": bert}


def _save(tokenizer, folder, names) -> str:
    """Writes tokenizer.json, and the names of special tokens settings it, and returns the path of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    if names:
        (folder / "special_tokens_map.json").write_text(json.dumps(names))
    return str(folder)
