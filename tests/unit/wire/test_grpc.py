"""gRPC's message layer: vectors typed from its protocol description, and what is refused."""

from __future__ import annotations

import re

import pytest

from isthmus.errors import ProtocolError
from isthmus.wire.grpc import (
    MAX_MESSAGE_BYTES,
    MESSAGE_HEAD,
    MessageTooLarge,
    Refusal,
    Status,
    message_head,
    message_size,
    read_status,
    read_timeout,
    request_problem,
    response_problem,
    status_headers,
    status_of_http,
)

HELLO = bytes.fromhex("00 00000005") + b"hello"
COMPRESSED = bytes.fromhex("01 00000001") + b"x"
TOO_LARGE = bytes.fromhex("00 00400001")

GOOD = {
    b":method": b"POST",
    b":path": b"/AgentService/Connect",
    b"content-type": b"application/grpc",
}


def test_a_head_is_a_zero_and_the_length() -> None:
    assert message_head(5) == HELLO[:MESSAGE_HEAD]
    assert message_head(MAX_MESSAGE_BYTES) == bytes.fromhex("00 00400000")
    with pytest.raises(MessageTooLarge):
        message_head(MAX_MESSAGE_BYTES + 1)


def test_a_size_is_read_with_its_flag() -> None:
    assert message_size(message_head(7)) == 7
    assert message_size(memoryview(message_head(MAX_MESSAGE_BYTES))) == MAX_MESSAGE_BYTES
    with pytest.raises(MessageTooLarge):
        message_size((MAX_MESSAGE_BYTES + 1).to_bytes(5, "big"))
    with pytest.raises(ProtocolError, match="compressed"):
        message_size(b"\x01\x00\x00\x00\x01")


def test_the_statuses_have_gos_numbers_and_names() -> None:
    names = (
        "OK Canceled Unknown InvalidArgument DeadlineExceeded NotFound AlreadyExists "
        "PermissionDenied ResourceExhausted FailedPrecondition Aborted OutOfRange Unimplemented "
        "Internal Unavailable DataLoss Unauthenticated"
    )
    assert " ".join(status.go_name for status in Status) == names
    assert [int(status) for status in Status] == list(range(17))


@pytest.mark.parametrize(
    ("text", "raw"),
    [
        ("no agent, try ~later~ !", b"no agent, try ~later~ !"),
        ("50% of\n", b"50%25 of%0A"),
        ("é\x7f", b"%C3%A9%7F"),
    ],
)
def test_a_status_message_is_percent_encoded(text: str, raw: bytes) -> None:
    headers = status_headers(Status.UNAVAILABLE, text)
    assert headers == [(b"grpc-status", b"14"), (b"grpc-message", raw)]
    assert read_status(headers) == (Status.UNAVAILABLE, text)


def test_a_status_without_words_has_no_message() -> None:
    assert status_headers(Status.OK) == [(b"grpc-status", b"0")]
    assert read_status([(b"grpc-status", b"0")]) == (Status.OK, "")


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([], (Status.UNKNOWN, "no grpc-status")),
        ([(b"grpc-status", b"17"), (b"grpc-message", b"x")], (Status.UNKNOWN, "x")),
        ([(b"grpc-status", b"-1")], (Status.UNKNOWN, "")),
        ([(b"grpc-status", b"9" * 5000)], (Status.UNKNOWN, "")),
        ([(b"grpc-status", b"five")], (Status.UNKNOWN, "")),
        ([(b"grpc-status", b"")], (Status.UNKNOWN, "")),
        (
            [(b"grpc-status", b"5"), (b"grpc-message", b"100%, %zz%4")],
            (Status.NOT_FOUND, "100%, %zz%4"),
        ),
        (
            [(b"grpc-status", b"5"), (b"grpc-message", b"%c3%A9 %FF")],
            (Status.NOT_FOUND, "é \ufffd"),
        ),
    ],
)
def test_odd_trailers_are_read_all_the_same(
    headers: list[tuple[bytes, bytes]], found: tuple[Status, str]
) -> None:
    assert read_status(headers) == found


def test_statuses_of_plain_http() -> None:
    named = {
        400: Status.INTERNAL,
        401: Status.UNAUTHENTICATED,
        403: Status.PERMISSION_DENIED,
        404: Status.UNIMPLEMENTED,
        429: Status.UNAVAILABLE,
        502: Status.UNAVAILABLE,
        503: Status.UNAVAILABLE,
        504: Status.UNAVAILABLE,
    }
    for code in range(600):
        assert status_of_http(code) is named.get(code, Status.UNKNOWN)


