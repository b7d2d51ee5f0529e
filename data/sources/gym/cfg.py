"""A context-free language: words of balanced brackets of several kinds and of a fixed length (the Dyck language).

([]{([])})     a word of length 10; its prompt is ([]{([] and its answer )})
"""

import dataclasses
import functools
from typing import Annotated

from data.sources.gym.task import DrawnTask, Instance

_OPENING, _CLOSING = "([{<", ")]}>"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CFG(DrawnTask):
    """The answer is the end of a word: where it begins, as many brackets are open as positions are left.

    So exactly one answer makes a word of the language, and an answer is grammatical if and only if it is this one. All
    words with an answer of `depth` brackets or more are equally likely.

    length: of a word, an even number. brackets: kinds of brackets. depth: the fewest brackets of an answer.
    """

    length: Annotated[int, "[12, 512]"] = 32
    brackets: Annotated[int, "[2, 4]"] = 3
    depth: Annotated[int, "[1, 8]"] = 3

    def problem(self):
        if self.length % 2 or self.length < 4 * self.depth:
            return f"length={self.length} must be even, and {4 * self.depth} or more with depth={self.depth}"
        return ""

    def draw(self, draws):
        word, answer = "", ""
        while len(answer) < self.depth:
            word, answer = "", ""
            opened: list[int] = []
            for left in range(self.length, 0, -1):
                # Among the words that can follow, the share of those whose next bracket opens.
                opening = self.brackets * _count_ends(left - 1, len(opened) + 1, self.brackets)
                if draws.randrange(_count_ends(left, len(opened), self.brackets)) < opening:
                    opened.append(draws.randrange(self.brackets))
                    word += _OPENING[opened[-1]]
                else:
                    answer = answer or "".join(_CLOSING[k] for k in reversed(opened)) * (left == len(opened))
                    word += _CLOSING[opened.pop()]
        prompt = word[: self.length - len(answer)]
        return prompt, Instance(prompt, answer)


@functools.cache
def _count_ends(left: int, opened: int, brackets: int) -> int:
    """Returns the number of ways in which `left` more brackets close all brackets, of which `opened` are open."""
    if opened > left:
        return 0
    if left == 0:
        return 1
    closing = _count_ends(left - 1, opened - 1, brackets) if opened else 0
    return closing + brackets * _count_ends(left - 1, opened + 1, brackets)


def is_word(text: str) -> bool:
    """Returns whether a text is balanced: a word of the language, of any length."""
    opened: list[str] = []
    for bracket in text:
        if bracket in _OPENING:
            opened.append(_CLOSING[_OPENING.index(bracket)])
        elif not opened or opened.pop() != bracket:
            return False
    return not opened
