"""Pipelines of Apache Beam that read, encode and compare the documents of a corpus that outgrows a machine.

Beam is only the engine: its workers encode parts of the corpus into files, as data/store/encode.py does, and find by a
GroupByKey which documents have a band of their signatures in common (data/duplicates/near.py). The machine that runs
the command appends the parts in order, so the store is the same file by file. The workers must see data.cache_dir and
the files of the corpus under the same paths.
"""

import dataclasses
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
from data.store.encode import Chunk, chunks_of, encoder_of
from data.tokenizers.tokenizer import Tokenizer

_ARRAYS = ("documents", "tokens", "signatures", "sets")  # of a Chunk
_BLOCK = 1 << 12  # documents whose bands are computed at once


class BeamPipelines:
    """A data.store.encode.Engine whose workers are those of a runner of Beam. Temporary files are in data.cache_dir.

    arguments: of the pipelines, separated by spaces, as in "--runner=FlinkRunner --parallelism=64".

    Raises ConfigError where Apache Beam is not installed, and for arguments that it refuses.
    """

    def __init__(self, arguments: str):
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
        self._arguments = arguments

    def encoded(self, source: Source, corpus: CorpusConfig, tokenizer: Tokenizer, skipped: Skipped) -> Iterator[Chunk]:
        """See Engine."""
        import apache_beam as beam

        with tempfile.TemporaryDirectory(dir=local_cache(corpus.cache_dir).absolute(), prefix=".beam-") as folder:
            write = functools.partial(_write_part, folder, corpus, tokenizer.fingerprint)
            self._run(beam.Create(list(enumerate(source.parts))), beam.Reshuffle(), beam.Map(write))
            for number in range(len(source.parts)):
                try:
                    yield from _read_part(folder, number, skipped)
                except FileNotFoundError:
                    raise ConfigError(
                        f"Apache Beam's workers wrote no files in {folder}: data.cache_dir must be a folder that they "
                        "share with this machine"
                    ) from None

    def sharing_a_band(self, values: np.ndarray, documents: np.ndarray, jaccard: float) -> np.ndarray:
        """See Engine. The workers share the file of `values`."""
        import apache_beam as beam

        path = Path(values.filename).absolute()
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".beam-") as folder:
            np.save(f"{folder}/documents.npy", documents)
            keys = functools.partial(_keys_of, path, f"{folder}/documents.npy", jaccard)
            self._run(
                beam.Create(list(range(0, len(documents), _BLOCK))),
                beam.FlatMap(keys),
                beam.GroupByKey(),
                beam.FlatMap(_if_several),
                beam.Distinct(),
                beam.Map(str),
                beam.io.WriteToText(f"{folder}/shared"),
            )
            lines = [line for path in Path(folder).glob("shared*") for line in path.read_text().split()]
        return np.array(sorted(map(int, lines)), np.int64)

    def _run(self, *transforms: Any) -> None:
        """Runs a pipeline of these transforms. Raises ConfigError, one line, for an error of a worker."""
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions

        try:
            with beam.Pipeline(options=PipelineOptions(shlex.split(self._arguments))) as pipeline:
                result = pipeline
                for transform in transforms:
                    result = result | transform
        except Exception as error:  # with the traceback of the worker in its message
            found = re.search(r"ConfigError: (.*)", str(error))
            if found is None and not isinstance(error, ConfigError):
                last = (str(error).strip().splitlines() or [""])[-1]
                raise ConfigError(f"--beam: {type(error).__name__}: {last}: run the same command again") from error
            raise ConfigError(re.sub(r" \[while running .*", "", found[1] if found else str(error))) from error


def _write_part(folder: str, corpus: CorpusConfig, fingerprint: str, numbered: tuple[int, Part]) -> None:
    """Encodes a part of the corpus in a worker: a folder with a file for each chunk, and what was skipped."""
    number, part = numbered
    encoder, skipped, path = encoder_of(corpus, fingerprint), Skipped(), Path(folder) / f"{number}"
    building = Path(folder) / f".{number}-{uuid.uuid4().hex}"  # of this worker: Beam may run a bundle twice
    building.mkdir()
    for k, documents in enumerate(chunks_of(part.read(skipped))):
        chunk = encoder.encode(*documents)
        others = {field.name: getattr(chunk, field.name) for field in dataclasses.fields(Chunk)}
        arrays = {name: others.pop(name) for name in _ARRAYS}
        np.savez(building / f"{k}.npz", others=json.dumps(others), **arrays)
    (building / "skipped.json").write_text(json.dumps(dataclasses.asdict(skipped)), encoding="utf-8")
    try:
        os.rename(building, path)
    except OSError:
        if not path.exists():  # otherwise another worker was faster
            raise


def _read_part(folder: str, number: int, skipped: Skipped) -> Iterator[Chunk]:
    """Yields the chunks of a part, and adds to `skipped` what it has skipped."""
    path = Path(folder) / f"{number}"
    found = Skipped(**json.loads((path / "skipped.json").read_text(encoding="utf-8")))
    skipped.empty += found.empty
    skipped.files += found.files
    skipped.lines += found.lines
    skipped.first_line = skipped.first_line or found.first_line
    for k in range(len(list(path.glob("*.npz")))):
        with np.load(path / f"{k}.npz") as saved:
            others = json.loads(str(saved["others"]))
            others["samples"] = {int(place): sample for place, sample in others["samples"].items()}
            yield Chunk(**others, **{name: saved[name] for name in _ARRAYS})


def _keys_of(values_path: Path, documents_path: str, jaccard: float, start: int) -> Iterator[tuple[int, int]]:
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
