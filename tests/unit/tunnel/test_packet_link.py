"""Many connections in one call: both roles, turns, the brake, dials and endings.

What slow readers do over time is tests/property/test_packet_brake.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from isthmus.testing import Http2Pair, ManualClock, MemoryEnd, Recorder
from isthmus.tunnel import packet_link
from isthmus.tunnel.budget import Budget
from isthmus.tunnel.end import Ending, join
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.limits import Http2Limits
from isthmus.tunnel.linked_end import REPLY_PAUSE_S, LinkedEnd
from isthmus.tunnel.message_reader import PacketCounts, PacketReader
from isthmus.tunnel.packet_brake import PRIVATE_BUDGET_BYTES, PROBE_S
from isthmus.tunnel.packet_link import PacketLink
from isthmus.tunnel.traffic_classes import TURN_BYTES
from isthmus.values import NORMAL, URGENT
from isthmus.wire.http2 import ErrorCode, Headers
from isthmus.wire.konnectivity_pb2 import Packet
from isthmus.wire.packet import (
    CLOSE_REQ,
    CLOSE_RSP,
    DATA,
    DIAL_RSP,
    close_request,
    close_response,
    data_packet,
    dial_response,
    parse,
)

REQUEST: Headers = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x"))
WINDOW = 256 * 1024


class Program:
    """One side's owner of its PacketLink."""

    link: PacketLink

    def __init__(self) -> None:
        self.dialed: list[tuple[str, str, int]] = []
        self.said: list[bytes] = []
        self.taken: list[int] = []
        self.drains = 0
        self.overs: list[str] = []
        self.delays: list[float] = []
        self.complaints: list[str] = []

    def asked(self, protocol: str, address: str, random: int, ours: bytes) -> None:
        self.dialed.append((protocol, address, random))
        self.said.append(ours)

    def taken_back(self, random: int) -> None:
        self.taken.append(random)

    def told_to_drain(self) -> None:
        self.drains += 1

    def call_over(self, text: str) -> None:
        self.overs.append(text)
        self.link.lost(Ending.LINK_LOST)

    def ease_later(self, delay_s: float) -> None:
        self.delays.append(delay_s)

    def broke_rules(self, what: str) -> None:
        self.complaints.append(what)


class Sink(MemoryEnd):
    """A memory end that counts what it has not passed on while it is full, like a socket."""

    out_bytes = 0

    def took(self, data: bytes) -> None:
        super().took(data)
        if self.full:
            self.out_bytes += len(data)

    def make_room(self) -> None:
        self.out_bytes = 0
        super().make_room()


class Bench:
    """Our server and our agent, with one call between them (the agent is the HTTP/2 client)."""

    def __init__(self, *, half_closes: bool = False, limits: Http2Limits | None = None) -> None:
        self.clock = ManualClock()
        self.server, self.agent = Program(), Program()
        self.pair = Http2Pair(clock=self.clock, on_request=self._request, limits=limits)
        stream = self.pair.client.open(Recorder())
        assert stream is not None
        self.half_closes = half_closes
        stream.handler = self._link(self.agent, stream)
        stream.send_headers(REQUEST)
        self.run()
        self.server.link.stream.send_headers(((b":status", b"200"),))
        self.run()
        self.told: list[str | None] = []
        self.done: list[Ending] = []

    def _request(self, stream: Http2Stream, headers: Headers) -> PacketLink:
        return self._link(self.server, stream)

    def _link(self, program: Program, stream: Http2Stream) -> PacketLink:
        program.link = PacketLink(
            stream, program, agent=program is self.agent, clock=self.clock,
            counts=PacketCounts(), half_closes=self.half_closes,
        )  # fmt: skip
        return program.link

    def run(self) -> None:
        self.pair.run()

    def dial(self, random: int = 1) -> LinkedEnd:
        end = self.server.link.dial("a:1", random, self.told.append)
        end.on_done = lambda _, ending: self.done.append(ending)
        self.run()
        return end

    def tunnel(self, random: int = 1) -> Tunnel:
        return Tunnel(self, random)

    def ease(self) -> None:
        """Let the brake's timers come once, after longer than any of them."""
        self.clock.advance(2 * PROBE_S)
        delays, self.server.delays = self.server.delays, []
        for _ in delays:
            self.server.link.ease()

    def idle(self) -> bool:
        """Nothing is left of any connection on either side."""
        links = (self.server.link, self.agent.link)
        return not any(
            link.ends or link.dials or link.held or link._replies or link.brake.withheld
            for link in links
        )


