"""Dials over a link: the first bytes of a stream, read on either side.

The opener waits for one DialResult before any byte of the tunnel may flow, so that a reset before
it means "not done" and the dial may be tried elsewhere.
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

#: Longer ones, of which peers decide, are read and written anew each time: no cache keeps them.
_SHORT_IDENTITY_BYTES = 4096
SHORT_DIAL_BYTES = 1024
#: How much larger a message is when it is read.
_DIAL_TIMES = 4
CLASS_TO_WIRE: dict[TrafficClass, WireClass] = {
    it: cast(WireClass, WireClass.Value(it.name)) for it in TrafficClass
}
_CLASS_OF_WIRE: dict[int, TrafficClass] = {number: it for it, number in CLASS_TO_WIRE.items()}


class AnswerReader(Early):
    """The opener's side: keeps a stream's bytes until the answer is whole, then tells it once.

    None is told when the stream ended without an answer.
    """

    __slots__ = ("_told",)

    def __init__(self, told: Callable[[DialResult | None], None]) -> None:
        super().__init__()
        self._told: Callable[[DialResult | None], None] | None = told

    def write(self, data: bytes) -> bool:
        """Look for the answer; what follows it is kept for the tunnel.

        Raises:
            ProtocolError: what came is no answer; the link catches it.
        """
        self.buffer += data
        if self._told is not None:
            result = take_message(self.buffer, DialResult)
            if result is not None:
                self._tell(result)
        return not self.buffer  # what is kept is held: counted, and no credit for it

    def write_eof(self) -> None:
        """Without an answer first, this is a stream that was never dialed."""
        super().write_eof()
        self._tell(None)

    def abort(self, reason: Ending) -> None:
        """Without an answer first, the dial was not done."""
        super().abort(reason)
        self._tell(None)

    def forget(self) -> None:
        """Nobody waits for the answer any more."""
        self._told = None

    def _tell(self, result: DialResult | None) -> None:
        told, self._told = self._told, None
        if told is not None:
            told(result)


class IncomingDial:
    """The accepter's side of one dial: who wants to go where, and the way to answer it."""

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
        """``size`` is that of the message; one that is longer than SHORT_DIAL_BYTES is paid for."""
        self.size = size
        self._deposit: Deposit | None = None
        #: Who wants it, as the other program says.
        self.requester = requester_of(dial)
        self.stream = stream
        self.dial = dial
        self.link_id = link_id
        self.answered = False
        self.on_cancelled: Callable[[], None] | None = None

    @property
    def host(self) -> str:
        """Where it wants to go."""
        return self.dial.host

    @property
    def port(self) -> int:
        """Where it wants to go."""
        return self.dial.port

    @property
    def timeout_s(self) -> float:
        """How long the other program waits for the answer; 0 if it did not say."""
        return self.dial.timeout_ms / 1000

    @property
    def connection_id(self) -> str:
        """What the other program calls it; empty if it does not say."""
        return self.dial.connection_id[:MAX_CONNECTION_ID_CHARS]

    @property
    def asking(self) -> RequestMetadata:
        """What else is said about it, and its trace, as the other program passes it on."""
        return asking_of(self.dial)

    @property
    def traffic(self) -> TrafficClass:
        """The class that the other program chose."""
        return class_of(self.dial.traffic_class)

    def accept(self, address: str, traffic: TrafficClass | None = None) -> Stream:
        """Say that the target is reached; raw bytes follow.

        ``traffic`` is the class that we choose, and tell; None: the other program chose it.
        """
        self._settle()
        self.stream.traffic = self.traffic if traffic is None else traffic
        self.stream.write(_success(address, NORMAL if traffic is None else traffic))
        return self.stream

    @property
    def relayed(self) -> bool:
        """It comes from another server, for our own agents only."""
        return self.dial.relayed

    def accept_for(self, agent_id: str, address: str) -> Stream:
        """Say that one of our agents reached the target of a relayed dial; raw bytes follow."""
        self._settle()
        self.stream.traffic = self.traffic
        self.stream.write(to_bytes(DialResult(address=address, agent_id=agent_id)))
        return self.stream

    def refuse(self, failure: DialFailure, detail: str) -> None:
        """Say why not, and end the stream cleanly."""
        self._settle()
        result = DialResult(failure=TO_WIRE[failure], detail=detail[:MAX_DETAIL_CHARS])
        self.stream.write(to_bytes(result))
        self.stream.write_eof()

    def pay(self) -> None:
        """Charge the message for as long as it is kept: until the answer."""
        self._deposit = Deposit(self.stream.account, _DIAL_TIMES * self.size)

    def paid(self) -> None:
        """It is not kept any more."""
        if self._deposit is not None:
            self._deposit.close()
            self._deposit = None

    def _settle(self) -> None:
        self.answered = True
        self.on_cancelled = None
        if self._deposit is not None:
            self.paid()


