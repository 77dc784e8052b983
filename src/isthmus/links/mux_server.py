"""The server's side of a mux conversation: waits for Hello, answers Welcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isthmus import __version__
from isthmus.errors import ProtocolError
from isthmus.links.hello import Unwelcome, features_said, hello_fault
from isthmus.links.mux import STREAM_WINDOW_BYTES, MuxTalk
from isthmus.settings.identifiers import Identifiers
from isthmus.text.text_limits import MAX_VERSION_CHARS, cut
from isthmus.tunnel.stream import Stream
from isthmus.wire.link_pb2 import Control, Load, Refusal, Welcome
from isthmus.wire.link_pb2 import Membership as MembershipMessage

if TYPE_CHECKING:
    from isthmus.links.server_side import AgentLink, Membership


class MuxServerTalk(MuxTalk):
    """See talk.Talk."""

    def __init__(self, link: AgentLink) -> None:
        super().__init__(link, client=False)
        self._agent_link = link
        self._greeted = False

    def begin(self) -> None:
        """Begin our streams small; the agent opens the control stream."""
        self.session.first_window = STREAM_WINDOW_BYTES

    def accept_stream(self, stream: Stream) -> None:
        """The first stream is the control stream, every other is a dial."""
        if self.control is None:
            self.attach_control(stream)
        else:
            super().accept_stream(stream)

    def told(self, message: Control) -> None:
        """Take Hello, once; the rest both sides know."""
        if message.HasField("hello"):
            if self._greeted:
                raise ProtocolError("link: second hello")
            self._greeted = True
            hello = message.hello
            if hello.relay != self._agent_link.relays:
                raise ProtocolError("link: a hello of the other kind than ALPN said")
            labels = dict(hello.labels)
            fault = hello_fault(
                agent_id=hello.agent_id,
                identifiers=hello.identifiers,
                labels=labels,
                network=hello.network,
                token=hello.token,
            )
            if fault:
                self._agent_link.turn_away(fault, Unwelcome.BAD_HELLO)
                return
            try:
                identifiers = Identifiers.read_claim(hello.identifiers)
            except ValueError as exc:
                self._agent_link.turn_away(f"identifiers: {exc}", Unwelcome.BAD_HELLO)
                return
            self._agent_link.greeted(
                agent_id=hello.agent_id,
                identifiers=identifiers,
                labels=labels,
                network=hello.network,
                version=cut(hello.version, MAX_VERSION_CHARS),
                token=hello.token,
                features=features_said(hello.features),
            )
        elif not self._greeted:
            raise ProtocolError("link: hello expected first")
        else:
            super().told(message)

    def welcome(self, membership: Membership) -> None:
        """Say who we are, and how many."""
        self.tell(
            Control(
                welcome=Welcome(
                    server_id=membership.server_id,
                    server_count=membership.server_count,
                    servers=membership.servers,
                    stream_window=STREAM_WINDOW_BYTES,
                    max_streams=self.link.limits.max_streams,
                    version=__version__,
                    features=membership.features,
                )
            )
        )

    def tell_agents(self, number: int) -> None:
        """To another server: so many agents could take its dials."""
        self.tell(Control(load=Load(agents=number)))

    def tell_membership(self, membership: Membership) -> None:
        """The set of servers changed."""
        self.tell(
            Control(
                membership=MembershipMessage(
                    server_count=membership.server_count, servers=membership.servers
                )
            )
        )

    def refuse(self, reason: str) -> None:
        """Say why the agent is not welcome."""
        self.tell(Control(refusal=Refusal(reason=reason)))
