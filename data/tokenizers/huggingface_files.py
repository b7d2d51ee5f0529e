"""Writes a tokenizer as the files of a Hugging Face folder."""

from collections.abc import Sequence
from pathlib import Path

from data.tokenizers.base import Tokenizer


def write_huggingface_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    *,
    begin: Sequence[int] | None = None,
    end: Sequence[int] | None = None,
    max_length: int | None = None,
) -> None:
    """Writes tokenizer.json, tokenizer_config.json and special_tokens_map.json into the existing `folder`.

    `transformers.AutoTokenizer.from_pretrained(folder)` then encodes text to the ids of `tokenizer`. Unlike `tokenizer`,
    it reads text such as "</s>" as a special token, as all tokenizers of transformers do by default.

    Args:
      tokenizer: any tokenizer of data.tokenizer.
      folder: an existing folder. The .model file of a SentencePiece model is copied into it as spiece.model.
      begin, end: ids that transformers puts before and after each text (add_special_tokens=True): () and (eos,) for
        T5, (cls,) and (sep,) for BERT. A pair of texts A and B becomes begin A end B end, with token type 1 from B on.
        None for both: those of the tokenizer.json that `tokenizer` was read from, none for other tokenizers.
      max_length: model_max_length, the most tokens of a text; None: no limit.

    Raises ConfigError, one line, for a SentencePiece model that a tokenizer.json cannot express.
    """
    raise NotImplementedError
