"""Konnectivity's gRPC protocol on a link: one call of /AgentService/Connect over HTTP/2.

The part that both sides share; agent_side.py and server_side.py add their halves. The packets
are tunnel/packet_link.py.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from isthmus.errors import DialFailure, ProtocolError
from isthmus.links.dials import heard_about, said_about
from isthmus.links.go_errors import detail_in, failure_in, go_text
from isthmus.links.talk import Told
from isthmus.text.text_limits import MAX_DETAIL_CHARS, MAX_DIAL_BYTES
from isthmus.tunnel.budget import OVER_SHARE, Account
from isthmus.tunnel.end import BaseEnd, Ending
from isthmus.tunnel.http2 import Http2Connection
from isthmus.tunnel.limits import MIB, Http2Limits
from isthmus.tunnel.linked_end import LinkedEnd
from isthmus.tunnel.packet_link import PacketLink
from isthmus.values import (
    ANONYMOUS,
    NORMAL,
    NOTHING,
    DialId,
    DialRequest,
    HostPort,
    TrafficClass,
)
from isthmus.wire.http2 import ErrorCode
from isthmus.wire.link import TO_WIRE
from isthmus.wire.link_pb2 import DialResult

if TYPE_CHECKING:
    from isthmus.links.link import Link

PATH = b"/AgentService/Connect"
#: With this header Isthmus programs agree on a packet for half-close (wire/packet.py, end_of_data).
HALF_CLOSE = b"isthmus-half-close"
#: The initial window of the whole link; it grows. The brake (tunnel/packet_brake.py) bounds what
#: each connection may make us keep.
_WINDOW_BYTES = MIB
#: Identifiers, a token and everything else (text/text_limits.py), with room for other metadata.
_HEADER_BYTES = 64 * 1024
_MAX_SHOWN_CHARS = 300
_REACHED = DialResult()
_OWN_NUMBER = re.compile(r"[0-9a-f]{1,14}", re.ASCII)
#: Above any number in our own connection ids; the field has 63 bits.
_NOT_OF_IDS = 1 << 60


class GrpcTalk:
    """One side of the protocol; see talk.Talk. The owner of its packets."""

    name = "grpc"

    def __init__(
        self, link: Link, *, client: bool, process: str, ping_every_s: float, dead_after_s: float
    ) -> None:
        """``process`` is the prefix of our own connection ids."""
        self.link = link
        self.packets: PacketLink | None = None
        self._process = process
        self.peer_process = ""  # the prefix of the peer's connection ids
        self._dials: dict[int, IncomingPacketDial] = {}  # requested by the peer
        self._broken = ""
        self.session = Http2Connection(
            link.carrier,
            client=client,
            clock=time.monotonic,
            on_request=None,
            limits=Http2Limits(
                max_streams=16,
                max_header_list_bytes=_HEADER_BYTES,
                max_continuations=8,
                stream_window_bytes=_WINDOW_BYTES,
                connection_window_bytes=16 * MIB,
                ping_every_s=ping_every_s,
                dead_after_s=dead_after_s,
            ),
            account=link.account,
        )

    # State.

    @property
    def can_open(self) -> bool:
        packets = self.packets
        return packets is not None and self.load < self.link.limits.max_streams

    @property
    def full(self) -> bool:
        return self.packets is not None and not self.can_open

    @property
    def load(self) -> int:
        packets = self.packets
        opened = len(packets.ends) + len(packets.dials) if packets is not None else 0
        return opened + len(self._dials)

    @property
    def held_bytes(self) -> int:
        """Bytes that full sinks have not taken."""
        return self.packets.held if self.packets is not None else 0

    @property
    def window_growth_bytes(self) -> int:
        """Zero: connections share the window of the one call, which never grows."""
        return 0

    @property
    def window_growth_peak_bytes(self) -> int:
        """Zero, likewise."""
        return 0

    @property
    def waiting_bytes(self) -> int:
        """The bytes that wait for the window of the one call."""
        return self.packets.stream.out_bytes if self.packets is not None else 0

    @property
    def round_trip_s(self) -> float:
        return self.session.round_trip_s

    @property
    def unanswered_s(self) -> float:
        return self.session.unanswered_s

    @property
    def peer_drains(self) -> bool:
        """Whether the peer sent DRAIN or GOAWAY."""
        return self.link.draining or self.session.remote_draining

    @property
    def worn(self) -> bool:
        """Never: one call has no limit of streams."""
        return False

    @property
    def unsent(self) -> bool:
        return self.session.unsent

    # Its life.

    def pays_by(self, account: Account) -> None:
        """The peer is authenticated: this account pays from now on."""
        session = self.session
        session.account = account
        for stream in session.streams.values():
            session.charge(stream, account)
        if self.packets is not None:
            self.packets.account = account

    def be_ready(self) -> None:
        """Measure the round trip."""
        self.session.ping()

    def probe(self) -> None:
        """Ping, unless the peer is a Go server, which disconnects peers that ping often."""
        ours = self.packets is not None and self.packets.half_closes
        if ours or not self.session.client:
            self.session.ping()

    def drain(self, *, turn_away: bool = False) -> None:
        """Ask for no new dials, if the peer supports it; the protocol cannot turn dials away."""
        if self.packets is not None:
            self.packets.drain()

    def go_away(self) -> None:
        """Send GOAWAY: Go's agent sees its connection end, and connects elsewhere."""
        self.session.go_away()

    def violated(self) -> None:
        """Send GOAWAY before the link is closed; after an HTTP/2 error it was already sent."""
        self.session.go_away(ErrorCode.PROTOCOL_ERROR)

    def flush(self) -> None:
        self.session.flush()

    def tick(self) -> bool:
        """Ping, and check the awaited replies."""
        if self.packets is not None:
            self.packets.tick()
        return self.session.tick()

    def lost(self, reason: Ending) -> None:
        """The carrier is gone: fail all dials."""
        dials, self._dials = self._dials, {}
        for incoming in dials.values():
            incoming.cancel()
        packets, self.packets = self.packets, None
        if packets is not None:
            packets.lost(reason)
        self.session.lost()

    # Dials that we request.

    def open_dial(
        self,
        request: DialRequest,
        *,
        dial_id: DialId,
        timeout_s: float,
        told: Told,
        account: Account | None = None,
    ) -> LinkedEnd | None:
        """Ask the peer to dial; a Go server never answers it."""
        packets = self.packets
        if packets is None or not self.can_open:
            return None
        target, requester, _, connection_id, asking, traffic = request

        def answered(error: str | None) -> None:
            if error is None:
                told(DialResult(address=end.reached) if end.reached else _REACHED)
            elif not error:
                told(None)  # the link was lost: the result is unknown, so another may be asked
            else:
                failure = TO_WIRE[failure_in(error, target)]
                detail = detail_in(error, target)[:MAX_DETAIL_CHARS]
                told(DialResult(failure=failure, detail=detail))

        number = self._number(connection_id, dial_id)
        # A peer that half-closes is an Isthmus program, and reads what Go's would ignore.
        ours = said_about(requester, asking, traffic) if packets.half_closes else b""
        end = packets.dial(
            str(target), number, answered, ours=ours, traffic=traffic, account=account
        )
        return end

    def _number(self, connection_id: str, dial_id: DialId) -> int:
        """Number a dial so that no other dial of this link ever has that number.

        Unlike Go's, it need not be unpredictable. A connection has at most one dial in a link, so
        the number in its id is used; the id of a relayed dial is another server's, which
        counts the same way. A program either gives all its dials ids, or none.
        """
        if not connection_id:
            return dial_id
        process, _, number = connection_id.rpartition("-")
        if process and process == self._process and _OWN_NUMBER.fullmatch(number):
            return int(number, 16)
        return _NOT_OF_IDS + dial_id

    # Dials that the peer requests.

    def asked(self, protocol: str, address: str, random: int, ours: bytes) -> None:
        """The peer requests a connection."""
        if protocol not in ("tcp", "tcp4", "tcp6", ""):
            protocol = protocol[:_MAX_SHOWN_CHARS]
            why = f"dial {protocol}: unknown network {protocol}"
            self.nonsense(f"{protocol} {address}", random, ours, why)
            return
        try:
            target = HostPort.parse(address)
        except ValueError as exc:
            why = f"dial tcp: address {address[:_MAX_SHOWN_CHARS]}: {exc}"
            self.nonsense(address, random, ours, why)
            return
        self.take(target, random, ours)

    def nonsense(self, asked: str, random: int, ours: bytes, why: str) -> None:
        """Refuse a request whose target is invalid."""
        assert self.packets is not None
        self.packets.refuse(random, why[: 3 * _MAX_SHOWN_CHARS])

    def take(self, target: HostPort | str, random: int, ours: bytes) -> None:
        """Hand on a requested dial; an invalid target is passed as text for the log."""
        assert self.packets is not None
        # Also on a spare link: konnectivity's protocol cannot hand a dial back, only fail it.
        if random in self._dials:
            self.packets.refuse(random, "dial tcp: this random number is in use")
            return
        incoming = IncomingPacketDial(self, self.packets, target, random, ours)
        self._dials[random] = incoming
        account = self.link.payer(incoming.requester)
        if account.may_not_open:
            incoming.refuse(DialFailure.TOO_MANY, OVER_SHARE)
        else:
            self.link.on_dial(incoming)
        account.close()

    def taken_back(self, random: int) -> None:
        """The peer cancelled the dial."""
        incoming = self._dials.pop(random, None)
        if incoming is not None:
            incoming.cancel()

    def connection_id(self, random: int) -> str:
        """The connection id of an Isthmus program's dial, or the number that Go's server logs."""
        return f"{self.peer_process}-{random:x}" if self.peer_process else f"dial-{random}"

    def settled(self, random: int) -> None:
        """The dial was answered."""
        self._dials.pop(random, None)

    # Other events of the packets: see linked_end.LinkOwner.

    def told_to_drain(self) -> None:
        """The peer takes no new dials."""
        self.link.draining = True

    def call_over(self, text: str) -> None:
        """The end of the call is the end of the link."""
        if text == self._broken:
            self.link.violated(ProtocolError(text))
        else:
            self.link.lost(text)

    def ease_later(self, delay_s: float) -> None:
        """Call the packets' ``ease`` after the delay."""
        packets = self.packets
        if packets is not None:
            self.link.loop.call_later(delay_s, packets.ease)

    def broke_rules(self, what: str) -> None:
        """Remember the violation, to report it if the link ends because of it."""
        self._broken = what


