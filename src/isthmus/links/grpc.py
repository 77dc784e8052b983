"""A conversation by konnectivity's gRPC: one call of /AgentService/Connect over HTTP/2.

What both sides share; agent_side.py and server_side.py add their halves. The packets
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
#: Our own programs agree by this header on a packet for half-close (wire/packet.py, end_of_data).
HALF_CLOSE = b"isthmus-half-close"
#: What the whole link may send ahead at first; it grows. What each connection may make us keep is
#: bounded by the brake (tunnel/packet_brake.py).
_WINDOW_BYTES = MIB
#: Identifiers, a token and everything else (text/text_limits.py), with room for other metadata.
_HEADER_BYTES = 64 * 1024
_MAX_SHOWN_CHARS = 300
_REACHED = DialResult()
_OWN_NUMBER = re.compile(r"[0-9a-f]{1,14}", re.ASCII)
#: More than any number of our own connection ids; the field has 63 bits.
_NOT_OF_IDS = 1 << 60


class GrpcTalk:
    """One side of the conversation; see talk.Talk. The owner of its packets."""

    name = "grpc"

    def __init__(
        self, link: Link, *, client: bool, process: str, ping_every_s: float, dead_after_s: float
    ) -> None:
        """``process`` is what our own connection ids begin with."""
        self.link = link
        self.packets: PacketLink | None = None
        self._process = process
        self.peer_process = ""  # what the peer's connection ids begin with
        self._dials: dict[int, IncomingPacketDial] = {}  # that the peer asked for
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
        opened = len(packets.ends) + len(packets.dials) if packets is not None else 0
        return opened + len(self._dials)

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
    def unanswered_s(self) -> float:
        """For how long a ping has waited."""
        return self.session.unanswered_s

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

    def pays_by(self, account: Account) -> None:
        """Who the peer is has become known: this account pays from now on."""
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
        """Ping, unless the peer is a server of Go's: that one closes on whoever pings often."""
        ours = self.packets is not None and self.packets.half_closes
        if ours or not self.session.client:
            self.session.ping()

    def drain(self, *, turn_away: bool = False) -> None:
        """Ask for no new dials, if the protocol can; it cannot turn one away."""
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
        """The carrier is gone: so are the dials."""
        dials, self._dials = self._dials, {}
        for incoming in dials.values():
            incoming.cancel()
        packets, self.packets = self.packets, None
        if packets is not None:
            packets.lost(reason)
        self.session.lost()

    # Dials that we ask for.

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
                told(None)  # the link was lost: nothing is known, so another may be asked
            else:
                failure = TO_WIRE[failure_in(error, target)]
                detail = detail_in(error, target)[:MAX_DETAIL_CHARS]
                told(DialResult(failure=failure, detail=detail))

        number = self._number(connection_id, dial_id)
        # Who can half-close is one of ours, and wants to know what Go's has no use for.
        ours = said_about(requester, asking, traffic) if packets.half_closes else b""
        end = packets.dial(
            str(target), number, answered, ours=ours, traffic=traffic, account=account
        )
        return end

    def _number(self, connection_id: str, dial_id: DialId) -> int:
        """Number a dial so that no other dial of this link ever has that number.

        Like Go's: one that nobody can guess is not needed. A connection has one dial in a link at
        most, so that the number of its id will do; of a relayed one that is another server's, which
        counts as we do. Whoever gives its dials no ids gives none of them one.
        """
        if not connection_id:
            return dial_id
        process, _, number = connection_id.rpartition("-")
        if process and process == self._process and _OWN_NUMBER.fullmatch(number):
            return int(number, 16)
        return _NOT_OF_IDS + dial_id

    # Dials that the peer asks for.

    def asked(self, protocol: str, address: str, random: int, ours: bytes) -> None:
        """The peer wants a connection."""
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
        """What the peer asks for is no target: say so."""
        assert self.packets is not None
        self.packets.refuse(random, why[: 3 * _MAX_SHOWN_CHARS])

    def take(self, target: HostPort | str, random: int, ours: bytes) -> None:
        """Hand on what the peer asks for; a text that is no target is for who writes it down."""
        assert self.packets is not None
        # Also over a spare link: konnectivity cannot give a dial back, only fail it.
        if random in self._dials:
            self.packets.refuse(random, "dial tcp: this number is in use")
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
        """The peer does not want it any more."""
        incoming = self._dials.pop(random, None)
        if incoming is not None:
            incoming.cancel()

    def connection_id(self, random: int) -> str:
        """What a program of ours calls its dial, and by which number Go's server logs it."""
        return f"{self.peer_process}-{random:x}" if self.peer_process else f"dial-{random}"

    def settled(self, random: int) -> None:
        """The dial is answered."""
        self._dials.pop(random, None)

    # What else the packets report: see packet_link.Owner.

    def told_to_drain(self) -> None:
        """The peer takes no new dials."""
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
