"""Connections between the processes of a run, by which each notices at once that another one has died.

Process 0 accepts a connection from each other process. The kernel closes the connections of a process however it ends,
and keepalive messages notice a host that does not answer. JAX's coordination service notices a lost process after a
minute, and ends the others with a stack of C++ frames. That service alone notices it where no connection can be made.
"""

import contextlib
import json
import secrets
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import orbax.checkpoint as ocp

_KEY = "cloze/peers"
_CONNECT_SECONDS = 5.0
_PUBLISH_MILLISECONDS = 600_000
_LONGEST_LINE = 4096
# Seconds until the first keepalive message (on Linux and on macOS), between two, and how many may remain unanswered.
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPALIVE": 15, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 2}
_END, _LOST, _ACCEPTED = "end", "lost ", "accepted"

Lost = Callable[[str], Any]


@contextlib.contextmanager
def watch_peers(coordinator_host: str | None, lost: Lost) -> Iterator[None]:
    """Within this context, the death of another process of the run calls `lost` with the name of that process.

    A process that leaves the context without an exception has ended its part, and is not lost afterwards. Its caller
    makes sure that the other processes have done so too.

    Args:
      coordinator_host: a name or an address of process 0's host, if it is known. All processes enter the context.
      lost: called in a thread, which need not return.
    """
    watch = _Acceptor(lost) if jax.process_index() == 0 else _Connector(coordinator_host, lost)
    threading.Thread(target=watch.run, name="peers", daemon=True).start()
    yield
    watch.end()


class _Acceptor:
    """Process 0's connections to all other processes."""

    def __init__(self, lost: Lost):
        self._lost, self._ended = lost, False
        self._token = secrets.token_hex(16)
        self._listener = _listen()
        self._names: dict[socket.socket, str] = {}  # of the other processes that have not ended
        self._received: dict[socket.socket, bytes] = {}  # the start of a line
        fields = {
            "name": _name(0),
            "hosts": _own_addresses(),
            "port": self._listener.getsockname()[1],
            "token": self._token,
        }
        ocp.multihost.get_jax_distributed_client().key_value_set(_KEY, json.dumps(fields))

    def run(self) -> None:
        """Reads from the connections until the process ends."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    with contextlib.suppress(OSError):
                        if key.fileobj is self._listener:
                            self._accept(selector)
                        else:
                            self._read(selector, key.fileobj)

    def end(self) -> None:
        """Informs the other processes that this one has ended its part."""
        self._ended = True
        self._send(_END)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        connection, _ = self._listener.accept()
        _keep_alive(connection)
        connection.setblocking(False)
        self._received[connection] = b""
        selector.register(connection, selectors.EVENT_READ)

    def _read(self, selector: selectors.BaseSelector, connection: Any) -> None:
        try:
            data = connection.recv(_LONGEST_LINE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, rest = (self._received.get(connection, b"") + data).split(b"\n")
        self._received[connection] = rest
        is_stranger = not all([self._understand(connection, line) for line in lines])
        if data and not is_stranger and len(rest) < _LONGEST_LINE:
            return
        selector.unregister(connection)
        name = self._names.pop(connection, None)
        del self._received[connection]
        connection.close()
        if name is not None and not self._ended:
            self._send(_LOST + name)
            self._lost(name)

    def _understand(self, connection: socket.socket, line: bytes) -> bool:
        """Acts on a line. Returns False if it is not of a process of this run."""
        if connection in self._names:
            if line == _END.encode():
                del self._names[connection]
            return True
        try:
            fields = json.loads(line)
            if not secrets.compare_digest(fields["token"], self._token):
                return False
            name = str(fields["name"])
        except (ValueError, TypeError, KeyError):
            return False
        connection.sendall(f"{_ACCEPTED}\n".encode())
        self._names[connection] = name
        return True

    def _send(self, line: str) -> None:
        for connection in list(self._names):
            with contextlib.suppress(OSError):
                connection.sendall(f"{line}\n".encode())


class _Connector:
    """The connection of another process to process 0."""

    def __init__(self, coordinator_host: str | None, lost: Lost):
        self._hosts = [coordinator_host] if coordinator_host else []
        self._lost, self._ended = lost, False
        self._connection: socket.socket | None = None

    def run(self) -> None:
        """Reads from the connection until process 0 ends, or another process is lost."""
        text = ocp.multihost.get_jax_distributed_client().blocking_key_value_get(_KEY, _PUBLISH_MILLISECONDS)
        fields = json.loads(text)
        for host in [*self._hosts, *fields["hosts"]]:
            with contextlib.suppress(OSError):
                connection = socket.create_connection((host, fields["port"]), timeout=_CONNECT_SECONDS)
                _keep_alive(connection)
                hello = {"token": fields["token"], "name": _name(jax.process_index())}
                connection.sendall(json.dumps(hello).encode() + b"\n")
                lines = connection.makefile("r", encoding="utf-8")
                if lines.readline() == f"{_ACCEPTED}\n":
                    connection.settimeout(None)
                    self._connection = connection
                    self._watch(lines, fields["name"])
                    return

    def end(self) -> None:
        """Informs process 0 that this process has ended its part."""
        self._ended = True
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.sendall(f"{_END}\n".encode())

    def _watch(self, lines: Any, name: str) -> None:
        with contextlib.suppress(OSError):
            for line in lines:
                if line.startswith(_LOST):
                    name = line.removeprefix(_LOST).strip()
                    break
                if line.strip() == _END:
                    return
        if not self._ended:
            self._lost(name)


def _name(index: int) -> str:
    return f"process {index} ({socket.gethostname()})"


def _listen() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    return socket.create_server(("", 0), backlog=1024)


def _own_addresses() -> list[str]:
    """Returns addresses at which other hosts may reach this one."""
    addresses = []
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))  # sends nothing; the kernel selects the address of the route
            addresses.append(probe.getsockname()[0])
    return [*addresses, socket.gethostname()]


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