class IncomingPacketDial:
    """One dial of a konnectivity peer; see talk.Incoming. An invalid target has the port 0.

    Raises:
        ProtocolError: an Isthmus program's metadata for the dial is invalid.
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
        # Konnectivity sends neither requester nor metadata; an Isthmus program does.
        self.requester, self.asking, self.traffic = (
            heard_about(ours) if ours else (ANONYMOUS, NOTHING, NORMAL)
        )

    def accept(self, address: str, traffic: TrafficClass | None = None) -> BaseEnd:
        """Report that the target was reached; returns the end to join to it.

        ``traffic`` is the class that we choose, which these packets cannot carry; see
        talk.Incoming.
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
        """Report the failure."""
        if self._settle():
            text = go_text(failure, self._target, detail[:MAX_DETAIL_CHARS])
            self._packets.refuse(self._random, text)

    def _settle(self) -> bool:
        """Mark it as answered, unless cancelled: its number may mean another dial by now."""
        self.answered = True
        self.on_cancelled = None
        if not self._unwanted:
            self._talk.settled(self._random)
        return not self._unwanted

    def cancel(self) -> None:
        """The peer cancelled the dial, or is gone."""
        self._unwanted = True
        if self.on_cancelled is not None:
            cancelled, self.on_cancelled = self.on_cancelled, None
            cancelled()