def say_asking(dial: Dial, asking: RequestMetadata) -> None:
    """Write into a Dial what the client said; the network is the server's to choose."""
    dial.user = asking.user
    dial.user_groups.extend(asking.groups)
    dial.tenant = asking.tenant
    dial.object = asking.object
    dial.traceparent = asking.traceparent
    dial.tracestate = asking.tracestate


@short_cache(256, _SHORT_IDENTITY_BYTES)
def said_alike(target: HostPort, requester: Identity, traffic: TrafficClass) -> bytes:
    """The part of a Dial that is the same whenever a client dials a target, in bytes.

    A message of the rest may follow: what is read of two that are put together is both of them
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
    """Read a class; one that only later programs know is like any other dial."""
    return _CLASS_OF_WIRE.get(number, NORMAL)


def said_about(
    requester: Identity, asking: RequestMetadata, traffic: TrafficClass = NORMAL
) -> bytes:
    """Write who asks and what they say, for a dial whose target is said in another way."""
    if asking is NOTHING:
        return _who(requester, traffic)
    return _who_and_what(requester, asking, traffic)


@short_cache(256, _SHORT_IDENTITY_BYTES)
def _who(requester: Identity, traffic: TrafficClass) -> bytes:
    """The same clients come again and again, and most say nothing."""
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
    """Read it; the same is said again and again where there are no traces.

    Raises:
        ProtocolError: it is nothing that ``said_about`` writes.
    """
    try:
        dial = Dial.FromString(said)
    except DecodeError as exc:
        raise ProtocolError("link: not a Dial message in a packet") from exc
    bound_texts(dial)
    return requester_of(dial), asking_of(dial), class_of(dial.traffic_class)


def requester_of(dial: Dial) -> Identity:
    """Who wants it, as the other program says."""
    return _identity(dial.requester, tuple(dial.requester_groups), dial.requester_kind)


def asking_of(dial: Dial) -> RequestMetadata:
    """What else is said about it."""
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
    """The answer to a dial that succeeded; the same targets are dialed again and again."""
    return to_bytes(DialResult(address=address, traffic_class=CLASS_TO_WIRE[traffic]))


DialTold = Callable[["DialReader", IncomingDial], None]


class DialReader(Early):
    """The accepter's side: reads the Dial from a new stream and tells it once."""

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
        """Look for the dial; what follows it is kept for the tunnel.

        Raises:
            ProtocolError: what came is no dial; the link catches it.
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
        # Isthmus sends nothing behind a Dial before its answer: what comes anyway is held, and
        # counted as held, as is a Dial that is not whole, rather than given credit for.
        return not self.buffer

    def write_eof(self) -> None:
        """An end before the dial ends the stream; after it, it is the client's half-close."""
        super().write_eof()
        if self._told is not None:
            self._stream.abort(Ending.PROTOCOL)

    def abort(self, reason: Ending) -> None:
        """The opener gave up: stop dialing."""
        super().abort(reason)
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            incoming.paid()
        if incoming is not None and incoming.on_cancelled is not None:
            cancelled, incoming.on_cancelled = incoming.on_cancelled, None
            cancelled()

    def too_late(self) -> None:
        """The stream was opened, but nobody said what for."""
        self._stream.abort(Ending.TIMED_OUT)
