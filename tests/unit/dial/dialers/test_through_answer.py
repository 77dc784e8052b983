"""What follows the head of a CONNECT's answer: the target's first bytes, or a refusal's text."""

from __future__ import annotations

import pytest

from isthmus.errors import ProtocolError
from isthmus.values import HostPort
from isthmus.wire.connect_answer import MAX_ANSWER_BYTES, MAX_REFUSAL_BYTES, ConnectAsking

TARGET = HostPort("pod.example", 80)
OK = b"HTTP/1.1 200 OK\r\n\r\n"


def asking() -> ConnectAsking:
    return ConnectAsking(TARGET, keep_early=True)


@pytest.mark.parametrize("size", [0, 1, MAX_ANSWER_BYTES, 3 * MAX_ANSWER_BYTES])
def test_early_bytes_are_kept_to_the_last(size: int) -> None:
    it = asking()
    answer = it.receive(OK + b"e" * size)
    assert answer is not None and answer.connected
    assert it.early == b"e" * size


def test_early_bytes_are_an_error_for_who_wants_none() -> None:
    with pytest.raises(ProtocolError, match="unexpected bytes after"):
        ConnectAsking(TARGET).receive(OK + b"e")


@pytest.mark.parametrize(
    ("head", "body", "text"),
    [
        (b"Content-Length: 9\r\n", b"some text", "some text"),
        (b"Content-Length: 0\r\n", b"", ""),
        (b"Transfer-Encoding: chunked\r\n", b"4\r\nsome\r\n5\r\n text\r\n0\r\n\r\n", "some text"),
        (b"Content-Length: 9\r\n", b"some text and what nobody announced", "some text"),
        (b"Transfer-Encoding: chunked\r\n", b"4\r\nsome\r\nnonsense\r\n", "some"),
        (b"Content-Length: 12\r\n", b"two\r\nlines\n\n", "two lines"),
        (b"Content-Length: 5\r\n", b"\xff\x1b[m\n", "\\ufffd\\x1b[m"),
    ],
)
def test_a_refusals_text(head: bytes, body: bytes, text: str) -> None:
    whole = b"HTTP/1.1 502 Bad Gateway\r\n" + head + b"\r\n" + body
    it = asking()
    answer = it.receive(whole)
    assert answer is not None and not answer.connected
    assert it.receive_refusal() == text

    it = asking()
    said = None
    answer = None
    for byte in whole:
        if answer is None:
            answer = it.receive(bytes([byte]))
            said = it.receive_refusal() if answer is not None else None
        elif said is None:
            said = it.receive_refusal(bytes([byte]))
    assert said == text


def test_a_refusal_that_ends_with_the_connection() -> None:
    it = asking()
    assert it.receive(b"HTTP/1.1 502 x\r\n\r\nso") is not None
    assert it.receive_refusal() is None
    assert it.receive_refusal(b"me") is None
    assert it.receive_refusal(end=True) == "some"


def test_a_refusal_that_is_cut() -> None:
    it = asking()
    assert it.receive(b"HTTP/1.1 502 x\r\nContent-Length: 100\r\n\r\nso") is not None
    assert it.receive_refusal() is None
    assert it.receive_refusal(end=True) == "so"


def test_a_refusal_is_bounded() -> None:
    it = asking()
    assert it.receive(b"HTTP/1.1 502 x\r\n\r\n" + b"y" * 3 * MAX_ANSWER_BYTES) is not None
    assert it.receive_refusal() is None
    text = it.receive_refusal(b"y" * MAX_REFUSAL_BYTES)
    assert text == "y" * MAX_REFUSAL_BYTES
