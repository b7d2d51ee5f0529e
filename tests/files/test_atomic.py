"""Files and folders appear with all of their contents or do not exist, and replace only what they may."""

import errno
import os
from unittest.mock import Mock

import pytest

from contract.errors import ConfigError
from files import atomic, paths
from files.atomic import GrowingObject, atomic_folder, check_output, open_growing, write_bytes, writing


def test_the_folder_appears_with_its_contents_at_the_end(tmp_path):
    target = tmp_path / "above" / "made"
    with atomic_folder(target, "--out") as folder:
        (folder / "file").write_text("contents")
        assert not target.exists()
    assert (target / "file").read_text() == "contents"
    assert os.listdir(tmp_path / "above") == ["made"]


def test_a_tilde_is_the_home_directory_as_in_the_folder_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with atomic_folder("~/made", "--out") as folder:
        (folder / "file").touch()
    assert os.listdir(tmp_path) == ["home"] and os.listdir("home/made") == ["file"]
    with pytest.raises(ConfigError, match="--out=~/made exists and is not empty"), atomic_folder("~/made", "--out"):
        pass


@pytest.mark.parametrize("has_links", [True, False])
def test_a_new_file_replaces_none_also_where_hard_links_are_missing(tmp_path, monkeypatch, has_links):
    if not has_links:
        monkeypatch.setattr(os, "link", Mock(side_effect=OSError(errno.EOPNOTSUPP, "Operation not supported")))
    write_bytes(tmp_path / "file", b"first", replace=False)
    with pytest.raises(FileExistsError):
        write_bytes(tmp_path / "file", b"second", replace=False)
    assert (tmp_path / "file").read_bytes() == b"first" and os.listdir(tmp_path) == ["file"]


def test_an_error_leaves_nothing(tmp_path):
    with pytest.raises(KeyError), atomic_folder(tmp_path / "made", "--out") as folder:
        (folder / "file").write_text("contents")
        raise KeyError
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: (path.mkdir(), (path / "file").touch()), r"--out=.* exists and is not empty: name a new folder$"),
        (lambda path: path.touch(), r"--out=.* is a file or a link: name a new folder$"),
        (lambda path: path.symlink_to("elsewhere"), r"--out=.* is a file or a link: name a new folder$"),
    ],
)
def test_what_exists_is_refused_in_one_line_and_left_as_it_is(tmp_path, make, message):
    make(tmp_path / "made")
    with pytest.raises(ConfigError, match=message), atomic_folder(tmp_path / "made", "--out"):
        pytest.fail("the folder must be refused before the work")
    assert os.listdir(tmp_path) == ["made"]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="must be a path on this machine"), atomic_folder("gs://bucket/x", "--out"):
        pass
    (tmp_path / "file").touch()
    target = tmp_path / "file" / "made"
    with pytest.raises(ConfigError, match=r"--out=.* cannot be written: ") as error, atomic_folder(target, "--out"):
        pass
    assert len(str(error.value).splitlines()) == 1


def test_a_folder_made_by_someone_else_meanwhile_is_not_overwritten(tmp_path):
    with pytest.raises(ConfigError, match="is not empty"), atomic_folder(tmp_path / "made", "--out") as folder:
        (folder / "mine").touch()
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "theirs").touch()
    assert os.listdir(tmp_path) == ["made"] and os.listdir(tmp_path / "made") == ["theirs"]


def test_an_output_file_is_whole_or_not_there(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(KeyError), writing(str(out)) as file:
        file.write("half")
        raise KeyError
    assert not os.listdir(tmp_path)
    (tmp_path / "link").symlink_to(out)
    with writing(str(tmp_path / "link")) as file:
        file.write("é")
    assert out.read_bytes() == "é".encode() and sorted(os.listdir(tmp_path)) == ["link", "out"]
    for path in (os.devnull, tmp_path, tmp_path / "none" / "out"):
        with pytest.raises(ConfigError, match="cannot be written: name a file in an existing folder"):
            check_output(str(path))


def test_an_output_replaces_no_file_of_a_run(tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints" / "3").mkdir(parents=True)
    for name in ("config.json", "metrics.jsonl", "checkpoints/3/record", "loss.svg"):
        (run / name).write_text("{}")
    for name in ("config.json", "metrics.jsonl", "checkpoints/3/record"):
        with pytest.raises(ConfigError, match=f"--html=.*{name} would replace a file of the run .*run: name another"):
            check_output(str(run / name), "--html")
    for name in ("answers.jsonl", "loss.svg"):  # new, or a picture that is drawn again
        check_output(str(run / name))


def test_a_json_file_that_is_damaged_is_one_line(tmp_path):
    atomic.write_json(tmp_path / "a", {"x": (1, 2)})
    assert atomic.read_json(tmp_path / "a") == {"x": [1, 2]} and os.listdir(tmp_path) == ["a"]
    for contents in ("[1]", "{", "\xff"):
        (tmp_path / "a").write_text(contents, encoding="latin-1")
        with pytest.raises(ConfigError, match=r"a is damaged: .*: delete it to make it again"):
            atomic.read_json(tmp_path / "a")


def test_a_growing_file_reaches_the_bucket_in_time_and_reports_failures(bucket, monkeypatch):
    path = f"{bucket}/metrics.jsonl"
    monkeypatch.setattr(atomic, "UPLOAD_SECONDS", 3600.0)
    file = open_growing(path, b"kept\n")
    assert isinstance(file, GrowingObject)
    file.write(b"one\n")
    file.flush()
    assert paths.read_bytes(path) == b"kept\n"
    monkeypatch.setattr(atomic.time, "monotonic", lambda: 1e12)  # long after the first upload
    file.write(b"two\n")
    assert paths.read_bytes(path) == b"kept\none\ntwo\n"
    file.write(b"three\n")
    monkeypatch.setattr(atomic, "write_object", lambda *_: (_ for _ in ()).throw(PermissionError(13, "no", path)))
    with pytest.raises(PermissionError):
        file.upload()
    monkeypatch.setattr(atomic, "write_object", paths.write_object)
    file.close()
    assert paths.read_bytes(path) == b"kept\none\ntwo\nthree\n"


def test_a_write_that_fails_before_it_is_on_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    write_bytes(tmp_path / "file", b"before")
    monkeypatch.setattr("os.fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write_bytes(tmp_path / "file", b"after")
    assert (tmp_path / "file").read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 1
