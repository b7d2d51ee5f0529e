"""The ports of the processes that tests start."""

import contextlib
import itertools
import socket

import pytest

from tests.train import subprocesses


@pytest.fixture
def ports(monkeypatch):
    """Four ports that no process listens on, from which `free_port` chooses, the first first."""
    held = [socket.socket() for _ in range(4)]
    for one in held:
        one.bind(("localhost", 0))
    numbers = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    monkeypatch.setattr(subprocesses, "_PORTS", numbers)
    monkeypatch.setattr(subprocesses, "_OFFSETS", itertools.count())
    return numbers


def test_a_port_is_not_given_twice_in_a_row(ports):
    assert [subprocesses.free_port() for _ in range(5)] == [*ports, ports[0]]


def test_ports_in_use_are_left_out(ports):
    with socket.create_server(("localhost", ports[0])), socket.create_server(("localhost", ports[2])):
        assert [subprocesses.free_port() for _ in range(3)] == [ports[1], ports[3], ports[1]]


def test_no_free_port_is_an_error(ports):
    with contextlib.ExitStack() as servers:
        for port in ports:
            servers.enter_context(socket.create_server(("localhost", port)))
        with pytest.raises(AssertionError, match=f"from {ports[0]} to {ports[-1]} are taken"):
            subprocesses.free_port()
