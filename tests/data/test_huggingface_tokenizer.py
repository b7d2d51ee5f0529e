"""tokenizer.json: ids by hand, equality with the library, round trips, and the error for each invalid file."""

import json
import pathlib
import shutil

import numpy as np
import pytest

pytest.importorskip("tokenizers")
import tokenizers

from contract.errors import ConfigError
from contract.vocab import CONTINUATION, NEWLINE, PUNCTUATION, SPACE
from data.tokenizers.base import ModelTokens, _marks
from data.tokenizers.export import write_huggingface_tokenizer
from data.tokenizers.tokenizer import HuggingFaceTokenizer, make_tokenizer
from data.tokenizers.train import TrainingOptions, train
from tests.data import tiny_tokenizers
from tests.data.corpus import corpus_config, opened, store_of, write_texts
from tests.data.tiny_tokenizers import KINDS, SPECIAL_LOOKING, hostile_texts


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Kind -> the path of a folder with a tokenizer of this kind."""
    return {kind: make(tmp_path_factory.mktemp(kind)) for kind, make in KINDS.items()}


def load(path, *, num_sentinels=10, mode_tokens=(), append=True):
    return HuggingFaceTokenizer(
        path, num_sentinels=num_sentinels, mode_tokens=mode_tokens, append_special_tokens=append
    )


@pytest.fixture(scope="module")
def loaded(folders):
    """Kind -> the tokenizer of this kind, with appended special tokens."""
    return {kind: load(path) for kind, path in folders.items()}


def changed(path, tmp_path, change, name="tokenizer.json"):
    """The path of a folder with a changed copy of a tokenizer.json. change: dict -> None."""
    data = json.loads((pathlib.Path(path) / "tokenizer.json").read_text())
    change(data)
    (tmp_path / name).write_text(json.dumps(data))
    return str(tmp_path / name)


def test_gpt2_has_one_special_token(loaded):
    vocab = loaded["gpt2"].vocab
    own = vocab.content_end  # <|endoftext|>
    assert (vocab.content_start, vocab.eos, vocab.bos, vocab.unk) == (0, own, own, -1)
    assert (vocab.pad, vocab.mask, vocab.cls, vocab.sep) == (own + 1, own + 2, own + 3, own + 4)
    assert vocab.sentinel_ids == tuple(range(own + 14, own + 4, -1)) and vocab.size == own + 15
    assert vocab.names()[own] == "<|endoftext|>" and vocab.names()[vocab.mask] == "[MASK]"
    assert loaded["gpt2"].adds_pad and not loaded["roberta"].adds_pad


def test_roberta_shares_cls_with_bos_and_sep_with_eos(loaded):
    vocab = loaded["roberta"].vocab
    assert (vocab.cls, vocab.bos, vocab.pad, vocab.eos, vocab.sep, vocab.unk) == (0, 0, 1, 2, 2, 3)
    assert vocab.content_start == 4 and vocab.mask == vocab.content_end
    assert vocab.sentinel(0) == vocab.size - 1 and vocab.size == vocab.mask + 11
    assert [vocab.names()[id_] for id_ in (0, 2, vocab.mask)] == ["<s>", "</s>", "<mask>"]


@pytest.mark.parametrize("ascending", [False, True])
def test_t5_has_its_own_sentinels(loaded, tmp_path, ascending):
    tokenizer = load(tiny_tokenizers.t5(tmp_path, ascending=True)) if ascending else loaded["t5"]
    vocab = tokenizer.vocab
    first = vocab.content_end
    own = tuple(range(first, first + 10))
    assert (vocab.pad, vocab.eos, vocab.unk, vocab.content_start) == (0, 1, 2, 3)
    assert vocab.sentinel_ids == (own if ascending else own[::-1])
    assert (vocab.mask, vocab.bos, vocab.size) == (first + 10, first + 13, first + 14)
    ids = tokenizer.encode_with_specials("the<extra_id_0>fox<extra_id_9>[MASK]</s>")
    assert ids[ids >= first].tolist() == [own[0 if ascending else 9], own[9 if ascending else 0], first + 10]
    assert tokenizer.decode(ids) == "the<extra_id_0>fox<extra_id_9>[MASK]</s>"


def test_llama_has_no_pad(loaded, folders):
    vocab = loaded["llama"].vocab
    assert (vocab.unk, vocab.bos, vocab.eos, vocab.content_start) == (0, 1, 2, 3)
    assert vocab.pad == vocab.content_end and loaded["llama"].dummy_bytes == 1
    alone = load(folders["llama"], append=False)
    assert (alone.vocab.pad, alone.vocab.mask, alone.vocab.cls, alone.vocab.sentinel_ids) == (2, -1, -1, ())
    assert alone.vocab.size == vocab.content_end and not alone.adds_pad
    assert alone.fingerprint == loaded["llama"].fingerprint


def test_the_ends_of_gemmas_turns_are_ordinary_tokens(loaded):
    """They are between the ids of ordinary tokens, and transformers finds them in text too."""
    tokenizer = loaded["gemma"]
    vocab = tokenizer.vocab
    assert (vocab.pad, vocab.eos, vocab.bos, vocab.unk, vocab.mask, vocab.content_start) == (0, 1, 2, 3, 4, 5)
    ids = tokenizer.encode("<start_of_turn>the<end_of_turn>")
    assert [ids[0], ids[-1]] == [6, 7] and [tokenizer.piece(id_) for id_ in (6, 7)] == [
        "<start_of_turn>",
        "<end_of_turn>",
    ]
    assert tokenizer.decode(ids) == "<start_of_turn>the<end_of_turn>" and vocab.bos not in tokenizer.encode("<bos>")


@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_the_library(loaded, folders, kind):
    library = tokenizers.Tokenizer.from_file(f"{folders[kind]}/tokenizer.json")
    library.encode_special_tokens = True
    library.no_truncation()
    library.no_padding()
    tokenizer = loaded[kind]
    for text in hostile_texts(300):
        ids = tokenizer.encode(text)
        assert ids.dtype == np.int32 and ids.tolist() == library.encode(text, add_special_tokens=False).ids, text
        assert tokenizer.decode(ids) == library.decode(ids.tolist(), skip_special_tokens=False), text


def test_other_special_tokens_of_a_folder_make_another_tokenizer_and_another_store(folders, tmp_path):
    folder = shutil.copytree(folders["roberta"], tmp_path / "tokenizer")
    write_texts(tmp_path, ["ab"])
    ends, fingerprints = [], {load(str(folder)).fingerprint}
    for role, name in {"mask_token": "<unk>", "eos_token": "<s>"}.items():
        ends.append(opened(corpus_config(tmp_path, tokenizer=str(folder))).tokens[-1])
        for path in folder.glob("*[gp].json"):  # tokenizer_config.json, special_tokens_map.json
            path.write_text(json.dumps(json.loads(path.read_text()) | {role: name}))
        fingerprints.add(load(str(folder)).fingerprint)
    ends.append(opened(corpus_config(tmp_path, tokenizer=str(folder))).tokens[-1])
    assert (ends, len(fingerprints)) == ([2, 2, 0], 3)


@pytest.mark.parametrize(("kind", "mask"), [("bert", "[MASK]"), ("roberta", "<mask>")])
def test_settings_that_change_no_special_token_are_the_same_tokenizer(folders, tmp_path, kind, mask):
    folder, found = shutil.copytree(folders[kind], tmp_path / "tokenizer"), set()
    for settings in ({}, {"model_max_length": 512}, {"mask_token": mask}):
        for path in folder.glob("*[gp].json"):  # tokenizer_config.json, special_tokens_map.json
            path.unlink()
        if settings:
            (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        found.add(load(str(folder)).fingerprint)
    assert len(found) == 1


def test_dropout_of_merges_is_off(loaded, folders, tmp_path):
    tokenizer = load(changed(folders["gpt2"], tmp_path, lambda data: data["model"].update(dropout=0.5)))
    for text in tiny_tokenizers.SENTENCES[:4]:
        assert tokenizer.encode(text).tolist() == loaded["gpt2"].encode(text).tolist()
    write_huggingface_tokenizer(tokenizer, tmp_path)
    assert json.loads((tmp_path / "tokenizer.json").read_text())["model"]["dropout"] is None


@pytest.mark.parametrize("kind", KINDS)
def test_raw_text_is_never_special(loaded, kind):
    tokenizer = loaded[kind]
    vocab = tokenizer.vocab
    for text in [SPECIAL_LOOKING, *hostile_texts(50), *vocab.names().values()]:
        ids = tokenizer.encode(text)
        assert (((ids >= vocab.content_start) & (ids < vocab.content_end)) | (ids == vocab.unk)).all(), text


def test_bytes_of_unknown_text_and_of_word_pieces(loaded):
    t5, bert = loaded["t5"], loaded["bert"]
    # T5 has no piece for "@": the space and "the" are spelled, and the space that T5 puts before the text.
    assert (t5.encode("the @") == t5.vocab.unk).sum() == 1 and t5.num_bytes(t5.encode("the @")) == 5
    # WordPiece spells letters: not the space, not the accent, not "@".
    ids = bert.encode("The Fé @")
    assert bert.decode(ids) == "the fe [UNK]" and bert.num_bytes(ids) == 5 and bert.dummy_bytes == 0
    assert bert.num_bytes(np.array([bert.vocab.mask, bert.vocab.size - 1])) == 0


def test_marks(loaded):
    def marked(kind, text, mark):
        tokenizer = loaded[kind]
        ids = tokenizer.encode(text)
        return [tokenizer.decode(ids[k : k + 1]) for k in np.flatnonzero(tokenizer.vocab.marked(ids, mark))]

    assert marked("gpt2", "the fox.\n", NEWLINE) == ["\n"] and marked("gpt2", "the fox.", PUNCTUATION) == ["."]
    assert len(marked("llama", "the fox 漢", CONTINUATION)) == 2, "of the three bytes of a character"
    assert _marks(ModelTokens(1, {}, {}, {0: b"\x81\xae"}), 0) == CONTINUATION
    assert [text[0] for text in marked("gpt2", "a the fox", SPACE)] == [" ", " "]
    # Every piece without "##" begins a word, as in BERT's whole-word masking.
    ids = loaded["bert"].encode("jumps!")
    texts = [loaded["bert"]._encoder.id_to_token(id_) for id_ in ids.tolist()]
    assert loaded["bert"].vocab.marked(ids, SPACE).tolist() == [not text.startswith("##") for text in texts]


def test_files_in_the_folder_name_special_tokens(tmp_path):
    # tokenizer_config.json has precedence over special_tokens_map.json, and a token may be a dict.
    path = tiny_tokenizers.gpt2(tmp_path, bos_token=None, pad_token="<|endoftext|>")
    assert (load(path).vocab.pad, load(path).vocab.bos) == (load(path).vocab.eos, load(path).vocab.content_end + 4)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "the"}, "bos_token": "no token"}')
    with pytest.raises(ConfigError, match=r"its bos_token 'no token' is not a token of tokenizer\.json"):
        load(path)


def test_added_tokens_of_text_are_ordinary_tokens(folders, tmp_path):
    def add_spaces(data):  # as GPT-NeoX does
        end = data["added_tokens"].pop(0)["id"]
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
        data["added_tokens"] = [
            {"id": end, "content": "        ", "special": False, **flags},
            {"id": end + 1, "content": "<|endoftext|>", "special": True, **flags},
        ]

    tokenizer = load(changed(folders["gpt2"], tmp_path, add_spaces))
    spaces = tokenizer.vocab.content_end - 1
    text = "a" + " " * 8 + "b"
    assert tokenizer.encode(text)[1] == spaces and tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.num_bytes(tokenizer.encode(text)) == 10 and tokenizer.vocab.eos == spaces + 1


def test_names_in_brackets_after_eos_are_special_in_qwen(folders, tmp_path):
    """Qwen 2.5 and 3 mark the chat's tokens as special, and <tool_call>, the tokens of FIM and <think> not."""
    names = [
        "<|im_start|>",
        "<|im_end|>",
        "<tool_call>",
        "<|fim_prefix|>",
        "<|fim_middle|>",
        "<|fim_suffix|>",
        "<think>",
    ]

    def add(data):
        [end] = data["added_tokens"]
        for k, name in enumerate(names, start=1):
            data["added_tokens"].append(end | {"id": end["id"] + k, "content": name, "special": k < 3})

    path = changed(folders["gpt2"], tmp_path, add)
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}')
    tokenizer = load(path, num_sentinels=3, append=False)
    vocab, end = tokenizer.vocab, tokenizer.vocab.content_end
    assert (vocab.content_start, vocab.pad, vocab.eos, vocab.size) == (0, end, end + 2, end + 8)
    assert vocab.sentinel_ids == (end + 4, end + 6, end + 5)
    text = "<think>the fox</think><|im_end|>"
    assert max(tokenizer.encode(text)) < end and tokenizer.decode(tokenizer.encode(text)) == text
    names[2] = "quicksort"  # a word, which text has
    with pytest.raises(ConfigError, match=r"has the special token '<\|endoftext\|>' between the ids"):
        load(changed(folders["gpt2"], tmp_path, add))


