"""The dialer through a real, if small, SOCKS5 server, by Isthmus' client library."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from isthmus.client import ConnectivityService, DialError, DialFailure
from isthmus.dial.dialers import custom
from isthmus.dial.rules_connectivity import (
    ConnectivityConfig,
    NetworkConfig,
    NetworkConnection,
    NetworkProtocol,
)


@dataclass
class JumpHost:
    """Takes one connection after the other; ``reply`` is what it says to a request."""

    listener: socket.socket
    reply: int = 0
    asked: list[bytes] = field(default_factory=list)

    def serve(self) -> None:
        """Serve until somebody connects and says nothing."""
        while True:
            conn, _ = self.listener.accept()
            with conn:
                conn.settimeout(10)
                if conn.recv(3) == b"":
                    return
                conn.sendall(b"\x05\x00")
                self.asked.append(conn.recv(300))
                conn.sendall(bytes([5, self.reply, 0, 1]) + bytes(6))
                if not self.reply:
                    conn.sendall(b"target speaks first;" + conn.recv(100).upper())


@pytest.fixture
def jump() -> Iterator[JumpHost]:
    """Give a jump host in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host = JumpHost(listener)
        thread = threading.Thread(target=host.serve)
        thread.start()
        yield host
        socket.create_connection(listener.getsockname()).close()  # says nothing: the end
        thread.join(10)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offer the dialer as installing the package would, if it is not installed."""
    point = EntryPoint("jump", "jump_dialer:JumpDialer", custom.GROUP)
    monkeypatch.setattr(custom, "entry_points", lambda group: EntryPoints([point]))


def config(jump: JumpHost) -> ConnectivityConfig:
    """Give a configuration with one network, reached by the dialer."""
    host, port = jump.listener.getsockname()
    connection = NetworkConnection(
        protocol=NetworkProtocol.CUSTOM, dialer="jump", options={"host": host, "port": str(port)}
    )
    return ConnectivityConfig(networks={"far": NetworkConfig(name="far", connection=connection)})


def test_a_target_is_reached(jump: JumpHost) -> None:
    """Bytes go both ways, and the end is the end."""

    async def talk() -> bytes:
        async with ConnectivityService.from_config(config(jump)) as service:
            connection = await service.dialer("far").dial("tcp", "web.example:80", timeout_s=10)
            connection.write(b"hello")
            got = b""
            while data := await connection.read():
                got += data
            await connection.close()
            return got

    assert asyncio.run(talk()) == b"target speaks first;HELLO"
    assert jump.asked == [b"\x05\x01\x00\x03\x0bweb.example\x00\x50"]


def test_a_refusal_has_its_reason(jump: JumpHost) -> None:
    """What the jump host says is a DialFailure."""

    async def fail() -> DialError:
        async with ConnectivityService.from_config(config(jump)) as service:
            with pytest.raises(DialError) as failed:
                await service.dialer("far").dial("tcp", "10.0.0.5:80", timeout_s=10)
            return failed.value

    jump.reply = 5
    assert asyncio.run(fail()).reason is DialFailure.REFUSED
    assert jump.asked == [b"\x05\x01\x00\x01\x0a\x00\x00\x05\x00\x50"]