# Requests and responses.


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {b"content-type": b"application/grpc+proto"},
        {b"content-type": b"application/grpc;charset=utf-8"},
        {b"content-type": b"application/grpc+proto ; x"},
        {b"grpc-encoding": b"identity", b"grpc-accept-encoding": b"gzip"},
        {b"grpc-timeout": b"100m", b"te": b"trailers"},
    ],
)
def test_requests_that_may_be_served(extra: dict[bytes, bytes]) -> None:
    assert request_problem((GOOD | extra).items()) is None


@pytest.mark.parametrize(
    ("extra", "http_status", "status"),
    [
        ({b":method": b"GET"}, 405, Status.INTERNAL),
        ({b"content-type": b"application/json"}, 415, Status.INVALID_ARGUMENT),
        ({b"content-type": b"application/grpc-web"}, 415, Status.INVALID_ARGUMENT),
        ({b"content-type": b"application/grpc+json"}, 415, Status.INVALID_ARGUMENT),
        ({b"content-type": b""}, 415, Status.INVALID_ARGUMENT),
        ({b"grpc-timeout": b"100"}, 400, Status.INTERNAL),
        ({b"grpc-encoding": b"gzip"}, 200, Status.UNIMPLEMENTED),
    ],
)
def test_requests_that_are_refused(
    extra: dict[bytes, bytes], http_status: int, status: Status
) -> None:
    refusal = request_problem((GOOD | extra).items())
    assert refusal is not None
    assert (refusal.http_status, refusal.status) == (http_status, status)
    [value] = extra.values()
    assert repr(value.decode()) in refusal.message


def test_a_request_without_a_content_type_is_refused() -> None:
    refusal = request_problem([(b":method", b"POST")])
    assert refusal is not None and refusal.http_status == 415


def test_a_refusal_is_answered_in_one_block() -> None:
    refusal = Refusal(http_status=405, status=Status.INTERNAL, message="POST!")
    assert refusal.to_headers() == [
        (b":status", b"405"),
        (b"content-type", b"application/grpc"),
        (b"grpc-status", b"13"),
        (b"grpc-message", b"POST!"),
    ]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({b":status": b"200", b"content-type": b"application/grpc"}, None),
        ({b":status": b"405", b"content-type": b"application/grpc", b"grpc-status": b"13"}, None),
        ({b":status": b"200", b"content-type": b"text/html"}, Status.UNKNOWN),
        ({b":status": b"503", b"content-type": b"text/html"}, Status.UNAVAILABLE),
        ({b":status": b"404", b"content-type": b"application/grpc"}, Status.UNIMPLEMENTED),
        ({b":status": b"99999"}, Status.UNKNOWN),
        ({}, Status.UNKNOWN),
    ],
)
def test_responses_that_are_grpcs_and_not(
    headers: dict[bytes, bytes], status: Status | None
) -> None:
    problem = response_problem(headers.items())
    assert (problem and problem[0]) == status


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"100m", 0.1),
        (b"2H", 7200.0),
        (b"3M", 180.0),
        (b"99999999S", 99999999.0),
        (b"5u", 5e-6),
        (b"0n", 0.0),
        (b"123456789S", None),
        (b"S", None),
        (b"1", None),
        (b"1s", None),
        (b"-1S", None),
        (b"1S ", None),
        (b"1S\n", None),
        ("١S".encode(), None),
        (b"", None),
    ],
)
def test_timeouts(value: bytes, seconds: float | None) -> None:
    assert read_timeout(value) == (seconds if seconds is None else pytest.approx(seconds))


def test_a_long_message_is_cut_before_and_after_it_is_encoded() -> None:
    for text in ("x" * 10_000, "\N{REPLACEMENT CHARACTER}" * 10_000, "\N{GRINNING FACE}" * 10_000):
        encoded = dict(status_headers(Status.INTERNAL, text))[b"grpc-message"]
        assert len(encoded) <= 3000 and not re.search(rb"%[0-9A-F]?$", encoded)
        status, read = read_status([(b"grpc-status", b"13"), (b"grpc-message", encoded)])
        assert status is Status.INTERNAL and read[:200] == text[:200]
    long = read_status([(b"grpc-status", b"13"), (b"grpc-message", b"y" * 100_000)])[1]
    assert len(long) <= 1000
