"""Relationship: chains of three, of whose middle both neighbours are asked (Kitouni et al. 2024, arXiv 2406.05183).

abc>def>ghi  a chain
+def:ghi     the question for what follows; its prompt is +def:
-def:abc     the question for what precedes
"""

import dataclasses
import random
from typing import Annotated

from data.sources.gym.task import LOWER, Instance, Task, names


@dataclasses.dataclass(frozen=True, kw_only=True)
class Relationship(Task):
    """All chains are stated, and both questions about every second chain are trained on. The other chains are asked.

    chains: their number. letters: of a name, which is in one chain only.
    """

    chains: Annotated[int, "[2, 5858]"] = 80
    letters: Annotated[int, "[3, 8]"] = 3

    kinds = ("forward", "backward")

    def _chains(self) -> list[list[str]]:
        found = names(random.Random(f"{self.seed} relationship"), 3 * self.chains, self.letters, LOWER)
        return [found[k : k + 3] for k in range(0, len(found), 3)]

    def train(self):
        for k, chain in enumerate(self._chains()):
            yield Instance(f"{chain[0]}>{chain[1]}>", chain[2])
            if k % 2 == 0:
                yield from _questions(*chain)

    def test(self):
        for chain in self._chains()[1::2]:
            yield from _questions(*chain)


def _questions(first: str, middle: str, last: str) -> tuple[Instance, Instance]:
    return Instance(f"+{middle}:", last, "forward"), Instance(f"-{middle}:", first, "backward")
