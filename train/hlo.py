"""Reading a compiled program's text: which collectives it has, and how many bytes each kind moves."""

import math
import re
from collections import Counter

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8}
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\) -> .* \{$")
_WHILE = re.compile(r" while\(.*condition=%?([\w.-]+), body=%?([\w.-]+)")
_TRIPS = re.compile(r"\"known_trip_count\":\{\"n\":\"(\d+)\"\}")
_CONSTANT = re.compile(r"%?([\w.-]+) = s32\[\]\S* constant\((\d+)\)")
_BELOW = re.compile(r"ROOT .* compare\(.*?%?([\w.-]+)\), direction=LT")
_CALLED = re.compile(r"(?:calls|to_apply|branch_computations)=\{?%?([\w.-]+)")
_COLLECTIVE = re.compile(rf"= (.*?) ({'|'.join(COLLECTIVES)})(?:-start)?\(")


def collective_bytes(hlo_text: str) -> dict[str, int]:
    """Bytes that one device's collectives give it in one run of the program, by kind, largest first.

    hlo_text: `compiled.as_text()`. Collectives in the body of a loop, such as the scan over layers, count as often as
    the loop runs: as the compiler notes down, or as its condition counts. Once where neither tells.
    """
    bodies: dict[str, list[str]] = {}
    entry, name = None, None
    for line in hlo_text.splitlines():
        if match := _COMPUTATION.match(line.strip()):
            name = match[1]
            bodies[name] = []
            entry = name if line.startswith("ENTRY") else entry
        elif name is not None:
            bodies[name].append(line)
    total: Counter[str] = Counter()
    if entry is not None:
        _add(entry, 1, bodies, total)
    return dict(total.most_common())


def _add(name: str, times: int, bodies: dict[str, list[str]], total: Counter[str]) -> None:
    for line in bodies.get(name, ()):
        if match := _COLLECTIVE.search(line):
            total[match[2]] += times * _result_bytes(match[1], f"{match[2]}-start(" in line)
        if match := _WHILE.search(line):
            _add(match[2], times * _trips(line, bodies.get(match[1], [])), bodies, total)
        elif match := _CALLED.search(line):
            _add(match[1], times, bodies, total)


def _trips(line: str, condition: list[str]) -> int:
    """How often a loop runs: a counter from 0, which is what a scan has, that stays below a constant."""
    if noted := _TRIPS.search(line):
        return int(noted[1])
    text = "\n".join(condition)
    limits, below = dict(_CONSTANT.findall(text)), _BELOW.search(text)
    return int(limits.get(below[1], 1)) if below else 1


def _result_bytes(shapes: str, started: bool) -> int:
    """Of a result's type. The tuple of an asynchronous start holds the operand as well: the larger one counts."""
    sizes = [
        _BYTES.get(dtype, 4) * math.prod(int(size) for size in dims.split(",") if size)
        for dtype, dims in _SHAPE.findall(shapes)
    ]
    return max(sizes, default=0) if started else sum(sizes)
