"""The isthmus/1 protocol on a link: a mux session with a control stream first, then dials.

The part that both sides share; agent_side.py and server_side.py add hello and welcome.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from isthmus.errors import DialFailure, LinkStage
from isthmus.links.dials import (
    SHORT_DIAL_BYTES,
    AnswerReader,
    DialReader,
    IncomingDial,
    said_alike,
    say_asking,
)
from isthmus.links.talk import Told
from isthmus.net.deadlines import Deadlines
from isthmus.tunnel.budget import OVER_SHARE, Account, Deposit
from isthmus.tunnel.end import Early, Ending
from isthmus.tunnel.first_byte import TowardsClient
from isthmus.tunnel.replaceable import ReplaceableCarrier, SessionConnection
from isthmus.tunnel.session import Session
from isthmus.tunnel.stream import Stream
from isthmus.values import (
    NOTHING,
    URGENT,
    DialId,
    DialRequest,
)
from isthmus.wire.link import MAX_MESSAGE_BYTES, MESSAGE_PREFIX_BYTES, take_message, to_bytes
from isthmus.wire.link_pb2 import Control, Dial, Ended, Received
from isthmus.wire.yamux import HEADER_BYTES, GoAwayCode

if TYPE_CHECKING:
    from isthmus.links.link import Link

#: The initial window of our own senders' streams (Welcome.stream_window), and when the receiver
#: grants more: at half, or both would wait for the other.
STREAM_WINDOW_BYTES = 64 * 1024
MOST_CONTROL_BYTES = 1024 * 1024
#: With fewer stream ids left than this, an idle link is replaced (2³¹ in all).
FEW_IDS = 2**20
_DIAL_S = 10.0
#: A link that sent something and hears nothing for so long is asked whether it still works.
QUIET_S = 1.0

REASONS = {
    Ending.CLEAN: Ended.UNKNOWN,
    Ending.RESET: Ended.RESET,
    Ending.LINK_LOST: Ended.LINK_LOST,
    Ending.TIMED_OUT: Ended.TIMED_OUT,
    Ending.STALLED: Ended.STALLED,
    Ending.PROTOCOL: Ended.PROTOCOL,
    Ending.DRAINED: Ended.DRAINED,
    Ending.CANCELLED: Ended.CANCELLED,
    Ending.ADMIN: Ended.ADMIN,
}
ENDINGS = {reason: ending for ending, reason in REASONS.items() if ending is not Ending.CLEAN}


class ControlReader(Early):
    """The peer of the control stream: reads its messages as they become complete."""

    __slots__ = ("_talk", "_unfinished")

    def __init__(self, talk: MuxTalk) -> None:
        super().__init__()
        self._talk = talk
        self._unfinished: Deposit | None = None  # for an incomplete message

    def write(self, data: bytes) -> bool:
        """Read messages.

        Raises:
            ProtocolError: not a control message; the link catches it.
        """
        self.buffer += data
        while (message := take_message(self.buffer, Control)) is not None:
            self._talk.told(message)
        session = self._talk.session
        if not self.buffer or session.closed:
            self.over()
        elif self._unfinished is None:
            self._unfinished = Deposit(session.account, MAX_MESSAGE_BYTES)
        return True

    def over(self) -> None:
        """Release the charge of an incomplete message."""
        if self._unfinished is not None:
            self._unfinished.close()
            self._unfinished = None

    def write_eof(self) -> None:
        """The end of the control stream is the end of the link."""
        self._talk.link.lost("control stream ended")

    def abort(self, reason: Ending) -> None:
        """The end of the control stream is the end of the link."""
        self._talk.link.lost("control stream reset")


class MuxTalk:
    """One side of the protocol; see talk.Talk."""

    name = "mux"
    relays = False  # whether our dials are relayed to the other server's agents

    def __init__(self, link: Link, *, client: bool) -> None:
        self.link = link
        self.control: Stream | None = None
        self._undialed: Deadlines[DialReader] = Deadlines(link.loop, _DIAL_S, DialReader.too_late)
        self.session = Session(
            link.carrier,
            client=client,
            clock=time.monotonic,  # the loop's clock has milliseconds, a round trip takes less
            on_stream=self.accept_stream,
            limits=link.limits,
            explain_reset=self._explain,
            account=link.account,
        )
        self._reader: ControlReader | None = None
        #: What the peer has not acknowledged; None: the link ends with its connection.
        self.replaceable: ReplaceableCarrier | None = None
        if link.terms.resume_s > 0 and not self.relays:
            self.replaceable = ReplaceableCarrier(link.carrier, self.session, link.account)
        self._acknowledged = 0  # to the peer
        self._data_end = 0  # the offset behind the last data that was sent
        self.session.first_update_bytes = STREAM_WINDOW_BYTES // 2

    # State.

    @property
    def can_open(self) -> bool:
        return self.session.can_open

    @property
    def full(self) -> bool:
        session = self.session
        return not (session.can_open or session.closed or session.remote_draining)

    @property
    def load(self) -> int:
        """The number of streams without the control stream."""
        # A lost session has dropped all streams, the control stream too.
        return max(0, len(self.session.streams) - (self.control is not None))

    @property
    def held_bytes(self) -> int:
        return self.session.held

    @property
    def window_growth_bytes(self) -> int:
        return self.session.grown_bytes

    @property
    def window_growth_peak_bytes(self) -> int:
        return self.session.most_grown_bytes

    @property
    def waiting_bytes(self) -> int:
        """Zero: each stream has its own window, and only the carrier is shared."""
        return 0

    @property
    def round_trip_s(self) -> float:
        return self.session.round_trip_s

    @property
    def unanswered_s(self) -> float:
        return self.session.unanswered_s

    @property
    def peer_drains(self) -> bool:
        """Whether the peer announced it on the control stream, or sent go-away."""
        return self.link.draining or self.session.remote_draining

    @property
    def worn(self) -> bool:
        """Whether few stream ids are left."""
        return self.session.ids_left < FEW_IDS

    @property
    def unsent(self) -> bool:
        return self.session.unsent

    def pays_by(self, account: Account) -> None:
        """The peer is authenticated."""
        self.session.account = account
        if self.replaceable is not None:
            self.replaceable.pays_by(account)
        if self.control is not None and self.control.ending is None:
            self.session.charge(self.control, account.join())

    # The control stream.

    def begin(self) -> None:
        """The session is up: start the control messages."""
        raise NotImplementedError

    def told(self, message: Control) -> None:
        """Handle a control message that is common to both sides."""
        kind = message.WhichOneof("message")
        if kind == "ended":
            if message.ended.stream in self.session.streams:
                reason = ENDINGS.get(message.ended.reason, Ending.RESET)
                self.session.reasons[message.ended.stream] = reason
        elif kind == "drain":
            self.link.told_to_drain()
        elif kind == "received" and self.replaceable is not None:
            self.session.quiet_bytes += HEADER_BYTES + MESSAGE_PREFIX_BYTES + message.ByteSize()
            self.replaceable.acknowledge(message.received.offset)

    def tell(self, message: Control) -> None:
        """Send one control message."""
        if self.control is not None:
            self.control.write_now(to_bytes(message))
            if self.control.backlog_bytes > MOST_CONTROL_BYTES:
                self.link.lost("peer does not read the control stream", LinkStage.PROTOCOL)

    def attach_control(self, stream: Stream) -> None:
        """Use this stream as the control stream."""
        self.control = stream
        stream.traffic = URGENT  # short and urgent
        self.session.control = stream
        reader = self._reader = ControlReader(self)
        reader.peer = stream
        stream.peer = reader
        stream.start()

    def be_ready(self) -> None:
        """Measure the round trip."""
        self.session.ping()

    def probe(self) -> None:
        """Ping."""
        self.session.ping()

    def drain(self, *, turn_away: bool = False) -> None:
        """Ask for no new dials; those that still arrive are served, or reset with GOAWAY."""
        self.tell(Control(drain={}))
        if turn_away:
            self.session.go_away()

    def go_away(self) -> None:
        """Send go-away."""
        self.session.go_away()

    def violated(self) -> None:
        self.session.go_away(GoAwayCode.PROTOCOL_ERROR)

    def refuse(self, reason: str) -> None:
        """Do nothing: only a server refuses."""

    def flush(self) -> None:
        self.session.flush()

    def tick(self) -> bool:
        """Ping, acknowledge, and reset idle half-closed streams."""
        session, replaceable = self.session, self.replaceable
        if replaceable is not None and self.link.lasting is self:
            if session.received_bytes - self._acknowledged > session.quiet_bytes:
                self._acknowledge()
            # Whether the connection still works shows only in an answer. What an idle link sends,
            # pings and acknowledgements, asks for none.
            if session.sent_data:
                session.sent_data = False
                self._data_end = replaceable.sent
            if replaceable.acknowledged < self._data_end and self.silent_s > QUIET_S:
                session.ping()
            if replaceable.overfull:
                self.link.lost("peer acknowledges nothing", LinkStage.PROTOCOL)
                return True
        return session.tick()

    # The connection below it can be replaced.

    def agree_to_last(self, resume_s: float) -> None:
        """Both sides keep what the other has not acknowledged."""
        session, replaceable = self.session, self.replaceable
        assert replaceable is not None
        self.link.lasts(self, resume_s)
        session.acknowledged_low = replaceable.acknowledge_low
        session.tell_received = self._acknowledge
        session.tell_received_at = session.limits.acknowledge_every_bytes

    def end_with_connection(self) -> None:
        """The peer cannot resume: keep nothing."""
        replaceable, self.replaceable = self.replaceable, None
        if replaceable is not None:
            self.session.carrier = self.link.carrier
            replaceable.close()

    def _acknowledge(self) -> None:
        session = self.session
        self._acknowledged = session.received_bytes
        session.quiet_bytes = 0
        session.tell_received_at = self._acknowledged + session.limits.acknowledge_every_bytes
        sent_data = session.sent_data
        self.tell(Control(received=Received(offset=self._acknowledged)))
        session.sent_data = sent_data

    @property
    def silent_s(self) -> float:
        """For how long nothing has been heard."""
        return self.session.clock() - self.session.last_heard

    @property
    def received_bytes(self) -> int:
        """How many bytes of the session have arrived."""
        return self.session.received_bytes

    @property
    def kept_bytes(self) -> int:
        """What the peer has not acknowledged."""
        return self.replaceable.kept_bytes if self.replaceable is not None else 0

    @property
    def resent_bytes(self) -> int:
        """What was sent again."""
        return self.replaceable.resent_bytes if self.replaceable is not None else 0

    def detach(self) -> int:
        """Let go of the connection; gives how many bytes of the session have arrived."""
        assert self.replaceable is not None
        return self.replaceable.detach()

    def ask_elsewhere(self) -> None:
        """Take dials without an answer, and tunnels without a byte, to another link."""
        for stream in list(self.session.streams.values()):
            reader = stream.peer
            if isinstance(reader, AnswerReader) and reader.waits:
                stream.abort(Ending.LINK_LOST)
                reader.abort(Ending.LINK_LOST)
            elif isinstance(reader, TowardsClient):
                reader.tunnel.link_suspended()

    def can_go_on(self, offset: int) -> bool:
        """Everything after this offset is still kept."""
        return self.replaceable is not None and self.replaceable.can_resume_at(offset)

    def go_on(self, connection: SessionConnection, offset: int) -> None:
        """Another connection takes over; the peer has everything before ``offset``."""
        assert self.replaceable is not None
        self.replaceable.attach(connection, offset)

    def lost(self, reason: Ending) -> None:
        self._undialed.take_all()
        self.session.lost(reason)
        if self.replaceable is not None:
            self.replaceable.close()
        if self._reader is not None:
            self._reader.over()

    def _explain(self, stream: Stream, reason: Ending) -> None:
        if stream is not self.control:
            self.tell(Control(ended=Ended(stream=stream.id, reason=REASONS[reason])))

    # Dials.

    def open_dial(
        self,
        request: DialRequest,
        *,
        dial_id: DialId,
        timeout_s: float,
        told: Told,
        account: Account | None = None,
    ) -> Stream | None:
        """Ask the peer to dial; None if no stream can be opened."""
        timeout_ms = max(1, int(timeout_s * 1000))  # 0 would mean no deadline
        target, requester, _, connection_id, asking, traffic = request
        dial = Dial(dial_id=dial_id, timeout_ms=timeout_ms, connection_id=connection_id)
        if asking is not NOTHING:
            say_asking(dial, asking)
        if self.relays:
            dial.relayed = True
            dial.network = asking.network
        known = said_alike(target, requester, traffic)
        return self.session.open(AnswerReader(told), to_bytes(dial, known), traffic, account)

    def accept_stream(self, stream: Stream) -> None:
        """Read a dial from a stream that the peer opened."""
        if not self.link.ready:
            stream.abort(Ending.PROTOCOL)
            return
        reader = DialReader(stream, self.link.id, self._dialed)
        join_early(stream, reader)
        self._undialed.add(reader)

    def _dialed(self, reader: DialReader, incoming: IncomingDial) -> None:
        self._undialed.remove(reader)
        stream, link = incoming.stream, self.link
        if link.divides:
            self.session.charge(stream, link.payer(incoming.requester))
        if incoming.size > SHORT_DIAL_BYTES:
            incoming.pay()
        budget = stream.account.budget
        if budget.used_bytes >= budget.total_bytes and stream.account.may_not_open:
            incoming.refuse(DialFailure.TOO_MANY, OVER_SHARE)
        else:
            link.on_dial(incoming)


def join_early(stream: Stream, reader: Early) -> None:
    """Replace the plain keeper of a stream by a handshake reader."""
    stream._early = stream.peer = reader
    reader.peer = stream
