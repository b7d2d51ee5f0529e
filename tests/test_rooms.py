"""README's list of rooms is what the imports are, those within functions and under TYPE_CHECKING included."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
# A line is a floor: its rooms, each with a slash. The first line is the top.
FLOORS = [
    re.findall(r"(\w+)/", line)
    for line in README.partition("<!-- floors -->\n")[2].partition("<!-- end -->")[0].splitlines()
]
HEIGHT = {room: -floor for floor, rooms in enumerate(FLOORS) for room in rooms}
DATA = ("duplicates", "sources", "tokenizers", "store", "windows", "prepare")  # the same rule within data/
LIBRARIES = {"contract": {"numpy"}, "objectives": {"numpy", "jax"}, "models": {"numpy", "jax", "flax"}}


def imports(folder):
    """(file, top-level package, its subpackage or "") of each import in a folder's files."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                yield path.relative_to(ROOT).as_posix(), *[*name.split("."), ""][:2]


def test_every_package_is_a_room():
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages - {"tests"} == set(HEIGHT)


@pytest.mark.parametrize("room", sorted(HEIGHT))
def test_a_room_imports_only_from_the_floors_below_it(room):
    for file, top, _ in imports(room):
        if top in HEIGHT:
            assert top == room or HEIGHT[top] < HEIGHT[room], f"{file} imports {top}/"
        elif room in LIBRARIES:
            assert top in LIBRARIES[room] or top in sys.stdlib_module_names, f"{file} imports {top}"


def test_the_rooms_of_data_import_only_those_before_them():
    for k, room in enumerate(DATA):
        for file, top, sub in imports(f"data/{room}"):
            assert top != "data" or sub in DATA[: k + 1], f"{file} imports data/{sub}"


def test_objectives_import_no_jax():
    program = "import sys, objectives; print(*sorted({'jax', 'flax', 'optax'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
