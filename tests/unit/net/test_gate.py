"""The gate: who comes in is counted until its socket is closed, and by where it comes from."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from isthmus.net import connection_gate
from isthmus.net.connection_gate import AcceptedSocket, ConnectionGate, reset, source_of
from isthmus.net.rules_slots import HERE, AdmissionRefusal, ConnectionSlots


class Door:
    """A gate with places, and what came of it."""

    def __init__(self, most: int = 2, most_per_source: int = 1) -> None:
        self.places = ConnectionSlots(most, most_per_source)
        self.inside: list[socket.socket] = []
        self.refused: list[tuple[AdmissionRefusal, str]] = []
        self.gate = ConnectionGate(self.places, self.inside.append, self._refuse)

    def _refuse(self, sock: socket.socket, why: AdmissionRefusal, source: str) -> None:
        self.refused.append((why, source))
        sock.send(b"no")
        reset(sock)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_a_place_is_given_back_once(pair: tuple[socket.socket, socket.socket]) -> None:
    door = Door()
    door.gate(pair[0])
    (guest,) = door.inside
    assert isinstance(guest, AcceptedSocket) and source_of(guest).startswith("uid ")
    assert len(door.places) == 1
    guest.send(b"works as before")
    assert pair[1].recv(100) == b"works as before"
    guest.close()
    guest.close()
    assert not len(door.places)


def test_one_too_many_is_told_and_closed(pair: tuple[socket.socket, socket.socket]) -> None:
    door = Door()
    first, far = socket.socketpair()
    with far:
        door.gate(first)
        door.gate(pair[0])
        assert [why for why, _ in door.refused] == [AdmissionRefusal.TOO_MANY_OF_SOURCE]
        assert pair[1].recv(100) == b"no" and pair[1].recv(100) == b""
        door.inside[0].close()


def test_one_that_has_left_takes_no_place() -> None:
    door = Door()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        sock, _ = listener.accept()
        sock.close()
        client.close()
    door.gate(sock)
    assert not len(door.places) and not door.inside


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
    ],
)
def test_sources(host: str, source: str) -> None:
    assert connection_gate.source_named(host) == source


def connected(at: str, source: str) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection to an address, the accepted one first."""
    family = socket.AF_INET6 if ":" in at else socket.AF_INET
    with socket.create_server((at, 0), family=family, dualstack_ipv6=at == "::") as listener:
        where = "127.0.0.1" if at == "::" else at
        port = listener.getsockname()[1]
        client = socket.create_connection((where, port), 10, source_address=(source, 0))
        return listener.accept()[0], client


@pytest.mark.parametrize(
    ("at", "source"),
    [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "127.0.0.9"), ("::1", "::1"), ("::", "127.0.0.1")],
)
def test_who_comes_by_loopback_is_of_this_machine(at: str, source: str) -> None:
    accepted, client = connected(at, source)
    with accepted, client:
        assert connection_gate.source_elsewhere(accepted) == HERE


def test_who_comes_by_a_unix_socket_is_of_this_machine(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    assert connection_gate.source_elsewhere(pair[0]) == HERE


class Peered(socket.socket):
    """A connection between addresses that this machine does not have."""

    def __init__(self, own: str, peer: str) -> None:
        super().__init__(socket.AF_INET6 if ":" in own else socket.AF_INET)
        self._own, self._peer = own, peer

    def getsockname(self) -> tuple[str, int]:
        return self._own, 6443

    def getpeername(self) -> tuple[str, int]:
        return self._peer, 4711


@pytest.mark.parametrize(
    ("own", "peer", "source"),
    [
        ("172.20.0.1", "172.20.0.1", HERE),
        ("172.20.0.1", "10.0.0.7", "10.0.0.7"),
        ("::ffff:172.20.0.1", "::ffff:172.20.0.1", HERE),
        ("::ffff:172.20.0.1", "::ffff:10.0.0.7", "10.0.0.7"),
        ("fd00::1", "fd00::1", HERE),
        ("fd00::1", "fd00::2", "fd00::/64"),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", HERE),
        ("fd00::1", "::2", "::/64"),
    ],
)
def test_who_comes_by_an_address_of_its_own(own: str, peer: str, source: str) -> None:
    with Peered(own, peer) as sock:
        assert connection_gate.source_elsewhere(sock) == source


def test_a_socket_of_no_gate_has_no_source(pair: tuple[socket.socket, socket.socket]) -> None:
    assert source_of(pair[0]) == ""


def test_a_guest_of_a_listener_is_let_in_as_it_is() -> None:
    door = Door()
    one, other = socket.socketpair()
    with other:
        accepted = AcceptedSocket(one.family, one.detach())
        door.gate(accepted)
        assert door.inside == [accepted] and len(door.places) == 1
        assert accepted.uid == connection_gate.uid_at(other)
        accepted.close()
        assert not len(door.places)


def test_a_guest_that_was_never_let_in_gives_no_place_back() -> None:
    one, other = socket.socketpair()
    with other:
        guest = AcceptedSocket(one.family, one.detach())
        guest.close()
        assert guest.source == "" and other.recv(1) == b""
