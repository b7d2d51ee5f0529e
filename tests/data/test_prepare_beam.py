"""The store of a pipeline of Apache Beam is that of data.prepare, file by file."""

import gzip
import json
import random

import pytest

from contract.errors import ConfigError
from data.prepare.__main__ import main
from data.store import encode
from tests.data.corpus import write_texts

pytest.importorskip("apache_beam")


def same_stores(tmp_path, *flags):
    """Prepares a corpus without and with Beam, compares the two stores and returns what is in meta.json."""
    stores = []
    for name, engine in {"ours": "--workers=1", "beam": "--beam=--runner=DirectRunner"}.items():
        main(["prepare", *flags, f"--cache_dir={tmp_path / name}", engine])
        [store] = (tmp_path / name).iterdir()
        stores.append({path.name: path.read_bytes() for path in store.iterdir()})
    assert stores[0] == stores[1] and len(stores[0]) > 10
    return json.loads(stores[0]["meta.json"])


@pytest.mark.parametrize("kind", ["labels", "prompts"])
def test_the_store_of_json_lines_is_the_same(tmp_path, monkeypatch, kind):
    """Two files, one compressed, invalid lines, filters, near-identical documents and held-out text."""
    monkeypatch.setattr(encode, "_CHUNK_DOCUMENTS", 7)
    generator = random.Random(0)
    texts = [" ".join(f"w{generator.randrange(10**6)}" for _ in range(80)) for _ in range(60)]
    texts += [f"{text} and a few words" for text in texts[::3]] + texts[:5] + ["short", "one word " * 200]

    def record(k, text):
        labelled = {"text": text, "label": f"class {k % 3}"}
        return labelled if kind == "labels" else {"prompt": text, "response": "yes" if k < 70 else "no"}

    lines = [json.dumps(record(k, text)) for k, text in enumerate(texts)]
    lines[7:7] = ["no JSON", "[]", '{"text": 5}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines[:50]))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress("\n".join(lines[50:]).encode(), mtime=0))
    (tmp_path / "held.jsonl").write_text("\n".join(lines[20:25]))
    meta = same_stores(
        tmp_path,
        "--source=jsonl",
        f"--path={tmp_path}/[ab].jsonl*",
        f"--heldout_path={tmp_path}/held.jsonl",
        "--on_unreadable=skip",
        "--filters.remove_duplicates=near",
        "--filters.min_characters=20",
        "--filters.max_tokens=1000",
    )
    removed = {name: counts["documents"] for name, counts in meta["removed"].items()}
    assert meta["skipped_lines"] == 3 and meta["num_documents"] > 50
    near = {"labels": 25, "prompts": 10}[kind]  # of 25 with prompts, those with the response of the earlier document
    assert removed == {"min_characters": 1, "max_tokens": 1, "near_duplicates": near}


def test_an_error_in_a_worker_is_one_line(tmp_path):
    write_texts(tmp_path, ["good", "x"])
    (tmp_path / "text" / "001.txt").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=rf"^{tmp_path}/text/001.txt is not UTF-8.*'skip'$") as error:
        main(["prepare", "--source=text", f"--path={tmp_path}/text", f"--cache_dir={tmp_path}/cache", "--beam="])
    assert "\n" not in str(error.value) and not list((tmp_path / "cache").iterdir())


def test_arguments_that_beam_does_not_know(tmp_path):
    with pytest.raises(ConfigError, match="has the argument --runer, which Apache Beam does not know"):
        main(["prepare", "--beam=--runer=DirectRunner"])
