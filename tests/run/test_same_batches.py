"""A run continued on any number of devices and processes reads the same batches."""

import pytest

from configs.base import corpus as a_corpus
from tests.train.subprocesses import run

FIRST, COUNT = 3, 2  # batches after a checkpoint of step 3

PROGRAM = """
import json, zlib
import jax
import numpy as np
from tests.table import small_config
from train import sharding
from train.experiment import make_experiment
from train.run import make_run

if {processes} > 1:
    distributed()
fields = dict(data__source="text", data__path={corpus!r} + "/text", data__cache_dir={corpus!r} + "/cache")
experiment = make_experiment(small_config("ul2", "encoder_decoder", **(fields | {fields})))
run = make_run(experiment, show_progress=False)
rows = sharding.local_rows(run.batch_sharding, experiment.train.batch_size)
batches, found = run.train_batches({first}), []
for number in range({first}, {first} + {count}):
    batch = next(batches)
    for i, row in enumerate(rows):
        contents = b"".join(np.ascontiguousarray(batch[name][i]).tobytes() for name in sorted(batch))
        found.append([number, int(row), zlib.crc32(contents)])
print(json.dumps(found))
"""


def batches_of(corpus, *, devices, processes, **fields):
    """The checksum of each row by batch and row, read by all processes together. devices: of each process."""
    program = PROGRAM.format(corpus=str(corpus), processes=processes, fields=fields, first=FIRST, count=COUNT)
    rows = [tuple(row) for found in run(program, devices=devices, processes=processes, timeout=300) for row in found]
    assert len({row[:2] for row in rows}) == len(set(rows)), "processes that hold a row have read it alike"
    return sorted(set(rows))


def of_one_process(corpus, **fields):
    rows = batches_of(corpus, devices=1, processes=1, **fields)
    assert [row[:2] for row in rows] == [(FIRST + i, row) for i in range(COUNT) for row in range(8)]
    return rows


@pytest.fixture(scope="module")
def expected(corpus):
    return of_one_process(corpus)


@pytest.mark.parametrize(
    ("devices", "processes", "fields"),
    [
        (2, 1, {}),
        (8, 1, {"mesh__data": 2, "mesh__fsdp": 4}),
        (2, 2, {}),
        (1, 4, {"mesh__tensor": 2}),
        (2, 4, {}),
    ],
)
def test_every_row_is_read_alike(devices, processes, fields, corpus, expected):
    assert batches_of(corpus, devices=devices, processes=processes, **fields) == expected


@pytest.fixture(scope="module")
def three_corpora(corpus):
    """Fields of a run of three corpora, and the checksums of its rows."""
    paths = {"modules": "text/[a-b]*.txt", "others": "text/[c-z]*.txt", "pairs": "pairs.jsonl"}
    sources = {
        name: a_corpus(source="jsonl" if name == "pairs" else "text", path=str(corpus / path), weight=weight)
        for (name, path), weight in zip(paths.items(), (0.5, 0.3, 0.2), strict=True)
    }
    fields = {"data__source": "", "data__path": "", "data__sources": sources}
    return fields, of_one_process(corpus, **fields)


@pytest.mark.parametrize(("devices", "processes"), [(2, 2), (1, 4)])
def test_every_row_of_three_corpora_is_read_alike(devices, processes, corpus, three_corpora):
    fields, rows = three_corpora
    assert batches_of(corpus, devices=devices, processes=processes, **fields) == rows
