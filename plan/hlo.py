"""The collectives of a compiled program and the bytes of their results, from the program's text."""

import math
import re
from collections import Counter
from dataclasses import dataclass, field

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
_BITS = re.compile(r"[a-z]+(\d+)")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\) -> (.*) \{$")
WHILE = re.compile(r" while\(.*condition=%?([\w.-]+), body=%?([\w.-]+)")
_TRIP_COUNT = re.compile(r"\"known_trip_count\":\{\"n\":\"(\d+)\"\}")
_CONSTANT = re.compile(r"%?([\w.-]+) = s32\[\]\S* constant\((\d+)\)")
_LESS_THAN = re.compile(r"ROOT .* compare\(.*?%?([\w.-]+)\), direction=LT")
CALLED = re.compile(r"(?:calls|to_apply|branch_computations)=\{?%?([\w.-]+)")
_COLLECTIVE = re.compile(rf"^\s*(?:ROOT )?%?([\w.-]+) = (.*?) ({'|'.join(COLLECTIVES)})(-start)?\(")
_ASYNC_START = re.compile(r" custom-call\(%?([\w.-]+).*custom_call_target=\"AsyncCollectiveStart\"")
# Part of a collective that a device exchanges with the other TPU slices, through the data center network.
_BETWEEN_SLICES = re.compile(r" = \((\w+\[[\d,]*\]).* send\(.*_xla_megascale_transfer_type=")
_ASYNC_REST = re.compile(r" async-(?:update|done)\(")


@dataclass
class Computation:
    """One computation of a program."""

    name: str
    result: str  # the type that it returns
    lines: list[str] = field(default_factory=list)

    def is_counted(self, collective: str) -> bool:
        """Returns whether the operation of this name, a collective in this computation, is to be counted.

        In a TPU program, an asynchronous collective is in several fusions: one that starts it (AsyncCollectiveStart),
        some that compute in the meantime (async_collective_fusion), and one that ends it (AsyncCollectiveDone). Only
        the first is counted.
        """
        text = "\n".join(self.lines)
        if self.name.startswith("async_collective_fusion") or '"AsyncCollective' in text:
            return collective in _ASYNC_START.findall(text)
        return True


def parse_program(hlo_text: str) -> tuple[dict[str, Computation], Computation | None]:
    """Returns a program's computations by name, and the one in which it begins; None if there is none."""
    computations: dict[str, Computation] = {}
    entry = current = None
    for line in hlo_text.splitlines():
        if match := _COMPUTATION.match(line.strip()):
            current = computations[match[1]] = Computation(match[1], match[2])
            entry = current if line.startswith("ENTRY") else entry
        elif current is not None:
            current.lines.append(line)
    return computations, entry


def collective_bytes(hlo_text: str) -> dict[str, int]:
    """Returns kind -> bytes of the results of a device's collectives in one run of the program, largest first.

    The results of all-gather and all-reduce are whole arrays; that of reduce-scatter is a device's part of one. An
    asynchronous collective is counted once, even if it is in several fusions. An all-reduce whose TPU fusion keeps a
    part of the result ("all-reduce-scatter") is counted as reduce-scatter. The TPU compiler may gather by an all-reduce
    of arrays padded with zeros, as on v5p:4x4x4, which is counted as all-reduce.

    On several TPU slices, a collective is one within a slice and an exchange of the results with the other slices. The
    kind "between-slices" is what a device sends for the latter; the other kinds are those within a slice.

    A collective in a loop, such as the scan over layers, is counted for each iteration. The number of iterations is the
    one that the compiler recorded, or else the one in the loop's condition; if neither is found, 1.

    hlo_text: `compiled.as_text()`.
    """
    computations, entry = parse_program(hlo_text)
    total = _collectives(entry, computations, {}) if entry is not None else Counter()
    return dict(total.most_common())


def _collectives(
    caller: Computation, computations: dict[str, Computation], known: dict[str, Counter[str]]
) -> Counter[str]:
    """Returns kind -> bytes in one run of `caller` with all that it calls.

    known: the results for other computations by name, to which this function adds.
    """
    if caller.name in known:
        return known[caller.name]
    total = known[caller.name] = Counter()
    if caller.name.startswith("all-reduce-scatter"):
        total["reduce-scatter"] = _bytes(caller.result)
        return total
    for line in caller.lines:
        # A regular expression for every long line of a large program would take minutes; a substring search is fast.
        has_kind = any(kind in line for kind in COLLECTIVES)
        if has_kind and (match := _COLLECTIVE.search(line)) and caller.is_counted(match[1]):
            total[match[3]] += _bytes(_result_of_start(match[2], match[3]) if match[4] else match[2])
        if " send(" in line and (match := _BETWEEN_SLICES.search(line)):
            total["between-slices"] += _bytes(match[1])
        if " while(" in line and (match := WHILE.search(line)):
            called, runs = match[2], trip_count(line, computations.get(match[1]))
        elif (match := CALLED.search(line)) and not _ASYNC_REST.search(line):
            called, runs = match[1], 1
        else:
            continue
        if called in computations:
            for kind, size in _collectives(computations[called], computations, known).items():
                total[kind] += runs * size
    return total


def trip_count(line: str, condition: Computation | None) -> int:
    """Returns the number of iterations of a loop whose condition is that a counter from 0 is below a constant."""
    if recorded := _TRIP_COUNT.search(line):
        return int(recorded[1])
    text = "\n".join(condition.lines) if condition else ""
    constants, comparison = dict(_CONSTANT.findall(text)), _LESS_THAN.search(text)
    return int(constants.get(comparison[1], 1)) if comparison else 1


def _result_of_start(start_type: str, kind: str) -> str:
    """Returns the type of the result of an asynchronous collective from the type of its start.

    The type of a start is (operands, results, ...); for all-reduce, it is that of the results alone.
    """
    if kind == "all-reduce" or not start_type.startswith("("):
        return start_type
    depth, parts = 0, [""]
    for character in start_type[1:-1]:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts[1]


def bytes_of(dtype: str) -> int:
    """Returns the bytes of an element of a type such as f32, bf16, f8e4m3fn, pred or token, which has none."""
    bits = _BITS.match(dtype)
    return -(-int(bits[1]) // 8) if bits else dtype == "pred"


def _bytes(array_type: str) -> int:
    """Returns the bytes of an array's type, or of a tuple's."""
    return sum(
        bytes_of(dtype) * math.prod(int(size) for size in dims.split(",") if size)
        for dtype, dims in _SHAPE.findall(array_type)
    )
