"""Files of minimal pairs. Each line is an object with two sentences, and optionally the name of the pair's group:

{"good": "The cats sleep.", "bad": "The cats sleeps.", "group": "agreement"}

Other keys and blank lines are ignored.
"""

import codecs
import dataclasses
import os

import numpy as np

from contract import rng
from contract.errors import ConfigError
from data.sources.records import InvalidRecord, read_object, string_field

_SEED = rng.seed_bits(0, "minimal pairs")


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two sentences that differ minimally. Equal sentences, which BLiMP has, are a tie."""

    good: str
    bad: str
    group: str  # "" without a group


def read_pairs(path: str, group_field: str | None) -> list[Pair]:
    """Returns the pairs of a file, in the file's order.

    group_field: the key of the group, which every line must have; None: "group", which lines may lack.

    Raises ConfigError, with the number of the line, for a line that is not a pair, and for a file that cannot be read
    or has no pairs.
    """
    pairs = []
    try:
        with open(os.path.expanduser(path), "rb") as file:
            for number, line in enumerate(file, start=1):
                line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if line.strip():
                    try:
                        pairs.append(_pair(read_object(line), group_field))
                    except InvalidRecord as error:
                        raise ConfigError(f"--path: {path}:{number} {error}") from None
    except OSError as error:
        raise ConfigError(f"--path={path} cannot be read ({error.strerror}): name a JSON-lines file") from None
    if not pairs:
        raise ConfigError(f"--path={path} has no pairs: write one object with 'good' and 'bad' in each line")
    return pairs


def draw_pairs(pairs: list[Pair], limit: int | None) -> list[Pair]:
    """Returns at most `limit` pairs of each group, drawn at random but always the same ones, in the order of `pairs`.

    None: all pairs.
    """
    if limit is None:
        return pairs
    keys = rng.bits(np.array([_SEED], np.uint64), len(pairs))[0]
    chosen: list[int] = []
    by_group: dict[str, list[int]] = {}
    for i, pair in enumerate(pairs):
        by_group.setdefault(pair.group, []).append(i)
    for indices in by_group.values():
        chosen += sorted(indices, key=lambda i: keys[i])[:limit]
    return [pairs[i] for i in sorted(chosen)]


def _pair(fields, group_field: str | None) -> Pair:
    needed = ["good", "bad", *([group_field] if group_field else [])]
    missing = [key for key in needed if not isinstance(fields, dict) or key not in fields]
    if missing:
        raise InvalidRecord(f"has no {' and no '.join(map(repr, missing))}: a pair is an object with {_keys(needed)}")
    key = group_field or "group"
    group = string_field(fields, key) if key in fields else ""
    return Pair(string_field(fields, "good"), string_field(fields, "bad"), group)


def _keys(names: list[str]) -> str:
    return " and ".join([", ".join(map(repr, names[:-1])), repr(names[-1])])
