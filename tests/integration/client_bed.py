"""Configurations of the client library for a running stack, one network for each way there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import uvloop
from clients import LIMIT_S
from stack import Stack

from isthmus.client import ConnectivityService
from isthmus.dial.rules_connectivity import (
    ClientTls,
    ConnectivityConfig,
    NetworkConfig,
    NetworkConnection,
    NetworkProtocol,
)
from isthmus.values import HostPort

KINDS = [
    "connect-uds",
    "connect-tls",
    "packet-uds",
    "packet-tls",
    "payload-uds",
    "payload-tls",
    "direct",
]
THROUGH_SERVER = [kind for kind in KINDS if kind != "direct"]
PROTOCOLS = {
    "connect": NetworkProtocol.HTTP_CONNECT,
    "packet": NetworkProtocol.PACKET,
    "payload": NetworkProtocol.PAYLOAD,
}


def doors(stack: Stack) -> dict[str, object]:
    """Settings of a server with all its frontends."""
    return {
        "mode": ("grpc", "http-connect"),
        "http_connect_uds_name": str(stack.dir / f"connect{len(stack.servers)}.sock"),
        "http_connect_port": 0,
    }


@contextlib.contextmanager
def all_doors(files: object) -> Iterator[Stack]:
    """A server with all its frontends, and an agent."""
    with Stack(files) as stack:  # type: ignore[arg-type]
        stack.add_server(**doors(stack))
        stack.add_agent()
        yield stack


def way(stack: Stack, kind: str, *, named: bool = True) -> NetworkConnection:
    """The connection of a kind; without a client certificate if it is not ``named``."""
    if kind == "direct":
        return NetworkConnection(protocol=NetworkProtocol.DIRECT)
    word, _, carrier = kind.partition("-")
    settings = stack.server.settings
    if carrier == "uds":
        connect = word == "connect"
        uds = settings.http_connect_uds_name if connect else settings.uds_name
        return NetworkConnection(protocol=PROTOCOLS[word], uds=uds)
    files = stack.files
    port = stack.server.doors.ports["http-connect" if word == "connect" else "grpc"]
    return NetworkConnection(
        protocol=PROTOCOLS[word],
        tcp=HostPort("localhost", port),
        tls=ClientTls(
            ca_bundle=str(files.ca_cert),
            client_cert=str(files.client_cert) if named else "",
            client_key=str(files.client_key) if named else "",
        ),
    )


def config(stack: Stack, kinds: list[str] = KINDS) -> ConnectivityConfig:
    """Every kind is a network of that name."""
    return ConnectivityConfig(
        networks={kind: NetworkConfig(name=kind, connection=way(stack, kind)) for kind in kinds}
    )


@contextlib.asynccontextmanager
async def opened(config: ConnectivityConfig) -> AsyncIterator[ConnectivityService]:
    """A service; when it is over, nothing of it may be left."""
    before = asyncio.all_tasks()
    async with ConnectivityService.from_config(config) as service:
        yield service
        ground = service._ground
        assert ground is not None
    assert not service._ends
    assert len(ground.poller) == 0
    # A cancelled task needs a turn to end.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before


def run(work: Callable[[], Awaitable[None]], *, uv: bool = True) -> None:
    """Run in a loop of its own, within the time limit; whatever goes wrong unheard is an error."""
    unhandled: list[object] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unhandled.append(context))
        async with asyncio.timeout(LIMIT_S):
            await work()

    factory = uvloop.new_event_loop if uv else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
    assert not unhandled


async def until(holds: Callable[[], object]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(LIMIT_S):
        while not holds():
            await asyncio.sleep(0.001)
