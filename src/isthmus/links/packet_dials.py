"""Dials that a peer asks for by DIAL_REQ: any server an agent, and an agent of ours a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from isthmus.errors import DialFailure, ProtocolError
from isthmus.links.dials import heard_about
from isthmus.links.go_errors import go_text
from isthmus.text.text_limits import MAX_DETAIL_CHARS, MAX_DIAL_BYTES
from isthmus.tunnel.end import BaseEnd, Ending
from isthmus.values import ANONYMOUS, NORMAL, NOTHING, HostPort, TrafficClass

if TYPE_CHECKING:
    from isthmus.links.grpc import GrpcTalk
    from isthmus.tunnel.packet_link import PacketLink


class IncomingPacketDial:
    """One of them; see talk.Incoming. What cannot be read as a target has the port 0.

    Raises:
        ProtocolError: what a program of ours says about it cannot be read.
    """

    __slots__ = (
        "_packets",
        "_random",
        "_talk",
        "_target",
        "_unwanted",
        "answered",
        "asking",
        "connection_id",
        "host",
        "link_id",
        "on_cancelled",
        "port",
        "requester",
        "timeout_s",
        "traffic",
    )

    def __init__(
        self,
        talk: GrpcTalk,
        packets: PacketLink,
        target: HostPort | str,
        random: int,
        ours: bytes = b"",
    ) -> None:
        self._talk = talk
        self._packets = packets
        self._random = random
        self._unwanted = False
        self._target = target
        self.host, self.port = (
            (target.host, target.port) if isinstance(target, HostPort) else (target, 0)
        )
        self.timeout_s = 0.0
        self.link_id = talk.link.id
        self.connection_id = talk.connection_id(random)
        self.answered = False
        self.on_cancelled: Callable[[], None] | None = None
        if len(ours) > MAX_DIAL_BYTES:
            raise ProtocolError(f"link: Dial of {len(ours)} bytes in a packet")
        # Konnectivity does not say who wants it, nor anything else; a program of ours does.
        self.requester, self.asking, self.traffic = (
            heard_about(ours) if ours else (ANONYMOUS, NOTHING, NORMAL)
        )

    def accept(self, address: str, traffic: TrafficClass | None = None) -> BaseEnd:
        """Say that the target is reached; gives the end to join to it.

        ``traffic`` is the class that we choose, which these packets cannot tell; see talk.Incoming.
        """
        if self._settle():
            chosen = self.traffic if traffic is None else traffic
            account = self._talk.link.payer(self.requester)
            end = self._packets.accept(
                self._random, reached=address, traffic=chosen, account=account
            )
            account.close()
            return end
        return self._packets.unwanted(self._random, Ending.CANCELLED)

    def refuse(self, failure: DialFailure, detail: str) -> None:
        """Say why not."""
        if self._settle():
            text = go_text(failure, self._target, detail[:MAX_DETAIL_CHARS])
            self._packets.refuse(self._random, text)

    def _settle(self) -> bool:
        """Answer it, unless it was taken back: its number may mean another dial by now."""
        self.answered = True
        self.on_cancelled = None
        if not self._unwanted:
            self._talk.settled(self._random)
        return not self._unwanted

    def cancel(self) -> None:
        """The peer does not want it any more, or is gone."""
        self._unwanted = True
        if self.on_cancelled is not None:
            cancelled, self.on_cancelled = self.on_cancelled, None
            cancelled()
