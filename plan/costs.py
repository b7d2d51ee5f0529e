"""What a TPU step spends its time on: the compiler's estimated cycles, and bytes of memory, by kind of operation.

The TPU compiler writes an estimate of cycles for each fusion, copy and broadcast into its program. Kernels of Pallas,
collectives and asynchronous copies have none. The estimate is the compiler's own model, not a measurement.
"""

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from plan.hlo import CALLED, WHILE, Computation, bytes_of, parse_program, trip_count

# Kind -> what it is. An operation that is of several kinds is of the first.
KINDS = {
    "matrix products": "with the operations that are fused with them",
    "kernels": "of Pallas, such as fused attention: without an estimate of cycles",
    "random bits": "with the dropout that is fused with them",
    "scanned arrays": "reads and writes of one layer's part: saved residuals, parameters and gradients",
    "zero fills": "arrays of one value",
    "copies": "and changes of layout",
    "transfers": "to and from a chip's own memory (VMEM), during other operations: without an estimate of cycles",
    "other": "norms, activations, losses, the optimizer",
}
_INSTRUCTION = re.compile(r"^\s*(ROOT )?%?([\w.-]+) = (.*?) ([a-z][\w-]*)\((.*)$")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\](?:\{([\d,]*)(?::([^}]*))?\})?")
_TILE = re.compile(r"T\(([\d,]+)\)")
_VMEM = "S("  # in the layout of an array that is not in high-bandwidth memory
_FILLS = {"broadcast", "constant", "bitcast", "tuple"}
_COPIES = _FILLS | {"copy", "transpose", "reshape", "slice", "pad", "concatenate", "parameter", "fusion"}
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "call", "conditional"}
_ELSEWHERE = ("-done", "-update", "async-start", "all-reduce-start", "all-gather-start", "permute-start")
_TRANSFERS = ("copy-start", "slice-start")
# JAX's random bits, and the hash of dropout's words (models/layers.py), MurmurHash3's finalizer.
_RANDOM = ({"xor", "shift-left", "shift-right-logical"}, {"xor", "shift-right-logical", "multiply of u32"})


@dataclass
class Cost:
    """The sums of one kind, of one device and step."""

    cycles: int = 0
    bytes: int = 0  # that are read and written in high-bandwidth memory, with the padding of tiles
    padding_bytes: int = 0


class Instruction(NamedTuple):
    """One line of a computation."""

    is_root: bool
    name: str
    type: str
    opcode: str
    operands: list[str]
    text: str


def costs(hlo_text: str) -> dict[str, Cost]:
    """Returns kind -> costs of a device in one run of the program, those with the most cycles first.

    An operation in a loop counts for each iteration, as in plan.hlo. A part of an array that is sliced from it, or
    written into it, counts as this part. Arrays in a chip's own memory (VMEM) have no bytes here.

    hlo_text: `compiled.as_text()` of a TPU program.
    """
    computations, entry = parse_program(hlo_text)
    program = _Program(computations)
    total = {kind: Cost() for kind in KINDS}
    for caller, instruction, runs in program.executed(entry.name, 1) if entry else ():
        cost = total[program.kind(instruction)]
        cycles = _CYCLES.search(instruction.text)
        cost.cycles += runs * int(cycles[1]) if cycles else 0
        for padded, logical in program.moved(instruction, caller):
            cost.bytes += runs * padded
            cost.padding_bytes += runs * (padded - logical)
    return dict(sorted(total.items(), key=lambda item: -item[1].cycles))


