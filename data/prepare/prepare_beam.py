"""The shards of a corpus, written by a pipeline of Apache Beam, for corpora that outgrow a machine.

Beam is only the engine: its workers call `write_shard`, as those of data/store/workers.py do, and the store is assembled from
the shards in the order of the corpus, so it is the same file by file. The workers must see the folder of the shards and
the files of the corpus under the same paths.
"""

import functools
import logging
import re
import shlex
from collections.abc import Sequence

from contract.errors import ConfigError
from data.sources.config import CorpusConfig
from data.sources.from_files import ReadError
from data.store.build import Build, ShardTask, WorkerEndedError, finished_shard
from data.store.shard import write_shard
from data.tokenizers.tokenizer import Tokenizer, make_tokenizer

_FIRST = 16  # the share of the shards, 1 / _FIRST, that shows whether the others need signatures


def check_beam(arguments: str) -> None:
    """Raises ConfigError where Apache Beam is not installed, and for arguments that it refuses."""
    try:
        from apache_beam.options.pipeline_options import PipelineOptions
    except ImportError:
        raise ConfigError(f"--beam={arguments!r} needs Apache Beam: pip install -e '.[beam]'") from None
    unknown = PipelineOptions(shlex.split(arguments)).get_all_options(retain_unknown_options=True, drop_default=True)
    known = PipelineOptions(shlex.split(arguments)).get_all_options(drop_default=True)
    if extra := sorted(set(unknown) - set(known)):
        raise ConfigError(f"--beam={arguments!r} has the argument --{extra[0]}, which Apache Beam does not know")


def write_shards_in_beam(build: Build, tasks: Sequence[ShardTask], arguments: str) -> None:
    """Writes shards in pipelines. Shards that exist already, as of a bundle that is tried again, are kept.

    arguments: of the pipelines, separated by spaces, as in "--runner=FlinkRunner --parallelism=64".

    Raises ConfigError for a corpus that cannot be read, and WorkerEndedError where the pipeline fails.
    """
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    first = -(-len(tasks) // _FIRST)
    for some in (tasks[:first], tasks[first:]):
        if some:
            _run(build, some, arguments)
            shards = [finished_shard(task.folder) for task in some]
            if missing := [task for task, shard in zip(some, shards, strict=True) if shard is None]:
                raise ConfigError(
                    f"Apache Beam's workers wrote no shard {missing[0].folder}: data.cache_dir must be a folder that "
                    "they share with this machine"
                )
            build.num_documents += sum(len(shard) for shard in shards if shard is not None)


def _run(build: Build, tasks: Sequence[ShardTask], arguments: str) -> None:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    write = functools.partial(_write, build.corpus, build.tokenizer.fingerprint, build.needs_signatures)
    try:
        with beam.Pipeline(options=PipelineOptions(shlex.split(arguments))) as pipeline:
            written = pipeline | beam.Create(list(tasks)) | beam.Reshuffle() | beam.Map(write)
            del written  # the shards are in their folders
    except Exception as error:
        raise _in_one_line(error) from error


def _write(corpus: CorpusConfig, fingerprint: str, with_signatures: bool, task: ShardTask) -> int:
    """Writes a shard in a worker, and returns its number of documents."""
    tokenizer = _tokenizer(corpus)
    if tokenizer.fingerprint != fingerprint:
        raise ConfigError(f"data.tokenizer={corpus.tokenizer!r} differs between the machines")
    shard = finished_shard(task.folder)
    if shard is None:
        try:
            shard = write_shard(task.folder, task.parts, corpus, tokenizer, with_signatures=with_signatures)
        except OSError:
            shard = finished_shard(task.folder)  # of another worker, which ran the same bundle
            if shard is None:
                raise
    return len(shard)


@functools.lru_cache(maxsize=1)
def _tokenizer(corpus: CorpusConfig) -> Tokenizer:
    return make_tokenizer(corpus)


def _in_one_line(error: Exception) -> ConfigError:
    """Returns the error of a worker, which Beam puts into a message with the traceback."""
    text = str(error)
    found = re.search(r"(ConfigError|ReadError): (.*)", text)
    if found or isinstance(error, ConfigError):
        is_read_error = found[1] == "ReadError" if found else isinstance(error, ReadError)
        kind = ReadError if is_read_error else ConfigError
        return kind(re.sub(r" \[while running .*", "", found[2] if found else text))
    lines = text.strip().splitlines() or [""]
    return WorkerEndedError(f"--beam: {type(error).__name__}: {lines[-1]}: run the same command again")
