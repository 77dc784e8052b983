"""Binding with clear errors and right modes; accepting, and stopping without a trace."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.errors import ConfigError
from isthmus.net import listen
from isthmus.net.listen import Listener, bind_tcp, bind_uds
from isthmus.net.poller import Poller


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.001)


def test_port_0_is_any_free_port() -> None:
    (sock,) = bind_tcp("127.0.0.1", 0, flag="--port")
    with sock:
        assert sock.getsockname()[1] > 0
        assert not sock.getblocking()


def test_no_host_is_every_address() -> None:
    (sock,) = bind_tcp("", 0, flag="--port")
    with sock, socket.create_connection(("127.0.0.1", sock.getsockname()[1]), 10):
        pass


@pytest.mark.parametrize(
    ("host", "reached", "other"),
    [("::", ["127.0.0.1", "::1"], []), ("0.0.0.0", ["127.0.0.1"], ["::1"])],
)
def test_every_address_of_a_family(host: str, reached: list[str], other: list[str]) -> None:
    """As in Go, where the unspecified address of IPv6 has IPv4 in it."""
    (sock,) = bind_tcp(host, 0, flag="--port")
    with sock:
        port = sock.getsockname()[1]
        for address in reached:
            socket.create_connection((address, port), 10).close()
        for address in other:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((address, port), 10)


@pytest.mark.parametrize(
    ("host", "why"),
    [("192.0.2.1", "192.0.2.1:"), ("no-such-host.invalid", "no-such-host.invalid:")],
)
def test_an_address_that_is_not_ours(host: str, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"^--port: cannot listen on {why}"):
        bind_tcp(host, 0, flag="--port")


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"^--port: .*{port}: already in use$"):
            bind_tcp("127.0.0.1", port, flag="--port")


def test_a_unix_socket_has_mode_0660_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "s"
    before = os.umask(0)
    try:
        with bind_uds(str(path), delete_existing=True, flag="--uds"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert os.umask(0) == 0
    finally:
        os.umask(before)


def test_a_stale_socket_makes_way(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(ConfigError, match="--delete-existing-uds-file"):
        bind_uds(str(path), delete_existing=False, flag="--uds")
    with (
        bind_uds(str(path), delete_existing=True, flag="--uds"),
        socket.socket(socket.AF_UNIX) as client,
    ):
        client.connect(str(path))


def test_what_does_not_make_way(tmp_path: Path) -> None:
    file, live = tmp_path / "file", tmp_path / "live"
    file.write_text("precious")
    link = tmp_path / "link"
    link.symlink_to(file)
    for path in (file, link):
        with pytest.raises(ConfigError, match="exists and is not a socket"):
            bind_uds(str(path), delete_existing=True, flag="--uds")
    assert file.read_text() == "precious"
    with bind_uds(str(live), delete_existing=True, flag="--uds"):
        with pytest.raises(ConfigError, match="in use by a live server"):
            bind_uds(str(live), delete_existing=True, flag="--uds")
        assert live.is_socket()


@pytest.mark.parametrize("name", ["x" * 200, "missing/s"])
def test_a_path_that_cannot_be(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"^--uds "):
        bind_uds(str(tmp_path / name), delete_existing=True, flag="--uds")


def test_connections_are_accepted_until_it_stops(tmp_path: Path) -> None:
    path = tmp_path / "s"

    async def main() -> None:
        accepted: list[socket.socket] = []
        loop = asyncio.get_running_loop()
        poller = Poller(loop)
        sock = bind_uds(str(path), delete_existing=True, flag="--uds")
        listener = Listener(loop, poller, sock, accepted.append)
        clients = [socket.socket(socket.AF_UNIX) for _ in range(100)]
        for client in clients:
            client.connect(str(path))
        await until(lambda: len(accepted) == 100)
        assert not any(each.getblocking() for each in accepted)
        listener.stop()
        listener.stop()  # twice is no mistake
        assert not path.exists()
        for each in (*accepted, *clients):
            each.close()
        poller.shut_down()

    asyncio.run(main())


@pytest.mark.parametrize("most", [1, 64])
def test_whoever_waits_is_accepted_without_a_new_edge(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    most: int,
) -> None:
    monkeypatch.setattr(listen, "_ACCEPTS_PER_EVENT", most)
    path = tmp_path / "s"

    async def main() -> None:
        accepted: list[socket.socket] = []

        def accept(sock: socket.socket) -> None:
            accepted.append(sock)
            if len(accepted) == 1:
                raise RuntimeError("a bug in what takes the first connection")

        loop = asyncio.get_running_loop()
        poller = Poller(loop)
        sock = bind_uds(str(path), delete_existing=True, flag="--uds")
        clients = [socket.socket(socket.AF_UNIX) for _ in range(5)]
        for client in clients:
            client.connect(str(path))
        listener = Listener(loop, poller, sock, accept)
        await until(lambda: len(accepted) == 5)
        listener.stop()
        for each in (*accepted, *clients):
            each.close()
        poller.shut_down()

    asyncio.run(main())
    (record,) = caplog.records
    assert record.exc_info is not None and record.exc_info[0] is RuntimeError


def test_a_socket_file_that_another_server_took_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"

    async def main() -> None:
        loop = asyncio.get_running_loop()
        poller = Poller(loop)
        first = Listener(loop, poller, bind_uds(str(path), delete_existing=True, flag="--u"), print)
        path.rename(tmp_path / "moved")
        bound = bind_uds(str(path), delete_existing=True, flag="--u")
        second = Listener(loop, poller, bound, print)
        first.stop()
        assert path.is_socket()
        second.stop()
        assert not path.exists()
        poller.shut_down()

    asyncio.run(main())


def test_out_of_descriptors_it_rests_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listen, "_REST_S", 0.01)

    class Exhausted(socket.socket):
        """A listener whose first accepts find no free descriptor."""

        failures = 3

        def _accept(self) -> tuple[int, object]:
            if Exhausted.failures:
                Exhausted.failures -= 1
                raise OSError(24, "Too many open files")
            accepted: tuple[int, object] = super()._accept()  # type: ignore[misc]  # see Listener
            return accepted

    async def main() -> None:
        accepted: list[socket.socket] = []
        (bound,) = bind_tcp("127.0.0.1", 0, flag="--port")
        sock = Exhausted(fileno=bound.detach())
        loop = asyncio.get_running_loop()
        poller = Poller(loop)
        listener = Listener(loop, poller, sock, accepted.append)
        with socket.create_connection(("127.0.0.1", listener.port), 10):
            await until(lambda: len(accepted) == 1)
        listener.stop()
        accepted[0].close()
        poller.shut_down()

    asyncio.run(main())
    assert Exhausted.failures == 0
    assert caplog.text.count("Too many open files") == 1  # it rests often and says so once
