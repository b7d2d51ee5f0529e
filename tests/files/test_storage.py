"""Files in buckets gs:// and s3://, on an object store of this machine, and on moto's S3 where moto is installed."""

import importlib.util
import os
import subprocess
import sys
import time
import urllib.request

import pytest

from contract.errors import ConfigError
from data.sources.files import find_files
from files import buckets, storage
from tests.bucket_server import BucketServer
from tests.train.subprocesses import ROOT, free_port

KINDS = ["gs", "s3", "moto"]


@pytest.fixture(scope="module")
def servers():
    """kind -> the variables of the environment with which its bucket, test-bucket, is reached; and BucketServer."""
    server = BucketServer("test-bucket")
    with server.running():
        yield server


@pytest.fixture
def folder(request, servers, monkeypatch):
    """The address of an empty folder in a bucket of the kind of the test's parameter."""
    kind = request.param
    environment = dict(servers.environment)
    if kind == "moto":
        environment["AWS_ENDPOINT_URL"] = request.getfixturevalue("moto")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    buckets._open.cache_clear()
    yield f"{'gs' if kind == 'gs' else 's3'}://test-bucket/{kind}/{request.node.name.partition('[')[0]}"
    servers.forbidden = False
    buckets._open.cache_clear()


@pytest.fixture(scope="module")
def moto():
    if importlib.util.find_spec("moto") is None:
        pytest.skip("moto is not installed")
    url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "moto.server", "-p", url.rpartition(":")[2]]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 30
        while True:
            try:
                request = urllib.request.Request(f"{url}/test-bucket", method="PUT")
                urllib.request.urlopen(request, timeout=5).read()
                break
            except OSError:
                assert time.monotonic() < end
                time.sleep(0.2)
        yield url
    finally:
        process.kill()
        process.wait()


each_kind = pytest.mark.parametrize("folder", KINDS, indirect=True)
each_scheme = pytest.mark.parametrize("folder", ["gs", "s3"], indirect=True)


@each_kind
def test_a_file_is_written_read_listed_and_removed(folder):
    assert not storage.exists(folder) and not storage.is_file(f"{folder}/a")
    with pytest.raises(FileNotFoundError, match=f"{folder}/a"):
        storage.read_bytes(f"{folder}/a")
    with pytest.raises(FileNotFoundError):
        storage.list_names(folder)
    storage.write_bytes(f"{folder}/a", b"one")
    storage.write_bytes(f"{folder}/b/c", b"two")
    storage.write_bytes(f"{folder}-other", b"not in the folder")
    storage.write_bytes(f"{folder}/a", b"three")
    assert storage.read_bytes(f"{folder}/a") == b"three"
    assert storage.list_names(folder) == storage.list_names(f"{folder}//") == ["a", "b"]
    assert storage.is_folder(f"{folder}/b") and storage.exists(f"{folder}/b") and not storage.is_file(f"{folder}/b")
    assert storage.is_file(f"{folder}/a") and not storage.is_folder(f"{folder}/a")
    storage.remove(f"{folder}/a")
    assert buckets.keys(folder) == [f"{folder}/b/c"]
    storage.remove_folder(folder)
    assert not storage.exists(folder)
    assert storage.is_file(f"{folder}-other")


@each_kind
def test_a_list_has_several_pages_and_a_folder_is_renamed(folder):
    for number in range(120):
        storage.write_bytes(f"{folder}/old/{number:03}", str(number).encode())
    assert len(storage.list_names(f"{folder}/old")) == 120
    storage.rename_folder(f"{folder}/old", f"{folder}/new")
    assert storage.list_names(folder) == ["new"]
    assert storage.read_bytes(f"{folder}/new/119") == b"119"


@each_kind
def test_a_file_is_created_once_and_replaced_only_in_its_version(folder):
    storage.write_bytes(f"{folder}/a", b"one", replace=False)
    with pytest.raises(FileExistsError):
        storage.write_bytes(f"{folder}/a", b"two", replace=False)
    contents, version = buckets.read_version(f"{folder}/a")
    assert contents == b"one"
    assert buckets.read_version(f"{folder}/a", unless=version) == (None, version)
    newer = buckets.write(f"{folder}/a", b"two", version=version)
    assert newer is not None and newer != version
    assert buckets.write(f"{folder}/a", b"three", version=version) is None
    assert storage.read_bytes(f"{folder}/a") == b"two"


