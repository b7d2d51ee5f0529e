"""The gym's tasks whose instances are drawn without end: a digest of each decides whether it is a test instance."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Annotated

from data.sources.gym.task import LOWER, SYMBOLS, UPPER, DrawnTask, Instance

_OPENING, _CLOSING = "([{<", ")]}>"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Addition(DrawnTask):
    """Addition of two numbers with leading zeros.

        058+967=1025     the numbers and their sum; with reverse=1 the sum is written 5201

    A sum is in the group "carry" if a digit of it needs a carry, otherwise in "no_carry".

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Countdown(DrawnTask):
    """Countdown: the equations that lead from some numbers to a target, each number used once (Gandhi et al. 2024).

        3,25,7:46=7*3=21,25+21=46     numbers and target; the answer is one equation less than there are numbers

    The larger operand is first, and differences and quotients are positive integers. An instance has exactly one such
    answer, the order of its equations included. Instances with the same numbers are on the same side of the split.

    numbers: to combine. largest: the largest of them. target: the largest target.
    """

    numbers: Annotated[int, "[2, 4]"] = 3
    largest: Annotated[int, "[4, 99]"] = 20
    target: Annotated[int, "[4, 999]"] = 99

    @property
    def chance(self) -> float:
        return 1 / math.prod(4 * math.comb(left, 2) for left in range(2, self.numbers + 1))  # or more: not all divide

    def draw(self, draws):
        while True:
            numbers = [draws.randint(1, self.largest) for _ in range(self.numbers)]
            answers: dict[int, set[str]] = {}
            for value, equations in _countdowns(tuple(numbers)):
                answers.setdefault(value, set()).add(equations)
            unique = [value for value, found in answers.items() if len(found) == 1 and value <= self.target]
            if unique:
                target = draws.choice(unique)
                [answer] = answers[target]
                shown = ",".join(map(str, numbers))
                return str(sorted(numbers)), Instance(f"{shown}:{target}=", answer)


