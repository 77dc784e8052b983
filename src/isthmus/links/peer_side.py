"""A link to another server, to have dials passed to its agents: this side opens, the other relays.

The connection is made as an agent makes it, to the same port, under an ALPN name of its own. One
hop at most: what comes by such a link is for the other server's own agents, and it opens nothing
here. Which of these links is asked, and when, is dial/dialers/through_peer.py.
"""

from __future__ import annotations

from isthmus.errors import ProtocolError
from isthmus.links.agent_side import ServerLink
from isthmus.links.mux_agent import MuxAgentTalk
from isthmus.tunnel.end import Ending
from isthmus.tunnel.stream import Stream
from isthmus.wire.link import RELAY_ALPN
from isthmus.wire.link_pb2 import Control


class PeerLink(ServerLink):
    """See ServerLink. ``agents`` is whether the other server said that it has any."""

    agents = False

    def choose_talk(self, alpn: str | None) -> MuxAgentTalk:
        """Our own protocol, and only with a server that relays.

        Raises:
            ProtocolError: it does not, or not any more.
        """
        if alpn != RELAY_ALPN:
            raise ProtocolError("the server does not relay (--peer-relay-name is not set there)")
        return MuxPeerTalk(self)

    @property
    def can_relay(self) -> bool:
        """The other server could pass a dial on now, as far as is known."""
        return self.agents and self.takes_dials


class MuxPeerTalk(MuxAgentTalk):
    """See talk.Talk."""

    relays = True

    def __init__(self, link: PeerLink) -> None:
        super().__init__(link)
        self._peer_link = link

    def told(self, message: Control) -> None:
        """Take also whether the other server has agents."""
        if message.HasField("load"):
            self._peer_link.agents = message.load.agents > 0
        else:
            super().told(message)

    def accept_stream(self, stream: Stream) -> None:
        """Take nothing: another server has agents of its own to dial through."""
        stream.abort(Ending.PROTOCOL)