@each_scheme
def test_no_access_is_one_line_and_never_an_empty_folder(folder, servers):
    storage.write_bytes(f"{folder}/a", b"one")
    servers.forbidden = True
    for check in (storage.check_access, storage.check_writable):
        with pytest.raises(
            ConfigError, match=r"--x=.*: (gs|s3)://test-bucket: this user has no access .*: (log in|set)"
        ):
            check(folder, f"--x={folder}")
    for call in (storage.exists, storage.is_file, storage.is_folder, storage.list_names, storage.read_bytes):
        with pytest.raises(PermissionError):
            call(folder)


@each_scheme
def test_a_request_that_is_never_answered_is_made_again(folder, servers):
    """In a process of its own, because TensorStore reads the time once."""
    storage.write_bytes(f"{folder}/a", b"1")
    servers.stalled = 1
    program = f"""
import os
from data import buckets
os.environ.pop("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", None)  # that of the tests' process
buckets._STALLED_SECONDS = 2
assert buckets.read("{folder}/a") == b"1"
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)
    assert servers.stalled == 0


@pytest.mark.parametrize("folder", ["gs", "s3"], indirect=True)
def test_a_missing_bucket_is_one_line(folder):
    missing = folder.replace("test-bucket", "no-such-bucket")
    with pytest.raises(ConfigError, match=r"--x=.*: (gs|s3)://no-such-bucket: there is no such bucket .*: correct"):
        storage.check_writable(missing, f"--x={missing}")


def test_a_name_that_no_bucket_can_have_is_one_line():
    with pytest.raises(ConfigError, match=r"^--x: gs://b: .*Invalid GCS bucket name: .b.*: correct the address"):
        storage.check_access("gs://b/run", "--x")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("hdfs://host/x", "has the scheme hdfs: use a folder of this machine, or gs:// or s3://"),
        ("https://host/x", "has the scheme https"),
        ("gs:/bucket/x", "names no bucket: write gs://BUCKET/FOLDER"),
        ("s3:///x", "names no bucket: write s3://BUCKET/FOLDER"),
        ("gs://", "names no bucket"),
        (" gs://bucket/x", "names no bucket"),
        (
            "s3://bucket/a/../x",
            r"has the component '\.\.', which has no meaning in a bucket: write the address without",
        ),
        ("gs://bucket/a/.", r"has the component '\.'"),
        ("s3://../x", r"has the component '\.\.'"),
    ],
)
def test_an_address_that_is_not_supported_is_one_line(path, message):
    for check in (storage.check_path, storage.check_access, storage.check_writable):
        with pytest.raises(ConfigError, match=f"^--x={path} {message}"):
            check(path, f"--x={path}")
    for name in ("x", ".x", "..x", "x.", "a/..."):
        storage.check_path(f"gs://bucket/{name}", "--x")
    storage.check_path("folder/a:b", "--x")
    with pytest.raises(ConfigError, match=r"^--x must be a path on this machine"):
        storage.check_local("gs://bucket/x", "--x")


@pytest.mark.parametrize("address", ["gs://bucket/x\ny", "gs://bucket\n/x", "\ns3://bucket/x", "hdfs://host/x\u2028"])
def test_an_address_with_a_line_break_is_one_line(address):
    for check in (storage.check_path, storage.check_access, storage.check_writable, storage.check_local):
        with pytest.raises(ConfigError) as error:
            check(address, f"--x={address}")
        assert len(str(error.value).splitlines()) == 1
        assert str(error.value).startswith(f"--x={repr(address)[1:-1]} ")
    storage.check_path("folder/x\ny", "--x")


@each_scheme
def test_dots_in_an_address_never_name_another_object(folder, servers):
    storage.write_bytes(f"{folder}/b", b"one")
    with pytest.raises(ConfigError, match=r"^data\.path='.*/a/\.\./b' has the component '\.\.'"):
        find_files(f"{folder}/a/../b")
    for address in (f"{folder}/a/../b", f"{folder}/./b"):
        with pytest.raises(OSError, match="has no components"):
            storage.write_bytes(address, b"two")
        with pytest.raises(OSError, match="has no components"):
            storage.remove(address)
    assert storage.read_bytes(f"{folder}/b") == b"one"
    assert buckets.keys(folder) == [f"{folder}/b"]


def test_local_paths_behave_alike(tmp_path):
    storage.make_folder(tmp_path / "a" / "b")
    storage.write_bytes(tmp_path / "a" / "c", b"one\r\ntwo")
    with pytest.raises(FileExistsError):
        storage.write_bytes(tmp_path / "a" / "c", b"", replace=False)
    assert sorted(storage.list_names(tmp_path / "a")) == ["b", "c"]
    assert storage.read_text(tmp_path / "a" / "c") == "one\ntwo"
    storage.rename_folder(str(tmp_path / "a"), str(tmp_path / "d"))
    storage.remove(tmp_path / "d" / "c")
    storage.remove_folder(tmp_path / "d")
    assert os.listdir(tmp_path) == []


NAMES = [
    *("a.txt", "b.txt", ".hidden.txt", "x/a.txt", "x/y/c.json", "x/.h/d.txt", "x.y/e.txt", "d [v1]/x.txt", "d 1/x.txt"),
    *(f"e/{name}.txt" for name in ["a", "b", "d", "5", "^", "!", "[", "]", "&", "|", "-", "\\", "*", "a&b", ".h"]),
    "e/f.txt/g.txt",
]
PATTERNS = [
    *("", "*", "*/", "**", "**/", "**/**", "*.txt", "?.txt", "[!a].txt", "**/*.txt", "x/**", "x/*/c.*", "*/y", "**/y/"),
    *(".*", ".??*", "[.]hidden.txt", "**/.*", "x/.h/*", "x/.*/*", "**/.h", "a.txt", "a.txt/", "x**", "x**/", "x//*"),
    *("d [v1]/x.txt", "d [v1]", "d [v1]/", "d [v1]/*", "d [v1*/x.txt", "d [[]v1]/?.txt", "?/*", "?/f.txt", "none/*"),
    *(f"e/{part}.txt" for part in ["[^a]", "[!a]", r"[\d]", "[z-a]", "[a-z]", "[[]", "[]]", "[!]a]", "[", "[a", "[]"]),
    *(
        f"e/{part}.txt"
        for part in ["[a&&b]", "[a||b]", "[a-]", "[--a]", "[a-c-e]", "[!z-a]", "[*]", r"\*", "?", "a[&]b"]
    ),
    *("e/[a.txt]", "e[/]a.txt", "e/*[!t]", "e/f.txt/*", "e/*/*", "*.json"),
]


def found_in(folder, pattern):
    """The names that a pattern finds in a folder; None if it is an error in one line."""
    try:
        return sorted(path.removeprefix(f"{folder}/") for path in find_files(f"{folder}/{pattern}"))
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1
        return None


@each_scheme
@pytest.mark.filterwarnings("error")
def test_patterns_name_the_files_that_they_name_in_a_local_folder(folder, tmp_path):
    for name in NAMES:
        storage.make_folder((tmp_path / name).parent)
        storage.write_bytes(tmp_path / name, b"x")
        storage.write_bytes(f"{folder}/{name}", b"x")
    local = {pattern: found_in(tmp_path, pattern) for pattern in PATTERNS}
    assert {pattern: found_in(folder, pattern) for pattern in PATTERNS} == local
    assert [pattern for pattern in PATTERNS if local[pattern] is None] == [
        *("[.]hidden.txt", "a.txt/", "none/*", "e/[z-a].txt", "e/[a.txt", "e/[].txt", "e/[a.txt]", "e[/]a.txt"),
        *("e/*[!t]", "*.json"),
    ]


@each_scheme
def test_keys_that_no_disk_can_have_are_never_taken_for_others(folder, servers):
    """Requests for S3 resolve "." and "..", and an address has no empty components."""
    for key in ("a.txt", "./b.txt", "../c.txt", "x//d.txt"):
        servers.put("test-bucket", f"{folder.split('/', 3)[3]}/{key}", b"x")
    for pattern in ("*.txt", "*.*", "?.txt"):
        assert found_in(folder, pattern) == ["a.txt"]
    for pattern in (".*", ".*/*", ".?/*"):
        assert found_in(folder, pattern) is None
    for pattern in ("", "x", "*", "**/*.txt"):
        with pytest.raises(ConfigError, match=r"names the object '.*/x//d\.txt', which has two slashes in a row"):
            find_files(f"{folder}/{pattern}")
