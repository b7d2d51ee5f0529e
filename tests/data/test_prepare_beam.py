"""The store of a pipeline of Apache Beam is that of data.prepare, file by file."""

import pytest

from contract.errors import ConfigError
from data import build
from data.prepare import main
from tests.data.corpus import write_texts

pytest.importorskip("apache_beam")


@pytest.mark.parametrize("filters", [(), ("--filters.remove_duplicates=near", "--filters.min_characters=20")])
def test_the_store_is_the_same(tmp_path, monkeypatch, filters):
    monkeypatch.setattr(build, "_LEAST_BYTES", 100)
    monkeypatch.setattr(build, "_MOST_BYTES", 100)
    write_texts(tmp_path, [f"text {k % 9} " * (k % 12 + 1) for k in range(40)])
    stores = []
    for name, flags in {"ours": ["--workers=1"], "beam": ["--beam=--runner=DirectRunner"]}.items():
        cache = tmp_path / name
        main(["prepare", "--source=text", f"--path={tmp_path}/text", f"--cache_dir={cache}", *flags, *filters])
        [store] = cache.iterdir()
        stores.append({path.name: path.read_bytes() for path in store.iterdir()})
    assert stores[0] == stores[1] and len(stores[0]) > 10


def test_an_error_in_a_worker_is_one_line(tmp_path):
    write_texts(tmp_path, ["good", "x"])
    (tmp_path / "text" / "001.txt").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=rf"^{tmp_path}/text/001.txt is not UTF-8.*'skip'$") as error:
        main(["prepare", "--source=text", f"--path={tmp_path}/text", f"--cache_dir={tmp_path}/cache", "--beam="])
    assert "\n" not in str(error.value) and not list((tmp_path / "cache").iterdir())


def test_arguments_that_beam_does_not_know(tmp_path):
    with pytest.raises(ConfigError, match="has the argument --runer, which Apache Beam does not know"):
        main(["prepare", "--beam=--runer=DirectRunner"])
