"""Small Hugging Face folders with random weights and tokenizers, written by `transformers`."""

import json
from pathlib import Path

from tests.data import tiny_tokenizers
from tests.huggingface.comparison import MODELS, random_model

_TOKENIZERS = {
    "t5_v1_0": tiny_tokenizers.t5,
    "t5_v1_1": tiny_tokenizers.t5,
    "bert": tiny_tokenizers.bert,
    "bert_pretraining": tiny_tokenizers.bert,
    "electra": tiny_tokenizers.bert,
    "electra_generator": tiny_tokenizers.bert,
    "roberta": tiny_tokenizers.roberta,
    "bart": tiny_tokenizers.roberta,
    "gpt2": tiny_tokenizers.gpt2,
    "gpt_neox": tiny_tokenizers.gpt2,
    "llama": tiny_tokenizers.llama,
    "mistral": tiny_tokenizers.llama,
    "qwen2": tiny_tokenizers.gpt2,
    "qwen3": tiny_tokenizers.gpt2,
    "modernbert": tiny_tokenizers.bert,
} | dict.fromkeys(("gemma", "gemma2", "gemma3", "t5gemma"), tiny_tokenizers.gemma)
ROWS = 40  # learned positions


def make_hub_folder(folder: Path, name: str, *, seed: int = 0, extra_rows: int = 0, **options) -> Path:
    """Writes a folder with the model `name` of comparison.py and a row for each token of its tokenizer.

    extra_rows: of the token table, without a token. options: of config.json.
    """
    import tokenizers

    _TOKENIZERS[name](folder)
    size = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    class_name, defaults = MODELS[name]
    positions = {key: ROWS + value - 24 for key, value in defaults.items() if key in ("n_positions", _POSITIONS)}
    options = defaults | positions | {"vocab_size": size + extra_rows} | options
    options |= {
        name: options[name] | {"vocab_size": size + extra_rows} for name in ("encoder", "decoder") if name in options
    }
    random_model(class_name, options, seed).save_pretrained(folder)
    return folder


_POSITIONS = "max_position_embeddings"


def change_config(folder: Path, **changes) -> None:
    """Changes options in the config.json of `folder`; None removes one."""
    path = folder / "config.json"
    options = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in options.items() if value is not None}))
