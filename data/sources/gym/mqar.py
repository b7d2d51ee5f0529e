"""MQAR: the values of several keys of a list (Arora et al. 2023, "Zoology"; multi-query associative recall).

aXbQcZ/ca=ZX     keys, each followed by its value, and keys to look up; the answer is their values
"""

import dataclasses
from typing import Annotated

from data.sources.gym.task import LOWER, UPPER, DrawnTask, Instance


@dataclasses.dataclass(frozen=True, kw_only=True)
class MQAR(DrawnTask):
    """Keys and values are new in every instance. Zoology writes each value after its key; here they end the text.

    pairs: in the list. queries: different keys of the list to look up.
    """

    pairs: Annotated[int, "[2, 26]"] = 8
    queries: Annotated[int, "[1, 26]"] = 4

    def problem(self):
        if self.queries > self.pairs:
            return f"the list has {self.pairs} keys: set queries={self.pairs} or less"
        return ""

    def draw(self, draws):
        value_of = {key: draws.choice(UPPER) for key in draws.sample(LOWER, self.pairs)}
        queries = draws.sample(sorted(value_of), self.queries)
        prompt = f"{''.join(map(''.join, value_of.items()))}/{''.join(queries)}="
        return prompt, Instance(prompt, "".join(value_of[key] for key in queries))
