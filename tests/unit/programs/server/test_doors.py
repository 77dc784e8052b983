"""A server's doors: both protocols at once on their own listeners, and all or none of them."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from isthmus.dial.frontends.backend import Dial, Request
from isthmus.errors import ConfigError
from isthmus.frame.part import Ground
from isthmus.net.rules_slots import AdmissionRefusal
from isthmus.programs.server import PROGRAM
from isthmus.programs.server.doors import Doors
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.options import compose
from isthmus.values import HostPort
from isthmus.wire.http2 import PING, PREFACE, frame, settings

BOTH = ("grpc", "http-connect")


class Nobody:
    """A backend whom nobody asks."""

    def dial(self, request: Request, target: HostPort) -> Dial:
        raise NotImplementedError

    def refused(self, status: int, request: Request | None = None, reason: str = "") -> None:
        """Nothing."""

    def no_place(self, why: AdmissionRefusal, source: str) -> None:
        """Nothing."""

    def handshake_failed(self, error: ssl.SSLError) -> None:
        """Nothing."""

    def abandoned(self) -> None:
        """Nothing."""


def no_context(mode: str) -> ssl.SSLContext:
    raise NotImplementedError


def run(
    test: Callable[[Doors], Awaitable[None]], given: dict[str, Any], *, bind: bool = True
) -> None:
    async def main() -> None:
        made = compose(ServerSettings, server_bind_address="127.0.0.1", **given)
        ground: Ground[Any, Any] = Ground(PROGRAM, made)
        poller = ground.poller
        doors = Doors(ground, Nobody(), no_context)
        try:
            if bind:
                doors.bind()
                doors.open()
            async with asyncio.timeout(30):
                await test(doors)
        finally:
            doors.close()
            async with asyncio.timeout(20):
                while len(poller):
                    await asyncio.sleep(0.001)
            poller.shut_down()

    asyncio.run(main())


async def first_words(path: Path, said: bytes) -> bytes:
    """What a listener answers first."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(said)
    got = await reader.read(9)
    writer.close()
    return got


def test_both_protocols_are_served_at_once_each_on_its_own_socket(tmp_path: Path) -> None:
    grpc, connect = tmp_path / "grpc.sock", tmp_path / "connect.sock"

    async def test(doors: Doors) -> None:
        got = await first_words(grpc, PREFACE + settings())
        assert got[3] == 4  # a SETTINGS frame, RFC 9113 §3.4
        assert await first_words(connect, b"GET / HTTP/1.1\r\n\r\n") == b"HTTP/1.1 "
        # And neither serves the other.
        got = await first_words(connect, PREFACE)
        assert got == b"HTTP/1.1 "
        assert doors.ports == {}

    given = {"mode": BOTH, "uds_name": str(grpc), "http_connect_uds_name": str(connect)}
    run(test, given)
    assert not grpc.exists() and not connect.exists()


def test_both_protocols_may_have_ports_too(tmp_path: Path) -> None:
    async def test(doors: Doors) -> None:
        assert set(doors.ports) == set(BOTH)
        assert doors.ports["grpc"] != doors.ports["http-connect"]
        for port in doors.ports.values():
            socket.create_connection(("127.0.0.1", port), 20).close()

    run(test, {"mode": BOTH, "server_port": 0, "server_cert": "c", "http_connect_port": 0})


@pytest.mark.parametrize("mode", BOTH)
def test_one_mode_listens_where_the_general_flags_say(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "one.sock"

    async def test(doors: Doors) -> None:
        assert path.is_socket()
        assert doors.ports == {}
        assert doors.grpc_calls == 0

    run(test, {"mode": (mode,), "uds_name": str(path)})
    assert not path.exists()


def test_a_port_in_use_leaves_nothing_open_and_no_socket_file(tmp_path: Path) -> None:
    path = tmp_path / "grpc.sock"
    before = len(os.listdir("/proc/self/fd"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        async def test(doors: Doors) -> None:
            with pytest.raises(
                ConfigError, match=f"^--http-connect-port: .*{port}: already in use"
            ):
                doors.bind()
            assert path.exists()  # bound, and given back by close

        given = {"mode": BOTH, "uds_name": str(path), "http_connect_port": port}
        run(test, given, bind=False)
    assert not path.exists()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_socket_in_use_is_named_by_its_flag(tmp_path: Path) -> None:
    path = tmp_path / "busy.sock"
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen()

        async def test(doors: Doors) -> None:
            with pytest.raises(ConfigError, match=r"^--http-connect-uds-name"):
                doors.bind()

        given = {
            "mode": BOTH,
            "uds_name": str(tmp_path / "grpc.sock"),
            "http_connect_uds_name": str(path),
        }
        run(test, given, bind=False)
        assert path.exists()  # not ours: it stays
    assert not (tmp_path / "grpc.sock").exists()


def test_draining_accepts_nothing_more_and_keeps_what_is_open(tmp_path: Path) -> None:
    path = tmp_path / "grpc.sock"

    async def test(doors: Doors) -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(PREFACE + settings())
        await reader.readexactly(9)
        doors.drain()
        with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
            await asyncio.open_unix_connection(str(path))
        writer.write(frame(PING, 0, 0, b"still on"))
        assert b"still on" in await reader.readuntil(b"still on")
        doors.close()
        await reader.read()  # to its end
        writer.close()

    run(test, {"uds_name": str(path)})


def test_what_was_bound_and_never_opened_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "grpc.sock"

    async def test(doors: Doors) -> None:
        doors.bind()
        assert path.exists()

    run(test, {"uds_name": str(path)}, bind=False)
    assert not path.exists()
