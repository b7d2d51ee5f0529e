"""Star graph: the path from the centre of a star to the end of one of its arms (Bachmann & Nagarajan 2024).

cd|ab|ae|bf/af=abf     the edges in random order, the start and the goal; the answer is the path
"""

import dataclasses
import itertools
from typing import Annotated

from data.sources.gym.task import SYMBOLS, DrawnTask, Instance


@dataclasses.dataclass(frozen=True, kw_only=True)
class StarGraph(DrawnTask):
    """The graph G(degree, length). Predicting the path from its start is right in one of `degree` cases by chance.

    The first step after the start needs the whole path; every later step follows from the edges alone.

    degree: arms of the star. length: nodes of the path, start and goal included. labels: names that nodes can have.
    """

    degree: Annotated[int, "[2, 30]"] = 2
    length: Annotated[int, "[3, 32]"] = 5
    labels: Annotated[int, "[5, 62]"] = 20

    @property
    def _num_nodes(self) -> int:
        return self.degree * (self.length - 1) + 1

    def problem(self):
        if self._num_nodes > self.labels:
            nodes, most = self._num_nodes, len(SYMBOLS)
            more = f"labels={nodes} or more, or " if nodes <= most else ""
            return f"the graph has {nodes} nodes, and labels={self.labels}: set {more}a smaller degree or length"
        return ""

    def draw(self, draws):
        start, *others = draws.sample(SYMBOLS[: self.labels], self._num_nodes)
        arms = [[start, *others[k :: self.degree]] for k in range(self.degree)]
        edges = [a + b for arm in arms for a, b in itertools.pairwise(arm)]
        draws.shuffle(edges)
        prompt = f"{'|'.join(edges)}/{start}{arms[0][-1]}="
        return prompt, Instance(prompt, "".join(arms[0]))