def test_the_s_of_html_is_text_between_pieces(folders, tmp_path):
    """Gemma has HTML's tags, whose names other models give to EOS and BOS, among its pieces."""

    def add(data):
        vocab, flags = data["model"]["vocab"], data["added_tokens"][0]
        for text in ("<s>", "</s>", "zz"):
            vocab[text] = len(vocab)
            if text != "zz":
                data["added_tokens"].append(flags | {"id": vocab[text], "content": text, "special": False})

    path = changed(folders["gemma"], tmp_path, add)
    shutil.copy(pathlib.Path(folders["gemma"]) / "special_tokens_map.json", tmp_path)
    tokenizer = load(path)
    vocab, ids = tokenizer.vocab, tokenizer.encode("<s>the</s>")
    assert (vocab.eos, vocab.bos) == (1, 2) and [tokenizer.piece(ids[0]), tokenizer.piece(ids[-1])] == ["<s>", "</s>"]


def test_merges_that_spell_a_special_token_are_left_out(tmp_path):
    """BPE without words, or with Metaspace, which was trained on HTML."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=265, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["a</s>b</s>"] * 9, trainer)
    assert "</s>" in tokenizer.get_vocab()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    contents = json.loads((tmp_path / "tokenizer.json").read_text())
    vocab = contents["model"]["vocab"]
    last = max(vocab, key=vocab.get)  # EOS gets the last id
    vocab["</s>"], vocab[last] = vocab[last], vocab["</s>"]
    contents["added_tokens"][0]["id"] = vocab["</s>"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(contents))
    loaded = load(str(tmp_path))
    ids = loaded.encode("a</s>b")
    assert loaded.vocab.eos == vocab["</s>"] not in ids and loaded.decode(ids) == "a</s>b"


def test_a_mask_takes_the_space_before_it_whatever_its_file_says(tmp_path):
    path = tmp_path / "bpe.json"
    path.write_bytes(train(["the quick brown fox"] * 9, TrainingOptions("bpe", True, 270, ("[MASK]",))))
    tokenizer = load(str(path))
    mask = tokenizer.vocab.mask
    found = tokenizer.encode_with_specials("the [MASK] fox")
    expected = [*tokenizer.encode("the"), mask, *tokenizer.encode(" fox")]
    assert found.tolist() == expected and mask < tokenizer.vocab.content_start


def test_fim_tokens_are_the_sentinels_of_a_model_without_others(folders, tmp_path):
    def add(data):
        end = data["added_tokens"][0]["id"] + 1
        names = ["<fim_prefix>", "<fim_middle>", "<fim_suffix>"]
        data["added_tokens"] += [
            data["added_tokens"][0] | {"id": end + k, "content": name} for k, name in enumerate(names)
        ]

    path = changed(folders["gpt2"], tmp_path, add)
    first = load(folders["gpt2"]).vocab.content_end + 1
    assert load(path, num_sentinels=3).vocab.sentinel_ids == (first, first + 2, first + 1)
    assert min(load(path, num_sentinels=4).vocab.sentinel_ids) > first + 2


def test_a_store_of_word_pieces(folders, tmp_path):
    store = store_of(tmp_path, ["The fox.", "a DOG jumps"], tokenizer=folders["bert"])
    assert 0.5 < store.bytes_covered() < 1 and store.meta["num_unknown"] == 0
    without_unk = store_of(tmp_path, ["The fox.", "a DOG jumps"], tokenizer=folders["gpt2"])
    assert without_unk.bytes_covered() == 1 and without_unk.meta["num_unknown"] == 0


def rename_eos(data):
    data["added_tokens"][0]["content"] = "<|stop|>"


def put_special_inside(data):
    data["model"]["unk_token"] = next(text for text, id_ in data["model"]["vocab"].items() if id_ == 280)


def give_another_id(data):
    data["added_tokens"].append(data["added_tokens"][0] | {"id": 500, "content": "<|other|>"})


UNUSABLE = {
    "model": (lambda data: data["model"].update(type="WordLevel"), "model of type WordLevel: use one of type BPE"),
    "no_model": (lambda data: data.pop("model"), "it has no model with a vocab"),
    "suffix": (lambda data: data["model"].update(end_of_word_suffix="</w>"), r"marks the ends of words \('</w>'\)"),
    "words": (lambda data: data.update(pre_tokenizer={"type": "Whitespace"}), "do not show where words begin"),
    "eos": (rename_eos, r"does not say which of its special tokens is EOS \('<\|stop\|>'\): write"),
    "inside": (put_special_inside, r"has the special token '.*' between the ids 0 and 299 of its"),
    "id": (give_another_id, r"gives '<\|other\|>' the id 500, and tokenizers the id 301"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_files_that_cannot_serve(folders, tmp_path, name):
    change, message = UNUSABLE[name]
    path = changed(folders["gpt2"], tmp_path, change, "other.json")
    with pytest.raises(ConfigError, match=message) as error:
        load(path)
    assert str(error.value).startswith(f"data.tokenizer={path!r}") and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        ({"tokenizer_class": "BertTokenizer", "do_lower_case": True}, "do_lower_case=True"),
        ({"tokenizer_class": "BertTokenizerFast"}, "do_lower_case=True"),  # the default of the class
        ({"do_lower_case": True}, "do_lower_case=True"),
        ({"do_lower_case": False}, ""),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}, ""),
        ({}, ""),
    ],
)
def test_options_that_transformers_reads_otherwise_are_refused(tmp_path, settings, option):
    path = pathlib.Path(KINDS["bert"](tmp_path)) / "tokenizer.json"
    data = json.loads(path.read_text())
    data["normalizer"] = {**data["normalizer"], "lowercase": False}
    path.write_text(json.dumps(data))
    (path.parent / "tokenizer_config.json").write_text(json.dumps(settings))
    if not option:
        load(str(path))
        return
    with pytest.raises(ConfigError, match=rf"transformers reads {option} in tokenizer_config.json, and tokenizer.json"):
        load(str(path))


def test_a_byte_level_normalizer_has_no_option_of_spaces(tmp_path):
    path = pathlib.Path(KINDS["gpt2"](tmp_path)) / "tokenizer.json"
    data = json.loads(path.read_text())
    data["normalizer"], data["pre_tokenizer"] = {"type": "ByteLevel"}, {"type": "Whitespace"}
    path.write_text(json.dumps(data))
    assert load(str(path)).encode("the").size


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(normalizer={"type": "Precompiled", "precompiled_charsmap": ""}),
        lambda data: data["model"].update(continuing_subword_prefix="####"),
    ],
)
def test_a_file_that_makes_the_library_panic_is_one_line(folders, tmp_path, change):
    path = changed(folders["gpt2"], tmp_path, change, "other.json")
    with pytest.raises(ConfigError, match=r"other\.json' cannot be read as a tokenizer \(PanicException: "):
        make_tokenizer(corpus_config(tmp_path, tokenizer=path))