class Tunnel:
    """One connection: client ⇄ server's end … agent's end ⇄ target."""

    def __init__(self, bench: Bench, random: int) -> None:
        self.client, self.target = Sink(), Sink()
        self.near = bench.dial(random)
        self.far = bench.agent.link.accept(random)
        self.endings: list[tuple[str, Ending]] = []
        self.far.on_done = lambda _, ending: self.endings.append(("far", ending))
        join(self.far, self.target)
        bench.run()
        self.near.on_done = lambda _, ending: self.endings.append(("near", ending))
        join(self.near, self.client)


# Dials.


def test_a_dial_and_both_directions() -> None:
    bench = Bench()
    tunnel = bench.tunnel(77)
    assert bench.agent.dialed == [("tcp", "a:1", 77)] and bench.told == [None]
    tunnel.client.feed(b"ping")
    tunnel.target.feed(b"pong")
    bench.run()
    assert (tunnel.target.received, tunnel.client.received) == (b"ping", b"pong")
    assert bench.server.link.sent == [1, 0, 0, 0, 1, 0, 0]
    assert bench.server.link.received == [0, 1, 0, 0, 1, 0, 0]
    assert repr(tunnel.near) == "<LinkedEnd 1 open, 0 waiting>"
    assert repr(bench.server.link) == "<PacketLink 1 connections, 0 dials>"


@pytest.mark.parametrize("ours", [True, False])
def test_what_was_reached_is_told_to_programs_of_ours_only(ours: bool) -> None:
    bench = Bench()
    bench.agent.link.half_closes = ours
    near = bench.server.link.dial("a:1", 1, bench.told.append, ours=b"who")
    bench.run()
    assert bench.agent.said == [b"who"]
    bench.agent.link.accept(1, reached="10.0.0.1:1")
    bench.run()
    assert (bench.told, near.reached) == ([None], "10.0.0.1:1" if ours else "")


def test_packets_are_counted_and_not_their_pieces() -> None:
    bench = Bench()
    tunnel = bench.tunnel()
    tunnel.client.feed(bytes(50_000))
    bench.pair.run(piece_bytes=999)
    assert len(tunnel.target.received) == 50_000
    assert bench.agent.link.received[DATA] == bench.server.link.sent[DATA] == 1


def test_a_refused_dial() -> None:
    bench = Bench()
    bench.dial()
    bench.agent.link.refuse(1, "connection refused")
    bench.run()
    assert bench.told == ["connection refused"] and bench.done == [Ending.CLEAN]
    assert bench.idle()


def test_an_answer_without_a_connection() -> None:
    bench = Bench()
    bench.dial()
    bench.agent.link.say(DIAL_RSP, dial_response(1, 0))
    bench.run()
    assert bench.told == ["the agent answered without a connection id"] and bench.idle()


def test_a_dial_taken_back() -> None:
    bench = Bench()
    end = bench.dial()
    end.abort(Ending.CANCELLED)
    bench.run()
    assert bench.agent.taken == [1] and bench.told == [] and bench.done == [Ending.CANCELLED]
    assert bench.idle()


def test_a_dial_taken_back_while_its_answer_is_on_its_way() -> None:
    bench = Bench()
    end = bench.dial()
    far = bench.agent.link.accept(1)
    target = Sink()
    join(far, target)
    end.abort(Ending.CANCELLED)
    bench.run()
    assert bench.told == [] and bench.server.link.sent[CLOSE_REQ] == 1
    assert target.eofs == 1  # told to close, it closes
    target.feed_eof()
    bench.run()
    assert target.ending is Ending.CLEAN and bench.idle()
    assert not bench.server.link._ids.closing


def test_answers_twice_and_to_nobody() -> None:
    bench = Bench()
    tunnel = bench.tunnel(1)
    bench.agent.link.say(DIAL_RSP, dial_response(1, tunnel.near.connect_id))
    bench.agent.link.say(DIAL_RSP, dial_response(99, 0, "whatever"))
    bench.run()
    assert bench.server.complaints == ["a second answer to a dial"]
    tunnel.client.feed(b"goes on")
    bench.run()
    assert tunnel.target.received == b"goes on"
    bench.agent.link.say(DIAL_RSP, dial_response(99, 55))
    bench.agent.link.say(DIAL_RSP, dial_response(98, 55))
    bench.run()
    assert bench.server.link.sent[CLOSE_REQ] == 1  # asked once


