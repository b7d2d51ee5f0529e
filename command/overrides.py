"""Mistakes in the overrides of config fields on the command line: unknown names, tuples without an end."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from contract.errors import ConfigError


def unknown_field(argv: Sequence[str], fields: Mapping[str, Any]) -> str:
    """Returns a message that names the first override of a field that `fields` lacks; "" if there is none.

    The message has the field with the nearest name. argv: the command line. fields: the config without overrides.
    """
    for argument, name in _overrides(argv):
        group, parts = fields, name.split(".")
        for k, part in enumerate(parts):
            if isinstance(group, Mapping) and part in group:
                group = group[part]
                continue
            return f"unknown config field in {argument}: {_suggestion(fields, group, parts, k)}"
    return ""


def check_tuples(argv: Sequence[str], overrides: Mapping[str, Any]) -> None:
    """Raises ConfigError for an override of a tuple that was read as one text, such as "('a'" or "a,b".

    One word is a tuple of that word, as ml_collections reads it: "[R]", but not "[R],[S]".

    argv: the command line. overrides: its fields and values, as parsed.
    """
    given = {text for argument in argv for text in (argument, argument.partition("=")[2])}
    for name, value in overrides.items():
        for item in value if isinstance(value, tuple) else ():
            if isinstance(item, str) and item in given and not _is_word(item):
                raise ConfigError(
                    f"""--config.{name}={item} is not a tuple: write it as in "('a', 'b')" or "('a',)\""""
                )


def _is_word(text: str) -> bool:
    """Returns whether a text has no comma, no quote, no space, and as many closing as opening brackets of each kind."""
    balanced = all(text.count(left) == text.count(right) for left, right in ("()", "[]", "{}"))
    return balanced and not re.search(r"[,'\"\s]", text)


def _overrides(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields each argument that overrides a config field, and the field's dotted name."""
    for argument in argv:
        match = re.match(r"--?(?:no)?config\.([^=]+)", argument)
        if match:
            yield argument, match[1]


def _suggestion(fields: Mapping[str, Any], group: Any, parts: Sequence[str], k: int) -> str:
    """Returns what may be meant by the field `parts`, whose part k is not in `group`, the value of the parts before."""
    if not isinstance(group, Mapping):
        return f"{'.'.join(parts[:k])} has no fields"
    # A mixture's objective has no field such as noise_density, but the objectives of its denoisers have.
    denoisers = fields.get("objective", {}).get("denoisers", {})
    of_denoisers = [f"objective.denoisers.{name}.{parts[k]}" for name, row in denoisers.items() if parts[k] in row]
    if parts[:k] == ["objective"] and of_denoisers:
        return f"a mixture's denoisers have this field, {', '.join(of_denoisers)}"
    near = difflib.get_close_matches(parts[k], group, n=1)
    if near:
        return f"did you mean {'.'.join([*parts[:k], near[0]])}?"
    if parts[:k] == ["data", "sources"]:
        return f"this config has no corpus {parts[k]!r}; name corpora in a config, by base.use_corpora (docs/data.md)"
    elsewhere = [".".join(path) for path in _paths(fields) if path[-1] == parts[-1]]
    return f"did you mean {elsewhere[0]}?" if elsewhere else f"choose one of {', '.join(group)}"


def _paths(fields: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yields the path of every field that is not a group."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from ((name, *path) for path in _paths(value))
        else:
            yield (name,)
