"""Length-prefixed messages: consumed exactly, bounded, and every failure has a number."""

from __future__ import annotations

import pytest

from isthmus.errors import DialFailure, ProtocolError
from isthmus.text.text_limits import MAX_DETAIL_CHARS, MAX_DIAL_BYTES, MAX_VERSION_CHARS
from isthmus.wire.link import (
    FROM_WIRE,
    MAX_MESSAGE_BYTES,
    TO_WIRE,
    failure_of,
    take_message,
    to_bytes,
)
from isthmus.wire.link_pb2 import Control, Dial, DialResult, Hello, Refusal, Welcome

# Typed from the proto3 encoding: field 2 (length-delimited) "a", field 3 (varint) 80.
DIAL = b"\x00\x00\x00\x05\x12\x01a\x18\x50"


def test_a_message_as_bytes() -> None:
    assert to_bytes(Dial(host="a", port=80)) == DIAL
    assert take_message(bytearray(DIAL), Dial) == Dial(host="a", port=80)


def test_an_empty_message_is_a_message() -> None:
    assert to_bytes(DialResult()) == b"\0\0\0\0"
    assert take_message(bytearray(4), DialResult) == DialResult()


def test_nothing_is_consumed_until_all_is_here() -> None:
    buffer = bytearray()
    for byte in DIAL[:-1]:
        buffer.append(byte)
        before = bytes(buffer)
        assert take_message(buffer, Dial) is None
        assert buffer == before
    buffer.append(DIAL[-1])
    assert take_message(buffer, Dial) is not None
    assert buffer == b""


def test_what_follows_stays() -> None:
    buffer = bytearray(DIAL + DIAL + b"GET /")
    assert take_message(buffer, Dial) == take_message(buffer, Dial)
    assert buffer == b"GET /"


def test_a_length_above_the_bound_is_refused_before_its_bytes_come() -> None:
    for kind, most in ((Control, MAX_MESSAGE_BYTES), (Dial, MAX_DIAL_BYTES)):
        with pytest.raises(ProtocolError, match=f"{most + 1} bytes"):
            take_message(bytearray((most + 1).to_bytes(4, "big")), kind)
        assert take_message(bytearray(most.to_bytes(4, "big")), kind) is None


@pytest.mark.parametrize("body", [b"\xff", b"\x12\x05a", b"\x12\x01\xff"])
def test_bytes_that_are_no_message(body: bytes) -> None:
    buffer = bytearray(len(body).to_bytes(4, "big") + body)
    with pytest.raises(ProtocolError, match="not a Dial message"):
        take_message(buffer, Dial)


def test_fields_we_do_not_know_are_no_mistake() -> None:
    newer = DIAL[4:] + b"\xfa\x07\x03new"  # field 127
    buffer = bytearray(len(newer).to_bytes(4, "big") + newer)
    message = take_message(buffer, Dial)
    assert message is not None and message.host == "a"


def test_one_control_message_is_one_thing() -> None:
    assert Control(hello=Hello(agent_id="a")).WhichOneof("message") == "hello"
    assert Control().WhichOneof("message") is None


def test_every_failure_has_its_own_number() -> None:
    assert set(TO_WIRE) == set(DialFailure)
    assert len(FROM_WIRE) == len(TO_WIRE)
    assert 0 not in FROM_WIRE  # that is success
    for failure in DialFailure:
        assert failure_of(DialResult(failure=TO_WIRE[failure])) is failure


def test_success_and_a_failure_of_a_newer_peer() -> None:
    assert failure_of(DialResult(address="10.0.0.1:80")) is None
    newer = DialResult.FromString(b"\x08\x63")  # field 1 = 99
    assert failure_of(newer) is DialFailure.INTERNAL


@pytest.mark.parametrize(
    "dial",
    [
        Dial(requester="x" * 1025),
        Dial(user="x" * 1025),
        Dial(network="x" * 254),
        Dial(traceparent="0" * 256),
        Dial(tracestate="x" * 513),
        Dial(requester_groups=["g" * 200] * 21),
        Dial(user_groups=["g" * 10] * 33),
    ],
)
def test_a_dial_with_a_text_that_is_too_long_breaks_the_protocol(dial: Dial) -> None:
    with pytest.raises(ProtocolError, match=r"at most|more than"):
        take_message(bytearray(to_bytes(dial)), Dial)


def test_texts_that_are_only_shown_are_cut() -> None:
    result = take_message(bytearray(to_bytes(DialResult(detail="x" * 9000))), DialResult)
    assert result is not None and len(result.detail) == MAX_DETAIL_CHARS
    for control in (
        Control(refusal=Refusal(reason="x" * 9000)),
        Control(welcome=Welcome(server_id="s", version="x" * 9000)),
    ):
        told = take_message(bytearray(to_bytes(control)), Control)
        assert told is not None
        assert len(told.refusal.reason) in (0, MAX_DETAIL_CHARS)
        assert len(told.welcome.version) in (0, MAX_VERSION_CHARS)


def test_a_server_id_that_is_too_long_is_no_welcome() -> None:
    with pytest.raises(ProtocolError, match="server_id has 254 characters"):
        take_message(bytearray(to_bytes(Control(welcome=Welcome(server_id="x" * 254)))), Control)
