"""Sudoku on a board of 4 x 4 cells: every row, column and quarter has the digits 1 to 4.

1.34.4.12.4...21=1234341221434321     the cells by row, with blanks; the answer is the whole board
"""

import dataclasses
import functools
import itertools
from typing import Annotated

from data.sources.gym.task import DrawnTask, Instance


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sudoku4(DrawnTask):
    """Every puzzle has exactly one solution. Puzzles of one solution are on the same side of the split.

    blanks: cells to fill in. A puzzle needs at least four given cells, and few have so few.
    """

    blanks: Annotated[int, "[1, 11]"] = 8

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
