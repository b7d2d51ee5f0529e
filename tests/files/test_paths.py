"""Files and folders of this machine and in buckets gs:// and s3://."""

import os

import pytest

from contract.errors import ConfigError
from data.sources.files import find_files
from files import paths
from files.atomic import write_bytes


def test_a_file_is_written_read_listed_and_removed(bucket):
    assert not paths.exists(bucket) and not paths.is_file(f"{bucket}/a")
    for read in (paths.read_bytes, paths.list_names):
        with pytest.raises(FileNotFoundError) as error:
            read(f"{bucket}/a")
        assert error.value.filename == f"{bucket}/a" and error.value.errno
    write_bytes(f"{bucket}/a", b"one")
    version = paths.version_of(f"{bucket}/a")
    write_bytes(f"{bucket}/b/c", b"two")
    write_bytes(f"{bucket}-other", b"not in the folder")
    write_bytes(f"{bucket}/a", b"three")
    assert paths.read_bytes(f"{bucket}/a") == b"three" and paths.version_of(f"{bucket}/a") != version
    with pytest.raises(FileExistsError):
        write_bytes(f"{bucket}/a", b"four", replace=False)
    assert paths.list_names(bucket) == paths.list_names(f"{bucket}//") == ["a", "b"]
    assert paths.is_folder(f"{bucket}/b") and paths.exists(f"{bucket}/b") and not paths.is_file(f"{bucket}/b")
    assert paths.is_file(f"{bucket}/a") and not paths.is_folder(f"{bucket}/a")
    paths.remove(f"{bucket}/a")
    paths.rename_folder(f"{bucket}/b", f"{bucket}/d")
    assert paths.find_objects(bucket) == [f"{bucket}/d/c"]
    paths.remove_folder(bucket)
    assert not paths.exists(bucket) and paths.is_file(f"{bucket}-other")


def test_local_paths_behave_alike(tmp_path):
    paths.make_folder(tmp_path / "a" / "b")
    write_bytes(tmp_path / "a" / "c", b"one\r\ntwo")
    with pytest.raises(FileExistsError):
        write_bytes(tmp_path / "a" / "c", b"", replace=False)
    assert paths.list_names(tmp_path / "a") == ["b", "c"]
    assert paths.read_text(tmp_path / "a" / "c") == "one\ntwo"
    paths.rename_folder(tmp_path / "a", tmp_path / "d")
    paths.remove(tmp_path / "d" / "c")
    paths.remove_folder(tmp_path / "d")
    assert os.listdir(tmp_path) == []


def test_files_are_copied_between_this_machine_and_a_bucket(bucket, tmp_path):
    for name in ("a", "b/c"):
        paths.make_folder((tmp_path / "one" / name).parent)
        write_bytes(tmp_path / "one" / name, name.encode())
    paths.copy_folder(tmp_path / "one", f"{bucket}/two")
    assert paths.find_objects(bucket) == [f"{bucket}/two/a", f"{bucket}/two/b/c"]
    paths.copy_file(f"{bucket}/two/b/c", tmp_path / "back")
    paths.copy_file(f"{bucket}/two/a", f"{bucket}/three")
    assert (tmp_path / "back").read_bytes() == b"b/c" and paths.read_bytes(f"{bucket}/three") == b"a"


NAMES = ["a.txt", "b.txt", ".hidden.txt", "x/a.txt", "x/y/c.json", "x/.h/d.txt", "d [v1]/x.txt", "d 1/x.txt"]
PATTERNS = [
    *("", "*", "*.txt", "?.txt", "[!a].txt", "x/*", "x/*/c.*", "*/y", "a.txt", "x//*", "d [v1]/x.txt", "d [v1]"),
    *("d [[]v1]/?.txt", "none/*", "x", "x/.h/*", ".hidden.txt", "x/**/*.json"),
]


def found_in(folder, pattern):
    """The names that a pattern finds in a folder; None if it is an error in one line."""
    try:
        return sorted(path.removeprefix(f"{folder}/") for path in find_files(f"{folder}/{pattern}"))
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1
        return None


def test_patterns_name_the_files_that_they_name_in_a_local_folder(bucket, tmp_path):
    for name in NAMES:
        paths.make_folder((tmp_path / name).parent)
        write_bytes(tmp_path / name, b"x")
        write_bytes(f"{bucket}/{name}", b"x")
    local = {pattern: found_in(tmp_path, pattern) for pattern in PATTERNS}
    assert {pattern: found_in(bucket, pattern) for pattern in PATTERNS} == local
    assert [pattern for pattern in PATTERNS if local[pattern] is None] == ["none/*"]


def test_the_object_that_a_console_makes_for_a_folder_is_no_file(bucket):
    name = bucket.partition("://")[2].partition("/")[0]
    prefix = bucket.partition(f"{name}/")[2]
    paths._fs(bucket).call_s3("put_object", Bucket=name, Key=f"{prefix}/text/new/", Body=b"")
    write_bytes(f"{bucket}/text/a.txt", b"x")
    assert paths.find_objects(f"{bucket}/text") == paths.find_objects(f"{bucket}/text/**") == [f"{bucket}/text/a.txt"]


def test_a_missing_bucket_and_missing_access_are_one_line(bucket, monkeypatch):
    missing = bucket.replace("test-bucket", "no-such-bucket")
    with pytest.raises(ConfigError, match=r"^--x: there is no bucket (gs|s3)://no-such-bucket: correct the address$"):
        paths.check_writable(missing, "--x")
    paths.check_writable(bucket, "--x")
    assert not paths.exists(bucket)

    def refuse(*_, **__):
        raise PermissionError("Forbidden")

    monkeypatch.setattr(paths._fs(bucket), "pipe_file", refuse)
    with pytest.raises(ConfigError, match=r"^--x: (gs|s3)://test-bucket: Forbidden: (log in|set) .*correct the addre"):
        paths.check_writable(bucket, "--x")
    with pytest.raises(PermissionError) as error:
        paths.write_object(f"{bucket}/a", b"")
    assert paths.describe_os_error(error.value).startswith(f"{bucket}/a: Permission denied: change the permissions")


def test_a_missing_extra_is_one_line(monkeypatch):
    monkeypatch.setitem(paths.EXTRAS, "gs", ("gcs", "no_such_module"))
    with pytest.raises(ConfigError, match=r"^--x: gs:// needs no_such_module: pip install -e '\.\[gcs\]'$"):
        paths.check_access("gs://bucket/x", "--x")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("hdfs://host/x", "has the scheme hdfs: use a folder of this machine, or gs:// or s3://"),
        ("gs:/bucket/x", "names no bucket: write gs://BUCKET/FOLDER"),
        (" gs://bucket/x", "names no bucket"),
    ],
)
def test_an_address_that_is_not_supported_is_one_line(path, message):
    for check in (paths.check_path, paths.check_access, paths.check_writable):
        with pytest.raises(ConfigError, match=f"^--x={path} {message}"):
            check(path, f"--x={path}")
    paths.check_path("folder/a:b", "--x")
    with pytest.raises(ConfigError, match=r"^--x must be a path on this machine"):
        paths.check_local("gs://bucket/x", "--x")


def test_a_folder_is_an_error_that_names_it(tmp_path):
    with pytest.raises(IsADirectoryError) as error:
        paths.read_bytes(tmp_path)
    assert str(error.value.filename) == str(tmp_path)  # it was the number of a file descriptor
