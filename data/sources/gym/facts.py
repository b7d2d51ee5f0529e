"""The gym's tasks of facts. The training text has all facts and some questions about them, the test the others."""

import abc
import dataclasses
import random
from typing import Annotated

from data.sources.gym.task import LOWER, UPPER, Instance, Task, names


@dataclasses.dataclass(frozen=True, kw_only=True)
class _HalfAsked(Task):
    """The training text has all facts, and both questions about every second one; the test has the other questions."""

    kinds = ("forward", "backward")

    @property
    def chance(self) -> float:
        return 1 / len(self.facts()[1::2])  # the prompt says which of a fact's names is the answer

    @abc.abstractmethod
    def facts(self) -> list[tuple[Instance, Instance, Instance]]:
        """Returns the statement of each fact and its two questions."""

    def train(self):
        for k, (statement, *questions) in enumerate(self.facts()):
            yield statement
            if k % 2 == 0:
                yield from questions

    def test(self):
        for _, *questions in self.facts()[1::2]:
            yield from questions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retrieval(_HalfAsked):
    """Retrieval: values by key, and keys by value (the retrieval task of Kitouni et al. 2024, arXiv 2406.05183, 3.1).

        abc:XYZ      a key and its value
        ?abc:XYZ     the question for the value of a key; its prompt is ?abc:
        !XYZ:abc     the question for the key of a value

    pairs: their number. letters: of a key and of a value, none of which is in two pairs.
    """

    pairs: Annotated[int, "[2, 17576]"] = 100
    letters: Annotated[int, "[3, 8]"] = 3

    def facts(self):
        draws = random.Random(f"{self.seed} retrieval")
        keys, values = (names(draws, self.pairs, self.letters, letters) for letters in (LOWER, UPPER))
        return [
            (
                Instance(f"{key}:", value),
                Instance(f"?{key}:", value, "forward"),
                Instance(f"!{value}:", key, "backward"),
            )
            for key, value in zip(keys, values, strict=True)
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Relationship(_HalfAsked):
    """Relationship: questions for both neighbors of the middle of a chain (Kitouni et al. 2024, arXiv 2406.05183).

        abc>def>ghi  a chain
        +def:ghi     the question for what follows; its prompt is +def:
        -def:abc     the question for what precedes

    chains: their number. letters: of a name, which is in one chain only.
    """

    chains: Annotated[int, "[2, 5858]"] = 80
    letters: Annotated[int, "[3, 8]"] = 3

    def facts(self):
        found = names(random.Random(f"{self.seed} relationship"), 3 * self.chains, self.letters, LOWER)
        return [
            (
                Instance(f"{first}>{middle}>", last),
                Instance(f"+{middle}:", last, "forward"),
                Instance(f"-{middle}:", first, "backward"),
            )
            for first, middle, last in zip(found[::3], found[1::3], found[2::3], strict=True)
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reversal(Task):
    """Reversal: facts in one order in training, and questions in this and in the other order (Berglund et al. 2023).

        0abc>XYZ     the fact that links abc and XYZ, in the words 0, with abc first; its prompt is 0abc>
        0XYZ<abc     the same fact with XYZ first; its prompt is 0XYZ<

    A third of the facts is stated in one order only, a third in the other only, and a third in both.

    Each fact is stated in several ways, which differ in their first character. For a fact with one order, the training
    text lacks one of these ways. The test has the fact in this way, in the order of the training text ("forward") and
    in the other ("backward"). The facts with both orders, as in Berglund et al., show that the orders state the same.

    facts: their number. letters: of a name, which is in one fact only. ways: of stating a fact.
    """

    facts: Annotated[int, "[3, 17576]"] = 90
    letters: Annotated[int, "[3, 8]"] = 3
    ways: Annotated[int, "[2, 10]"] = 4

    kinds = ("forward", "backward")

    @property
    def chance(self) -> float:
        return 2 / ((self.facts + 2) // 3 + (self.facts + 1) // 3)  # the case of the answer follows from the prompt

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
