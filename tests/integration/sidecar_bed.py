"""A sidecar's dialer in front of a real server and agent, with a guest API, DNS and proxies."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import sys
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from client_bed import until
from clients import LIMIT_S, free_port
from stack import Stack

from isthmus.errors import DialError
from isthmus.net.connect import reach_by
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.programs.https_proxy.settings import HttpsProxySettings
from isthmus.programs.sidecar.dialer import SidecarDialer
from isthmus.programs.sidecar.rules_tunnel_health import TunnelHealth
from isthmus.programs.socks5_proxy.settings import Socks5ProxySettings
from isthmus.testing.ends import MemoryEnd
from isthmus.tools.pki import making as pki
from isthmus.tunnel.end import BaseEnd, Ending, join
from isthmus.values import HostPort

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "kube"))
sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "net"))

from dns_stub import StubDns, Zone  # found by the two lines above
from fakeservices import FakeServices

__all__ = ["Dnsmasq", "FakeServices", "StubDns", "Zone"]

DNS = "openshift-dns/dns-default"


def server_flags(stack: Stack, kind: str) -> dict[str, Any]:
    """The flags that lead to a running server, by ``connect-uds``, ``grpc-tls`` and so on."""
    word, _, carrier = kind.partition("-")
    settings, files = stack.server.settings, stack.files
    protocol = {"connect": "http-connect", "grpc": "grpc"}[word]
    if carrier == "uds":
        uds = settings.http_connect_uds_name if word == "connect" else settings.uds_name
        return {"konnectivity_uds": uds, "konnectivity_protocol": protocol}
    port = stack.server.doors.ports["http-connect" if word == "connect" else "grpc"]
    assert port is not None
    return {
        "konnectivity_hostname": "localhost",
        "konnectivity_port": port,
        "konnectivity_protocol": protocol,
        "ca_cert_path": str(files.ca_cert),
        "tls_cert_path": str(files.client_cert),
        "tls_key_path": str(files.client_key),
    }


class Bed:
    """The dialer and what is around it."""

    def __init__(
        self,
        flags: dict[str, Any],
        api: FakeServices,
        *,
        environment: Mapping[str, str] = {},
        aliases: Mapping[str, list[str]] = {},
        retry_s: float = 30.0,
        settings: type[Socks5ProxySettings | HttpsProxySettings] = Socks5ProxySettings,
    ) -> None:
        loop = asyncio.get_running_loop()
        made = settings(**flags)
        made.validate()
        self.api = api
        self.poller = Poller(loop)
        self.health = TunnelHealth(retry_s=retry_s)
        # What the management cluster's DNS knows.
        self.dialer = SidecarDialer(
            loop,
            self.poller,
            made,
            kube=api.open() if made.needs_kube else None,
            environment=environment,
            resolver=Resolver(loop, aliases),
            health=self.health,
        )

    async def reach(self, host: str, port: int, timeout_s: float = LIMIT_S) -> BaseEnd:
        return await reach_by(self.dialer, HostPort(host, port), timeout_s)

    async def says(self, host: str, port: int, timeout_s: float = LIMIT_S) -> bytes:
        """Dial, send a greeting to who echoes, and give what comes back."""
        end = await self.reach(host, port, timeout_s)
        near = MemoryEnd()
        join(near, end)
        end.write(b"hello")
        await until(lambda: len(near.received) >= 5 or near.aborted)
        end.abort(Ending.CANCELLED)
        return bytes(near.received)

    async def fails(self, host: str, port: int, timeout_s: float = LIMIT_S) -> DialError:
        with pytest.raises(DialError) as caught:
            await self.reach(host, port, timeout_s)
        return caught.value


@contextlib.asynccontextmanager
async def sidecar(flags: dict[str, Any], directory: Path, **how: Any) -> AsyncIterator[Bed]:
    """A started dialer with a guest API; when it is over, nothing of it may be left."""
    before = asyncio.all_tasks()
    api = FakeServices(directory)
    await api.start()
    running = asyncio.all_tasks()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(api.close)
        bed = Bed(flags, api, **how)
        try:
            await bed.dialer.start()
            yield bed
            assert not bed.dialer._dials
        finally:
            await bed.dialer.close()
            await until(lambda: len(bed.poller) == 0)
            bed.poller.shut_down()
    await until(lambda: asyncio.all_tasks() <= before | running)


@contextlib.asynccontextmanager
async def stub_dns(zone: Zone) -> AsyncIterator[StubDns]:
    """A DNS server of ours."""
    stub = StubDns(zone.reply)
    await stub.start()
    try:
        yield stub
    finally:
        await stub.stop()


def put_dns(bed: Bed, port: int, at: str = DNS, address: str = "127.0.0.1") -> None:
    """Make a server the DNS of the guest cluster."""
    ports = [{"name": "dns", "port": port, "protocol": "UDP"}, {"name": "dns-tcp", "port": port}]
    bed.api.put(at, address, ports=ports)


class Dnsmasq:
    """Debian's dnsmasq on loopback."""

    def __init__(self, *arguments: str) -> None:
        self.port = free_port()
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        found = shutil.which("dnsmasq") or shutil.which("dnsmasq", path="/usr/sbin:/sbin")
        if found is None:
            pytest.skip("dnsmasq is not installed")
        self._process = await asyncio.create_subprocess_exec(
            found,
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--pid-file",
            "--no-resolv",
            "--no-hosts",
            "--user=root",
            f"--port={self.port}",
            "--listen-address=127.0.0.1",
            "--bind-interfaces",
            *self._arguments,
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(LIMIT_S):
            while True:
                assert self._process.returncode is None
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    writer.close()
                    await writer.wait_closed()
                    return
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            await self._process.wait()
            self._process = None


class Proxy:
    """An HTTP proxy for CONNECT that leads every name to loopback."""

    def __init__(self, files: pki.PkiFiles, scheme: str) -> None:
        self.scheme = scheme
        self.asked: list[str] = []
        self.users: list[str] = []
        self.answer = b"HTTP/1.1 200 Connection established\r\n\r\n"
        self.silent = False
        self.port = 0
        self._tls: ssl.SSLContext | None = None
        if scheme == "https":
            self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._tls.load_cert_chain(files.server_cert, files.server_key)
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for writer in self._writers:
                writer.transport.abort()  # a close over TLS waits for an answer, beyond this loop

    @property
    def url(self) -> str:
        return f"{self.scheme}://me:secret@localhost:{self.port}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._serve(reader, writer)
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        target = head[0].split(" ")[1]
        self.asked.append(target)
        for line in head[1:]:
            name, _, value = line.partition(": ")
            if name.lower() == "proxy-authorization":
                self.users.append(b64decode(value.split(" ")[1]).decode())
        if self.silent:
            await reader.read()
            return
        if b" 200 " not in self.answer:
            writer.write(self.answer)
            return
        far_reader, far_writer = await asyncio.open_connection(
            "127.0.0.1", int(target.rpartition(":")[2])
        )
        writer.write(self.answer)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_copy(reader, far_writer))
            tasks.create_task(_copy(far_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()
    except asyncio.CancelledError:
        writer.transport.abort()  # the loop may end: nothing would flush what is left
        raise
