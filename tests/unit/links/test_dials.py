"""Dials over a stream: one question, one answer, and the bytes around them are never lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from isthmus.errors import DialFailure, ProtocolError
from isthmus.links.dials import (
    CLASS_TO_WIRE,
    AnswerReader,
    DialReader,
    IncomingDial,
    class_of,
    heard_about,
    said_about,
    said_alike,
)
from isthmus.links.mux import join_early
from isthmus.testing.carriers import MemoryLink
from isthmus.testing.ends import MemoryEnd
from isthmus.tunnel.budget import FULL_SINK_BYTES, STREAM_BYTES, Budget
from isthmus.tunnel.end import Ending, join
from isthmus.tunnel.limits import MIB
from isthmus.tunnel.stream import Stream
from isthmus.values import ANONYMOUS, NOTHING, HostPort, Identity, RequestMetadata, TrafficClass
from isthmus.wire.link import TO_WIRE, take_message, to_bytes
from isthmus.wire.link_pb2 import Dial, DialResult

QUESTION = to_bytes(Dial(host="a", port=80, dial_id=7))


class Pair:
    """An opener and an accepter over two coupled sessions."""

    def __init__(self, on_dial: Callable[[IncomingDial], None] | None = None) -> None:
        self.dials: list[IncomingDial] = []
        self.answers: list[DialResult | None] = []
        told = on_dial or self.dials.append

        def accept(stream: Stream) -> None:
            join_early(stream, DialReader(stream, 5, lambda _, incoming: told(incoming)))

        self.link = MemoryLink(on_client_stream=accept)
        stream = self.link.server.open(AnswerReader(self.answers.append))
        assert stream is not None
        self.stream = stream

    def ask(self, early: bytes = b"", dial: Dial | None = None) -> IncomingDial:
        question = QUESTION if dial is None else to_bytes(dial)
        self.stream.write(question + early)
        self.link.run(piece_bytes=3)
        (incoming,) = self.dials
        return incoming


def test_a_question_is_told_once_with_the_link_it_came_by() -> None:
    dial = Pair().ask()
    assert (dial.dial.host, dial.dial.port, dial.dial.dial_id) == ("a", 80, 7)
    assert dial.link_id == 5 and not dial.answered


def test_accepted_the_bytes_flow_both_ways() -> None:
    pair = Pair()
    dial = pair.ask()
    target, client = MemoryEnd(), MemoryEnd()
    dial.accept("10.0.0.1:80")
    join(dial.stream, target)
    target.feed(b"the target speaks first")
    pair.link.run(piece_bytes=5)
    (answer,) = pair.answers
    assert answer is not None and (answer.failure, answer.address) == (0, "10.0.0.1:80")
    join(client, pair.stream)
    client.feed(b"so does the client")
    pair.link.run()
    assert client.received == b"the target speaks first"
    assert target.received == b"so does the client"


def test_bytes_and_an_end_right_behind_the_question_wait_for_the_join() -> None:
    pair = Pair()
    pair.stream.write(QUESTION + b"early")
    pair.stream.write_eof()
    pair.link.run()
    target = MemoryEnd()
    join(pair.dials[0].stream, target)
    assert (bytes(target.received), target.eofs) == (b"early", 1)


@pytest.mark.parametrize("failure", DialFailure)
def test_refused_the_reason_is_told_and_the_stream_ends(failure: DialFailure) -> None:
    pair = Pair()
    dial = pair.ask()
    dial.refuse(failure, "x" * 5000)
    pair.link.run()
    (answer,) = pair.answers
    assert answer is not None and answer.failure == TO_WIRE[failure]
    assert answer.detail == "x" * 1000  # bounded, whatever a resolver says
    pair.stream.write_eof()
    pair.link.run()
    assert not pair.link.client.streams and not pair.link.server.streams


def test_a_reset_before_the_answer_means_not_done() -> None:
    pair = Pair()
    dial = pair.ask()
    dial.stream.abort(Ending.LINK_LOST)
    pair.link.run()
    assert pair.answers == [None]


def test_an_end_before_the_answer_means_not_done() -> None:
    pair = Pair()
    dial = pair.ask()
    dial.stream.write_eof()
    pair.link.run()
    assert pair.answers == [None]


def test_the_opener_gives_up_and_the_dial_is_cancelled() -> None:
    pair = Pair()
    dial = pair.ask()
    cancelled: list[bool] = []
    dial.on_cancelled = lambda: cancelled.append(True)
    pair.stream.abort(Ending.CANCELLED)
    pair.link.run()
    assert cancelled == [True]


def test_answered_it_is_not_cancelled_any_more() -> None:
    pair = Pair()
    dial = pair.ask()
    dial.on_cancelled = lambda: pytest.fail("cancelled")
    dial.accept("")
    pair.stream.abort(Ending.CANCELLED)
    pair.link.run()
    assert dial.answered


def test_an_end_before_the_question_is_whole_resets_the_stream() -> None:
    pair = Pair()
    pair.stream.write(QUESTION[:5])
    pair.stream.write_eof()
    pair.link.run()
    assert pair.dials == [] and pair.answers == [None]
    assert not pair.link.client.streams


def test_what_is_no_question_or_no_answer_breaks_the_protocol() -> None:
    pair = Pair()
    pair.stream.write(b"\0\0\0\1\xff")
    with pytest.raises(ProtocolError):
        pair.link.run()
    pair = Pair()
    pair.ask().stream.write(b"\0\0\0\1\xff")
    with pytest.raises(ProtocolError):
        pair.link.run()


def test_what_comes_early_is_held() -> None:
    reader = AnswerReader(lambda _: None)
    answer = to_bytes(DialResult(address="a:1"))
    assert not reader.write(answer[:5]), "an answer that is not whole"
    assert reader.write(answer[5:])
    assert not reader.write(b"x"), "no credit before the two are joined"


@pytest.mark.parametrize("whole", [True, False])
def test_a_dial_that_is_not_whole_is_charged_to_the_peer(whole: bool) -> None:
    pair = Pair()
    budget = Budget(MIB)
    pair.link.client.account = budget.account("server")
    question = to_bytes(Dial(host="a" * 5000, port=80))
    pair.stream.write(question[:-1])
    pair.link.run()
    assert pair.link.client.held == len(question) - 1
    assert budget.used_bytes == STREAM_BYTES + FULL_SINK_BYTES + len(question) - 1
    if whole:
        pair.stream.write(question[-1:])
        pair.link.run()
        (incoming,) = pair.dials
        join(incoming.accept("b:1"), MemoryEnd())
        assert budget.used_bytes == STREAM_BYTES
    pair.stream.abort(Ending.CANCELLED)
    pair.link.run()
    assert budget.used_bytes == 0


def test_forgotten_it_tells_nobody() -> None:
    reader = AnswerReader(lambda _: pytest.fail("told"))
    reader.forget()
    reader.write(to_bytes(DialResult()))
    reader.abort(Ending.RESET)


# Who asks, and what they say.


@pytest.mark.parametrize(
    "requester", [Identity("cn", ("o", "p")), Identity("0", kind="uid"), ANONYMOUS]
)
@pytest.mark.parametrize(
    "asking",
    [
        NOTHING,
        RequestMetadata(groups=("g",)),
        RequestMetadata(user="u", tenant="t", object="o", traceparent="00-x"),
    ],
)
def test_who_asks_and_what_they_say_is_heard_as_it_was_said(
    requester: Identity, asking: RequestMetadata
) -> None:
    said = said_about(requester, asking)
    assert heard_about(said) == (requester, asking, TrafficClass.NORMAL)
    urgent = said_about(requester, asking, TrafficClass.URGENT)
    assert heard_about(urgent) == (requester, asking, TrafficClass.URGENT)
    dial = IncomingDial(Pair().stream, Dial.FromString(said), 1)
    assert (dial.requester, dial.asking) == (requester, asking)


def test_nothing_said_is_nothing() -> None:
    assert heard_about(said_about(ANONYMOUS, NOTHING))[1] is NOTHING


def test_what_nobody_of_ours_would_say_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="not a Dial"):
        heard_about(b"\xff")


# Classes of traffic.


@pytest.mark.parametrize("traffic", TrafficClass)
def test_the_opener_chooses_the_class_and_the_accepter_keeps_to_it(traffic: TrafficClass) -> None:
    pair = Pair()
    dial = pair.ask(dial=Dial(host="a", port=80, traffic_class=CLASS_TO_WIRE[traffic]))
    assert dial.traffic is traffic
    assert dial.accept("1.2.3.4:80").traffic is traffic


def test_an_accepter_that_chooses_the_class_tells_it() -> None:
    pair = Pair()
    asked = CLASS_TO_WIRE[TrafficClass.BULK]
    dial = pair.ask(dial=Dial(host="a", port=80, traffic_class=asked))
    assert dial.accept("", TrafficClass.URGENT).traffic is TrafficClass.URGENT
    pair.link.run()
    (answer,) = pair.answers
    assert answer is not None and class_of(answer.traffic_class) is TrafficClass.URGENT


def test_every_class_has_a_number_and_an_unknown_number_is_normal() -> None:
    assert [class_of(CLASS_TO_WIRE[it]) for it in TrafficClass] == list(TrafficClass)
    assert CLASS_TO_WIRE[TrafficClass.NORMAL] == 0  # what older programs say
    assert class_of(99) is TrafficClass.NORMAL


def test_what_dials_say_alike_and_what_is_new_are_one_message() -> None:
    ann = Identity("ann", ("dev", "ops"), "uid")
    known = said_alike(HostPort("fd00::1", 10250), ann, TrafficClass.URGENT)
    new = Dial(dial_id=7, timeout_ms=9999, connection_id="1-a", user_groups=["x", "y"])
    whole = Dial(
        host="fd00::1",
        port=10250,
        dial_id=7,
        timeout_ms=9999,
        requester="ann",
        requester_groups=["dev", "ops"],
        requester_kind="uid",
        connection_id="1-a",
        user_groups=["x", "y"],
        traffic_class=CLASS_TO_WIRE[TrafficClass.URGENT],
    )
    buffer = bytearray(to_bytes(new, known) + b"more")
    assert take_message(buffer, Dial) == whole and buffer == b"more"
