"""Dials over a link: the first bytes of a stream, read on either side.

The opener waits for one DialResult before any byte of the tunnel may flow, so a reset before
it means that the dial was not done and may be tried elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import cast

from google.protobuf.message import DecodeError

from isthmus.errors import DialFailure, ProtocolError
from isthmus.text.short_cache import short_cache
from isthmus.text.text_limits import MAX_CONNECTION_ID_CHARS, MAX_DETAIL_CHARS
from isthmus.tunnel.budget import Deposit
from isthmus.tunnel.end import Early, Ending
from isthmus.tunnel.stream import Stream
from isthmus.values import NORMAL, NOTHING, HostPort, Identity, RequestMetadata, TrafficClass
from isthmus.wire.link import TO_WIRE, bound_texts, take_message, to_bytes
from isthmus.wire.link_pb2 import Dial, DialResult
from isthmus.wire.link_pb2 import TrafficClass as WireClass

#: Longer messages, whose size peers control, are not cached.
_SHORT_IDENTITY_BYTES = 4096
SHORT_DIAL_BYTES = 1024
#: The factor by which a message grows when it is parsed.
_DIAL_TIMES = 4
CLASS_TO_WIRE: dict[TrafficClass, WireClass] = {
    it: cast(WireClass, WireClass.Value(it.name)) for it in TrafficClass
}
_CLASS_OF_WIRE: dict[int, TrafficClass] = {number: it for it, number in CLASS_TO_WIRE.items()}


class AnswerReader(Early):
    """The opener's side: keeps a stream's bytes until the answer is complete, then reports it once.

    Reports None if the stream ended without an answer.
    """

    __slots__ = ("_told",)

    def __init__(self, told: Callable[[DialResult | None], None]) -> None:
        super().__init__()
        self._told: Callable[[DialResult | None], None] | None = told

    def write(self, data: bytes) -> bool:
        """Parse the answer; bytes after it are kept for the tunnel.

        Raises:
            ProtocolError: not a valid answer; the link catches it.
        """
        self.buffer += data
        if self._told is not None:
            result = take_message(self.buffer, DialResult)
            if result is not None:
                self._tell(result)
        return not self.buffer  # kept bytes are held: counted, and their credit withheld

    def write_eof(self) -> None:
        """Without an answer, the dial was not done."""
        super().write_eof()
        self._tell(None)

    def abort(self, reason: Ending) -> None:
        """Without an answer, the dial was not done."""
        super().abort(reason)
        self._tell(None)

    @property
    def waits(self) -> bool:
        """The answer has not come."""
        return self._told is not None

    def forget(self) -> None:
        """Stop waiting for the answer."""
        self._told = None

    def _tell(self, result: DialResult | None) -> None:
        told, self._told = self._told, None
        if told is not None:
            told(result)


class IncomingDial:
    """The accepter's side of one dial: its requester and target, and how to answer it."""

    __slots__ = (
        "_deposit",
        "answered",
        "dial",
        "link_id",
        "on_cancelled",
        "requester",
        "size",
        "stream",
    )

    def __init__(self, stream: Stream, dial: Dial, link_id: int, size: int = 0) -> None:
        """``size`` is that of the message, which is charged above SHORT_DIAL_BYTES."""
        self.size = size
        self._deposit: Deposit | None = None
        #: The requester, as the other program names it.
        self.requester = requester_of(dial)
        self.stream = stream
        self.dial = dial
        self.link_id = link_id
        self.answered = False
        self.on_cancelled: Callable[[], None] | None = None

    @property
    def host(self) -> str:
        return self.dial.host

    @property
    def port(self) -> int:
        return self.dial.port

    @property
    def timeout_s(self) -> float:
        """How long the other program waits for the answer; 0 if not announced."""
        return self.dial.timeout_ms / 1000

    @property
    def connection_id(self) -> str:
        """The other program's id of the connection; empty if not sent."""
        return self.dial.connection_id[:MAX_CONNECTION_ID_CHARS]

    @property
    def asking(self) -> RequestMetadata:
        """The client's metadata and trace, as the other program passed them on."""
        return asking_of(self.dial)

    @property
    def traffic(self) -> TrafficClass:
        """The class that the other program chose."""
        return class_of(self.dial.traffic_class)

    def accept(self, address: str, traffic: TrafficClass | None = None) -> Stream:
        """Report that the target was reached; raw bytes follow.

        ``traffic`` is the class that we choose, and send; None: the other program chose it.
        """
        self._settle()
        self.stream.traffic = self.traffic if traffic is None else traffic
        self.stream.write(_success(address, NORMAL if traffic is None else traffic))
        return self.stream

    @property
    def relayed(self) -> bool:
        """Whether it comes from another server, for our own agents only."""
        return self.dial.relayed

    def accept_for(self, agent_id: str, address: str) -> Stream:
        """Report that one of our agents reached the target of a relayed dial; raw bytes follow."""
        self._settle()
        self.stream.traffic = self.traffic
        self.stream.write(to_bytes(DialResult(address=address, agent_id=agent_id)))
        return self.stream

    def refuse(self, failure: DialFailure, detail: str) -> None:
        """Report the failure, and end the stream cleanly."""
        self._settle()
        result = DialResult(failure=TO_WIRE[failure], detail=detail[:MAX_DETAIL_CHARS])
        self.stream.write(to_bytes(result))
        self.stream.write_eof()

    def pay(self) -> None:
        """Charge the message as long as it is kept: until the answer."""
        self._deposit = Deposit(self.stream.account, _DIAL_TIMES * self.size)

    def paid(self) -> None:
        """The message is no longer kept."""
        if self._deposit is not None:
            self._deposit.close()
            self._deposit = None

    def _settle(self) -> None:
        self.answered = True
        self.on_cancelled = None
        if self._deposit is not None:
            self.paid()


