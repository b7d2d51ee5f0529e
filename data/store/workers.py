"""Writes the shards of a corpus in several processes."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from types import FrameType
from typing import Any

from contract.errors import ConfigError
from data.sources.config import CorpusConfig
from data.store.build import Build, ShardTask, WorkerEndedError, write_shards
from data.store.shard import write_shard
from data.tokenizers.tokenizer import make_tokenizer

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Worker:
    """A process that writes one shard after another, and the pipe to it."""

    def __init__(self, corpus: CorpusConfig, fingerprint: str):
        # Not fork: a program with threads, such as this one, cannot be copied safely.
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_run, args=(other, corpus, fingerprint), daemon=True)
        self.process.start()
        other.close()
        self.task: ShardTask | None = None

    def begin(self, task: ShardTask, with_signatures: bool) -> None:
        self.task = task
        try:
            # As send, which keeps a view of its buffer: where sending fails, Python 3.13 prints an error of the buffer.
            self.pipe.send_bytes(bytes(ForkingPickler.dumps((task, with_signatures))))
        except OSError:
            raise self.ended() from None

    def ended(self) -> WorkerEndedError:
        """Returns the error for a worker that has ended by itself."""
        self.process.join()
        status = self.process.exitcode or 0
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        memory = ", as by the system where memory is too small: use fewer --workers" if how == "SIGKILL" else ""
        return WorkerEndedError(
            f"a worker process ended ({how}{memory}) while it read {self.task.where if self.task else 'nothing'}: "
            "run the same command again, which keeps finished shards"
        )

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def write_shards_in_workers(build: Build, tasks: Sequence[ShardTask], num_workers: int) -> None:
    """Writes shards in up to `num_workers` processes, which have ended when the function returns or raises.

    Raises what a worker raises, and ConfigError for a worker that was killed.
    """
    if len(tasks) < 2:
        write_shards(build, tasks)
        return
    workers: list[_Worker] = []
    left = list(reversed(tasks))
    try:
        for _ in range(min(num_workers, len(tasks))):
            with _signals_delayed():
                workers.append(_Worker(build.corpus, build.tokenizer.fingerprint))
            workers[-1].begin(left.pop(), build.needs_signatures)
        while busy := {worker.pipe: worker for worker in workers if worker.task is not None}:
            for pipe in wait(list(busy)):
                _receive(busy[pipe], build, left)  # type: ignore[index]
    finally:
        for worker in workers:
            worker.stop()


@contextlib.contextmanager
def _signals_delayed() -> Iterator[None]:
    """Delays Ctrl-C and SIGTERM to the end of the block. Processes that are started in it begin with both blocked.

    An exception in the middle of a start would end the pipe from which the new process reads its arguments, and a
    signal to the new process, while it imports: both print tracebacks.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone handles signals
        yield
        return
    received = []

    def note(number: int, _: FrameType | None) -> None:
        received.append(number)

    handlers = {number: signal.signal(number, note) for number in _SIGNALS}
    resource_tracker.ensure_running()  # otherwise the first start starts this process, which unblocks the signals
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in received:
            signal.raise_signal(number)


def _receive(worker: _Worker, build: Build, left: list[ShardTask]) -> None:
    """Handles one message of a worker, and gives it the next of the shards `left` if it has finished one."""
    try:
        kind, value = worker.pipe.recv()
    except (EOFError, OSError):
        raise worker.ended() from None
    if kind == "error":
        raise value
    if kind == "read":
        build.progress.add(*value)
        return
    build.num_documents += value
    worker.task = None
    if left:
        worker.begin(left.pop(), build.needs_signatures)


def _run(pipe: Connection, corpus: CorpusConfig, fingerprint: str) -> None:
    """Writes the shards that the pipe names, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)  # see _signals_delayed
    threading.Thread(target=_end_with_parent, daemon=True).start()
    task = None
    try:
        tokenizer = make_tokenizer(corpus)
        if tokenizer.fingerprint != fingerprint:
            raise ConfigError(f"data.tokenizer={corpus.tokenizer!r} has changed: run the same command again")
        while True:
            task, with_signatures = pipe.recv()
            shard = write_shard(
                task.folder,
                task.parts,
                corpus,
                tokenizer,
                with_signatures=with_signatures,
                note=lambda *read: pipe.send(("read", read)),
            )
            pipe.send(("written", len(shard)))
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:
        pipe.send(("error", _picklable(error, task)))


def _picklable(error: Exception, task: ShardTask | None) -> Exception:
    """Returns an error as the parent raises it, in one line."""
    if isinstance(error, ConfigError | MemoryError):
        return error
    if isinstance(error, OSError) and error.errno is not None:
        return OSError(error.errno, error.strerror, error.filename)
    where = "".join(getattr(error, "__notes__", [])) or (task.where if task else "the tokenizer")
    message = " ".join(str(error).split())
    return WorkerEndedError(
        f"{where}: {type(error).__name__}: {message} (an error in this program: --workers=1 shows its traceback)"
    )


def _end_with_parent() -> None:
    """Ends this process when its parent has ended, in whatever way."""
    parent: Any = multiprocessing.parent_process()
    wait([parent.sentinel])
    os._exit(1)
