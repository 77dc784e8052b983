"""A tunnel before its first byte: joined at once by whatever flows, dialed again when it can be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.testing.ends import MemoryEnd
from isthmus.tunnel.end import Ending
from isthmus.tunnel.first_byte import UntouchedTunnel
from isthmus.tunnel.tunnel import Tunnel
from isthmus.values import (
    AgentId,
    DialOutcome,
    DialRequest,
    HostPort,
    Identity,
    ServerId,
    TunnelId,
)


class Far(MemoryEnd):
    """A far end whose link can be lost, as streams lose theirs."""

    def lose(self, reason: Ending = Ending.LINK_LOST) -> None:
        peer = self.peer
        self._finish(reason)
        peer.abort(reason)


class Bench:
    """A tunnel, and who dials again for it: ``dials`` says how often, ``cancelled`` likewise."""

    def __init__(self, *, answers: bool = True, early: bytes = b"") -> None:
        self.client, self.far, self.other = MemoryEnd(), Far(), Far()
        self.done: list[Ending] = []
        self.dials = self.cancelled = 0
        self.answers = answers
        if early:
            self.client.feed(early)
        self.tunnel = UntouchedTunnel(
            TunnelId(1),
            DialRequest(HostPort("a", 1), Identity("x"), "test"),
            DialOutcome(AgentId("first"), 1),
            client=self.client,
            far=self.far,
            opened_at=0.0,
            on_done=self.over,
        )
        self.tunnel.dial_again_by(self.again)
        self.tunnel.open()

    def over(self, tunnel: Tunnel) -> None:
        self.done.append(tunnel.ending)

    def again(self, tunnel: UntouchedTunnel) -> Bench | None:
        self.dials += 1
        return self if self.answers else None

    def cancel(self) -> None:
        self.cancelled += 1

    def answer(self) -> None:
        self.tunnel.dialed_again(self.other, DialOutcome(AgentId("second"), 2, ServerId("r")))

    @property
    def is_joined(self) -> bool:
        return self.client.peer is self.tunnel.far and self.tunnel.far.peer is self.client


@pytest.mark.parametrize("first", ["client", "far"])
def test_the_first_byte_of_either_side_joins(first: str) -> None:
    bench = Bench()
    joined_before = bench.is_joined
    ends: tuple[MemoryEnd, MemoryEnd] = bench.client, bench.far
    one, two = ends if first == "client" else ends[::-1]
    one.feed(b"x")
    assert (joined_before, bench.is_joined) == (False, True) and two.received == b"x"
    two.feed(b"y")
    assert one.received == b"y"


def test_early_bytes_are_a_first_byte() -> None:
    bench = Bench(early=b"early")
    assert bench.is_joined and bench.far.received == b"early"
    bench.far.lose()
    assert bench.client.aborted is Ending.LINK_LOST and bench.dials == 0
    assert bench.done == [Ending.LINK_LOST]


def test_a_half_close_is_one_too() -> None:
    bench = Bench()
    bench.client.feed_eof()
    assert bench.is_joined and bench.far.eofs == 1
    bench.far.lose()
    assert bench.dials == 0 and bench.client.aborted is Ending.LINK_LOST


def test_it_goes_on_with_the_other_one() -> None:
    bench = Bench()
    bench.far.lose()
    assert bench.dials == 1 and bench.client.aborted is None and bench.done == []
    bench.client.feed(b"while it is dialed")
    assert not bench.other.received
    bench.answer()
    assert bench.other.received == b"while it is dialed" and bench.is_joined
    assert bench.tunnel.outcome == DialOutcome(AgentId("second"), 2, ServerId("r"))
    bench.other.feed(b"answer")
    bench.other.feed_eof()
    bench.client.feed_eof()
    assert bench.client.received == b"answer" and bench.client.eofs == bench.other.eofs == 1
    assert bench.done == [Ending.CLEAN]


def test_the_other_one_may_be_lost_as_well() -> None:
    bench = Bench()
    bench.far.lose()
    bench.answer()
    bench.other.lose()
    assert bench.dials == 2
    bench.tunnel.not_dialed_again()
    assert bench.client.aborted is Ending.LINK_LOST and bench.done == [Ending.LINK_LOST]


def test_a_half_close_waits_for_the_other_one() -> None:
    bench = Bench()
    bench.far.lose()
    bench.client.feed(b"all")
    bench.client.feed_eof()
    bench.answer()
    assert bench.other.received == b"all" and bench.other.eofs == 1


def test_too_much_waits_with_the_client() -> None:
    bench = Bench()
    bench.far.lose()
    bench.client.feed(b"x" * 70_000)
    bench.client.feed(b"y")
    assert bench.client.paused and bench.client.waiting_bytes
    bench.answer()
    assert bench.other.received == b"x" * 70_000 + b"y"


def test_nobody_can_be_asked() -> None:
    bench = Bench(answers=False)
    bench.far.lose()
    assert bench.client.aborted is Ending.LINK_LOST and bench.done == [Ending.LINK_LOST]
    assert bench.tunnel.ended_by == "target"


def test_a_reset_by_the_target_is_none_of_this() -> None:
    bench = Bench()
    bench.far.lose(Ending.RESET)
    assert bench.dials == 0 and bench.client.aborted is Ending.RESET
    assert bench.done == [Ending.RESET]


def test_the_client_leaves_while_somebody_dials() -> None:
    bench = Bench()
    bench.far.lose()
    peer = bench.client.peer
    bench.client._finish(Ending.RESET)
    peer.abort(Ending.RESET)
    assert bench.cancelled == 1 and bench.done == [Ending.RESET]
    assert bench.tunnel.ended_by == "client"


def test_it_is_ended_while_somebody_dials() -> None:
    bench = Bench()
    bench.far.lose()
    bench.tunnel.abort(Ending.ADMIN, "root")
    assert bench.cancelled == 1 and bench.done == [Ending.ADMIN]
    assert bench.tunnel.ended_by == "root" and bench.client.aborted is Ending.ADMIN


def test_it_is_ended_before_the_first_byte() -> None:
    bench = Bench()
    bench.tunnel.abort(Ending.DRAINED)
    assert bench.client.aborted is bench.far.aborted is Ending.DRAINED
    assert bench.done == [Ending.DRAINED] and bench.dials == 0


@pytest.mark.parametrize("full", ["client", "far"])
def test_a_full_side_pauses_the_other_from_the_first_byte_on(full: str) -> None:
    bench = Bench()
    sink, source = (bench.client, bench.far) if full == "client" else (bench.far, bench.client)
    sink.full = True
    source.feed(b"x")
    source.feed(b"y")
    assert source.paused and sink.received == b"x"
    sink.full = False
    sink.peer.resume_reading()
    assert sink.received == b"xy"


STEPS = st.lists(
    st.sampled_from(["client", "far", "client-eof", "far-eof", "lose", "answer", "fail", "abort"]),
    max_size=12,
)


@given(STEPS)
def test_no_byte_is_lost_or_doubled_and_the_end_is_told_once(steps: list[str]) -> None:
    bench = Bench()
    sent_up = sent_down = b""
    for at, step in enumerate(steps):
        data = b"%d" % (at % 10)
        far = bench.tunnel.far
        over = bool(bench.done)
        if step == "client" and not bench.client._eof_fed and bench.client.ending is None:
            bench.client.feed(data)
            sent_up += data
        elif step == "far" and far.ending is None and not far._eof_fed:  # type: ignore[attr-defined]
            far.feed(data)  # type: ignore[attr-defined]
            sent_down += data
        elif step == "client-eof" and bench.client.ending is None and not bench.client._eof_fed:
            bench.client.feed_eof()
        elif step == "far-eof" and far.ending is None and not far._eof_fed:  # type: ignore[attr-defined]
            far.feed_eof()  # type: ignore[attr-defined]
        elif step == "lose" and far.ending is None:
            far.lose()  # type: ignore[attr-defined]
        elif step == "answer" and bench.tunnel.dialing and far is bench.far:
            bench.answer()
        elif step == "fail" and bench.tunnel.dialing:
            bench.tunnel.not_dialed_again()
        elif step == "abort":
            bench.tunnel.abort(Ending.ADMIN)
        assert not over or len(bench.done) == 1
    # What one end got, the other got nothing of: there is no doubt which had it.
    assert not (bench.far.received and bench.other.received)
    assert sent_up.startswith(bytes(bench.far.received or bench.other.received))
    assert bytes(bench.client.received) == sent_down[: len(bench.client.received)]
    bench.tunnel.abort(Ending.CANCELLED)
    assert len(bench.done) == 1
