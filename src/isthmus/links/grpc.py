"""A conversation by konnectivity's gRPC: one call of /AgentService/Connect over HTTP/2.

What both sides share; links/grpc_server.py and links/grpc_agent.py add their halves. The packets
are tunnel/packet_link.py.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from isthmus.errors import ProtocolError
from isthmus.tunnel.end import Ending
from isthmus.tunnel.http2 import MIB, Http2Connection, Http2Limits
from isthmus.tunnel.packet_link import PacketLink
from isthmus.wire.http2 import ErrorCode

if TYPE_CHECKING:
    from isthmus.links.link import Link

PATH = b"/AgentService/Connect"
#: Our own programs agree by this header on a packet for half-close (wire/packet.py, end_of_data).
HALF_CLOSE = b"isthmus-half-close"
#: What the server's connection ids begin with. Konnectivity's packets have room for a number only:
#: the rest of the id, which is what Go's programs log as dialID.
PROCESS = b"isthmus-process"
#: What the whole link may send ahead at first; it grows. What each connection may make us keep is
#: bounded by the brake (tunnel/packet_brake.py).
_WINDOW_BYTES = MIB
#: Identifiers and a token may be 64 KiB each.
_HEADER_BYTES = 256 * 1024


class GrpcTalk:
    """One side of the conversation; see talk.Talk. The owner of its packets."""

    name = "grpc"

    def __init__(
        self, link: Link, *, client: bool, ping_every_s: float, dead_after_s: float
    ) -> None:
        self.link = link
        self.packets: PacketLink | None = None
        self._broken = ""
        self.session = Http2Connection(
            link.carrier,
            client=client,
            clock=time.monotonic,
            on_request=None,
            limits=Http2Limits(
                max_streams=16,
                max_header_list_bytes=_HEADER_BYTES,
                max_continuations=32,
                stream_window_bytes=_WINDOW_BYTES,
                connection_window_bytes=16 * MIB,
                ping_every_s=ping_every_s,
                dead_after_s=dead_after_s,
            ),
        )

    # State.

    @property
    def can_open(self) -> bool:
        """One more connection fits."""
        packets = self.packets
        return packets is not None and self.load < self.link.limits.max_streams

    @property
    def full(self) -> bool:
        """It carries all the connections it may."""
        return self.packets is not None and not self.can_open

    @property
    def load(self) -> int:
        """How many dials and connections it carries."""
        packets = self.packets
        return len(packets.ends) + len(packets.dials) if packets is not None else 0

    @property
    def held_bytes(self) -> int:
        """Bytes that full sinks have not taken."""
        return self.packets.held if self.packets is not None else 0

    @property
    def window_growth_bytes(self) -> int:
        """None: connections share the window of the one call, which never grows."""
        return 0

    @property
    def window_growth_peak_bytes(self) -> int:
        """None, likewise."""
        return 0

    @property
    def waiting_bytes(self) -> int:
        """What waits for the window of the one call."""
        return self.packets.stream.out_bytes if self.packets is not None else 0

    @property
    def round_trip_s(self) -> float:
        """The last round trip."""
        return self.session.round_trip_s

    @property
    def peer_drains(self) -> bool:
        """The peer said so, by DRAIN or by GOAWAY."""
        return self.link.draining or self.session.remote_draining

    @property
    def worn(self) -> bool:
        """One call lasts for ever."""
        return False

    @property
    def unsent(self) -> bool:
        """Frames or data wait for the carrier."""
        return self.session.unsent

    # Its life.

    def be_ready(self) -> None:
        """Measure the round trip."""
        self.session.ping()

    def drain(self) -> None:
        """Say that we take no new dials, if the protocol can."""
        if self.packets is not None:
            self.packets.drain()

    def go_away(self) -> None:
        """Say goodbye: Go's agent sees its connection end, and connects elsewhere."""
        self.session.go_away()

    def violated(self) -> None:
        """Say so before the link is closed; HTTP/2 said it itself if that was broken."""
        self.session.go_away(ErrorCode.PROTOCOL_ERROR)

    def flush(self) -> None:
        """Write out what was said."""
        self.session.flush()

    def tick(self) -> bool:
        """Ping, and look after replies."""
        if self.packets is not None:
            self.packets.tick()
        return self.session.tick()

    def lost(self, reason: Ending) -> None:
        """The carrier is gone."""
        packets, self.packets = self.packets, None
        if packets is not None:
            packets.lost(reason)
        self.session.lost()

    # What the packets report: see packet_link.Owner.

    def asked(self, protocol: str, address: str, random: int) -> None:
        """Only an agent is asked."""

    def taken_back(self, random: int) -> None:
        """Only an agent is asked."""

    def told_to_drain(self) -> None:
        """The agent takes no new dials."""
        self.link.draining = True

    def call_over(self, text: str) -> None:
        """The call is the link."""
        if text == self._broken:
            self.link.violated(ProtocolError(text))
        else:
            self.link.lost(text)

    def ease_later(self, delay_s: float) -> None:
        """A full sink brakes, for so long at most."""
        packets = self.packets
        if packets is not None:
            self.link.loop.call_later(delay_s, packets.ease)

    def broke_rules(self, what: str) -> None:
        """Remember it: it is told when the link ends, if that is why."""
        self._broken = what
