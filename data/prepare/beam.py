"""Pipelines of Apache Beam that read, encode and compare the documents of a corpus that outgrows a machine.

Beam is only the engine: its workers encode parts of the corpus into files, as data/store/encode.py does, and find by a
GroupByKey which documents have a band of their signatures in common (data/duplicates/near.py). The machine that runs
the command appends the parts in order, so the store is the same file by file. The workers must see data.cache_dir and
the files of the corpus under the same paths.
"""

import functools
import json
import logging
import os
import re
import shlex
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from contract.errors import ConfigError
from data.duplicates.near import PERMUTATIONS, band_keys, banding
from data.sources.config import CorpusConfig
from data.sources.files import local_cache
from data.sources.source import Part, Skipped, Source
from data.store.encode import Chunk, Engine, chunks_of, encode_in_worker
from data.tokenizers.tokenizer import Tokenizer

_ARRAYS = ("documents", "tokens", "signatures", "sets")  # of a Chunk
_BLOCK = 1 << 12  # documents whose bands are computed at once


def beam_engine(arguments: str) -> Engine:
    """Returns an Engine whose workers are those of a runner of Beam. Temporary files are in data.cache_dir.

    arguments: of the pipelines, separated by spaces, as in "--runner=FlinkRunner --parallelism=64".

    Raises ConfigError where Apache Beam is not installed, and for arguments that it refuses.
    """
    try:
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError:
        raise ConfigError(f"--beam={arguments!r} needs Apache Beam: pip install -e '.[beam]'") from None
    options = PipelineOptions(shlex.split(arguments))
    known, every = (
        options.get_all_options(drop_default=True, retain_unknown_options=unknown) for unknown in (False, True)
    )
    if extra := sorted(every.keys() - known.keys()):
        raise ConfigError(f"--beam={arguments!r} has the argument --{extra[0]}, which Apache Beam does not know")
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    return Engine(functools.partial(_encoded, options), functools.partial(_sharing_a_band, options))


def _encoded(
    options: Any, source: Source, corpus: CorpusConfig, tokenizer: Tokenizer, skipped: Skipped
) -> Iterator[Chunk]:
    """Runs the pipeline, and yields the chunks that its workers wrote."""
    import apache_beam as beam

    with tempfile.TemporaryDirectory(dir=local_cache(corpus.cache_dir).absolute(), prefix=".beam-") as folder:
        write = functools.partial(_write_part, folder, corpus, tokenizer.fingerprint)
        _run(options, beam.Create(list(enumerate(source.parts))), beam.Reshuffle(), beam.Map(write))
        for number in range(len(source.parts)):
            try:
                yield from _read_part(folder, number, skipped)
            except FileNotFoundError:
                raise ConfigError(
                    f"Apache Beam's workers wrote no files in {folder}: data.cache_dir must be a folder that they "
                    "share with this machine"
                ) from None


def _sharing_a_band(options: Any, values: np.ndarray, documents: np.ndarray, jaccard: float) -> np.ndarray:
    """As data/duplicates/near.py's. The workers read the file of `values`, a memory map."""
    import apache_beam as beam

    path = Path(values.filename).absolute()
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".beam-") as folder:
        np.save(f"{folder}/documents.npy", documents)
        _run(
            options,
            beam.Create(list(range(0, len(documents), _BLOCK))),
            beam.FlatMap(functools.partial(_keys, path, f"{folder}/documents.npy", jaccard)),
            beam.GroupByKey(),
            beam.FlatMap(_if_several),
            beam.Distinct(),
            beam.io.WriteToText(f"{folder}/shared"),
        )
        return np.array(
            sorted(int(d) for path in Path(folder).glob("shared*") for d in path.read_text().split()), np.int64
        )


def _keys(values_path: Path, documents_path: str, jaccard: float, start: int) -> Iterator[tuple[int, int]]:
    """Yields (hash of a band's values, document) for some documents."""
    values = np.memmap(values_path, np.uint32, "r").reshape(-1, PERMUTATIONS)
    documents = np.load(documents_path, mmap_mode="r")[start : start + _BLOCK]
    bands, rows = banding(jaccard)
    for band in range(bands):
        keys = band_keys(values, documents, band, rows).view(np.int64)
        yield from zip(keys.tolist(), documents.tolist(), strict=True)


def _if_several(group: tuple[int, Iterable[int]]) -> list[int]:
    """Returns the documents that are equal in a band; none where there is one only."""
    documents = list(group[1])
    return documents if len(documents) > 1 else []


def _run(options: Any, *transforms: Any) -> None:
    """Runs a pipeline of these transforms. Raises ConfigError, one line, for an error of a worker."""
    import apache_beam as beam

    try:
        with beam.Pipeline(options=options) as pipeline:
            result = pipeline
            for transform in transforms:
                result = result | transform
    except Exception as error:  # with the traceback of the worker in its message
        raise _in_one_line(error) from error


def _in_one_line(error: Exception) -> ConfigError:
    """Returns the ConfigError that a worker raised, or one for any other error of a worker."""
    found = re.search(r"ConfigError: (.*)", str(error))
    if found is None and not isinstance(error, ConfigError):
        last = (str(error).strip().splitlines() or [""])[-1]
        return ConfigError(f"--beam: {type(error).__name__}: {last}: run the same command again")
    return ConfigError(re.sub(r" \[while running .*", "", found[1] if found else str(error)))


def _write_part(folder: str, corpus: CorpusConfig, fingerprint: str, numbered: tuple[int, Part]) -> None:
    """Encodes a part of the corpus in a worker: a folder with a file for each chunk, and what was skipped."""
    number, part = numbered
    skipped, path = Skipped(), Path(folder, f"{number}")
    building = Path(folder, f".{uuid.uuid4().hex}")  # of this worker: Beam may run a bundle twice
    building.mkdir()
    for k, documents in enumerate(chunks_of(part.documents(skipped))):
        fields = dict(vars(encode_in_worker(corpus, fingerprint, *documents)))
        arrays = {name: fields.pop(name) for name in _ARRAYS}
        np.savez(building / f"{k}.npz", fields=json.dumps(fields), **arrays)
    (building / "skipped.json").write_text(json.dumps(vars(skipped)), encoding="utf-8")
    try:
        os.rename(building, path)
    except OSError:
        if not path.exists():  # otherwise another worker was faster
            raise


def _read_part(folder: str, number: int, skipped: Skipped) -> Iterator[Chunk]:
    """Yields the chunks of a part, and adds to `skipped` what it has skipped."""
    path = Path(folder, f"{number}")
    skipped.add(Skipped(**json.loads((path / "skipped.json").read_text(encoding="utf-8"))))
    for k in range(len(list(path.glob("*.npz")))):
        with np.load(path / f"{k}.npz") as saved:
            yield Chunk(**json.loads(str(saved["fields"])), **{name: saved[name] for name in _ARRAYS})
