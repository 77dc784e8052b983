"""The service by itself: its networks, its rules, its life, and what its dials tell a server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest

from isthmus.client import ConnectivityService, DialError, NetworkContext, UnknownNetworkError
from isthmus.client.blocking import BlockingService
from isthmus.dial.dialers import custom
from isthmus.dial.rules_connectivity import (
    ClientTls,
    ConnectivityConfig,
    NetworkConfig,
    NetworkConnection,
    NetworkProtocol,
)
from isthmus.errors import ConfigError
from isthmus.values import HostPort, RequestMetadata
from isthmus.wire.request_metadata import metadata_in

DIRECT = NetworkConnection(protocol=NetworkProtocol.DIRECT)
DEADLINE_S = 20.0


def config(**networks: NetworkConfig) -> ConnectivityConfig:
    return ConnectivityConfig(networks=networks)


def service(**networks: NetworkConfig) -> ConnectivityService:
    return ConnectivityService.from_config(config(**networks))


SMALL = service(
    controlplane=NetworkConfig(name="controlplane", connection=DIRECT, hosts=("kms.example",)),
    cluster=NetworkConfig(
        name="cluster",
        connection=DIRECT,
        cidrs=(ip_network("10.0.0.0/8"), ip_network("fd00::/8")),
        hosts=(".cluster.local",),
    ),
    etcd=NetworkConfig(name="etcd", connection=DIRECT, cidrs=(ip_network("10.9.0.0/16"),)),
)


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("10.0.0.5:443", "cluster"),
        ("10.9.1.1:2379", "etcd"),  # the narrower one
        ("[fd00::1]:443", "cluster"),
        ("web.default.svc.CLUSTER.local:80", "cluster"),
        ("kms.example:443", "controlplane"),
    ],
)
def test_a_context_by_the_rules(address: str, name: str) -> None:
    assert SMALL.context_for(address) == NetworkContext(name)
    assert SMALL.context_for(HostPort.parse(address), user="a", groups=["g"]) == NetworkContext(
        name, user="a", groups=("g",)
    )


def test_a_destination_in_no_network() -> None:
    with pytest.raises(UnknownNetworkError, match=r"^Unknown network of 192\.0\.2\.1:443: "):
        SMALL.context_for("192.0.2.1:443")
    with pytest.raises(ValueError):
        SMALL.context_for("192.0.2.1")


def test_an_unknown_network() -> None:
    async def main() -> None:
        async with service(cluster=NetworkConfig(name="cluster", connection=DIRECT)) as it:
            with pytest.raises(UnknownNetworkError) as unknown:
                it.dialer(NetworkContext("etcd"))
            assert str(unknown.value) == "Unknown network 'etcd': the configuration has cluster"
            assert unknown.value.name == "etcd"
            assert it.dialer("CLUSTER").how == "directly"

    asyncio.run(main())


def test_master_is_the_control_plane() -> None:
    assert SMALL.how("Master") == "directly"


def test_it_has_to_be_open() -> None:
    async def main() -> None:
        it = service(cluster=NetworkConfig(name="cluster", connection=DIRECT))
        with pytest.raises(RuntimeError, match="not open"):
            it.dialer("cluster")
        async with it:
            with pytest.raises(RuntimeError, match="open already"):
                await it.__aenter__()
        await it.close()

    asyncio.run(main())


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        ConnectivityService.from_file(tmp_path / "none.yaml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        ConnectivityService.from_file(tmp_path / "binary")


def test_the_sample_of_the_kep_loads_and_its_dials_say_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "sample.yaml"
    path.write_text(
        """
apiVersion: connectivityservice.k8s.io/v1alpha1
kind: ConnectivityServiceConfiguration
connectionService:
  name: direct
  connection:
    type: direct
---
apiVersion: connectivityservice.k8s.io/v1alpha1
kind: ConnectivityServiceConfiguration
connectionService:
  name: Master
  connection:
    type: grpc
    url: grpc://127.0.0.1:5678
    caBundle: file1.ca
