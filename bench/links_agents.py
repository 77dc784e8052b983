"""Many agents in one process, each with its own link, for bench/links.py.

They connect, wait and reconnect with the agent's own code (programs/agent/servers.py): its
handshake, its pings and its back-off. Parts of an agent that do not concern links are missing:
ports, metrics and targets. A dial is answered here by an echo.

usage: links_agents.py PKI-DIRECTORY PORT FIRST NUMBER

Each line on stdin is answered by one JSON line: the number of linked agents, and the number of
failed attempts by stage. The program ends with its stdin.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

import uvloop

from isthmus.errors import LinkError, LinkStage
from isthmus.frame.resources import allow_all
from isthmus.links.agent_side import AgentGreeting
from isthmus.links.link import LinkTerms
from isthmus.links.talk import Incoming
from isthmus.logs import OncePer
from isthmus.net.certificates import TlsFiles
from isthmus.net.contexts import client_context
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.net.rules_proxies import ProxyRules
from isthmus.programs.agent.linking import Linking, ServerAddress, ServerAddresses
from isthmus.programs.agent.servers import Servers
from isthmus.programs.agent.settings import AgentSettings
from isthmus.text.pacing import Backoff
from isthmus.tools.pki.making import PkiFiles
from isthmus.tunnel.end import BaseEnd, Ending, join
from isthmus.values import AgentId

HOST = "127.0.0.1"
# linux/in.h: the port is chosen at connect, so that addresses can share ports.
_IP_BIND_ADDRESS_NO_PORT = 24
_AT_ONCE = 50
_LOOK_S = 0.02


class Echo(BaseEnd):
    """Sends everything back, as fast as it is accepted."""

    def __init__(self) -> None:
        self.init_end()

    def write(self, data: bytes) -> bool:
        """Send it back."""
        self.bytes_written += len(data)
        return self.peer.write(data)

    def write_eof(self) -> None:
        """End of the data."""
        self.peer.write_eof()
        self.finish(Ending.CLEAN)

    def abort(self, reason: Ending) -> None:
        """The stream is over."""
        self.finish(reason)

    def pause_reading(self) -> None:
        """There is nothing to read."""

    def resume_reading(self) -> None:
        """The data sent back has left."""
        self.peer.resume_reading()


class Failures:
    """Replaces an agent's metrics."""

    def __init__(self) -> None:
        self.by_stage: Counter[str] = Counter()
        self.opened = 0

    def link_opened(self) -> None:
        """A link was opened."""
        self.opened += 1

    def link_failed(self, stage: LinkStage) -> None:
        """An attempt failed."""
        self.by_stage[stage.name.lower()] += 1


def answer(incoming: Incoming) -> None:
    """Answer a dial without a target."""
    join(incoming.accept("sim"), Echo())


class FromOwnAddress(ServerAddresses):
    """Connects to the server from an address of its own, like a node."""

    index = 0

    def through(self, address: ServerAddress) -> Callable[[], Awaitable[socket.socket]]:
        """Connect from that address."""
        return partial(self._from_own_address, address[0][1])

    async def _from_own_address(self, address: object) -> socket.socket:
        sock = socket.socket()
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
            sock.bind((f"127.1.{self.index // 250}.{1 + self.index % 250}", 0))
            await asyncio.get_running_loop().sock_connect(sock, address)
        except OSError as exc:
            sock.close()
            raise LinkError(str(exc), LinkStage.CONNECT) from exc
        except BaseException:
            sock.close()
            raise
        return sock


class Agents:
    """All agents of this process."""

    def __init__(self, files: PkiFiles, port: int, first: int, number: int) -> None:
        loop = asyncio.get_running_loop()
        poller, resolver = Poller(loop), Resolver(loop)
        settings = AgentSettings()
        tls = TlsFiles(cert=str(files.agent_cert), key=str(files.agent_key), ca=str(files.ca_cert))
        context = client_context(tls, alpn=settings.alpn)
        self.failures = Failures()
        once = OncePer(loop.time)
        backoff = partial(
            Backoff,
            first_s=settings.sync_interval_s,
            cap_s=settings.sync_interval_cap_s,
            chance=random.random,
        )
        terms = LinkTerms(loop=loop, poller=poller)
        self.all: list[Servers] = []
        for index in range(first, first + number):
            linking = Linking(
                terms, context=lambda: context, greeting=partial(_greeting, index), on_dial=answer,
                metrics=self.failures, once=once, alpn=settings.alpn,  # type: ignore[arg-type]
            )  # fmt: skip
            addresses = FromOwnAddress(
                terms, resolver, hosts=(HOST,), port=port, proxies=ProxyRules(), once=once
            )
            addresses.index = index
            self.all.append(Servers(linking, addresses, backoff=backoff))

    def state(self) -> dict[str, object]:
        """The answer to a request."""
        linked = sum(bool(servers.links) for servers in self.all)
        return {
            "linked": linked,
            "opened": self.failures.opened,
            "failed": dict(self.failures.by_stage),
        }


def _greeting(index: int) -> AgentGreeting:
    name = f"agent-{index}"
    return AgentGreeting(agent_id=AgentId(name), identifiers=f"host={name}.sim")


async def start(agents: Agents, keeping: list[asyncio.Task[None]]) -> None:
    """Start a few agents at a time, as nodes are added; only a restart brings all at once."""
    for first in range(0, len(agents.all), _AT_ONCE):
        batch = agents.all[first : first + _AT_ONCE]
        keeping += [asyncio.create_task(servers.keep_connected()) for servers in batch]
        while not all(servers.links for servers in batch):
            await asyncio.sleep(_LOOK_S)


async def run(files: PkiFiles, port: int, first: int, number: int) -> None:
    """Keep the agents connected until stdin ends."""
    loop = asyncio.get_running_loop()
    agents = Agents(files, port, first, number)
    asked: asyncio.Queue[bytes] = asyncio.Queue()
    os.set_blocking(0, False)
    loop.add_reader(0, lambda: asked.put_nowait(os.read(0, 4096)))
    keeping: list[asyncio.Task[None]] = []
    starting = asyncio.create_task(start(agents, keeping))
    while lines := await asked.get():
        for _ in range(lines.count(b"\n")):
            print(json.dumps(agents.state()), flush=True)
    loop.remove_reader(0)
    for task in (starting, *keeping):
        task.cancel()
    await asyncio.gather(starting, *keeping, return_exceptions=True)
    for servers in agents.all:
        servers.close()
    await asyncio.gather(*(servers.wait_closed() for servers in agents.all))


if __name__ == "__main__":
    allow_all()
    _DIRECTORY, _PORT, _FIRST, _NUMBER = sys.argv[1:]
    uvloop.run(run(PkiFiles.in_directory(_DIRECTORY), int(_PORT), int(_FIRST), int(_NUMBER)))
