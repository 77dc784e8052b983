"""The stream: windows and their growth, what is held, early bytes, and streams as sinks."""

from __future__ import annotations

import pytest

from isthmus.testing import ManualClock, MemoryEnd, MemoryLink
from isthmus.tunnel.budget import LEAST_WINDOW, SLOW_WINDOW, STREAM_BYTES, Budget
from isthmus.tunnel.end import Early, Ending, join
from isthmus.tunnel.limits import MIB, Limits
from isthmus.tunnel.stream import MAX_FRAME, MAX_WINDOW, Stream
from isthmus.wire.yamux import DATA, INITIAL_WINDOW, RST, WINDOW_UPDATE

HALF = INITIAL_WINDOW // 2
#: A round trip and a pace below it: enough to ask for a larger window.
ROUND_TRIP_S, QUICK_S, SLOW_S = 0.1, 0.39, 0.41


class Tunnel:
    """One stream between two memory ends; the client feeds, the server's end takes."""

    def __init__(self, link: MemoryLink) -> None:
        self.link = link
        self.source, self.sink = MemoryEnd(), MemoryEnd()
        sender = link.client.open()
        assert sender is not None
        self.sender = sender
        join(sender, self.source)
        link.run()
        self.receiver = link.accepted.pop()
        join(self.receiver, self.sink)

    def send(self, size: int) -> None:
        self.source.feed(bytes(size))
        self.link.run()

    def grow(self, times: int) -> None:
        """Consume half a window again and again, quicker than a round trip."""
        clock = self.link.server.clock
        assert isinstance(clock, ManualClock)
        for _ in range(times):
            clock.advance(QUICK_S)
            self.send(self.receiver.window // 2 - self.receiver.owed)


def make(limits: Limits | None = None) -> tuple[ManualClock, MemoryLink]:
    clock = ManualClock()
    link = MemoryLink(clock=clock, limits=limits)
    link.server.round_trip_s = ROUND_TRIP_S
    return clock, link


# Credit.


def test_credit_returns_at_half_a_window() -> None:
    _, link = make()
    tunnel = Tunnel(link)
    tunnel.send(HALF - 1)
    assert (tunnel.sender.credit, tunnel.receiver.owed) == (HALF + 1, HALF - 1)
    tunnel.send(1)
    assert (tunnel.sender.credit, tunnel.receiver.owed) == (INITIAL_WINDOW, 0)
    assert tunnel.receiver.receive_credit == INITIAL_WINDOW


def test_a_full_sink_gets_the_window_and_not_a_byte_more() -> None:
    _, link = make()
    tunnel, other = Tunnel(link), Tunnel(link)
    tunnel.sink.fill()
    tunnel.send(1)  # so that the last frame is not a whole one
    tunnel.send(INITIAL_WINDOW + 12_344)
    assert len(tunnel.sink.received) == INITIAL_WINDOW
    assert tunnel.sender.backlog_bytes == 12_345
    assert tunnel.receiver.held == link.server.held == INITIAL_WINDOW
    assert list(link.server._holders) == [tunnel.receiver]
    other.send(3 * INITIAL_WINDOW)
    assert len(other.sink.received) == 3 * INITIAL_WINDOW
    tunnel.sink.make_room()
    link.run()
    assert len(tunnel.sink.received) == INITIAL_WINDOW + 12_345
    assert (tunnel.receiver.held, link.server.held) == (0, 0)
    assert not link.server._holders


def test_a_full_carrier_keeps_data_in_its_stream_and_the_source_paused() -> None:
    link = MemoryLink(room_bytes=0)
    tunnel = Tunnel(link)
    tunnel.source.feed(b"a" * 1000)
    link.flush()
    assert link.client_out.full
    tunnel.source.feed(b"b" * 1000)
    tunnel.source.feed(b"c" * 1000)
    assert (tunnel.sender.backlog_bytes, tunnel.source.waiting_bytes) == (1000, 1000)
    assert tunnel.source.paused
    link.run()
    assert tunnel.sink.received == b"a" * 1000 + b"b" * 1000 + b"c" * 1000


def test_a_write_larger_than_a_frame_is_cut() -> None:
    _, link = make()
    tunnel = Tunnel(link)
    tunnel.source.feed(bytes(2 * MAX_FRAME + 1))
    frames = link.client_out.frames()
    assert [len(frame.payload) for frame in frames] == [MAX_FRAME, MAX_FRAME, 1]


@pytest.mark.parametrize("full_first", [False, True])
def test_our_own_senders_start_with_less(full_first: bool) -> None:
    _, link = make()
    link.client.first_window = 65_536
    link.server.first_update_bytes = 32_768
    tunnel = Tunnel(link)
    assert (tunnel.sender.credit, tunnel.sender.reserve) == (65_536, INITIAL_WINDOW - 65_536)
    if full_first:
        tunnel.sink.fill()
    tunnel.source.feed(bytes(1_000_000))
    link.flush()
    assert tunnel.sender.backlog_bytes == 1_000_000 - 65_536
    link.run()
    if full_first:
        assert len(tunnel.sink.received) == 65_536
        tunnel.sink.make_room()
        link.run()
    assert len(tunnel.sink.received) == 1_000_000
    assert tunnel.sender.reserve == 0
    assert tunnel.sender.credit == tunnel.receiver.receive_credit


# Growth.


def test_a_window_grows_when_consumed_within_a_few_round_trips() -> None:
    _, link = make()
    tunnel = Tunnel(link)
    tunnel.grow(1)
    assert tunnel.receiver.window == INITIAL_WINDOW  # one update says nothing about the pace
    for expected in (512 * 1024, MIB, 2 * MIB, MAX_WINDOW, MAX_WINDOW):
        tunnel.grow(1)
        assert tunnel.receiver.window == tunnel.sender.credit == expected
    assert link.server._growth_left == 64 * MIB - (MAX_WINDOW - INITIAL_WINDOW)


def test_a_slow_stream_does_not_grow() -> None:
    clock, link = make()
    tunnel = Tunnel(link)
    for _ in range(5):
        clock.advance(SLOW_S)
        tunnel.send(HALF)
    assert tunnel.receiver.window == tunnel.sender.credit == INITIAL_WINDOW


@pytest.mark.parametrize(("took_s", "grows"), [(1.9, True), (2.1, False)])
def test_a_late_answer_to_a_ping_does_not_let_slow_streams_grow(took_s: float, grows: bool) -> None:
    clock, link = make()
    link.server.round_trip_s = 15.0
    tunnel = Tunnel(link)
    for _ in range(5):
        clock.advance(took_s)
        tunnel.send(tunnel.receiver.window // 2 - tunnel.receiver.owed)
    assert (tunnel.receiver.window > INITIAL_WINDOW) == grows


def test_growth_comes_from_a_pool_that_runs_dry_and_is_refilled() -> None:
    _, link = make(Limits(growth_pool_bytes=100_000))
    first, second = Tunnel(link), Tunnel(link)
    assert (link.server.grown_bytes, link.server.most_grown_bytes) == (0, 0)
    first.grow(2)
    assert first.receiver.window == first.sender.credit == INITIAL_WINDOW + 100_000
    assert (link.server.grown_bytes, link.server.most_grown_bytes) == (100_000, 100_000)
    second.grow(3)
    assert second.receiver.window == second.sender.credit == INITIAL_WINDOW
    first.source.reset()
    link.run()
    assert first.receiver.ending is Ending.RESET
    assert link.server._growth_left == 100_000
    assert (link.server.grown_bytes, link.server.most_grown_bytes) == (0, 100_000)
    second.grow(1)
    assert second.receiver.window == INITIAL_WINDOW + 100_000


@pytest.mark.parametrize(("stalled_s", "kept"), [(0.5, MAX_WINDOW), (1.5, INITIAL_WINDOW)])
def test_a_stream_that_stalls_gives_its_growth_back(stalled_s: float, kept: int) -> None:
    clock, link = make()
    tunnel = Tunnel(link)
    tunnel.grow(5)
    assert tunnel.sender.credit == MAX_WINDOW
    tunnel.sink.fill()
    tunnel.send(MAX_WINDOW)
    assert link.server.held == MAX_WINDOW
    clock.advance(stalled_s)
    tunnel.sink.make_room()
    link.run()
    assert tunnel.receiver.window == tunnel.sender.credit == kept
    assert tunnel.receiver.receive_credit == kept
    assert link.server._growth_left == 64 * MIB - (kept - INITIAL_WINDOW)
    tunnel.send(5_000_000)  # it still flows
    assert tunnel.source.waiting_bytes == tunnel.sender.backlog_bytes == 0


# Held bytes.


class Shared:
    """Tunnels of several clients over one link, whose held bytes come out of one budget."""

    def __init__(self, total_bytes: int, *, growth_pool_bytes: int = 64 * MIB) -> None:
        self.budget = Budget(total_bytes)
        self.clock, self.link = make(Limits(growth_pool_bytes=growth_pool_bytes))

    def tunnel(self, client: str) -> Tunnel:
        tunnel = Tunnel(self.link)
        self.link.server.charge(tunnel.receiver, self.budget.account(client))
        return tunnel

    def stalled(self, client: str, size: int = INITIAL_WINDOW) -> Tunnel:
        """One whose reader has stopped, with all that its sender may send."""
        tunnel = self.tunnel(client)
        tunnel.sink.fill()
        tunnel.send(size)
        return tunnel

    def tick(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.clock.advance(1.0)
            self.link.client.heard()
            self.link.server.heard()
            assert self.link.server.tick()
            self.link.run()


def test_stalled_readers_of_one_client_cost_another_nothing() -> None:
    shared = Shared(8 * MIB)
    paused = shared.stalled("one")
    hogs = [shared.stalled("hog") for _ in range(30)]
    assert shared.budget.exhausted
    assert hogs[0].receiver.account.over_share and not paused.receiver.account.over_share
    shared.tick(299)
    assert paused.sink.aborted is None and paused.receiver.window == INITIAL_WINDOW
    paused.send(MIB)
    paused.sink.make_room()
    shared.link.run()
    assert len(paused.sink.received) == INITIAL_WINDOW + MIB
    assert all(it.sink.aborted is None for it in hogs)


def test_over_its_share_a_client_is_slowed_and_gives_its_growth_back() -> None:
    shared = Shared(8 * MIB)
    lively, other = shared.tunnel("hog"), shared.tunnel("one")
    lively.grow(4)
    other.grow(4)
    assert lively.receiver.window > INITIAL_WINDOW
    for _ in range(13):
        shared.stalled("hog")
    assert lively.receiver.account.over_share and not shared.budget.exhausted
    lively.send(4 * MIB)
    other.send(4 * MIB)
    assert lively.receiver.window == SLOW_WINDOW
    assert lively.sender.credit <= SLOW_WINDOW and not lively.source.waiting_bytes
    assert other.receiver.window > INITIAL_WINDOW, "inside its share"
    assert shared.link.server.grown_bytes == other.receiver.window - INITIAL_WINDOW


def test_a_client_that_has_room_again_is_as_quick_as_before() -> None:
    shared = Shared(8 * MIB)
    lively = shared.tunnel("hog")
    hogs = [shared.stalled("hog") for _ in range(15)]
    lively.send(MIB)
    assert lively.receiver.window == SLOW_WINDOW
    for hog in hogs:
        hog.sink.make_room()
    shared.link.run()
    lively.send(MIB)
    assert lively.receiver.window >= INITIAL_WINDOW
    assert shared.budget.used_bytes == STREAM_BYTES * len(shared.link.server.streams)


def test_with_nothing_left_a_client_over_its_share_gets_next_to_nothing() -> None:
    shared = Shared(4 * MIB)
    lively = shared.tunnel("hog")
    hogs = [shared.stalled("hog") for _ in range(14)]
    assert shared.budget.exhausted
    lively.send(2 * MIB)
    assert len(lively.sink.received) == 2 * MIB
    assert lively.sender.credit <= lively.receiver.window == LEAST_WINDOW
    lively.source.reset()
    for hog in hogs:
        hog.source.reset()
    shared.link.run()
    assert shared.budget.used_bytes == 0


def test_a_reader_that_takes_nothing_for_five_minutes_of_an_exhausted_budget_is_reset() -> None:
    shared = Shared(4 * MIB)
    paused, slow = shared.stalled("one"), shared.stalled("hog")
    hogs = [shared.stalled("hog") for _ in range(14)]
    waits = 1_000_000
    slow.sink.out_bytes = waits  # type: ignore[attr-defined]  # as a socket says what waits
    for _ in range(10):
        shared.tick(30)
        waits -= 1
        slow.sink.out_bytes = waits  # type: ignore[attr-defined]
    shared.tick(5)
    over = [it for it in hogs if it.sink.aborted is Ending.STALLED]
    assert 0 < len(over) < len(hogs), "only until there is room"
    assert over[0].source.aborted is Ending.RESET  # plain yamux has no word for why
    assert paused.sink.aborted is slow.sink.aborted is None
    assert not shared.budget.exhausted


def test_without_an_exhausted_budget_a_reader_may_pause_for_ever() -> None:
    shared = Shared(8 * MIB)
    hogs = [shared.stalled("hog") for _ in range(20)]
    assert hogs[0].receiver.account.over_share and not shared.budget.exhausted
    shared.tick(1000)
    assert all(it.sink.aborted is None for it in hogs)


def test_a_peer_that_opens_too_much_for_its_share_is_refused_the_rest() -> None:
    _, link = make()
    budget = Budget(100 * STREAM_BYTES)
    link.server.account = budget.account("agent")
    opened = [link.client.open() for _ in range(100)]
    link.run()
    assert len(link.accepted) == 50
    assert sum(it is not None and it.ending is Ending.RESET for it in opened) == 50
    link.client.lost(Ending.LINK_LOST)
    link.server.lost(Ending.LINK_LOST)
    assert budget.used_bytes == 0


def test_a_client_far_over_its_share_keeps_no_other_from_opening_on_the_same_link() -> None:
    _, link = make()
    budget = Budget(6400 * STREAM_BYTES)
    link.server.account = server = budget.account("server")
    hog = server.inside("hog")
    hog.hold(2 * budget.total_bytes)
    opened = [link.client.open() for _ in range(200)]
    link.run()
    # For whom each of them is shows with its dial; until then, a 64th of the budget.
    assert len(link.accepted) == 101
    assert sum(it is not None and it.ending is Ending.RESET for it in opened) == 99
    link.client.lost(Ending.LINK_LOST)
    link.server.lost(Ending.LINK_LOST)
    assert budget.used_bytes == hog.used_bytes


# Early bytes, and joining from inside.


class DialReader(Early):
    """Reads one line, then joins the stream to an end from inside write."""

    def __init__(self, target: MemoryEnd) -> None:
        super().__init__()
        self.target = target

    def write(self, data: bytes) -> bool:
        more = super().write(data)
        _, newline, rest = bytes(self.buffer).partition(b"\n")
        if not newline:
            return more
        self.buffer[:] = rest
        stream = self.peer
        join(stream, self.target)
        return not self.target.full


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("piece_bytes", [None, 1, 13])
def test_join_from_inside_write(full: bool, piece_bytes: int | None) -> None:
    target = MemoryEnd()
    if full:
        target.fill()
    link = MemoryLink()
    source = MemoryEnd()
    stream = link.client.open()
    assert stream is not None
    join(stream, source)
    link.run()
    receiver = link.accepted.pop()
    receiver._early = receiver.peer = reader = DialReader(target)
    reader.peer = receiver
    source.feed(b"dial me\nfirst ")
    source.feed(b"second")
    link.run(piece_bytes=piece_bytes)
    assert target.received == b"first second"
    if full:
        target.make_room()
    source.feed(bytes(3 * INITIAL_WINDOW))
    link.run()
    assert len(target.received) == 12 + 3 * INITIAL_WINDOW
    assert link.server.held == 0


def test_what_comes_early_is_kept_and_handed_over() -> None:
    _, link = make()
    source, sink = MemoryEnd(), MemoryEnd()
    sender = link.client.open()
    assert sender is not None
    join(sender, source)
    source.feed(bytes(400_000))
    source.feed_eof()
    link.run()
    receiver = link.accepted.pop()
    kept = receiver.peer
    assert isinstance(kept, Early)
    assert len(kept.buffer) <= INITIAL_WINDOW + 65_536
    join(receiver, sink)
    link.run()
    assert (len(sink.received), sink.eofs) == (400_000, 1)
    assert link.server.held == 0


def test_an_early_reset_is_remembered() -> None:
    _, link = make()
    source, sink = MemoryEnd(), MemoryEnd()
    sender = link.client.open()
    assert sender is not None
    join(sender, source)
    source.feed(b"never seen")
    link.run()
    source.reset()
    link.run()
    join(link.accepted.pop(), sink)
    assert sink.aborted is Ending.RESET


# A stream as the sink of another link's stream.


def relay() -> tuple[MemoryLink, MemoryLink, Tunnel, Stream]:
    """Near link → far link: what the near server receives, the far client sends."""
    near, far = MemoryLink(), MemoryLink(room_bytes=0)
    tunnel = Tunnel(near)
    onward = far.client.open()
    assert onward is not None
    far.flush()  # the SYN fills it: nothing more goes until somebody reads
    join(tunnel.receiver, onward)
    return near, far, tunnel, onward


def test_a_stalled_far_link_stops_the_near_sender() -> None:
    near, far, tunnel, onward = relay()
    tunnel.send(1_000_000)
    assert near.server.held == onward.backlog_bytes == INITIAL_WINDOW
    while far.client_out.sent or far.client_out.woken:
        far.run()
        near.run()
    received = far.accepted.pop()
    sink = MemoryEnd()
    join(received, sink)
    for _ in range(20):
        far.run()
        near.run()
    assert len(sink.received) == 1_000_000
    assert near.server.held == 0


def test_nothing_is_held_any_more_once_a_half_closed_sink_has_drained() -> None:
    near, far, tunnel, onward = relay()
    tunnel.send(200_000)
    tunnel.source.feed_eof()
    near.run()
    assert near.server.held == 200_000
    far.run()  # everything leaves, and the FIN after it; the other direction stays open
    assert onward.backlog_bytes == 0 and onward.half_closed
    assert near.server.held == 0


def test_resets_cross_a_relay() -> None:
    near, far, tunnel, onward = relay()
    tunnel.send(200_000)
    tunnel.source.reset()
    near.run()
    assert onward.ending is Ending.RESET
    assert (near.server.held, near.server.streams, far.client.streams) == (0, {}, {})
    kinds = [(frame.type, frame.flags) for frame in far.client_out.frames()]
    assert kinds[-1] == (WINDOW_UPDATE, RST)
    assert DATA not in [kind for kind, _ in kinds]


def test_repr() -> None:
    _, link = make()
    tunnel = Tunnel(link)
    assert repr(tunnel.sender) == "<Stream 1 open, 0 waiting, 0 held>"
    tunnel.source.feed_eof()
    assert repr(tunnel.sender) == "<Stream 1 half-closed, 0 waiting, 0 held>"
