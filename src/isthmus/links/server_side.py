"""The server's side of a link: waits for Hello, answers Welcome, knows the agent."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from isthmus import __version__
from isthmus.config.identifiers import Identifiers
from isthmus.errors import ProtocolError
from isthmus.links.dials import IncomingDial
from isthmus.links.link import STREAM_WINDOW_BYTES, Link
from isthmus.net.poller import Poller
from isthmus.tunnel.limits import Limits
from isthmus.tunnel.stream import Stream
from isthmus.values import AgentId, ServerId
from isthmus.wire.link_pb2 import Control, Hello, Refusal, Welcome

_MAX_ID_CHARS = 253


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What a server tells its agents about the set of servers."""

    server_id: ServerId
    server_count: int = 1
    servers: tuple[str, ...] = ()


class AgentLink(Link):
    """A link to an agent, as a server sees it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        membership: Callable[[], Membership],
        on_ready: Callable[[AgentLink], None],
        on_dial: Callable[[IncomingDial], None],
        on_closed: Callable[[Link], None],
        limits: Limits = Limits(),
    ) -> None:
        self.agent_id = AgentId("")
        self.identifiers = Identifiers()
        self.labels: dict[str, str] = {}
        self.version = ""
        self._membership = membership
        self._on_ready = on_ready
        super().__init__(
            loop,
            poller,
            sock,
            context,
            server_hostname=None,
            on_dial=on_dial,
            on_closed=on_closed,
            limits=limits,
        )

    def begin(self) -> None:
        """Begin our streams small; the agent opens the control stream."""
        assert self.session is not None
        self.session.first_window = STREAM_WINDOW_BYTES

    def accept_stream(self, stream: Stream) -> None:
        """The first stream is the control stream, every other is a dial."""
        if self._control is None:
            self.attach_control(stream)
        else:
            super().accept_stream(stream)

    def told(self, message: Control) -> None:
        """Take Hello, once; the rest both sides know."""
        if message.HasField("hello"):
            if self.agent_id:
                raise ProtocolError("link: second hello")
            self._greeted(message.hello)
        elif not self.agent_id:
            raise ProtocolError("link: hello expected first")
        else:
            super().told(message)

    def _greeted(self, hello: Hello) -> None:
        if not 0 < len(hello.agent_id) <= _MAX_ID_CHARS:
            self.tell(Control(refusal=Refusal(reason="agent id is empty or too long")))
            raise ProtocolError("link: agent id is empty or too long")
        self.agent_id = AgentId(hello.agent_id)
        self.identifiers = Identifiers.read_lenient(hello.identifiers)
        self.labels = dict(hello.labels)
        self.version = hello.version
        membership = self._membership()
        self.tell(
            Control(
                welcome=Welcome(
                    server_id=membership.server_id,
                    server_count=membership.server_count,
                    servers=membership.servers,
                    stream_window=STREAM_WINDOW_BYTES,
                    max_streams=self._limits.max_streams,
                    version=__version__,
                )
            )
        )
        self.be_ready()
        self._on_ready(self)
