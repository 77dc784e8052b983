"""Both sides of links over real connections, and what happened to them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from isthmus.links.agent_side import AgentGreeting, LinkOpening, ServerHooks, ServerLink, connect
from isthmus.links.link import Link, LinkTerms
from isthmus.links.server_side import Admit, AgentHooks, AgentLink, Membership
from isthmus.links.talk import Incoming
from isthmus.net.connect import Address, literal
from isthmus.net.contexts import TlsFiles, client_context, server_context
from isthmus.net.listen import Listener, bind_tcp
from isthmus.net.poller import Poller
from isthmus.tools.pki import making as pki
from isthmus.values import AgentId, ServerId
from isthmus.wire.alpn import ALPN

MUX, GRPC = (ALPN,), ("h2",)


class Bench:
    """A listener of server sides; ``settings`` are more of the terms of each AgentLink."""

    def __init__(self, files: pki.PkiFiles) -> None:
        self.files = files
        self.loop = asyncio.get_running_loop()
        self.poller = Poller(self.loop)
        self.membership = Membership(server_id=ServerId("server"), server_count=3)
        self.settings: dict[str, Any] = {}
        self.admit: Admit = lambda link, token, decided: decided("")
        self.on_ready: Callable[[AgentLink], object] = lambda link: None
        self.accepted: list[AgentLink] = []
        self.ready: list[AgentLink] = []
        self.gone: list[Link] = []
        self.dials: list[Any] = []  # IncomingDial over mux, IncomingPacketDial over gRPC
        self.links: list[ServerLink] = []
        tls = TlsFiles(str(files.server_cert), str(files.server_key), str(files.ca_cert))
        self._context = server_context(tls, alpn=(ALPN, "h2"))
        (sock,) = bind_tcp("127.0.0.1", 0, flag="--port")
        self._listener = Listener(self.loop, self.poller, sock, self._accept)
        self.address: Address = literal("127.0.0.1", self._listener.port)

    def _accept(self, sock: socket.socket) -> None:
        self.accepted.append(
            AgentLink(
                LinkTerms(loop=self.loop, poller=self.poller, **self.settings),
                AgentHooks(
                    membership=lambda: self.membership,
                    on_ready=self._is_ready,
                    on_dial=self._dialed,
                    on_closed=self.gone.append,
                    admit=self.admit,
                ),
                sock,
                self._context,
            )
        )

    def _is_ready(self, link: AgentLink) -> None:
        self.ready.append(link)
        self.on_ready(link)

    def _dialed(self, incoming: Incoming) -> None:
        self.dials.append(incoming)

    async def connect(
        self,
        *,
        agent_id: str = "agent",
        alpn: tuple[str, ...] = MUX,
        address: Address | None = None,
        token: str = "",
        network: str = "",
        features: tuple[str, ...] = (),
        process: str = "",
        claim: Callable[[ServerLink], bool] = lambda link: True,
        **more: Any,
    ) -> ServerLink:
        """Link as an agent does; ``more`` are more of its terms."""
        files = self.files
        tls = TlsFiles(str(files.agent_cert), str(files.agent_key), str(files.ca_cert))
        link = await connect(
            LinkTerms(loop=self.loop, poller=self.poller, **more),
            ServerHooks(on_dial=self._dialed, claim=claim),
            LinkOpening(
                context=client_context(tls, alpn=alpn),
                server_hostname="localhost",
                greeting=AgentGreeting(
                    agent_id=AgentId(agent_id),
                    identifiers="host=n1",
                    network=network,
                    token=token,
                    features=features,
                    process=process,
                ),
            ),
            address or self.address,
        )
        self.links.append(link)
        return link

    async def linked(self, alpn: tuple[str, ...] = MUX) -> tuple[AgentLink, ServerLink]:
        """Both sides of a new link."""
        agent_side = await self.connect(alpn=alpn)
        return self.ready[-1], agent_side

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until it holds."""
        async with asyncio.timeout(20):
            while not holds():
                await asyncio.sleep(0.001)

    async def close(self) -> None:
        """End every link and look that nothing is left."""
        self._listener.stop()
        for link in (*self.links, *self.accepted):
            link.close("test over")
        await self.until(lambda: len(self.gone) == len(self.accepted))
        await self.until(lambda: len(self.poller) == 0)
        self.poller.shut_down()


@contextlib.asynccontextmanager
async def bench(files: pki.PkiFiles) -> AsyncIterator[Bench]:
    """A bench, and its end."""
    made = Bench(files)
    try:
        async with asyncio.timeout(30):
            yield made
    finally:
        await made.close()


def run(files: pki.PkiFiles, test: Callable[[Bench], Awaitable[None]]) -> None:
    """Run a test on a bench of its own."""

    async def main() -> None:
        async with bench(files) as made:
            await test(made)

    asyncio.run(main())
