"""A step that all processes of a run agree on when one of them requests it, without a collective."""

import contextlib
import itertools
import threading
from typing import Any, Self

import jax
import orbax.checkpoint as ocp

_REQUEST_MILLISECONDS = 3600 * 1000  # until a thread that waits for a request asks the service again
_ANSWER_MILLISECONDS = 1000
_JOIN_SECONDS = 5.0
_AGREE, _END = "agree", "end"
_numbers = itertools.count()


class AgreedStep:
    """Within this context, a request of any process is answered by the same step in all of them, a few steps later.

    After every step each process calls `reached`, which communicates nothing. Meanwhile a thread of each process waits
    for a request in the key-value store of JAX's coordination service. When there is one, each process publishes the
    last step for which it called `reached`, and process 0 publishes the step after the latest of these. Until a process
    has received this answer, a call of `reached` waits, so that no process can pass the step. Devices continue
    meanwhile with the steps that are in their queues.

    All processes must enter the contexts of this class in the same order. After `reached` has returned True, there may
    be another request.
    """

    def __init__(self):
        self._folder = f"cloze/agreed_step/{next(_numbers)}"
        self._round = 0  # the number of requests before
        self._step = -1  # the last one for which `reached` was called
        self._agreed: int | None = None
        self._requested = False
        self._lock = threading.Lock()  # of the four above; the thread holds it from a request to the answer
        self._next_round, self._closed = threading.Event(), False
        self._client: Any = None

    def __enter__(self) -> Self:
        if jax.process_count() > 1:
            self._client = ocp.multihost.get_jax_distributed_client()
            self._thread = threading.Thread(target=self._watch, daemon=True, name="agreed step")
            self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        if self._client is None:
            return
        self._closed = True
        self._next_round.set()
        self._publish_request(_END)  # wakes the thread, which must not wait in C++ when the interpreter exits
        self._thread.join(_JOIN_SECONDS)

    def request(self) -> None:
        """Requests a step, unless this process has done so and the step has not been reached yet."""
        if not self._requested:
            self._requested = True
            if self._client is not None:
                self._publish_request(_AGREE)

    def reached(self, step: int) -> bool:
        """Returns whether `step` is the agreed step. To be called after every step, in all processes."""
        with self._lock:
            self._step = step
            answer = self._agreed if self._client is not None else (step if self._requested else None)
            if answer is None or step < answer:
                return False
            self._round, self._agreed, self._requested = self._round + 1, None, False
        self._next_round.set()
        return True

    def _publish_request(self, what: str) -> None:
        """Publishes `what` as this round's request, unless there is one, or the service has ended."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._set(f"{self._round}/request", what)

    def _watch(self) -> None:
        """Answers requests until the context ends or the coordination service does."""
        with contextlib.suppress(jax.errors.JaxRuntimeError, _Closed):
            for number in itertools.count():
                if self._get(f"{number}/request", _REQUEST_MILLISECONDS) == _END:
                    return
                with self._lock:
                    self._agreed = self._agree(number)
                if number and jax.process_index() == 0:  # all processes have entered this round
                    self._client.key_value_delete(f"{self._folder}/{number - 1}/")
                self._next_round.wait()
                self._next_round.clear()

    def _agree(self, number: int) -> int:
        """Returns the step after the last one of the process that is ahead."""
        self._set(f"{number}/steps/{jax.process_index()}", str(self._step))
        if jax.process_index() == 0:
            steps = [int(self._get(f"{number}/steps/{index}")) for index in range(jax.process_count())]
            self._set(f"{number}/answer", str(max(steps) + 1))
        return int(self._get(f"{number}/answer"))

    def _set(self, key: str, value: str) -> None:
        self._client.key_value_set(f"{self._folder}/{key}", value)

    def _get(self, key: str, milliseconds: int = _ANSWER_MILLISECONDS) -> str:
        """Returns the value of `key` once a process has published it. Raises _Closed after the end of the context."""
        while not self._closed:
            try:
                return self._client.blocking_key_value_get(f"{self._folder}/{key}", milliseconds)
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
        raise _Closed


class _Closed(Exception):
    """The context has ended."""
