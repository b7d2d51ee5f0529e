"""tokenizer_config.json may change what `transformers` reads: a folder loads here with the same ids, or is refused."""

import json

import pytest

pytest.importorskip("tokenizers")

from contract.errors import ConfigError
from data.tokenizers.tokenizer import HuggingFaceTokenizer
from tests.data.tiny_tokenizers import KINDS, hostile_texts

CASES = {
    "gpt2": ("gpt2", {"tokenizer_class": "GPT2Tokenizer"}),
    "GPT-2, prefix": ("gpt2", {"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": True}),
    "GPT-2, prefix, file's class": ("gpt2", {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True}),
    "roberta": ("roberta", {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": False}),
    "RoBERTa, prefix": ("roberta", {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True}),
    "bert": ("bert", {"tokenizer_class": "BertTokenizer", "do_lower_case": True}),
    "BERT, cased": ("bert", {"tokenizer_class": "BertTokenizer", "do_lower_case": False}),
    "BERT, accents": ("bert", {"tokenizer_class": "BertTokenizer", "strip_accents": False}),
    "BERT, Chinese": ("bert", {"tokenizer_class": "BertTokenizer", "tokenize_chinese_chars": False}),
}
REFUSED = {"GPT-2, prefix", "RoBERTa, prefix", "BERT, cased", "BERT, accents", "BERT, Chinese"}


def load(folder):
    return HuggingFaceTokenizer(str(folder), num_sentinels=0, mode_tokens=(), append_special_tokens=False)


@pytest.mark.parametrize("name", CASES)
def test_ids_are_those_of_transformers_or_refused(tmp_path, name):
    transformers = pytest.importorskip("transformers")
    kind, config = CASES[name]
    KINDS[kind](tmp_path)
    ours = load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = [*hostile_texts(60), "The Quick BROWN Fox é", "漢字 and"]
    differ = [
        theirs(text, add_special_tokens=False, split_special_tokens=True).input_ids != ours.encode(text).tolist()
        for text in texts
    ]
    assert any(differ) == (name in REFUSED)
    if name not in REFUSED:
        load(tmp_path)
        return
    with pytest.raises(ConfigError, match=r"transformers reads \w+=\w+ in tokenizer_config.json, and tok") as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


def test_options_without_a_class_are_those_of_published_folders(tmp_path):
    KINDS["bert"](tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    with pytest.raises(ConfigError, match=r"transformers reads do_lower_case=False in tokenizer_config\.json"):
        load(tmp_path)