def test_an_id_given_twice() -> None:
    bench = Bench()
    old = bench.tunnel(1)
    new = bench.dial(2)
    bench.agent.link.say(DIAL_RSP, dial_response(2, old.near.connect_id))
    bench.run()
    assert old.endings == [("near", Ending.PROTOCOL)] and old.client.aborted is Ending.PROTOCOL
    assert bench.server.link.ends == {1: new} and bench.told[-1] is None
    late = MemoryEnd()
    join(new, late)
    old.target.feed(b"for the new one")
    bench.run()
    assert late.received == b"for the new one"


def test_an_old_end_does_not_take_the_id_of_a_new_one() -> None:
    bench = Bench()
    old = bench.tunnel(1)
    bench.agent.link.say(CLOSE_RSP, close_response(1))
    new = bench.dial(1)  # the same number again, too
    bench.agent.link.say(DIAL_RSP, dial_response(1, 1))
    bench.run()
    assert old.near.half_closed and bench.server.link.ends == {1: new}
    again = bench.dial(1)
    old.client.feed_eof()
    assert old.endings[0] == ("near", Ending.CLEAN)
    assert bench.server.link.ends == {1: new} and bench.server.link.dials == {1: again}


# Endings, without half-closes.


def test_the_target_ends() -> None:
    bench = Bench()
    tunnel = bench.tunnel()
    tunnel.target.feed(b"bye")
    tunnel.target.feed_eof()
    bench.run()
    assert tunnel.client.received == b"bye" and tunnel.client.eofs == 1
    assert tunnel.endings == [("far", Ending.CLEAN)] and tunnel.target.ending is Ending.CLEAN
    assert tunnel.near.half_closed
    tunnel.client.feed_eof()
    assert tunnel.endings[1:] == [("near", Ending.CLEAN)] and bench.idle()


def test_a_client_that_sends_to_a_target_that_left() -> None:
    bench = Bench()
    tunnel = bench.tunnel()
    tunnel.target.feed_eof()
    bench.run()
    tunnel.client.feed(b"anybody?")
    assert tunnel.client.aborted is Ending.RESET
    assert tunnel.endings[1:] == [("near", Ending.RESET)] and bench.idle()


def test_a_client_that_half_closes_gets_its_reply() -> None:
    bench = Bench()
    tunnel = bench.tunnel()
    tunnel.client.feed(b"request")
    tunnel.client.feed_eof()
    bench.run()
    assert tunnel.target.received == b"request" and tunnel.target.eofs == 0
    for _ in range(3):
        bench.clock.advance(REPLY_PAUSE_S)
        tunnel.target.feed(b"reply")
        bench.run()
        bench.server.link.tick()
    tunnel.target.feed_eof()
    bench.run()
    assert tunnel.client.received == b"reply" * 3 and tunnel.client.eofs == 1
    assert sorted(tunnel.endings) == [("far", Ending.CLEAN), ("near", Ending.CLEAN)]
    assert bench.idle()


def test_a_reply_that_pauses_too_long() -> None:
    bench = Bench()
    tunnel = bench.tunnel()
    tunnel.client.feed_eof()
    bench.server.link.tick()
    bench.clock.advance(REPLY_PAUSE_S)
    bench.server.link.tick()
    assert not tunnel.endings
    bench.clock.advance(0.1)
    bench.server.link.tick()
    bench.run()
    assert tunnel.endings == [("near", Ending.CLEAN)] and tunnel.client.eofs == 1
    assert tunnel.target.eofs == 1  # closed, as konnectivity does
    tunnel.target.feed(b"too late")
    assert tunnel.target.aborted is Ending.RESET
    assert tunnel.endings[1:] == [("far", Ending.RESET)] and bench.idle()


@pytest.mark.parametrize("who", ["client", "target"])
def test_resets(who: str) -> None:
    bench = Bench()
    tunnel = bench.tunnel()
    (tunnel.client if who == "client" else tunnel.target).reset()
    bench.run()
    if who == "client":
        # CLOSE_REQ cannot say more: the target sees an end, and a reset when it goes on.
        assert tunnel.target.eofs == 1
        tunnel.target.feed(b"x")
        assert tunnel.target.aborted is Ending.RESET
    else:
        assert tunnel.client.aborted is Ending.RESET
    assert sorted(tunnel.endings) == [("far", Ending.RESET), ("near", Ending.RESET)]
    assert bench.idle()


