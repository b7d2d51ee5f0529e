"""The tokenizer whose tokens are the bytes of UTF-8."""

import numpy as np

from data.tokenizers.base import Tokenizer, check_unicode
from data.tokenizers.specials import ModelTokens, SpecialTokensConfig, make_vocab

_SPECIALS = {0: "<pad>", 1: "</s>", 2: "<unk>"}


class ByteTokenizer(Tokenizer):
    """ByT5's ids: pad 0, eos 1, unk 2, byte b is b + 3; then mask, cls, sep, bos, the mode tokens and the sentinels.

    Source: Xue et al., ByT5 (TACL 2022), and its tokenizer. Deviation: ByT5's 125 sentinels follow the bytes directly.
    """

    def __init__(self, *, num_sentinels: int, mode_tokens: tuple[str, ...], append_special_tokens: bool = True):
        """Raises ConfigError for an invalid data.num_sentinels or data.mode_tokens."""
        model = ModelTokens(
            size=3 + 256,
            roles={"pad": 0, "eos": 1, "unk": 2},
            specials=_SPECIALS,
            content={byte + 3: bytes([byte]) for byte in range(256)},
        )
        config = SpecialTokensConfig(num_sentinels, mode_tokens, append_special_tokens)
        self.vocab = make_vocab(model, config, "data.tokenizer='byte'")
        self.fingerprint = "byte"

    def encode(self, text: str) -> np.ndarray:
        try:
            ids = np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32)
        except UnicodeEncodeError:
            check_unicode(text)
            raise
        ids += self.vocab.content_start
        return ids

    def num_bytes(self, ids: np.ndarray) -> int:
        return int(((ids >= self.vocab.content_start) & (ids < self.vocab.content_end)).sum())

    def piece(self, id_: int) -> str:
        return f"<0x{id_ - self.vocab.content_start:02X}>"

    def _decode_content(self, ids: np.ndarray) -> str:
        return (ids - self.vocab.content_start).astype(np.uint8).tobytes().decode("utf-8", errors="replace")
