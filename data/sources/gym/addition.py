"""Addition of two numbers with leading zeros.

058+967=1025     the numbers and their sum; with reverse=1 the sum is written 5201
"""

import dataclasses
from typing import Annotated

from data.sources.gym.task import DrawnTask, Instance


@dataclasses.dataclass(frozen=True, kw_only=True)
class Addition(DrawnTask):
    """A sum is in the group "carry" if a digit of it needs a carry, otherwise in "no_carry".

    The most significant digit depends on all carries, so a sum is easier to write from its least significant digit
    (Lee et al. 2023, "Teaching arithmetic to small Transformers"). a + b and b + a are on the same side of the split.

    digits: of each number; the sum has one more. reverse: 1: the sum begins with its least significant digit.
    """

    digits: Annotated[int, "[2, 12]"] = 3
    reverse: Annotated[int, "[0, 1]"] = 0

    kinds = ("no_carry", "carry")

    def draw(self, draws):
        a, b = (f"{draws.randrange(10**self.digits):0{self.digits}}" for _ in range(2))
        carries = any(int(x) + int(y) > 9 for x, y in zip(a, b, strict=True))
        answer = f"{int(a) + int(b):0{self.digits + 1}}"
        answer = answer[::-1] if self.reverse else answer
        return f"{min(a, b)} {max(a, b)}", Instance(f"{a}+{b}=", answer, self.kinds[carries])
