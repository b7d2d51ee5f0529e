"""The documentation of config fields: from configs/base.py, the dataclasses and the docstrings of objectives."""

import dataclasses
import inspect
import json
import re
import textwrap
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from configs import base
from contract.ranges import range_in_words
from experiment.config import ExperimentConfig
from models.config import ModelConfig

# Fields of ModelConfig that are no config fields: the trainer derives them (experiment/experiment.py).
DERIVED = ("dtype", "has_prefix", "one_segment", "predicts_tokens")
_LAST_COLUMN = re.compile(r"\s{2,}\S")
_SECTIONS = "data|model|loss|optimizer|train|mesh|objective"
# Code in backticks, or a path, or a field such as objective.denoisers.*.weight.
_CODE = re.compile(
    rf"(`[^`]*`)|(?<![\w/.])(?:(?:[a-z_]+/)+[a-z_0-9]+\.(?:py|md)|(?:{_SECTIONS})(?:\.(?:\*|[a-z_0-9]+))+)"
)


@dataclasses.dataclass(frozen=True)
class Field:
    """One field of the config.

    Attributes:
      name: with its section, as in "data.path".
      type: Markdown.
      default: Python source; "" where each config has its own value.
      brief: the comment that follows the default, as in "width of the states between layers"; "" for none.
      lines: the comment above the field, or the part of a docstring.
    """

    name: str
    type: str
    default: str
    brief: str
    lines: tuple[str, ...]

    @property
    def markdown(self) -> str:
        """The default, if any, and the documentation, as Markdown."""
        text = as_markdown(self.lines)
        if not self.default:
            return text
        comma = "," if self.brief.startswith("or ") else ":"
        brief = f"{comma} {escaped(self.brief)}" if self.brief else ""
        return f"Default `{self.default}`{brief}{'' if brief.endswith('.') else '.'}\n\n{text}".rstrip()


def base_fields() -> dict[str, list[Field]]:
    """Returns the fields of configs/base.py by section, in their order; section "" has the fields of no section.

    Raises ValueError for a field without a comment, and where the fields are not those of the dataclasses.
    """
    types = _types()
    comments = _base_comments(types)
    if differing := sorted(comments.keys() ^ types.keys()):
        raise ValueError(f"configs/base.py and the dataclasses differ in the config fields {', '.join(differing)}")
    sections: dict[str, list[Field]] = {}
    for name, (default, brief, lines) in comments.items():
        if not brief and not lines:
            raise ValueError(f"configs/base.py: {name} has no comment")
        sections.setdefault(name.rpartition(".")[0], []).append(Field(name, types[name], default, brief, lines))
    return sections


def objective_fields(objective: type) -> list[Field]:
    """Returns the fields of a class of OBJECTIVES, without `name`, documented by its docstring or those of its bases.

    Raises ValueError for a field without documentation.
    """
    hints = typing.get_type_hints(objective, include_extras=True)
    names = [field.name for field in dataclasses.fields(objective)]
    documented: dict[str, tuple[str, ...]] = {}
    for parent in reversed(objective.__mro__):
        own = set(names) & set(vars(parent).get("__annotations__", ())) | {"schedule"}
        documented |= _described(vars(parent).get("__doc__") or "", {*names, *own})
    if "schedule" in documented:
        names.insert(names.index("begin_step"), "schedule")
        hints["schedule"] = typing.Literal["constant", "linear"]
    if missing := [name for name in names if name not in documented]:
        raise ValueError(f"the docstring of {objective.__name__} does not describe {', '.join(missing)}")
    return [Field(name, type_text(hints[name]), "", "", documented[name]) for name in names]


def type_text(hint: Any) -> str:
    """Returns a type as Markdown: choices as code, `tuple of str` for tuple[str, ...], a number with its range."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return f"{type_text(arguments[0])}, {escaped(range_in_words(hint))}"
    if origin is typing.Literal:
        return ", ".join(f"`{json.dumps(choice)}`" for choice in arguments)
    if origin is tuple:
        return f"tuple of {type_text(arguments[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "table"
    return f"{hint.__name__}"


def as_markdown(lines: Iterable[str]) -> str:
    """Returns lines of a comment or a docstring as Markdown: escaped, but for paragraphs with columns."""
    paragraphs = [part for part in re.split(r"\n\s*\n", "\n".join(lines)) if part.strip()]
    return "\n\n".join(
        f"```text\n{textwrap.dedent(part)}\n```"
        if any(_LAST_COLUMN.search(line.strip("# ")) for line in part.split("\n"))
        else escaped(" ".join(part.split()))
        for part in paragraphs
    )


def escaped(text: str) -> str:
    """Returns prose with Markdown's characters escaped, and paths and dotted fields as code."""
    parts = re.split(r"(`[^`]*`)", _CODE.sub(lambda match: match[0] if match[1] else f"`{match[0]}`", text))
    for k in range(0, len(parts), 2):  # the others are code
        parts[k] = re.sub(r"[\\*\[\]|]", r"\\\g<0>", parts[k].replace("&", "&amp;").replace("<", "&lt;"))
    return "".join(parts)


def _types(section: type = ExperimentConfig, prefix: str = "") -> dict[str, str]:
    """Returns the type of every field of a section, and of the sections in it, as Markdown."""
    types: dict[str, str] = {}
    for name, hint in typing.get_type_hints(section, include_extras=True).items():
        hint = ModelConfig if (section, name) == (ExperimentConfig, "model") else hint
        if dataclasses.is_dataclass(hint):
            types |= _types(typing.cast(type, hint), f"{prefix}{name}.")
        elif (section, name) != (ExperimentConfig, "objective") and (section is not ModelConfig or name not in DERIVED):
            types[f"{prefix}{name}"] = type_text(hint)
    return types


def _base_comments(fields: Iterable[str]) -> dict[str, tuple[str, str, tuple[str, ...]]]:
    """Returns each field that configs/base.py assigns: the default, as source, the comment next to it, those above.

    fields: of the dataclasses; what base.py assigns a ConfigDict to, and is none of them, is a section.
    """
    found, above = {}, []
    for line in inspect.getsource(base).splitlines():
        comment = re.fullmatch(r"\s*# ?(.*)", line)
        field = re.fullmatch(r"(?:    config|OPTIONAL)\.([\w.]+) = (.*?)(?:  # (.*))?", line)
        if field and field[1] not in found and (field[1] in fields or field[2] != "ConfigDict()"):
            # "# packing: ..." above a field: the name is in the heading already.
            name = re.escape(field[1].rpartition(".")[2])
            lines = tuple(re.sub(rf"^{name}: (?!\")", "", text) for text in above)
            found[field[1]] = (field[2], field[3] or "", lines)
        above = [*above, comment[1]] if comment else []
    return found


def _described(docstring: str, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Returns the documentation of the fields that a docstring describes as "a, b: text", continued by indentation."""
    known, found, current = set(names), {}, ()
    for line in inspect.cleandoc(docstring).split("\n"):
        match = re.match(r"([a-z]\w*(?:, [a-z]\w*)*): (.*)", line)
        if match and known.issuperset(match[1].split(", ")):
            current = tuple(match[1].split(", "))
            found |= dict.fromkeys(current, (match[2],))
        elif line.startswith("  ") and current:
            found |= {name: (*found[name], line) for name in current}
        else:
            current = ()
    return found
