"""Copies in the shards of a corpus: what is compared, and the file of what is removed."""

import dataclasses
import errno
import json
import os

import numpy as np
import pytest

from data.sources.filters import OFF
from data.store import copies
from data.store.store import open_or_build
from data.tokenizers.tokenizer import make_tokenizer
from tests.data.corpus import corpus_config


@pytest.mark.parametrize("call", ["absent", "not supported", "supported"])
def test_the_disk_has_the_whole_map(tmp_path, monkeypatch, call):
    """A memory map of a sparse file ends the process on a full disk."""
    if call == "absent":
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    elif call == "not supported":
        monkeypatch.setattr(os, "posix_fallocate", raising(errno.EINVAL), raising=False)
    count = (1 << 20) + 12345
    zeros = copies._zeros(tmp_path / "zeros", count)
    assert zeros.shape == (count,) and not zeros.any()
    assert (tmp_path / "zeros").stat().st_blocks * 512 >= count
    zeros[count - 1] = 2
    assert np.fromfile(tmp_path / "zeros", np.uint8)[-1] == 2


def test_a_full_disk_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", raising(errno.ENOSPC), raising=False)
    with pytest.raises(OSError, match="No space left on device"):
        copies._zeros(tmp_path / "zeros", 10)


def raising(number):
    def fallocate(*_):
        raise OSError(number, os.strerror(number))

    return fallocate


def test_the_prompt_and_the_label_are_part_of_what_is_identical(tmp_path):
    rows = [("ab", "c", ""), ("a", "bc", ""), ("", "abc", ""), ("", "abc", "x"), ("", "abc", "y")]
    with open(tmp_path / "text.jsonl", "w") as file:
        for prompt, text, label in [*rows, *reversed(rows)]:
            record = {"prompt": prompt, "response": text} if prompt else {"text": text}
            file.write(json.dumps(record | ({"label": label} if label else {})) + "\n")
    filters = dataclasses.replace(OFF, remove_duplicates="exact")
    corpus = corpus_config(tmp_path, source="jsonl", path=str(tmp_path / "text.jsonl"), filters=filters)
    store = open_or_build(corpus, make_tokenizer(corpus))
    kept = [(int(store.prompt_lengths[k]), store.labels[store.label_ids[k]]) for k in range(len(store))]
    assert kept == [(2, ""), (1, ""), (0, ""), (0, "x"), (0, "y")]
    assert store.meta["removed"] == {"exact_duplicates": {"documents": 5, "bytes": 15}}
