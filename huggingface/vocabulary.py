"""Two vocabularies compared by the texts of their tokens, and the rows of token tables that both have."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from data.tokenizers.tokenizer import Tokenizer

# Fields of config.data that give each token its id.
VOCABULARY = ("tokenizer", "num_sentinels", "mode_tokens", "append_special_tokens", "decoder_start_token")


@dataclasses.dataclass(frozen=True, eq=False)
class SharedTokens:
    """The tokens that two vocabularies, `here` and `there`, have in common.

    Attributes:
      here, there: int32 [n], the ids of each common token in the two vocabularies; `here` is ascending.
      num_new: how many tokens of `here` are not in `there`.
      num_dropped: how many tokens of `there` are not in `here`.
    """

    here: np.ndarray
    there: np.ndarray
    num_new: int
    num_dropped: int


def token_texts(tokenizer: Tokenizer) -> list[str]:
    """Returns the text of each id, [size]: the name of a special token, or the piece of an ordinary one.

    An id that is neither has a text of its own, "<id N>".
    """
    names, vocab = tokenizer.vocab.names(), tokenizer.vocab
    texts = []
    for id_ in range(vocab.size):
        is_ordinary = vocab.content_start <= id_ < vocab.content_end
        texts.append(names[id_] if id_ in names else tokenizer.piece(id_) if is_ordinary else f"<id {id_}>")
    return texts


def match_tokens(here: Sequence[str], there: Sequence[str]) -> SharedTokens:
    """Returns the tokens that have the same text."""
    ids_there = {token: id_ for id_, token in enumerate(there)}
    pairs = [(id_, ids_there[token]) for id_, token in enumerate(here) if token in ids_there]
    shared = np.array(pairs, np.int32).reshape(-1, 2)
    return SharedTokens(shared[:, 0], shared[:, 1], len(here) - len(pairs), len(there) - len(pairs))


def describe_differences(here: Sequence[str], there: Sequence[str]) -> str:
    """Returns the first ids whose tokens differ, and how many more do; "" for equal vocabularies."""
    length = max(len(here), len(there))
    differing = [id_ for id_ in range(length) if _text(here, id_) != _text(there, id_)]
    if not differing:
        return ""
    first = "; ".join(f"id {id_} is {_text(there, id_)} there and {_text(here, id_)} here" for id_ in differing[:2])
    return first + (f"; {len(differing) - 2} more ids differ" if len(differing) > 2 else "")


def _text(texts: Sequence[str], id_: int) -> str:
    return repr(texts[id_]) if id_ < len(texts) else "not a token"