"""
    )

    async def main() -> None:
        async with ConnectivityService.from_file(path) as it:
            assert it.how("direct") == "directly"
            assert it.how("controlplane").startswith("by Payload at 127.0.0.1:5678")
            with pytest.raises(DialError):
                await it.dialer("master").dial("tcp", "10.0.0.5:443")

    asyncio.run(main())


@contextlib.contextmanager
def full() -> Iterator[str]:
    """The address of a listener whose queue is full: connecting to it never ends."""
    with socket.socket() as listener, contextlib.ExitStack() as filling:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(4):
            client = filling.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(address)
        yield f"127.0.0.1:{address[1]}"


class Sleeper:
    """A custom dialer that never comes back."""

    async def open(self, *_: object, **__: object) -> socket.socket:
        await asyncio.Event().wait()
        raise AssertionError


CUSTOM = NetworkConnection(protocol=NetworkProtocol.CUSTOM, dialer="sleeper")


@pytest.mark.parametrize("kind", ["direct", "connect", "packet", "payload", "custom"])
def test_closing_ends_dials_that_are_under_way(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(custom, "load", lambda name: Sleeper())
    path = str(tmp_path / "silent.sock")
    through = {
        "connect": NetworkProtocol.HTTP_CONNECT,
        "packet": NetworkProtocol.PACKET,
        "payload": NetworkProtocol.PAYLOAD,
    }
    way = {"direct": DIRECT, "custom": CUSTOM}.get(kind) or NetworkConnection(
        protocol=through[kind], uds=path
    )

    async def main() -> None:
        with full() as address, socket.socket(socket.AF_UNIX) as silent:
            silent.bind(path)
            silent.listen()
            async with service(cluster=NetworkConfig(name="cluster", connection=way)) as it:
                dialer = it.dialer("cluster")
                dialing = asyncio.create_task(dialer.dial("tcp", address, timeout_s=3600))
                await asyncio.sleep(0.01)  # any moment of it will do
            async with asyncio.timeout(DEADLINE_S):
                with pytest.raises(DialError, match="the service was closed"):
                    await dialing
            with pytest.raises(RuntimeError, match="closed"):
                await dialer.dial("tcp", address)

    asyncio.run(main())


def test_another_event_loop_is_told() -> None:
    async def dial(it: ConnectivityService) -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            await it.dialer("cluster").dial("tcp", "127.0.0.1:1")

    async def main() -> None:
        async with service(cluster=NetworkConfig(name="cluster", connection=DIRECT)) as it:
            await asyncio.to_thread(lambda: asyncio.run(dial(it)))

    asyncio.run(main())


def test_a_blocking_service_that_is_closed_by_another_thread() -> None:
    failures: list[BaseException] = []

    def connect() -> None:
        try:
            blocking.connect("cluster", address, timeout_s=3600)
        except BaseException as exc:
            failures.append(exc)

    with full() as address:
        blocking = BlockingService(config(cluster=NetworkConfig(name="cluster", connection=DIRECT)))
        thread = threading.Thread(target=connect)
        thread.start()
        while not blocking._service._ways:
            time.sleep(0.001)
        blocking.close()
        thread.join(DEADLINE_S)
    [failure] = failures
    assert isinstance(failure, DialError | RuntimeError)
    assert "closed" in str(failure)


# What a server hears.


def heard(protocol: NetworkProtocol, tmp_path: Path, context: NetworkContext) -> RequestMetadata:
    """What a CONNECT stub hears of a dial."""
    path = str(tmp_path / "stub.sock")
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhi")
        writer.close()

    async def main() -> None:
        server = await asyncio.start_unix_server(serve, path)
        network = NetworkConfig(
            name="cluster", connection=NetworkConnection(protocol=protocol, uds=path)
        )
        async with server, service(cluster=network) as it, asyncio.timeout(DEADLINE_S):
            connection = await it.dialer(context).dial("tcp", "10.0.0.5:443")
            assert connection.get_extra_info("target") == HostPort("10.0.0.5", 443)
            assert connection.get_extra_info("network") == context.name
            connection.abort()

    asyncio.run(main())
    assert heads[0].startswith(b"CONNECT 10.0.0.5:443 HTTP/1.1\r\n")
    pairs = (line.partition(b": ") for line in heads[0].split(b"\r\n")[1:] if line)
    return metadata_in((name, value) for name, _, value in pairs)


def test_a_server_hears_who_asks(tmp_path: Path) -> None:
    context = NetworkContext("cluster", user="alice", groups=("ops",), tenant="blue", object="a/b")
    said = heard(NetworkProtocol.HTTP_CONNECT, tmp_path, context)
    assert said == RequestMetadata(
        network="cluster", user="alice", groups=("ops",), tenant="blue", object="a/b"
    )


def test_files_that_are_missing_are_named_by_the_dial() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            network = NetworkConfig(
                name="cluster",
                connection=NetworkConnection(
                    protocol=NetworkProtocol.HTTP_CONNECT,
                    tcp=HostPort("127.0.0.1", listener.getsockname()[1]),
                    tls=ClientTls(ca_bundle="/nowhere/ca.crt"),
                ),
            )
            async with service(cluster=network) as it:
                with pytest.raises(DialError, match=r"/nowhere/ca\.crt: no such file"):
                    await it.dialer("cluster").dial("tcp", "10.0.0.5:443")

    asyncio.run(main())


# Libraries that are not installed.


@pytest.mark.parametrize("name", ["httpx", "aiohttp", "urllib3"])
def test_a_library_that_is_missing_is_one_sentence(name: str) -> None:
    code = f"import sys; sys.modules[{name!r}] = None; import isthmus.client.{name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == (
        f"ImportError: isthmus.client.{name} needs the package {name}: pip install {name}"
    )


def test_the_library_imports_none_of_them() -> None:
    code = (
        "import sys, isthmus.client, isthmus.client.kubernetes, isthmus.client.blocking;"
        "print([n for n in ('httpx', 'aiohttp', 'urllib3', 'requests', 'kubernetes', 'yaml')"
        " if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_plain_tcp_is_spoken_when_it_is_configured() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhi")
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        network = NetworkConfig(
            name="cluster",
            connection=NetworkConnection(
                protocol=NetworkProtocol.HTTP_CONNECT, tcp=HostPort("127.0.0.1", port), tls=None
            ),
        )
        async with server, service(cluster=network) as it, asyncio.timeout(DEADLINE_S):
            connection = await it.dialer("cluster").dial("tcp", "10.0.0.5:443")
            assert await connection.read() == b"hi"
            assert await connection.read() == b""
            await connection.close()

    asyncio.run(main())


def test_tls_is_only_for_tcp() -> None:
    async def main() -> None:
        network = NetworkConfig(
            name="cluster",
            connection=NetworkConnection(
                protocol=NetworkProtocol.HTTP_CONNECT, uds="/x", tls=ClientTls()
            ),
        )
        async with service(cluster=network) as it:
            with pytest.raises(ConfigError, match="TLS is only for TCP ports"):
                it.dialer("cluster")

    asyncio.run(main())