class _Program:
    def __init__(self, computations: dict[str, Computation]):
        self._computations = computations
        self.instructions = functools.cache(self._parse)
        self._opcodes = functools.cache(self._find_opcodes)

    def _parse(self, computation: str) -> dict[str, Instruction]:
        """Instructions of a computation by name."""
        matches = map(_INSTRUCTION.match, self._computations[computation].lines)
        return {
            m[2]: Instruction(bool(m[1]), m[2], m[3], m[4], re.findall(r"%([\w.-]+)", m[5].partition(")")[0]), m[0])
            for m in matches
            if m
        }

    def _find_opcodes(self, computation: str) -> frozenset[str]:
        """The opcodes of a fused computation and of those in it, and "multiply of u32"."""
        found = set()
        for instruction in self.instructions(computation).values():
            inner = self.called(instruction)
            of_words = {"multiply of u32"} if instruction.opcode == "multiply" and "u32[" in instruction.type else set()
            found |= {instruction.opcode} | of_words | (self._opcodes(inner) if inner else set())
        return frozenset(found)

    def called(self, instruction: Instruction) -> str | None:
        """The computation that a fusion runs."""
        match = CALLED.search(instruction.text) if instruction.opcode == "fusion" else None
        return match[1] if match and match[1] in self._computations else None

    def executed(self, computation: str, runs: int) -> Iterator[tuple[str, Instruction, int]]:
        """Yields the operations that run in a computation, its loops and calls: where, which, and how often."""
        for instruction in self.instructions(computation).values():
            inner, times = None, runs
            if instruction.opcode == "while" and (loop := WHILE.search(instruction.text)):
                inner, times = loop[2], runs * trip_count(instruction.text, self._computations.get(loop[1]))
            elif instruction.opcode in ("call", "conditional") and (match := CALLED.search(instruction.text)):
                inner = match[1]
            if inner in self._computations:
                yield from self.executed(inner, times)
            elif instruction.opcode not in _FREE and not instruction.opcode.endswith(_ELSEWHERE):
                yield computation, instruction, runs

    def kind(self, instruction: Instruction) -> str:
        """The kind of an operation, one of KINDS."""
        if instruction.opcode in _TRANSFERS:
            return "transfers"
        inner = self.called(instruction)
        opcodes = self._opcodes(inner) if inner else {instruction.opcode}
        if opcodes & {"convolution", "dot"}:
            return "matrix products"
        if "tpu_custom_call" in instruction.text:
            return "kernels"
        if any(opcodes >= bits for bits in _RANDOM) or "rng-bit-generator" in opcodes:
            return "random bits"
        if opcodes & {"dynamic-slice", "dynamic-update-slice"}:
            return "scanned arrays"
        if opcodes <= _FILLS and (inner or instruction.operands[0].startswith("constant")):
            return "zero fills"
        return "copies" if opcodes <= _COPIES else "other"

    def moved(self, instruction: Instruction, caller: str) -> Iterator[tuple[int, int]]:
        """Yields the bytes, with and without padding, of each array of an operation in high-bandwidth memory."""
        if instruction.opcode in _TRANSFERS:  # the type is (result, operand, semaphore)
            yield _size(next(_ARRAY.finditer(instruction.type))[0])
            return
        types, inner = self.instructions(caller), self.called(instruction)
        for index, operand in enumerate(instruction.operands):
            if operand in types and _VMEM not in types[operand].type:
                read = self._read(inner, index) if inner else None
                yield _size(types[operand].type) if read is None else read
        roots = self._written(inner) if inner else [instruction.type]
        for result, written in zip(_ARRAY.finditer(instruction.type), roots, strict=False):
            if _VMEM not in result[0]:
                yield _size(written)

    def _read(self, computation: str, index: int) -> tuple[int, int] | None:
        """The bytes that a fusion reads of its operand `index`, if all it does is to slice it, or to write into it."""
        instructions = self.instructions(computation)
        parameter = next(i.name for i in instructions.values() if f" parameter({index})" in i.text)
        sizes = []
        for user in (i for i in instructions.values() if parameter in i.operands):
            position, inner = user.operands.index(parameter), self.called(user)
            if user.opcode == "dynamic-slice" and position == 0:
                sizes.append(_size(user.type))
            elif user.opcode == "dynamic-update-slice" and position == 0:
                sizes.append((0, 0))
            elif inner and (size := self._read(inner, position)) is not None:
                sizes.append(size)
            else:
                return None
        return sum(padded for padded, _ in sizes), sum(logical for _, logical in sizes)

    def _written(self, computation: str) -> list[str]:
        """The types of what a fusion writes: of each of its results, or of the part that it writes into an operand."""
        instructions = self.instructions(computation)

        def part(name: str) -> str:
            instruction = instructions[name]
            if instruction.opcode == "bitcast" and instruction.operands[0] in instructions:
                inner = instructions[instruction.operands[0]]
                return part(inner.name) if inner.opcode == "dynamic-update-slice" else instruction.type
            updates = instruction.opcode == "dynamic-update-slice"
            return instructions[instruction.operands[1]].type if updates else instruction.type

        root = next(i for i in instructions.values() if i.is_root)
        return [part(name) for name in (root.operands if root.opcode == "tuple" else [root.name])]


def _size(array_type: str) -> tuple[int, int]:
    """Returns the bytes of an array's type, or of a tuple's, with and without the padding of its tiles."""
    with_padding = without = 0
    for dtype, dims, order, layout in _ARRAY.findall(array_type):
        sizes = [int(size) for size in dims.split(",") if size]
        padded = [sizes[int(axis)] for axis in reversed([a for a in order.split(",") if a])] if order else list(sizes)
        tile = _TILE.search(layout)
        for k, size in enumerate(reversed([int(size) for size in tile[1].split(",")]) if tile else (), 1):
            if k <= len(padded):
                padded[-k] = math.ceil(padded[-k] / size) * size
        with_padding += bytes_of(dtype) * math.prod(padded)
        without += bytes_of(dtype) * math.prod(sizes)
    return with_padding, without
