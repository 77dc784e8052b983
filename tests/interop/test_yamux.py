"""Our session against HashiCorp's Go yamux: streams, windows, endings, in both roles."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest
from gopeer import PATIENCE_S, HashingEnd, Pair, digest, paired, pattern, run

from isthmus.testing import MemoryEnd
from isthmus.tunnel.end import Ending, join
from isthmus.tunnel.stream import MAX_FRAME, MAX_WINDOW, Stream
from isthmus.wire.yamux import DATA, INITIAL_WINDOW

pytestmark = pytest.mark.interop

both_roles = pytest.mark.parametrize("go_is_client", [False, True], ids=["server", "client"])
BULK = 100_000_000


@both_roles
def test_streams_opened_by_each_side(yamuxpeer: Path, go_is_client: bool) -> None:
    async def main() -> None:
        async with paired(yamuxpeer, go_is_client=go_is_client) as pair:
            ours, our_end = pair.open("echo")
            theirs, their_end = await pair.accept("echo")
            assert ours.id % 2 != theirs.id % 2
            our_end.feed(b"from us")
            their_end.feed(b"to them")
            await pair.until(lambda: our_end.received == b"from us")
            await pair.until(lambda: their_end.received == b"to them")
            for end in (our_end, their_end):
                end.feed_eof()
            await pair.until(lambda: bool(our_end.ending and their_end.ending))
            assert ours.ending is theirs.ending is our_end.ending is Ending.CLEAN
            assert our_end.eofs == their_end.eofs == 1
            async with asyncio.timeout(PATIENCE_S):  # Go's side forgets them a moment later
                pair.go.tell("streams")
                while (await pair.go.event("streams"))["bytes"]:
                    pair.go.tell("streams")
            assert not pair.session.streams

    run(main())


@both_roles
def test_half_close_then_the_reply(yamuxpeer: Path, go_is_client: bool) -> None:
    async def main() -> None:
        async with paired(yamuxpeer, go_is_client=go_is_client) as pair:
            for size in (0, 1, MAX_FRAME + 1, 1_000_000):
                stream, end = pair.open("sink")
                for chunk in pattern(size):
                    end.feed(chunk)
                end.feed_eof()
                await pair.until_done(end)
                assert end.received.decode() == f"{size} {digest(size)}\n"
                assert stream.ending is end.ending is Ending.CLEAN

    run(main())


@both_roles
def test_the_peer_half_closes_and_reads_on(yamuxpeer: Path, go_is_client: bool) -> None:
    async def main() -> None:
        async with paired(yamuxpeer, go_is_client=go_is_client) as pair:
            stream, end = await pair.accept("source 300000", HashingEnd())
            await pair.until(lambda: end.eofs == 1)
            assert (end.bytes_written, end.sum.hexdigest()) == (300_000, digest(300_000))
            assert stream.half_closed
            end.feed(b"still here")
            end.feed_eof()
            assert (await pair.go.event("source", stream.id))["bytes"] == len(b"still here")
            assert stream.ending is Ending.CLEAN

    run(main())


@pytest.mark.nightly
@both_roles
@pytest.mark.parametrize("window", [INITIAL_WINDOW, MAX_WINDOW])
def test_a_hundred_megabytes_each_way(yamuxpeer: Path, go_is_client: bool, window: int) -> None:
    async def main() -> None:
        async with paired(yamuxpeer, f"-window={window}", go_is_client=go_is_client) as pair:
            end = HashingEnd()
            stream, _ = pair.open(f"both {BULK}", end)
            for chunk in pattern(BULK):
                end.feed(chunk)
            end.feed_eof()
            event = await pair.go.event("both", stream.id)
            await pair.until_done(end)
            assert (event["error"], event["bytes"], event["sum"]) == ("", BULK, digest(BULK))
            assert (end.bytes_written, end.sum.hexdigest()) == (BULK, digest(BULK))
            assert stream.ending is Ending.CLEAN
            assert pair.session.held == 0

    run(main())


@both_roles
@pytest.mark.parametrize("window", [INITIAL_WINDOW, MAX_WINDOW])
def test_our_sender_stops_at_exactly_the_window(
    yamuxpeer: Path, go_is_client: bool, window: int
) -> None:
    async def main() -> None:
        async with paired(yamuxpeer, f"-window={window}", go_is_client=go_is_client) as pair:
            total = window + 500_000
            stream, end = pair.open("stall")
            name_bytes = stream.bytes_written
            for chunk in pattern(total):
                end.feed(chunk)
            # Go's bufio.Reader takes one page with the line that names the behaviour, and no
            # update comes for less than half a window: what may be sent is exactly the window.
            await pair.until(lambda: stream.credit == 0 and stream.reserve == 0)
            await other_streams_go_on(pair)
            sent = stream.bytes_written - stream.backlog_bytes
            assert (sent, stream.credit) == (window, 0)
            assert end.waiting_bytes + stream.backlog_bytes == total + name_bytes - window
            pair.go.tell("release")
            end.feed_eof()
            await pair.until_done(end)
            assert end.received.decode() == f"{total} {digest(total)}\n"

    run(main())


async def other_streams_go_on(pair: Pair) -> None:
    for _ in range(3):
        _, other = pair.open("sink")
        other.feed(b"x" * 200_000)
        other.feed_eof()
        await pair.until_done(other)
        assert other.received.startswith(b"200000 ")


@both_roles
def test_the_peer_stops_at_our_window(yamuxpeer: Path, go_is_client: bool) -> None:
    async def main() -> None:
        async with paired(yamuxpeer, go_is_client=go_is_client) as pair:
            end = HashingEnd()
            end.fill()
            stream, _ = await pair.accept("source 1000000", end)
            await pair.until(lambda: stream.receive_credit == 0)
            await other_streams_go_on(pair)
            # What came before the join was kept early, within its own bound, and is not held.
            assert end.bytes_written == stream.held + stream.owed == INITIAL_WINDOW
            assert pair.session.held == stream.held > 0
            end.make_room()
            await pair.until(lambda: end.eofs == 1)
            assert (end.bytes_written, end.sum.hexdigest()) == (1_000_000, digest(1_000_000))
            assert pair.session.held == 0

    run(main())


@both_roles
def test_one_frame_of_four_mebibytes(yamuxpeer: Path, go_is_client: bool) -> None:
    async def main() -> None:
        async with paired(yamuxpeer, go_is_client=go_is_client) as pair:
            pair.session.round_trip_s = math.inf  # whatever the pace, it asks for more window
            end = HashingEnd()
            stream, _ = pair.open("ask", end)
            while stream.receive_credit < MAX_WINDOW:
                await ask(pair, stream, end, stream.window // 2 - stream.owed)
            headers = pair.carrier.record()
            await ask(pair, stream, end, MAX_WINDOW)
            assert [h.length for h in headers if h.type == DATA and h.length] == [MAX_WINDOW]

    run(main())


async def ask(pair: Pair, stream: Stream, end: MemoryEnd, size: int) -> None:
    wanted = end.bytes_written + size
    end.feed(b"%d\n" % size)
    await pair.until(lambda: end.bytes_written == wanted)
    assert stream.ending is None


@both_roles
def test_our_reset_is_a_reset_there(yamuxpeer: Path, go_is_client: bool) -> None:
    async def main() -> None:
        async with paired(yamuxpeer, go_is_client=go_is_client) as pair:
            stream, end = pair.open("echo")
            end.feed(b"half a word")
            await pair.until(lambda: end.received == b"half a word")
            end.reset()
            assert stream.ending is Ending.RESET
            event = await pair.go.event("echo", stream.id)
            assert event["error"] == "connection reset"
            await other_streams_go_on(pair)

    run(main())


@both_roles
def test_their_reset_is_a_reset_here(yamuxpeer: Path, go_is_client: bool) -> None:
    async def main() -> None:
        flags = ("-close-timeout=10ms",)  # the one way its API resets a stream
        async with paired(yamuxpeer, *flags, go_is_client=go_is_client) as pair:
            stream, end = await pair.accept("leave")
            await pair.until_done(end)
            assert end.aborted is stream.ending is Ending.RESET
            assert end.eofs == 1
            assert not pair.session.streams

    run(main())


@both_roles
def test_pings(yamuxpeer: Path, go_is_client: bool) -> None:
    async def main() -> None:
        async with paired(yamuxpeer, go_is_client=go_is_client) as pair:
            pair.go.tell("ping")
            assert (await pair.go.event("pinged"))["error"] == ""
            pair.session.ping()
            await pair.until(lambda: pair.session.round_trip_s > 0)

    run(main())


@both_roles
def test_the_peer_goes_away(yamuxpeer: Path, go_is_client: bool) -> None:
    async def main() -> None:
        async with paired(yamuxpeer, go_is_client=go_is_client) as pair:
            _, old = pair.open("echo")
            old.feed(b"before")
            await pair.until(lambda: old.received == b"before")
            pair.go.tell("goaway")
            await pair.until(lambda: pair.session.remote_draining)
            assert pair.session.open() is None
            old.feed(b", after")
            await pair.until(lambda: old.received == b"before, after")
            # A SYN that crossed the go-away is answered by a reset, and only that stream ends.
            pair.session.remote_draining = False
            _, late = pair.open("echo")
            await pair.until(lambda: late.ending is not None)
            assert late.aborted is Ending.RESET
            assert old.ending is None

    run(main())


@both_roles
def test_we_go_away(yamuxpeer: Path, go_is_client: bool) -> None:
    async def main() -> None:
        async with paired(yamuxpeer, go_is_client=go_is_client) as pair:
            _, old = await pair.accept("echo")
            await pair.go.event("opened")
            pair.session.go_away()
            old.feed(b"still echoed")
            await pair.until(lambda: old.received == b"still echoed")
            pair.go.tell("open echo")
            event = await pair.go.event("opened")
            assert event["error"] == "remote end is not accepting connections"
            old.feed_eof()
            await pair.until(lambda: old.ending is Ending.CLEAN)

    run(main())


@both_roles
def test_more_than_256_unaccepted_streams(yamuxpeer: Path, go_is_client: bool) -> None:
    async def main() -> None:
        async with paired(yamuxpeer, "-accept=false", go_is_client=go_is_client) as pair:
            ends = [pair.open("echo")[1] for _ in range(257)]
            await pair.until(lambda: any(end.ending for end in ends))
            assert [end.aborted for end in ends] == [None] * 256 + [Ending.RESET]
            pair.go.tell("accept")
            for end in ends[:256]:
                end.feed(b"and now")
            await pair.until(lambda: all(end.received == b"and now" for end in ends[:256]))

    run(main())


@both_roles
def test_more_than_256_streams_towards_us(yamuxpeer: Path, go_is_client: bool) -> None:
    """OpenStream blocks there at 256 that are not acknowledged; we acknowledge at SYN."""

    async def main() -> None:
        async with paired(yamuxpeer, go_is_client=go_is_client) as pair:
            for _ in range(600):
                pair.go.tell("open echo")
            await pair.until(lambda: len(pair.accepted) == 600)
            ends = [MemoryEnd() for _ in range(600)]
            for stream, end in zip(pair.accepted, ends, strict=True):
                join(stream, end)
                end.feed(b"hello %d" % stream.id)
                end.feed_eof()
            await pair.until(lambda: all(end.ending for end in ends))
            for stream, end in zip(pair.accepted, ends, strict=True):
                assert end.received == b"hello %d" % stream.id

    run(main())


@both_roles
def test_the_peer_closes_the_session(yamuxpeer: Path, go_is_client: bool) -> None:
    async def main() -> None:
        async with paired(yamuxpeer, go_is_client=go_is_client) as pair:
            _, end = pair.open("echo")
            end.feed(b"x")
            await pair.until(lambda: end.received == b"x")
            pair.go.tell("close")
            await pair.until(lambda: pair.session.closed is not None)
            assert end.aborted is Ending.LINK_LOST
            assert end.eofs == 0  # never a clean end of file

    run(main())


def test_a_lost_session_reads_as_end_of_file_there(yamuxpeer: Path) -> None:
    """Why links to Go programs cannot be mux links: it cannot tell a loss from an end."""

    async def main() -> None:
        async with paired(yamuxpeer) as pair:
            stream, end = pair.open("echo")
            end.feed(b"cut short")
            await pair.until(lambda: end.received == b"cut short")
            pair.carrier.broken()
            event = await pair.go.event("echo", stream.id)
            assert (event["error"], event["bytes"]) == ("", len(b"cut short"))

    run(main())