def say_asking(dial: Dial, asking: RequestMetadata) -> None:
    """Write the client's metadata into a Dial; the server chooses the network."""
    dial.user = asking.user
    dial.user_groups.extend(asking.groups)
    dial.tenant = asking.tenant
    dial.object = asking.object
    dial.traceparent = asking.traceparent
    dial.tracestate = asking.tracestate


@short_cache(256, _SHORT_IDENTITY_BYTES)
def said_alike(target: HostPort, requester: Identity, traffic: TrafficClass) -> bytes:
    """The encoded part of a Dial that is constant for a client and a target.

    The encoded rest may follow: a concatenation reads as the merged message
    (protobuf's encoding, "Last One Wins").
    """
    return Dial(
        host=target.host,
        port=target.port,
        requester=requester.name,
        requester_groups=requester.groups,
        requester_kind=requester.kind,
        traffic_class=CLASS_TO_WIRE[traffic],
    ).SerializeToString()


def class_of(number: int) -> TrafficClass:
    """Read a class; an unknown one, of a later version, counts as normal."""
    return _CLASS_OF_WIRE.get(number, NORMAL)


def said_about(
    requester: Identity, asking: RequestMetadata, traffic: TrafficClass = NORMAL
) -> bytes:
    """Write requester and metadata, for a dial whose target is sent separately."""
    if asking is NOTHING:
        return _who(requester, traffic)
    return _who_and_what(requester, asking, traffic)


@short_cache(256, _SHORT_IDENTITY_BYTES)
def _who(requester: Identity, traffic: TrafficClass) -> bytes:
    """Cached, because the same clients return and most send no metadata."""
    return _who_and_what(requester, NOTHING, traffic)


def _who_and_what(requester: Identity, asking: RequestMetadata, traffic: TrafficClass) -> bytes:
    dial = Dial(
        requester=requester.name,
        requester_groups=requester.groups,
        requester_kind=requester.kind,
        traffic_class=CLASS_TO_WIRE[traffic],
    )
    say_asking(dial, asking)
    return dial.SerializeToString()


@short_cache(256, SHORT_DIAL_BYTES)
def heard_about(said: bytes) -> tuple[Identity, RequestMetadata, TrafficClass]:
    """Read what ``said_about`` wrote; cached, because it repeats unless there are traces.

    Raises:
        ProtocolError: not written by ``said_about``.
    """
    try:
        dial = Dial.FromString(said)
    except DecodeError as exc:
        raise ProtocolError("link: not a Dial message in a packet") from exc
    bound_texts(dial)
    return requester_of(dial), asking_of(dial), class_of(dial.traffic_class)


def requester_of(dial: Dial) -> Identity:
    """The requester, as the other program names it."""
    return _identity(dial.requester, tuple(dial.requester_groups), dial.requester_kind)


def asking_of(dial: Dial) -> RequestMetadata:
    """The client's metadata."""
    asking = RequestMetadata(
        network=dial.network,
        user=dial.user,
        groups=tuple(dial.user_groups),
        tenant=dial.tenant,
        object=dial.object,
        traceparent=dial.traceparent,
        tracestate=dial.tracestate,
    )
    return asking if asking != NOTHING else NOTHING


@short_cache(256, _SHORT_IDENTITY_BYTES)
def _identity(name: str, groups: tuple[str, ...], kind: str) -> Identity:
    return Identity(name, groups, kind or "certificate")  # empty: an older server


@lru_cache(maxsize=1024)
def _success(address: str, traffic: TrafficClass) -> bytes:
    """The answer to a successful dial; cached, because the same targets are dialed again."""
    return to_bytes(DialResult(address=address, traffic_class=CLASS_TO_WIRE[traffic]))


DialTold = Callable[["DialReader", IncomingDial], None]


class DialReader(Early):
    """The accepter's side: reads the Dial from a new stream and reports it once."""

    __slots__ = ("_incoming", "_link_id", "_stream", "_told")

    def __init__(
        self, stream: Stream, link_id: int, told: Callable[[DialReader, IncomingDial], None]
    ) -> None:
        super().__init__()
        self._link_id = link_id
        self._stream = stream
        self._told: DialTold | None = told
        self._incoming: IncomingDial | None = None

    def write(self, data: bytes) -> bool:
        """Parse the dial; bytes after it are kept for the tunnel.

        Raises:
            ProtocolError: not a valid dial; the link catches it.
        """
        self.buffer += data
        if self._told is not None:
            size = len(self.buffer)
            dial = take_message(self.buffer, Dial)
            if dial is not None:
                told, self._told = self._told, None
                size -= len(self.buffer)
                self._incoming = IncomingDial(self._stream, dial, self._link_id, size)
                told(self, self._incoming)
        # Isthmus sends nothing after a Dial before its answer: any bytes that arrive are held and
        # counted, as is an incomplete Dial, and their credit is withheld.
        return not self.buffer

    def write_eof(self) -> None:
        """An end before the dial ends the stream; after it, it is the client's half-close."""
        super().write_eof()
        if self._told is not None:
            self._stream.abort(Ending.PROTOCOL)

    def abort(self, reason: Ending) -> None:
        """The opener cancelled: stop dialing."""
        super().abort(reason)
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            incoming.paid()
        if incoming is not None and incoming.on_cancelled is not None:
            cancelled, incoming.on_cancelled = incoming.on_cancelled, None
            cancelled()

    def too_late(self) -> None:
        """The stream was opened, but no dial arrived in time."""
        self._stream.abort(Ending.TIMED_OUT)