def _countdowns(numbers: tuple[int, ...]) -> Iterator[tuple[int, str]]:
    """Yields each value that follows from the numbers, all of them used, with the equations that lead to it."""
    if len(numbers) == 1:
        yield numbers[0], ""
    for i, j in itertools.combinations(range(len(numbers)), 2):
        large, small = max(numbers[i], numbers[j]), min(numbers[i], numbers[j])
        others = tuple(number for k, number in enumerate(numbers) if k not in (i, j))
        results = {"+": large + small, "-": large - small, "*": large * small}
        if large % small == 0:
            results["/"] = large // small
        for operation, result in results.items():
            if result > 0:
                equation = f"{large}{operation}{small}={result}"
                for value, rest in _countdowns((*others, result)):
                    yield value, f"{equation},{rest}".rstrip(",")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MQAR(DrawnTask):
    """MQAR: the values of several keys of a list (Arora et al. 2023, "Zoology"; multi-query associative recall).

        aXbQcZ/ca=cZaX   keys, each followed by its value, and keys to look up; the answer is these with their values

    Keys and values are drawn for every instance, and those of a list differ. Each value follows its key in the answer
    too, as in Zoology: for answers of values alone a query must be looked up too. Lists of the same pairs, in any order
    and with any queries, are on the same side of the split.

    pairs: in the list. queries: different keys of the list to look up. letters: that keys and values are drawn from.
    """

    pairs: Annotated[int, "[2, 26]"] = 8
    queries: Annotated[int, "[1, 26]"] = 4
    letters: Annotated[int, "[2, 26]"] = 26

    @property
    def chance(self) -> float:
        return 1 / math.perm(self.pairs, self.queries)  # of the values in the list

    def problem(self):
        if self.queries > self.pairs:
            return f"the list has {self.pairs} keys: set queries={self.pairs} or less"
        if self.pairs > self.letters:
            return f"the list has {self.pairs} keys, and letters={self.letters}: set letters={self.pairs} or more"
        return ""

    def draw(self, draws):
        keys, values = (draws.sample(letters[: self.letters], self.pairs) for letters in (LOWER, UPPER))
        value_of = dict(zip(keys, values, strict=True))
        queries = draws.sample(sorted(value_of), self.queries)
        listed = [key + value for key, value in value_of.items()]
        prompt = f"{''.join(listed)}/{''.join(queries)}="
        return "".join(sorted(listed)), Instance(prompt, "".join(key + value_of[key] for key in queries))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectiveCopy(DrawnTask):
    """Selective copy: the symbols among blanks, in their order (Gu & Dao 2023, section 4.1.1, after Jing et al. 2019).

        ..b.a..b=bab     symbols among blanks; the answer is the symbols

    The places of the symbols are random, so a fixed distance does not find them.

    length: symbols and blanks together. copied: symbols. symbols: how many there are to draw from.
    """

    length: Annotated[int, "[8, 4096]"] = 32
    copied: Annotated[int, "[2, 4096]"] = 8
    symbols: Annotated[int, "[2, 62]"] = 16

    @property
    def chance(self) -> float:
        return 1 / math.factorial(self.copied)  # of the orders of the symbols

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class StarGraph(DrawnTask):
    """Star graph: the path from the centre of a star to the end of one of its arms (Bachmann & Nagarajan 2024).

        cd|ab|ae|bf/af=abf     the edges in random order, the start and the goal; the answer is the path

    The graph G(degree, length). Predicting the path from its start is right in one of `degree` cases by chance.

    The first step after the start needs the whole path; every later step follows from the edges alone. Instances with
    the same edges, in any order and with any goal, are on the same side of the split.

    degree: arms of the star. length: nodes of the path, start and goal included. labels: names that nodes can have.
    """

    degree: Annotated[int, "[2, 30]"] = 2
    length: Annotated[int, "[3, 32]"] = 5
    labels: Annotated[int, "[5, 62]"] = 20

    @property
    def chance(self) -> float:
        return 1 / self.degree

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
        return "".join(sorted(edges)), Instance(f"{'|'.join(edges)}/{start}{arms[0][-1]}=", "".join(arms[0]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sudoku4(DrawnTask):
    """Sudoku on a board of 4 x 4 cells: every row, column and quarter has the digits 1 to 4.

        1.34.4.12.4...21=1234341221434321     the cells by row, with blanks; the answer is the whole board

    Every puzzle has exactly one solution. Puzzles of one solution are on the same side of the split.

    blanks: cells to fill in. A puzzle needs at least four given cells, and few have so few.
    """

    blanks: Annotated[int, "[1, 11]"] = 8

    @property
    def chance(self) -> float:
        return 4.0**-self.blanks

    def draw(self, draws):
        found = None
        while found is None:
            solution = draws.choice(boards())
            found = self._remove(solution, draws.sample(range(16), 16))
        return solution, Instance(f"{found}=", solution)

    def _remove(self, solution: str, order: list[int]) -> str | None:
        """Blanks cells of a board in `order`, except those without which it has a second solution; None for too few."""
        puzzle, removed = solution, 0
        for cell in order:
            smaller = f"{puzzle[:cell]}.{puzzle[cell + 1 :]}"
            if count_solutions(smaller) == 1:
                puzzle, removed = smaller, removed + 1
                if removed == self.blanks:
                    return puzzle
        return None


@functools.cache
def boards() -> list[str]:
    """Returns all boards: 288."""
    rows = ["".join(row) for row in itertools.permutations("1234")]
    found = []
    for top in itertools.product(rows, repeat=2):
        if _is_band(*top):
            for bottom in itertools.product(rows, repeat=2):
                if _is_band(*bottom) and all(len(set(column)) == 4 for column in zip(*top, *bottom, strict=True)):
                    found.append("".join(top + bottom))
    return found


def _is_band(first: str, second: str) -> bool:
    """Whether two adjacent rows fill their two quarters."""
    return len(set(first[:2] + second[:2])) == 4 == len(set(first[2:] + second[2:]))


@functools.cache
def _boards_with(cell: int, digit: str) -> int:
    """The boards that have a digit in a cell, as the bits of a number."""
    return sum(1 << k for k, board in enumerate(boards()) if board[cell] == digit)


def count_solutions(puzzle: str) -> int:
    """Returns the number of boards that agree with a puzzle, 16 cells with "." for blanks."""
    solutions = (1 << len(boards())) - 1
    for cell, digit in enumerate(puzzle):
        if digit != ".":
            solutions &= _boards_with(cell, digit)
    return solutions.bit_count()


@dataclasses.dataclass(frozen=True, kw_only=True)
class CFG(DrawnTask):
    """A context-free language: words of balanced brackets of several kinds and of a fixed length (the Dyck language).

        ([]{([])})     a word of length 10; its prompt is ([]{([] and its answer )})

    The answer is the end of a word: where it begins, as many brackets are open as positions are left.

    So exactly one answer makes a word of the language, and an answer is grammatical if and only if it is this one. All
    words with an answer of `depth` brackets or more are equally likely.

    length: of a word, an even number. brackets: kinds of brackets. depth: the fewest brackets of an answer.
    """

    length: Annotated[int, "[12, 256]"] = 32
    brackets: Annotated[int, "[2, 4]"] = 3
    depth: Annotated[int, "[1, 8]"] = 3

    @property
    def chance(self) -> float:
        lengths = range(self.depth, self.length // 2 + 1)
        words = [_count_ends(self.length - 1 - n, n - 1, 1) for n in lengths]  # whose answer has n brackets
        return sum(count * self.brackets**-n for count, n in zip(words, lengths, strict=True)) / sum(words)

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
