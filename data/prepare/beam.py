"""Pipelines of Apache Beam that read and encode the documents of a corpus that outgrows a machine.

Beam is only the engine: its workers encode parts of the corpus into files, as data/store/encode.py does. The machine
that runs the command appends the parts in order, so the store is the same file by file. The workers must see
data.cache_dir and the files of the corpus under the same paths.
"""

import functools
import json
import logging
import os
import re
import shlex
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from contract.errors import ConfigError
from data.sources.config import CorpusConfig
from data.sources.files import local_cache
from data.sources.source import Part, Skipped, Source
from data.store.encode import Chunk, Engine, chunks_of, encode_in_worker
from data.tokenizers.tokenizer import Tokenizer

_ARRAYS = ("documents", "tokens", "signatures", "sets")  # of a Chunk


def beam_engine(arguments: str) -> Engine:
    """Returns an Engine whose workers are those of a runner of Beam. Temporary files are in data.cache_dir.

    arguments: of the pipeline, separated by spaces, as in "--runner=FlinkRunner --parallelism=64".

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
    return functools.partial(_encoded, options)


def _encoded(
    options: Any, source: Source, corpus: CorpusConfig, tokenizer: Tokenizer, skipped: Skipped
) -> Iterator[Chunk]:
    """Runs the pipeline, and yields the chunks that its workers wrote."""
    import apache_beam as beam

    with tempfile.TemporaryDirectory(dir=local_cache(corpus.cache_dir).absolute(), prefix=".beam-") as folder:
        write = functools.partial(_write_part, folder, corpus, tokenizer.fingerprint)
        try:
            with beam.Pipeline(options=options) as pipeline:
                parts = pipeline | beam.Create(list(enumerate(source.parts)))
                _ = parts | beam.Reshuffle() | beam.Map(write)
        except Exception as error:  # with the traceback of the worker in its message
            raise _in_one_line(error) from error
        for number in range(len(source.parts)):
            try:
                yield from _read_part(folder, number, skipped)
            except FileNotFoundError:
                raise ConfigError(
                    f"Apache Beam's workers wrote no files in {folder}: data.cache_dir must be a folder that they "
                    "share with this machine"
                ) from None


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
    for k, documents in enumerate(chunks_of(part.read(skipped))):
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