def test_data_under_way_behind_a_close_is_dropped() -> None:
    bench = Bench()
    tunnel = bench.tunnel()
    for _ in range(3):
        tunnel.target.feed(b"under way")
    tunnel.near.abort(Ending.ADMIN)
    bench.run()
    assert bench.server.link.sent[CLOSE_REQ] == 1 and tunnel.client.received == b""
    assert not bench.server.link._ids.closing


# Endings with half-closes.


@pytest.mark.parametrize("first", ["client", "target"])
def test_half_closes_travel(first: str) -> None:
    bench = Bench(half_closes=True)
    tunnel = bench.tunnel()
    one, two = tunnel.client, tunnel.target
    if first == "target":
        one, two = two, one
    one.feed(b"all I have")
    one.feed_eof()
    bench.run()
    assert (two.received, two.eofs) == (b"all I have", 1)
    assert tunnel.near.half_closed and tunnel.far.half_closed and not tunnel.endings
    two.feed(b"the answer")
    two.feed_eof()
    bench.run()
    assert (one.received, one.eofs) == (b"the answer", 1)
    assert sorted(tunnel.endings) == [("far", Ending.CLEAN), ("near", Ending.CLEAN)]
    assert bench.server.link.sent[CLOSE_REQ] == bench.agent.link.sent[CLOSE_RSP] == 0
    assert bench.idle()


@pytest.mark.parametrize("who", ["client", "target"])
def test_resets_travel_as_resets(who: str) -> None:
    bench = Bench(half_closes=True)
    tunnel = bench.tunnel()
    one, two = (tunnel.client, tunnel.target)[:: 1 if who == "client" else -1]
    one.reset()
    bench.run()
    assert two.aborted is Ending.RESET
    assert sorted(tunnel.endings) == [("far", Ending.RESET), ("near", Ending.RESET)]
    assert bench.idle()


def test_a_half_close_is_said_once_also_when_it_had_to_wait() -> None:
    bench = Bench(half_closes=True)
    tunnel = bench.tunnel()
    tunnel.target.fill()
    while not tunnel.client.paused:
        tunnel.client.feed(bytes(60_000))
    before = bench.server.link.sent[DATA]
    tunnel.near.write_eof()  # nothing of its own waits: its last bytes are the stream's
    tunnel.near.write_eof()
    assert bench.server.link.sent[DATA] == before + 1
    tunnel.target.make_room()
    bench.run()
    assert bench.server.link.sent[DATA] == before + 1 and tunnel.target.eofs == 1


# Connections that the agent opens.


class AgentTunnel:
    """One connection: client ⇄ agent's end … server's end ⇄ target."""

    def __init__(self, bench: Bench, random: int = 1) -> None:
        self.client, self.target = Sink(), Sink()
        self.told: list[str | None] = []
        self.near = bench.agent.link.dial("a:1", random, self.told.append)
        bench.run()
        assert bench.server.dialed[-1] == ("tcp", "a:1", random)
        self.far = bench.server.link.accept(random)
        join(self.far, self.target)
        bench.run()
        join(self.near, self.client)


def test_the_role_is_the_connections_and_not_the_links() -> None:
    bench = Bench()
    ours, theirs = bench.tunnel(1), AgentTunnel(bench, 1)
    assert theirs.told == [None] and bench.told == [None]
    assert (ours.near.connect_id, theirs.near.connect_id) == (1, 2**32)
    assert (ours.near.opener, ours.far.opener) == (True, False)
    assert (theirs.near.opener, theirs.far.opener) == (True, False)
    for tunnel in (ours, theirs):
        tunnel.client.feed(b"ping")
        tunnel.target.feed(b"pong")
        bench.run()
        assert (tunnel.target.received, tunnel.client.received) == (b"ping", b"pong")


def test_whoever_accepted_tells_of_the_end_and_whoever_opened_asks_for_it() -> None:
    bench = Bench()
    ended, closed = AgentTunnel(bench, 1), AgentTunnel(bench, 2)
    ended.target.feed_eof()
    bench.run()
    assert bench.server.link.sent[CLOSE_RSP] == 1 and ended.client.eofs == 1
    closed.client.feed_eof()
    bench.agent.link.tick()
    bench.clock.advance(REPLY_PAUSE_S + 0.1)
    bench.agent.link.tick()
    bench.run()
    assert bench.agent.link.sent[CLOSE_REQ] == 1 and closed.target.eofs == 1
    assert bench.agent.link.sent[CLOSE_RSP] == bench.server.link.sent[CLOSE_REQ] == 0
    ended.client.feed_eof()
    closed.target.feed_eof()
    bench.run()
    assert bench.idle() and not bench.agent.complaints and not bench.server.complaints


