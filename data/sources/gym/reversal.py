"""Reversal: facts that are stated in one order, and asked in this order and in the other (Berglund et al. 2023).

0abc>XYZ     the fact that links abc and XYZ, in the words 0, with abc first; its prompt is 0abc>
0XYZ<abc     the same fact with XYZ first; its prompt is 0XYZ<
"""

import dataclasses
import random
from typing import Annotated

from data.sources.gym.task import LOWER, UPPER, Instance, Task, names


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reversal(Task):
    """A third of the facts is stated in one order only, a third in the other only, and a third in both.

    Each fact is stated in several ways, which differ in their first character. One of these ways is not trained on for
    a fact with one order: in it the fact is asked, in the order of the training text ("forward") and in the other
    ("backward"). The facts with both orders, as in Berglund et al., show that the orders state the same.

    facts: their number. letters: of a name, which is in one fact only. ways: of stating a fact.
    """

    facts: Annotated[int, "[3, 17576]"] = 90
    letters: Annotated[int, "[3, 8]"] = 3
    ways: Annotated[int, "[2, 10]"] = 4

    kinds = ("forward", "backward")

    def _facts(self) -> list[tuple[str, str]]:
        draws = random.Random(f"{self.seed} reversal")
        firsts, seconds = (names(draws, self.facts, self.letters, letters) for letters in (LOWER, UPPER))
        return list(zip(firsts, seconds, strict=True))

    def train(self):
        for k, fact in enumerate(self._facts()):
            for way in range(self.ways):
                for order in range(2):
                    if k % 3 == 2 or (order == k % 3 and way != self._asked_way(k)):
                        yield _state(fact, order, way, "")

    def test(self):
        for k, fact in enumerate(self._facts()):
            for order in range(2) if k % 3 < 2 else ():
                yield _state(fact, order, self._asked_way(k), "forward" if order == k % 3 else "backward")

    def _asked_way(self, k: int) -> int:
        return k // 3 % self.ways


def _state(fact: tuple[str, str], order: int, way: int, kind: str) -> Instance:
    first, second = fact if order == 0 else fact[::-1]
    return Instance(f"{way}{first}{'><'[order]}", second, kind)
