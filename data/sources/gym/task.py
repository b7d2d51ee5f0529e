"""The interface of the gym's tasks: synthetic instances, each a prompt with the one answer that is right.

A task is a frozen dataclass whose fields are its sizes, integers that `data.path` sets. What is drawn depends on the
sizes alone, so every run of a task reads the same text.
"""

import abc
import dataclasses
import random
import string
from collections.abc import Iterator
from typing import Annotated, ClassVar, NamedTuple

from contract.errors import ConfigError
from data.sources.files import text_digest

_TEST_SHARE = 8  # one of so many keys is a test instance's
_MOST_REPEATS = 10_000  # in a row


class Instance(NamedTuple):
    """A prompt and its answer, which follows the prompt without a space."""

    prompt: str
    answer: str
    kind: str = ""  # the group in which the instance is scored, such as "forward"; "" for none


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """A task. No test instance is a training instance, for every value of the fields.

    seed: of everything that is drawn; the seed of a run has no influence.
    """

    seed: Annotated[int, "[0, 2**31)"] = 0

    kinds: ClassVar[tuple[str, ...]] = ()  # of the test instances

    @property
    def chance(self) -> float:
        """The share of answers, or less, that a guess in the form of the answers gets right; 0: next to none."""
        return 0.0

    @abc.abstractmethod
    def train(self) -> Iterator[Instance]:
        """Yields the training instances, always the same ones in the same order."""

    @abc.abstractmethod
    def test(self) -> Iterator[Instance]:
        """Yields the test instances, always the same ones in the same order."""

    def problem(self) -> str:
        """Returns what is wrong with fields that are each in their range, and what to do; "" if nothing is."""
        return ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrawnTask(Task):
    """A task with more instances than anyone reads: each is drawn, and its key decides whether it is a test instance.

    train_size, test_size: the numbers of instances. Training instances may repeat, and test instances do not.
    """

    train_size: Annotated[int, "[1, 2**31)"] = 50_000
    test_size: Annotated[int, "[1, 2**31)"] = 500

    @abc.abstractmethod
    def draw(self, draws: random.Random) -> tuple[str, Instance]:
        """Returns an instance and its key: instances with equal keys are on the same side of the split."""

    def train(self) -> Iterator[Instance]:
        return self._side(is_test=False)

    def test(self) -> Iterator[Instance]:
        return self._side(is_test=True)

    def _side(self, *, is_test: bool) -> Iterator[Instance]:
        draws, left = random.Random(f"{self.seed} {is_test}"), self.test_size if is_test else self.train_size
        seen, repeats = set[Instance](), 0
        while left:
            key, instance = self.draw(draws)
            if (text_digest(key.encode()) % _TEST_SHARE == 0) != is_test or instance in seen:
                repeats += 1
                if repeats > _MOST_REPEATS:
                    found = self.test_size - left
                    fewer = f"test_size={found} or less, or " if found else ""
                    raise ConfigError(
                        f"data.path: these sizes have about {found} different test instances, and test_size is "
                        f"{self.test_size}: set {fewer}larger sizes"
                    )
                continue
            if is_test:
                seen.add(instance)
            repeats = 0
            yield instance
            left -= 1


def names(draws: random.Random, count: int, length: int, letters: str) -> list[str]:
    """Returns `count` different names of `length` letters each, at most len(letters) ** length."""
    numbers, base = draws.sample(range(len(letters) ** length), count), len(letters)
    return ["".join(letters[number // base**k % base] for k in range(length)) for number in numbers]


LOWER, UPPER = string.ascii_lowercase, string.ascii_uppercase
SYMBOLS = LOWER + UPPER + string.digits  # names of one character