@pytest.mark.parametrize("who", ["client", "target"])
def test_resets_of_what_the_agent_opened(who: str) -> None:
    bench = Bench(half_closes=True)
    tunnel = AgentTunnel(bench)
    one, two = (tunnel.client, tunnel.target)[:: 1 if who == "client" else -1]
    one.reset()
    bench.run()
    assert two.aborted is Ending.RESET and bench.idle()
    asked, said = bench.agent.link.sent[CLOSE_REQ], bench.server.link.sent[CLOSE_RSP]
    assert (asked, said) == ((1, 1) if who == "client" else (0, 1))


def test_a_dial_that_the_agent_takes_back() -> None:
    bench = Bench()
    told: list[str | None] = []
    end = bench.agent.link.dial("a:1", 5, told.append)
    bench.run()
    end.abort(Ending.CANCELLED)
    bench.run()
    assert bench.server.taken == [5] and told == [] and bench.idle()


def test_a_slow_target_of_what_the_agent_opened_is_slowed() -> None:
    bench = Bench(half_closes=True)
    slow, other = AgentTunnel(bench, 1), bench.tunnel(2)
    slow.target.fill()
    total = PRIVATE_BUDGET_BYTES + 60_000
    for _ in range(total // 60_000):
        slow.client.feed(bytes(60_000))
    for _ in range(20):
        other.client.feed(b"goes on")
        bench.run()
        bench.ease()
        bench.run()
    assert other.target.received == 20 * b"goes on"
    assert slow.target.aborted is slow.client.aborted is None
    assert WINDOW < slow.target.out_bytes < PRIVATE_BUDGET_BYTES // 2
    slow.target.make_room()
    bench.run()
    assert slow.target.bytes_written == total // 60_000 * 60_000 and bench.server.link.held == 0


# Turns.


def test_a_write_above_a_turn_is_not_forgotten() -> None:
    bench = Bench()
    tunnel = bench.tunnel()
    tunnel.client.feed(bytes(3 * TURN_BYTES + 5))
    bench.run()
    assert len(tunnel.target.received) == 3 * TURN_BYTES + 5
    assert bench.server.link.sent[DATA] == 4
    assert tunnel.near.backlog_bytes == 0 and not tunnel.client.paused


def test_an_empty_write_is_nothing() -> None:
    bench = Bench()
    tunnel = bench.tunnel()
    assert tunnel.near.write(b"") is True
    bench.run()
    assert bench.server.link.sent[DATA] == 0


def test_connections_take_turns() -> None:
    bench = Bench()
    bulk, *others = [bench.tunnel(random) for random in range(1, 6)]
    bulk.client.feed(bytes(20 * TURN_BYTES))
    for other in others:
        other.client.feed(b"small")
    assert bench.server.link.blocked
    order: list[int] = []
    for tunnel in (bulk, *others):
        tunnel.target.on_write = lambda data, id_=tunnel.far.connect_id: order.append(id_)
    bench.run()
    assert set(order[: order.index(5) + 1]) == {1, 2, 3, 4, 5}
    # Nobody waits for more than the window and a turn of the bulk.
    assert len(bulk.target.received) == 20 * TURN_BYTES
    assert order.index(5) <= order.count(1)
    assert all(other.target.received == b"small" for other in others)
    assert not any(tunnel.client.paused for tunnel in (bulk, *others))


def test_connections_take_turns_by_class() -> None:
    pieces_before = {}
    for traffic in (NORMAL, URGENT):
        bench = Bench()
        *bulks, other = [bench.tunnel(random) for random in range(1, 6)]
        other.near.traffic = traffic
        for bulk in bulks:
            bulk.client.feed(bytes(8 * TURN_BYTES))
        assert bench.server.link.blocked
        gone = sum(bulk.near.bytes_written - bulk.near.backlog_bytes for bulk in bulks)
        other.client.feed(b"small")
        before = -1

        def came(data: bytes, bench: Bench = bench, bulks: list[Tunnel] = bulks) -> None:
            nonlocal before
            before = sum(bulk.near.bytes_written - bulk.near.backlog_bytes for bulk in bulks)

        other.target.on_write = came
        bench.run()
        pieces_before[traffic] = before - gone
        assert all(len(bulk.target.received) == 8 * TURN_BYTES for bulk in bulks)
    # An urgent one is the next; another waits until each of the others had a turn.
    assert pieces_before[URGENT] + 3 * TURN_BYTES <= pieces_before[NORMAL]


def test_an_end_waits_for_the_bytes_before_it() -> None:
    bench = Bench(half_closes=True)
    tunnel = bench.tunnel()
    tunnel.near.write(bytes(WINDOW * 3))
    tunnel.near.write_eof()
    assert tunnel.near.write(b"too late") is True
    bench.run()
    assert len(tunnel.target.received) == WINDOW * 3 and tunnel.target.eofs == 1


def test_a_connection_that_ends_while_it_waits_for_its_turn() -> None:
    bench = Bench()
    one, two = bench.tunnel(1), bench.tunnel(2)
    one.client.feed(bytes(WINDOW * 3))
    two.client.feed(bytes(1000))
    one.client.reset()
    bench.run()
    assert len(two.target.received) == 1000 and one.near.backlog_bytes == 0


# The brake.


def flood(tunnel: Tunnel, bench: Bench, total: int) -> None:
    for _ in range(total // 60_000):
        tunnel.target.feed(bytes(60_000))
        bench.run()


def test_a_full_sink_of_an_only_connection_brakes_until_it_has_room() -> None:
    bench = Bench()
    slow = bench.tunnel(1)
    slow.client.fill()
    flood(slow, bench, 600_000)
    assert len(bench.server.delays) == 1
    assert len(slow.client.received) <= WINDOW  # the call stands still
    slow.client.make_room()
    bench.run()
    assert len(slow.client.received) == 600_000
    assert bench.server.link.held == bench.server.link.brake.withheld == 0


def test_others_are_let_through_beside_a_full_sink() -> None:
    bench = Bench()
    slow, other = bench.tunnel(1), bench.tunnel(2)
    slow.client.fill()
    flood(slow, bench, 600_000)
    other.target.feed(b"waits")
    bench.run()
    assert other.client.received == b""
    for _ in range(2):
        bench.ease()
        bench.run()
    assert other.client.received == b"waits"
    assert bench.server.link.held == slow.client.out_bytes > WINDOW
    slow.client.make_room()
    assert bench.server.link.held == 0


def test_a_sink_with_room_in_time_lets_go_of_the_brake() -> None:
    bench = Bench()
    slow = bench.tunnel(1)
    slow.client.fill()
    flood(slow, bench, 300_000)
    slow.client.make_room()
    bench.run()
    assert len(slow.client.received) == 300_000 and not bench.server.link.brake.behind
    # The timer still runs, and one is enough however often the brake is used meanwhile.
    for _ in range(5):
        slow.client.fill()
        flood(slow, bench, 60_000)
        slow.client.make_room()
    assert len(bench.server.delays) == 1
    bench.ease()
    assert bench.server.delays == []  # nobody brakes: no timer


def test_a_quick_reader_gets_credit_for_what_it_takes() -> None:
    bench = Bench()
    quick = bench.tunnel(1)
    quick.client.fill()
    flood(quick, bench, 1_200_000)
    for _ in range(10):
        before = len(quick.client.received)
        quick.client.out_bytes -= quick.client.out_bytes * 3 // 4
        bench.clock.advance(0.006)
        bench.server.link.ease()
        bench.run()
        assert len(quick.client.received) >= min(before + WINDOW // 2, 1_200_000)
    assert len(quick.client.received) == 1_200_000


def test_a_reader_that_never_reads_is_not_ended() -> None:
    bench = Bench()
    account = bench.server.link.account = Budget(4_000_000).account("the agent")
    slow, other = bench.tunnel(1), bench.tunnel(2)
    slow.client.fill()
    flood(slow, bench, 8_000_000)
    for _ in range(50):
        other.client.feed(b"?")
        bench.ease()
        bench.run()
    assert bench.server.link.brake.exhausted
    assert slow.client.aborted is None and slow.near.ending is None
    assert 2_000_000 < account.used_bytes <= slow.client.out_bytes <= 2_000_000 + 3 * WINDOW
    slow.client.reset()
    other.target.feed(b"goes on")
    bench.run()
    assert other.client.received == b"goes on"
    assert bench.server.link.held == account.used_bytes == 0


def test_what_comes_before_a_peer_counts_too() -> None:
    bench = Bench()
    end = bench.dial(1)
    far = bench.agent.link.accept(1)
    target = Sink()
    join(far, target)
    bench.run()
    target.feed(bytes(60_000))
    target.feed(bytes(60_000))
    bench.run()
    assert bench.server.link.held == 120_000
    client = Sink()
    join(end, client)
    assert len(client.received) == 120_000 and bench.server.link.held == 0


def test_a_full_sink_that_goes_lets_go_of_the_brake() -> None:
    bench = Bench()
    slow, other = bench.tunnel(1), bench.tunnel(2)
    slow.client.fill()
    flood(slow, bench, 600_000)
    other.target.feed(b"waits")
    bench.run()
    slow.client.reset()
    bench.run()
    assert other.client.received == b"waits" and bench.server.link.held == 0


# Every packet, both roles.


class Raw:
    """A peer's program that is the test: packets as bytes."""

    def __init__(self, *, agent: bool) -> None:
        self.bench = Bench()
        program = self.bench.agent if agent else self.bench.server
        other = self.bench.server if agent else self.bench.agent
        self.program, self.link, self.out = program, program.link, other.link.stream
        self.packets: list[Packet] = []
        self.reader = PacketReader()
        recorder = Recorder()
        recorder.on_call = self._read
        self.recorder = recorder
        self.out.handler = recorder

    def _read(self, name: str, stream: Http2Stream) -> None:
        if name == "data":
            self.reader.feed(memoryview(bytes(self.recorder.received)), self)
            self.recorder.received.clear()

    def got_payload(self, connect_id: int, piece: memoryview | bytes) -> None:
        pass

    def more_payload(self, piece: memoryview | bytes) -> None:
        pass

    def got_message(self, message: memoryview | bytes) -> None:
        self.packets.append(parse(message))

    def send(self, *messages: bytes) -> None:
        for message in messages:
            self.out.write(message, b"")
        self.bench.run()


def test_what_an_agent_says_to_unknown_connections() -> None:
    raw = Raw(agent=True)
    raw.send(data_packet(9, b"x"), data_packet(9, b"y"), close_request(8))
    errors = [(p.closeResponse.connectID, p.closeResponse.error) for p in raw.packets]
    assert errors == [(9, "unrecognized connectID"), (8, "Unknown connectID")]


def test_what_a_server_says_to_unknown_connections() -> None:
    raw = Raw(agent=False)
    raw.send(data_packet(9, b"x"), data_packet(9, b"y"), close_response(9), data_packet(9, b"z"))
    assert [p.closeRequest.connectID for p in raw.packets] == [9, 9]


def test_packets_of_no_known_type() -> None:
    for agent in (True, False):
        raw = Raw(agent=agent)
        for kind in (7, 99):
            body = Packet(type=kind).SerializeToString()  # type: ignore[arg-type]  # plain int
            raw.send(len(body).to_bytes(5, "big") + body)
        assert raw.program.complaints == ["a packet of type 7", "a packet of type 99"]
        assert raw.program.overs == [] and raw.packets == []


def test_drain() -> None:
    bench = Bench()
    bench.agent.link.drain()
    bench.run()
    assert (bench.server.drains, bench.agent.drains) == (1, 0)
    bench.server.link.drain()
    bench.run()
    assert (bench.server.drains, bench.agent.drains) == (1, 1)
    assert bench.agent.complaints == bench.server.complaints == []


def test_data_of_an_unusual_form() -> None:
    bench = Bench()
    tunnel = bench.tunnel()
    inside = b"\x1a\x02hi\x08\x01"
    body = b"\x08\x04\x22" + bytes([len(inside)]) + inside
    bench.server.link.stream.write(len(body).to_bytes(5, "big") + body, data_packet(1, b""))
    bench.run()
    assert tunnel.target.received == b"hi" and tunnel.target.eofs == 0
    assert bench.agent.link.received[DATA] == 2


# The call.


@pytest.mark.parametrize("how", ["end", "reset", "garbage", "lost"])
def test_the_end_of_the_call_is_the_end_of_all(how: str) -> None:
    bench = Bench()
    tunnel = bench.tunnel(1)
    pending = bench.dial(2)
    stream = bench.agent.link.stream
    acts: dict[str, Callable[[], object]] = {
        "end": stream.end,
        "reset": lambda: stream.reset(ErrorCode.CANCEL),
        "garbage": lambda: [stream.write(b"\0\0\0\0\2\xff\xff", b"") for _ in range(2)],
        "lost": bench.pair.server.lost,
    }
    acts[how]()
    bench.run()
    assert len(bench.server.overs) == 1
    assert bench.server.complaints == ([bench.server.overs[0]] if how == "garbage" else [])
    assert ("near", Ending.LINK_LOST) in tunnel.endings
    assert tunnel.client.aborted is Ending.LINK_LOST
    assert bench.told == [None, ""] and pending.ending is Ending.LINK_LOST
    assert not bench.server.link.ends and not bench.server.link.dials
    # Nothing begins on a link that is gone.
    assert bench.server.link.dial("a:1", 3, bench.told.append).ending is Ending.LINK_LOST
    assert bench.told == [None, "", ""]
    late, target = bench.server.link.accept(4), MemoryEnd()
    join(late, target)
    assert target.aborted is Ending.LINK_LOST and not bench.server.link.ends


def test_a_peer_that_asks_and_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packet_link, "MOST_WAITING_BYTES", 10_000)
    raw = Raw(agent=True)
    raw.recorder.full = True
    for _ in range(200):
        raw.send(*[close_request(9)] * 100)
    assert raw.program.overs == [] and raw.program.delays == [0.0]
    raw.link.ease()
    assert raw.program.overs == ["the peer sends requests but does not read"]


def test_a_connection_that_nobody_reads_any_more_is_closed_at_once() -> None:
    bench = Bench(half_closes=False)
    tunnel = bench.tunnel()
    tunnel.client.feed_eof()
    bench.run()
    assert tunnel.target.ending is None  # its reply may still come
    tunnel.client.peer.let_go()
    bench.run()
    bench.run()
    assert bench.idle()


@pytest.mark.parametrize("how", ["abort", "eof", "link"])
@pytest.mark.parametrize("where", ["write", "eof", "abort"])
@pytest.mark.parametrize("half_closes", [True, False])
def test_closing_inside_callbacks(where: str, how: str, half_closes: bool) -> None:
    bench = Bench(half_closes=half_closes)
    tunnel, other = bench.tunnel(1), bench.tunnel(2)
    calls: deque[str] = deque()

    class Closer(Sink):
        def _act(self, name: str) -> None:
            calls.append(name)
            if name == where:
                if how == "abort":
                    tunnel.near.abort(Ending.ADMIN)
                elif how == "eof":
                    tunnel.near.write_eof()
                else:
                    bench.server.link.lost(Ending.LINK_LOST)

        def took(self, data: bytes) -> None:
            self._act("write")

        def write_eof(self) -> None:
            super().write_eof()
            self._act("eof")

        def abort(self, reason: Ending) -> None:
            super().abort(reason)
            self._act("abort")

    closer = Closer()
    tunnel.near.peer, closer.peer = closer, tunnel.near
    tunnel.target.feed(b"data")
    other.target.feed(b"other")
    if where == "abort":
        tunnel.target.reset()
    else:
        tunnel.target.feed_eof()
    bench.run()
    assert calls.count(where) == 1
    assert sum(who == "near" for who, _ in tunnel.endings) <= 1
    if how != "link":
        assert other.client.received == b"other"
    tunnel.near.abort(Ending.ADMIN)
    assert sum(who == "near" for who, _ in tunnel.endings) == 1
    assert tunnel.near not in bench.server.link.ends.values()


def test_calls_after_the_end_do_nothing() -> None:
    bench = Bench()
    tunnel = bench.tunnel()
    tunnel.near.abort(Ending.ADMIN)
    bench.run()
    sent = list(bench.server.link.sent)
    assert tunnel.near.write(b"x") is True
    tunnel.near.write_eof()
    tunnel.near.abort(Ending.RESET)
    tunnel.near.resume_reading()
    tunnel.near.pause_reading()
    tunnel.near.start()
    tunnel.near.closed_by_peer("")
    tunnel.near.lost(Ending.RESET)
    assert bench.server.link.sent == sent
    assert tunnel.endings[0] == ("near", Ending.ADMIN)
    assert [who for who, _ in tunnel.endings].count("near") == 1
