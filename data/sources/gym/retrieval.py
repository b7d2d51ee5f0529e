"""Retrieval: values by key, and keys by value (the retrieval task of Kitouni et al. 2024, arXiv 2406.05183, 3.1).

abc:XYZ      a key and its value
?abc:XYZ     the question for the value of a key; its prompt is ?abc:
!XYZ:abc     the question for the key of a value
"""

import dataclasses
import random
from typing import Annotated

from data.sources.gym.task import LOWER, UPPER, Instance, Task, names


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retrieval(Task):
    """All pairs are stated, and both questions of every second pair are trained on. The other pairs are asked.

    pairs: their number. letters: of a key and of a value, none of which is in two pairs.
    """

    pairs: Annotated[int, "[2, 17576]"] = 100
    letters: Annotated[int, "[3, 8]"] = 3

    kinds = ("forward", "backward")

    def _pairs(self) -> list[tuple[str, str]]:
        draws = random.Random(f"{self.seed} retrieval")
        keys, values = (names(draws, self.pairs, self.letters, letters) for letters in (LOWER, UPPER))
        return list(zip(keys, values, strict=True))

    def train(self):
        for k, (key, value) in enumerate(self._pairs()):
            yield Instance(f"{key}:", value)
            if k % 2 == 0:
                yield from _questions(key, value)

    def test(self):
        for key, value in self._pairs()[1::2]:
            yield from _questions(key, value)


def _questions(key: str, value: str) -> tuple[Instance, Instance]:
    return Instance(f"?{key}:", value, "forward"), Instance(f"!{value}:", key, "backward")
