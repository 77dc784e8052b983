"""The agent's side of a mux conversation: says Hello, waits for Welcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isthmus import __version__
from isthmus.errors import LinkStage, ProtocolError
from isthmus.links.hello import features_said
from isthmus.links.mux import MuxTalk
from isthmus.wire.link_pb2 import Control, Hello, Welcome

if TYPE_CHECKING:
    from isthmus.links.agent_side import ServerLink


class MuxAgentTalk(MuxTalk):
    """See talk.Talk."""

    def __init__(self, link: ServerLink) -> None:
        super().__init__(link, client=True)
        self._server_link = link

    def begin(self) -> None:
        """Open the control stream and say who we are."""
        stream = self.session.open()
        assert stream is not None  # the first of a new session
        self.attach_control(stream)
        greeting = self._server_link.greeting
        self.tell(
            Control(
                hello=Hello(
                    agent_id=greeting.agent_id,
                    identifiers=greeting.identifiers,
                    labels=greeting.labels,
                    network=greeting.network,
                    token=greeting.token,
                    version=__version__,
                    features=greeting.features,
                    relay=self.relays,
                )
            )
        )

    def told(self, message: Control) -> None:
        """Take Welcome, once; a refusal; a change of membership; the rest both sides know."""
        link = self._server_link
        kind = message.WhichOneof("message")
        if kind == "welcome":
            if link.ready:
                raise ProtocolError("link: second welcome")
            self._welcome(message.welcome)
        elif kind == "refusal":
            link.lost(f"refused by the server: {message.refusal.reason}", LinkStage.REFUSED)
        elif kind == "membership":
            link.members_changed(message.membership.server_count, message.membership.servers)
        else:
            super().told(message)

    def _welcome(self, welcome: Welcome) -> None:
        if welcome.stream_window:
            self.session.first_window = min(self.session.first_window, welcome.stream_window)
        self._server_link.welcome(
            welcome.server_id,
            welcome.server_count,
            welcome.servers,
            features=features_said(welcome.features),
            version=welcome.version,
        )
