"""A new folder has all of its contents or does not exist, and replaces only what it may."""

import contextlib
import os
import pathlib
import tempfile

import pytest

from contract.errors import ConfigError
from files.new_folder import new_folder


def test_the_folder_appears_with_its_contents_at_the_end(tmp_path):
    target = tmp_path / "above" / "made"
    with new_folder(target, "--out") as folder:
        (folder / "file").write_text("contents")
        assert not target.exists()
    assert (target / "file").read_text() == "contents"
    assert os.listdir(tmp_path / "above") == ["made"]


def test_an_error_leaves_nothing(tmp_path):
    with pytest.raises(KeyError), new_folder(tmp_path / "made", "--out") as folder:
        (folder / "file").write_text("contents")
        raise KeyError
    assert not os.listdir(tmp_path)


def test_an_error_leaves_a_folder_that_would_have_been_replaced(tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "old").write_text("old")
    with pytest.raises(KeyError), new_folder(tmp_path / "made", "--out", replaces=lambda _: ""):
        raise KeyError
    assert os.listdir(tmp_path) == ["made"] and (tmp_path / "made" / "old").read_text() == "old"


def test_a_replaced_folder_keeps_no_old_file(tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "old").write_text("old")
    with new_folder(tmp_path / "made", "--out", replaces=lambda _: "") as folder:
        (folder / "new").write_text("new")
    assert os.listdir(tmp_path) == ["made"] and os.listdir(tmp_path / "made") == ["new"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: (path.mkdir(), (path / "file").touch()), r"--out=.* exists and is not empty: name a new folder$"),
        (lambda path: path.touch(), r"--out=.* is a file or a link: name a new folder$"),
        (lambda path: path.symlink_to("elsewhere"), r"--out=.* is a file or a link: name a new folder$"),
    ],
)
def test_what_exists_is_refused_in_one_line_and_left_as_it_is(tmp_path, make, message):
    target = tmp_path / "made"
    make(target)
    with pytest.raises(ConfigError, match=message), new_folder(target, "--out"):
        pytest.fail("the folder must be refused before the work")
    assert os.listdir(tmp_path) == ["made"]


def test_an_address_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="must be a path on this machine"), new_folder("gs://bucket/x", "--out"):
        pass


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    target = tmp_path / "file" / "made"
    with pytest.raises(ConfigError, match=r"--out=.* cannot be written: ") as error, new_folder(target, "--out"):
        pass
    assert len(str(error.value).splitlines()) == 1


def test_a_folder_made_by_someone_else_meanwhile_is_not_overwritten(tmp_path):
    with pytest.raises(ConfigError, match="exists and is not empty"), new_folder(tmp_path / "made", "--out") as folder:
        (folder / "mine").touch()
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "theirs").touch()
    assert os.listdir(tmp_path) == ["made"] and os.listdir(tmp_path / "made") == ["theirs"]


def test_an_interrupt_between_the_renames_keeps_the_old_folder(tmp_path, monkeypatch):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "old").write_text("old")
    rename = pathlib.Path.rename

    def interrupted(path, target):
        if ".new-" in path.name:
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(pathlib.Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "made", "--out", replaces=lambda _: ""):
        pass
    assert os.listdir(tmp_path) == ["made"] and (tmp_path / "made" / "old").read_text() == "old"


@pytest.mark.parametrize(("mode", "message"), [(0o555, "cannot be written"), (0o000, "cannot be read")])
def test_a_folder_without_permission_is_one_line(mode, message):
    with tempfile.TemporaryDirectory() as above, as_user(above):  # every user can enter the folders above this one
        os.chmod(above, mode)
        with (
            pytest.raises(ConfigError, match=f"--out=.* {message}: Permission denied$"),
            new_folder(f"{above}/made", "--out", replaces=lambda _: ""),
        ):
            pytest.fail("the folder must be refused before the work")
        os.chmod(above, 0o755)
        assert not os.listdir(above)


@contextlib.contextmanager
def as_user(folder):
    """Within this context the process is not root, who may write everywhere, and owns `folder`."""
    if os.geteuid():
        yield
        return
    os.chown(folder, 65534, -1)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
