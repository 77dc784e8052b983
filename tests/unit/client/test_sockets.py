"""The pair of sockets behind a tunnel: resets, strangers, and a machine without loopback."""

from __future__ import annotations

import socket
import struct
from typing import Any

import pytest

from isthmus.client import dialer
from isthmus.client.dialer import socket_pair


def test_the_kept_one_can_be_reset() -> None:
    given, kept = socket_pair()
    with given:
        assert not given.getblocking() and not kept.getblocking()
        given.setblocking(True)
        given.settimeout(10)
        kept.send(b"some")
        assert given.recv(10) == b"some"
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        kept.close()
        with pytest.raises(ConnectionResetError):
            given.recv(10)


def test_a_stranger_that_is_faster_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    strangers: list[socket.socket] = []

    class Raced(socket.socket):
        def listen(self, *args: Any) -> None:
            super().listen(*args)
            strangers.append(socket.create_connection(self.getsockname()))

    monkeypatch.setattr(dialer.socket, "socket", Raced)
    try:
        given, kept = socket_pair()
    finally:
        monkeypatch.undo()
    with given, kept, strangers[0] as stranger:
        assert kept.getpeername() == given.getsockname()
        stranger.settimeout(10)
        assert stranger.recv(1) == b""


def test_without_loopback_it_is_a_unix_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    # 203.0.113.0/24 is nobody's (RFC 5737): binding fails as it does where lo is down.
    monkeypatch.setattr(dialer, "_LOOPBACK", "203.0.113.1")
    given, kept = socket_pair()
    with given, kept:
        assert given.family == kept.family == socket.AF_UNIX
        assert not given.getblocking()
