"""Many konnectivity connections in one call of /AgentService/Connect, on either side.

Either side may open connections. The side that opened one decides which side asks to close it and
which answers: the role belongs to the connection (LinkedEnd.opener), not to the link.

Sending takes turns by class (traffic_classes.py), so that no connection waits for another's bulk;
data in the call's own queue is past that, because HTTP/2 keeps its order. This protocol has no flow
control for receiving; packet_brake.py handles full sinks. One connection is linked_end.py.

links/grpc_*.py handles the life of a dial; docs/konnectivity.md documents the meaning of each
packet (E4 to E6).
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.errors import ProtocolError
from isthmus.tunnel.budget import Account
from isthmus.tunnel.end import Early, Ending
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.limits import Limits
from isthmus.tunnel.linked_end import AwaitedReplies, ConnectIds, LinkedEnd, LinkOwner, Told
from isthmus.tunnel.message_reader import PacketCounts, PacketReader, Piece
from isthmus.tunnel.packet_brake import Brake, private_account
from isthmus.tunnel.stream import MAX_WINDOW, wants_growth
from isthmus.tunnel.traffic_classes import ClassTurns
from isthmus.values import NORMAL, TrafficClass
from isthmus.wire.http2 import Headers
from isthmus.wire.konnectivity_pb2 import Packet
from isthmus.wire.packet import (
    CLOSE_REQ,
    CLOSE_RSP,
    DATA,
    DIAL_CLS,
    DIAL_REQ,
    DIAL_RSP,
    DRAIN,
    close_dial,
    close_request,
    close_response,
    dial_request,
    dial_response,
    drain,
    parse,
)

#: The same as for streams of other sessions (limits.py).
STUCK_S = Limits().stuck_s
#: Limit of packets waiting for a peer that does not read; data is braked long before.
MOST_WAITING_BYTES = 8 * 1024 * 1024


class PacketLink:
    """One call and its connections; a handler of its HTTP/2 stream."""

    def __init__(
        self,
        stream: Http2Stream,
        owner: LinkOwner,
        *,
        agent: bool,
        clock: Callable[[], float],
        counts: PacketCounts,
        half_closes: bool = False,
        account: Account | None = None,
    ) -> None:
        """``account`` pays for what full sinks keep, unless a connection has its own."""
        self.stream = stream
        self.owner = owner
        self.agent = agent
        self.clock = clock
        self.received, self.sent = counts.received, counts.sent
        #: Both programs are Isthmus's and agreed on a packet for half-close.
        self.half_closes = half_closes
        self.blocked = False
        self.ends: dict[int, LinkedEnd] = {}
        self.dials: dict[int, LinkedEnd] = {}
        self.closed = False
        self._packets = PacketReader()
        self._turns: ClassTurns[LinkedEnd] = ClassTurns()
        self._touched: list[LinkedEnd] = []
        self._ids = ConnectIds(agent=agent)
        self._told_over = False
        self._credit_since = 0.0
        self.account = account if account is not None else private_account()
        stream.paced = True
        #: Whether the brake wants to know about the next connection that sends something.
        self.watching = False
        self.brake = Brake(self)
        self._replies = AwaitedReplies(clock)
        #: Connections that the peer closed and whose local side is not done yet.
        self._departed: set[LinkedEnd] = set()
        self._fault = ""
        self._spare_at = clock()  # when the budget last had something left

    def __repr__(self) -> str:
        return f"<PacketLink {len(self.ends)} connections, {len(self.dials)} dials>"

    @property
    def held(self) -> int:
        """Bytes that full sinks have not taken."""
        return self.brake.held

    # Dials.

    def dial(
        self,
        address: str,
        random: int,
        told: Told,
        early: Early | None = None,
        *,
        ours: bytes = b"",
        traffic: TrafficClass = NORMAL,
        account: Account | None = None,
    ) -> LinkedEnd:
        """Request a connection from the peer; calls ``told(None)`` or ``told(error)`` once.

        ``told("")`` means that the link is gone and another may be asked. ``ours`` is for an
        Isthmus program, which reports what it reached as ``reached`` of the end. ``account`` pays
        for what a full sink keeps; None: the link's.
        """
        end = LinkedEnd(self, random, early, opener=True)
        end.account = account.join() if account is not None else None
        end.traffic = traffic
        self.spoke(end)
        if self.closed:
            end.over(Ending.LINK_LOST)
            told("")
            return end
        self.dials[random] = end
        end.told = told
        self.say(DIAL_REQ, dial_request("tcp", address, random, ours))
        return end

    def accept(
        self,
        random: int,
        early: Early | None = None,
        *,
        reached: str = "",
        traffic: TrafficClass = NORMAL,
        account: Account | None = None,
    ) -> LinkedEnd:
        """Tell the peer that requested a target that it was reached; returns the end to join.

        The address is sent to Isthmus programs only. ``account`` is as in ``dial``.
        """
        if self.closed:
            return self.unwanted(random, Ending.LINK_LOST)
        end = LinkedEnd(self, random, early, opener=False)
        end.account = account.join() if account is not None else None
        end.traffic = traffic
        connect_id = self._ids.give(self.ends)
        end.opened(connect_id)
        self.ends[connect_id] = end
        self.spoke(end)
        reached = reached if self.half_closes else ""
        self.say(DIAL_RSP, dial_response(random, connect_id, reached=reached))
        return end

    def unwanted(self, random: int, why: Ending) -> LinkedEnd:
        """The end of a cancelled dial: whatever is joined to it is reset."""
        end = LinkedEnd(self, random, opener=False)
        end.over(why)
        return end

    def refuse(self, random: int, error: str) -> None:
        """Tell the peer why a target was not reached."""
        self.say(DIAL_RSP, dial_response(random, error=error))

    def drain(self) -> None:
        """Tell the peer to open nothing new; only Isthmus programs accept this from a server."""
        self.say(DRAIN, drain())

    def say(self, kind: int, message: bytes) -> None:
        """Send one packet other than data."""
        self.sent[kind] += 1
        if not self.stream.write(message, b""):
            self.blocked = True
            if self.stream.out_bytes > MOST_WAITING_BYTES and not self._fault:
                # Not now: the caller is in the middle of an operation.
                self._fault = "the peer sends requests but does not read"
                self.owner.ease_later(0.0)

    def say_ended(self, end: LinkedEnd, reason: Ending) -> None:
        """Tell the other program that a connection was closed or a dial cancelled."""
        if not end.connect_id:
            self.say(DIAL_CLS, close_dial(end.random))
        elif end.opener:
            self._close(end.connect_id)
        else:
            self.say(CLOSE_RSP, close_response(end.connect_id, reason.value))

    def _close(self, connect_id: int) -> None:
        """Ask the peer to close, once: many packets of the closed connection may be in flight."""
        if self._ids.first_close(connect_id):
            self.say(CLOSE_REQ, close_request(connect_id))

    def spoke(self, end: LinkedEnd | None) -> None:
        """A connection sends data or a control packet."""
        if self.watching:
            self.brake.other(end)

    def forget(self, end: LinkedEnd, ending: Ending) -> None:
        """Drop a connection that is finishing."""
        # Compared by identity: either side may have reused its id for another connection.
        if self.dials.get(end.random) is end:
            del self.dials[end.random]
        if self.ends.get(end.connect_id) is end:
            del self.ends[end.connect_id]
        self._replies.forget(end)
        self._departed.discard(end)
        self.brake.ended(end, ending)

    def departed(self, end: LinkedEnd) -> None:
        """The peer closed a connection whose local side may live for a while."""
        self._departed.add(end)

    def relieved(self, end: LinkedEnd) -> None:
        """A sink has room again."""
        self.brake.resumed(end)

    def nothing_more(self, end: LinkedEnd) -> None:
        """The peer sends nothing more to a sink, which may still hold bytes."""
        self.brake.nothing_more(end)

    def ease(self) -> None:
        """The delay requested with ``ease_later`` is over."""
        if self._fault:
            self._call_over(self._fault)
            return
        self.brake.ease()

    def give_credit(self) -> None:
        """Everything was taken: let the peer send more, with a larger window if it waits for us."""
        stream = self.stream
        credit = stream.receive_credit
        stream.consumed(stream.unconsumed)
        if stream.receive_credit > credit:
            now = self.clock()
            if wants_growth(now - self._credit_since, stream.connection.round_trip_s):
                stream.grow_window(min(2 * stream.window, MAX_WINDOW))
            self._credit_since = now

    def lost(self, reason: Ending) -> None:
        """The link is gone: reset every connection; dials may be asked elsewhere."""
        self.closed = True
        dials, self.dials = self.dials, {}
        for end in dials.values():
            told, end.told = end.told, None
            end.over(reason)
            if told is not None:
                told("")
        for end in [*self.ends.values(), *self._departed]:
            end.lost(reason)
        self.brake.lost()

    # ClassTurns.

    def want_turn(self, end: LinkedEnd) -> None:
        """Queue a connection that has data to send, or waits to be resumed."""
        if not end.in_turn:
            end.in_turn = True
            self._turns.add(end)

    def can_write(self, stream: Http2Stream) -> None:
        """The stream has room: connections take turns until it is full."""
        self.blocked = False
        self.take_turns()

    def take_turns(self) -> None:
        """Let waiting connections send, until the stream is full."""
        turns = self._turns
        while turns.waiting and not self.blocked:
            end = turns.take()
            end.in_turn = False
            if end.take_turn():
                self.want_turn(end)

    def took_turn(self, end: LinkedEnd, size: int) -> None:
        """Count what a connection sent in its turn."""
        self._turns.sent(end.traffic, size)

    # Receiving: see http2_stream.Handler.

    def got_headers(self, stream: Http2Stream, headers: Headers, end: bool) -> None:
        """The owner reads the headers before the packets; trailers end the call."""

    def got_data(self, stream: Http2Stream, view: memoryview) -> None:
        if self._told_over:
            return
        try:
            self._packets.feed(view, self)
        except ProtocolError as exc:
            self.owner.broke_rules(str(exc))
            self._call_over(str(exc))

    def _call_over(self, text: str) -> None:
        if not self._told_over:
            self._told_over = True
            self.owner.call_over(text)

    def got_payload(self, connect_id: int, piece: Piece) -> None:
        """Gather the data of a connection until the read is processed."""
        self.received[DATA] += 1
        end = self.ends.get(connect_id)
        if end is not None:
            if end.reading:
                if end.pieces is None:
                    end.pieces = [piece]
                    self._touched.append(end)
                else:
                    end.pieces.append(piece)
        elif not self._ids.is_ours(connect_id):
            self._close(connect_id)
        elif self._ids.first_close(connect_id):
            self.say(CLOSE_RSP, close_response(connect_id, "unrecognized connectID"))

    def more_payload(self, piece: Piece) -> None:
        end = self.ends.get(self._packets.connect_id)
        if end is None or not end.reading:
            return
        if end.pieces is None:
            end.pieces = [piece]
            self._touched.append(end)
        else:
            end.pieces.append(piece)

    def batch_over(self, stream: Http2Stream) -> None:
        """Hand on each connection's data; return credit, except for data of full sinks."""
        touched, self._touched = self._touched, []
        for end in touched:
            self._hand_on(end)
        if self.brake.behind:
            self.brake.batch_over(touched)
        else:
            self.give_credit()

    def _hand_on(self, end: LinkedEnd) -> None:
        pieces, end.pieces = end.pieces, None
        if not pieces or end.ending is not None:
            return
        data = b"".join(pieces) if len(pieces) > 1 else bytes(pieces[0])
        if not end.peer.write(data) and end.ending is None:
            self.brake.full(end, len(data))

    def got_message(self, message: Piece) -> None:
        packet = parse(message)
        kind = packet.type
        if 0 <= kind < len(self.received):
            self.received[kind] += 1
        self.spoke(None)
        if kind == DATA:
            self._odd_data(packet)
        elif kind == DIAL_REQ:
            dial = packet.dialRequest
            self.owner.asked(dial.protocol, dial.address, dial.random, dial.isthmus_dial)
        elif kind == DIAL_RSP:
            self._answered(packet)
        elif kind == CLOSE_REQ:
            self._close_asked(packet.closeRequest.connectID)
        elif kind == CLOSE_RSP:
            self._closed(packet.closeResponse.connectID, packet.closeResponse.error)
        elif kind == DIAL_CLS:
            self.owner.taken_back(packet.closeDial.random)
        elif kind == DRAIN:
            self.owner.told_to_drain()
        else:
            self.owner.broke_rules(f"a packet of type {kind}")

    def _odd_data(self, packet: Packet) -> None:
        data = packet.data
        if data.data:
            self.received[DATA] -= 1
            self.got_payload(data.connectID, data.data)
        elif self.half_closes and data.error:
            end = self.ends.get(data.connectID)
            if end is not None:
                self._hand_on(end)
                end.ended_by_peer()

    def _answered(self, packet: Packet) -> None:
        answer = packet.dialResponse
        connect_id = answer.connectID if not answer.error else 0
        if connect_id and self._ids.is_ours(connect_id):
            raise ProtocolError(f"konnectivity: the peer assigned an id of our range: {connect_id}")
        end = self.dials.pop(answer.random, None)
        if end is None or end.told is None:
            if answer.connectID in self.ends:
                self.owner.broke_rules("a second answer to a dial")
            elif connect_id:
                self._close(connect_id)  # cancelled while the answer was in flight
            return
        told, end.told = end.told, None
        if not connect_id:
            end.over(Ending.CLEAN)
            by = "server" if self.agent else "agent"
            told(answer.error or f"the {by} answered without a connection id")
            return
        before = self.ends.get(connect_id)
        if before is not None:
            before.lost(Ending.PROTOCOL)
        self._ids.closed(connect_id)
        end.opened(connect_id)
        end.reached = answer.isthmus_address
        self.ends[connect_id] = end
        told(None)

    def _closed(self, connect_id: int, error: str) -> None:
        if self._ids.is_ours(connect_id):
            self.owner.broke_rules("an answer to a close that only the peer may request")
            return
        self._ids.closed(connect_id)
        end = self.ends.get(connect_id)
        if end is not None:
            self._hand_on(end)  # data received before the close goes first
            self.ends.pop(connect_id, None)
            end.closed_by_peer(error)

    def _close_asked(self, connect_id: int) -> None:
        if not self._ids.is_ours(connect_id):
            self.owner.broke_rules("a request to close a connection that only the peer may close")
            return
        end = self.ends.get(connect_id)
        if end is None:
            self.say(CLOSE_RSP, close_response(connect_id, "Unknown connectID"))
            return
        self._hand_on(end)
        self.ends.pop(connect_id, None)
        self.say(CLOSE_RSP, close_response(connect_id))
        # A peer that can signal half-closes does so, and requests a close only after a reset.
        end.closed_by_peer("reset" if self.half_closes else "")

    def got_end(self, stream: Http2Stream) -> None:
        """The peer ended the call."""
        self._call_over("the peer ended the call")

    def was_reset(self, stream: Http2Stream, code: int, text: str) -> None:
        """The call is gone."""
        self._call_over(text)

    # Replies after a half-close.

    def await_reply(self, end: LinkedEnd) -> None:
        """The client half-closed: close remotely only after the reply has paused for long."""
        self._replies.await_(end)

    def reply_unwanted(self, end: LinkedEnd) -> None:
        """Close remotely at once, if we waited for a reply."""
        if end in self._replies:
            peer = end.peer
            self._close(end.connect_id)
            end.over(Ending.CLEAN)
            peer.write_eof()

    def tick(self) -> None:
        """Check replies and stuck readers, about once a second."""
        for end in self._replies.paused():
            self.reply_unwanted(end)
        now = self.clock()
        if not self.account.budget.exhausted:
            self._spare_at = now
        elif now - self._spare_at >= STUCK_S:
            self._reset_stuck()

    def _reset_stuck(self) -> None:
        """Reset readers that took nothing for minutes while the budget was exhausted."""
        for end in self.brake.stalled(STUCK_S):
            account = end.account or self.account
            if account.budget.exhausted and account.over_share:  # only until there is room
                peer = end.peer
                end.abort(Ending.STALLED)
                peer.abort(Ending.STALLED)
