"""The order of the test files: the longest first, and the others as they were collected."""

from types import SimpleNamespace

from tests.conftest import LONG_FILES, pytest_collection_modifyitems
from tests.train.subprocesses import ROOT


def test_long_files_are_first_and_tests_of_a_file_stay_in_order():
    first, second = LONG_FILES[:2]
    names = ["tests/a.py::x", f"{second}::b", f"{second}::a", "tests/a.py::w", f"{first}::z[::1]", f"{first}::y"]
    items = [SimpleNamespace(nodeid=name) for name in names]
    pytest_collection_modifyitems(items)
    assert [names.index(item.nodeid) for item in items] == [4, 5, 1, 2, 0, 3]


def test_long_files_exist():
    assert LONG_FILES and [name for name in LONG_FILES if not (ROOT / name).is_file()] == []
