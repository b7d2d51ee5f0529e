"""Selective copy: the symbols among blanks, in their order (Gu & Dao 2023, section 4.1.1, after Jing et al. 2019).

..b.a..b=bab     symbols among blanks; the answer is the symbols
"""

import dataclasses
from typing import Annotated

from data.sources.gym.task import SYMBOLS, DrawnTask, Instance


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectiveCopy(DrawnTask):
    """The places of the symbols are random, so a fixed distance does not find them.

    length: symbols and blanks together. copied: symbols. symbols: how many there are to draw from.
    """

    length: Annotated[int, "[8, 4096]"] = 32
    copied: Annotated[int, "[2, 4096]"] = 8
    symbols: Annotated[int, "[2, 62]"] = 16

    def problem(self):
        if self.copied >= self.length:
            return f"copied={self.copied} leaves no blank: set length={self.copied + 1} or more"
        return ""

    def draw(self, draws):
        text = ["."] * self.length
        for place in draws.sample(range(self.length), self.copied):
            text[place] = draws.choice(SYMBOLS[: self.symbols])
        prompt = f"{''.join(text)}="
        return prompt, Instance(prompt, "".join(text).replace(".", ""))
