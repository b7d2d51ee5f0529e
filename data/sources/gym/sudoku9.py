"""Sudoku of 9 x 9 cells."""

import dataclasses
import functools
import random
from typing import Annotated

from data.sources.gym.task import DrawnTask, Instance

_ALL = (1 << 9) - 1  # the nine digits as bits
_CELLS = [(cell // 9, cell % 9, cell // 27 * 3 + cell % 9 // 3) for cell in range(81)]  # row, column and box of a cell


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sudoku9(DrawnTask):
    """Sudoku on a board of 9 x 9 cells: every row, column and box has the digits 1 to 9.

    The prompt is the cells by row, with "." for blanks, and "="; the answer is the whole board. Every puzzle has
    exactly one solution. An instance is one of `boards` puzzles after a random symmetry: digits are exchanged, and rows
    and columns within and between the bands. All instances of a board are on the same side of the split.

    blanks: cells to fill in. boards: different puzzles before symmetries.
    """

    blanks: Annotated[int, "[1, 54]"] = 40
    boards: Annotated[int, "[100, 2**20]"] = 2000

    @property
    def chance(self) -> float:
        return 9.0**-self.blanks

    def draw(self, draws):
        board = draws.randrange(self.boards)
        puzzle, solution = _puzzle(self.seed, board, self.blanks)
        places, digits = _symmetry(draws), dict(zip("123456789", draws.sample("123456789", 9), strict=True))
        shown, answer = ("".join(digits.get(cells[place], ".") for place in places) for cells in (puzzle, solution))
        return str(board), Instance(f"{shown}=", answer)


@functools.cache
def _puzzle(seed: int, board: int, blanks: int) -> tuple[str, str]:
    """Returns a puzzle and its solution."""
    draws = random.Random(f"sudoku9 {seed} {board}")
    while True:
        [solution] = solutions("." * 81, most=1, draws=draws)
        puzzle, left = solution, blanks
        for cell in draws.sample(range(81), 81):
            smaller = f"{puzzle[:cell]}.{puzzle[cell + 1 :]}"
            if len(solutions(smaller, most=2)) == 1:
                puzzle, left = smaller, left - 1
            if not left:
                return puzzle, solution


def _symmetry(draws: random.Random) -> list[int]:
    """Returns the cell of the board that is shown in each cell."""
    rows, columns = (
        [3 * band + line for band in draws.sample(range(3), 3) for line in draws.sample(range(3), 3)] for _ in range(2)
    )
    return [9 * row + column for row in rows for column in columns]


def solutions(puzzle: str, most: int, draws: random.Random | None = None) -> list[str]:
    """Returns up to `most` boards that agree with a puzzle, 81 cells with "." for blanks.

    draws: for the order in which digits are tried; None: ascending.
    """
    rows, columns, boxes = [_ALL] * 9, [_ALL] * 9, [_ALL] * 9  # the digits that are left
    board, blanks, found = list(puzzle), [], []
    for cell, digit in enumerate(puzzle):
        row, column, box = _CELLS[cell]
        if digit == ".":
            blanks.append(cell)
            continue
        bit = 1 << (int(digit) - 1)
        if not rows[row] & columns[column] & boxes[box] & bit:
            return []
        rows[row], columns[column], boxes[box] = rows[row] ^ bit, columns[column] ^ bit, boxes[box] ^ bit

    def fill(blanks: list[int]) -> None:
        if not blanks:
            found.append("".join(board))
            return
        # The cell with the fewest digits that are left.
        fewest, chosen, options = 10, -1, 0
        for cell in blanks:
            row, column, box = _CELLS[cell]
            left = rows[row] & columns[column] & boxes[box]
            if left.bit_count() < fewest:
                fewest, chosen, options = left.bit_count(), cell, left
                if fewest <= 1:
                    break
        row, column, box = _CELLS[chosen]
        others = [cell for cell in blanks if cell != chosen]
        digits = [digit for digit in range(9) if options >> digit & 1]
        if draws is not None:
            draws.shuffle(digits)
        for digit in digits:
            bit = 1 << digit
            rows[row], columns[column], boxes[box] = rows[row] ^ bit, columns[column] ^ bit, boxes[box] ^ bit
            board[chosen] = str(digit + 1)
            fill(others)
            rows[row], columns[column], boxes[box] = rows[row] ^ bit, columns[column] ^ bit, boxes[box] ^ bit
            if len(found) == most:
                return

    fill(blanks)
    return found
