"""Reading a compiled program's text: which collectives it has, and how many bytes each kind moves."""

import math
import re
from collections import Counter
from dataclasses import dataclass, field

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8}
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\) -> (.*) \{$")
_WHILE = re.compile(r" while\(.*condition=%?([\w.-]+), body=%?([\w.-]+)")
_TRIPS = re.compile(r"\"known_trip_count\":\{\"n\":\"(\d+)\"\}")
_CONSTANT = re.compile(r"%?([\w.-]+) = s32\[\]\S* constant\((\d+)\)")
_BELOW = re.compile(r"ROOT .* compare\(.*?%?([\w.-]+)\), direction=LT")
_CALLED = re.compile(r"(?:calls|to_apply|branch_computations)=\{?%?([\w.-]+)")
_COLLECTIVE = re.compile(rf"^\s*(?:ROOT )?%?([\w.-]+) = (.*?) ({'|'.join(COLLECTIVES)})(-start)?\(")
_ASYNC_START = re.compile(r" custom-call\(%?([\w.-]+).*custom_call_target=\"AsyncCollectiveStart\"")
_ASYNC_REST = re.compile(r" async-(?:update|done)\(")


@dataclass
class _Computation:
    """One computation of a program: its lines, and the type that it returns."""

    name: str
    result: str
    lines: list[str] = field(default_factory=list)

    def counted(self, collective: str) -> bool:
        """Whether `collective`, the name of an operation here, is where the collective counts.

        A TPU program spreads an asynchronous collective over several fusions, each of which names it: one that begins
        it (AsyncCollectiveStart), those that compute meanwhile (async_collective_fusion) and one that ends it
        (AsyncCollectiveDone). It counts where it begins.
        """
        text = "\n".join(self.lines)
        if self.name.startswith("async_collective_fusion") or '"AsyncCollective' in text:
            return collective in _ASYNC_START.findall(text)
        return True


def collective_bytes(hlo_text: str) -> dict[str, int]:
    """Bytes of the results of one device's collectives in one run of the program, by kind, largest first.

    hlo_text: `compiled.as_text()`. Results are whole arrays for all-gather and all-reduce, and a device's part of one
    for reduce-scatter. Asynchronous collectives count once, however the compiler spreads them out; an all-reduce of
    which a TPU's fusion keeps a part only ("all-reduce-scatter") counts as reduce-scatter. Collectives in the body of a
    loop, such as the scan over layers, count as often as the loop runs: as the compiler notes down, or as its condition
    counts. Once where neither tells. A TPU's compiler may gather by an all-reduce of arrays that are 0 elsewhere, as it
    does on a v5p:4x4x4: that is an all-reduce.
    """
    computations: dict[str, _Computation] = {}
    entry = current = None
    for line in hlo_text.splitlines():
        if match := _COMPUTATION.match(line.strip()):
            current = computations[match[1]] = _Computation(match[1], match[2])
            entry = current if line.startswith("ENTRY") else entry
        elif current is not None:
            current.lines.append(line)
    total = _collectives(entry, computations, {}) if entry is not None else Counter()
    return dict(total.most_common())


def _collectives(
    caller: _Computation, computations: dict[str, _Computation], known: dict[str, Counter[str]]
) -> Counter[str]:
    """Of one run of `caller` and of what it calls. known: those found already, by name; added to."""
    if caller.name in known:
        return known[caller.name]
    total = known[caller.name] = Counter()
    if caller.name.startswith("all-reduce-scatter"):
        total["reduce-scatter"] = _bytes(caller.result)
        return total
    for line in caller.lines:
        # Expressions over every long line of a large program would take minutes: a plain look first.
        named = any(kind in line for kind in COLLECTIVES)
        if named and (match := _COLLECTIVE.search(line)) and caller.counted(match[1]):
            total[match[3]] += _bytes(_received(match[2], match[3]) if match[4] else match[2])
        if " while(" in line and (match := _WHILE.search(line)):
            called, runs = match[2], _trips(line, computations.get(match[1]))
        elif (match := _CALLED.search(line)) and not _ASYNC_REST.search(line):
            called, runs = match[1], 1
        else:
            continue
        if called in computations:
            for kind, size in _collectives(computations[called], computations, known).items():
                total[kind] += runs * size
    return total


def _trips(line: str, condition: _Computation | None) -> int:
    """How often a loop runs: a counter from 0, which is what a scan has, that stays below a constant."""
    if noted := _TRIPS.search(line):
        return int(noted[1])
    text = "\n".join(condition.lines) if condition else ""
    limits, below = dict(_CONSTANT.findall(text)), _BELOW.search(text)
    return int(limits.get(below[1], 1)) if below else 1


def _received(start: str, kind: str) -> str:
    """The result's part in the type of an asynchronous start: (operands, results, ...), but for all-reduce, which has
    results alone."""
    if kind == "all-reduce" or not start.startswith("("):
        return start
    depth, parts = 0, [""]
    for character in start[1:-1]:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts[1]


def _bytes(result: str) -> int:
    """Of a type: an array's, or a tuple's of arrays."""
    return sum(
        _BYTES.get(dtype, 4) * math.prod(int(size) for size in dims.split(",") if size)
        for dtype, dims in _SHAPE.findall(result)
    )
