"""CONNECT as a client: the bytes of the request, and every kind of answer."""

from __future__ import annotations

import pytest

from isthmus import __version__
from isthmus.errors import ProtocolError
from isthmus.values import HostPort
from isthmus.wire.connect_answer import MAX_ANSWER_BYTES, ConnectAnswer, ConnectAsking
from isthmus.wire.http_connect import take_connect

TARGET = HostPort("server.example", 8132)


def test_the_request() -> None:
    asking = ConnectAsking(TARGET, authorization="Basic eDp5")
    assert asking.request == (
        b"CONNECT server.example:8132 HTTP/1.1\r\n"
        b"Host: server.example:8132\r\n"
        b"User-Agent: isthmus/%b\r\n"
        b"Proxy-Authorization: Basic eDp5\r\n"
        b"\r\n" % __version__.encode()
    )


def test_no_user_no_authorization_and_addresses_in_brackets() -> None:
    asking = ConnectAsking(HostPort("2001:db8::1", 8132))
    assert asking.request.startswith(b"CONNECT [2001:db8::1]:8132 HTTP/1.1\r\n")
    request = take_connect(bytearray(asking.request))
    assert request is not None
    assert request.target == HostPort("2001:db8::1", 8132)
    assert request.header(b"host") == b"[2001:db8::1]:8132"
    assert request.header(b"proxy-authorization") is None


@pytest.mark.parametrize(
    ("head", "answer"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", ConnectAnswer(200, "HTTP/1.1 200 OK")),
        (b"HTTP/1.0 200 Connection established\r\nVia: 1.0 x\r\n\r\n", None),
        (b"HTTP/1.1 204\r\n\r\n", ConnectAnswer(204, "HTTP/1.1 204")),
        # RFC 9110 §9.3.6: a client ignores these in a 2xx to CONNECT.
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", None),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", None),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", None),
    ],
)
def test_it_is_connected(head: bytes, answer: ConnectAnswer | None) -> None:
    asking = ConnectAsking(TARGET)
    for byte in head[:-1]:
        assert asking.receive(bytes([byte])) is None
    given = asking.receive(head[-1:])
    assert given is not None
    assert given.connected
    assert answer is None or given == answer
    assert ConnectAsking(TARGET).receive(head) == given


@pytest.mark.parametrize(
    ("head", "line"),
    [
        (
            b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n"
            b"Content-Length: 5\r\n\r\nhello",
            "HTTP/1.1 407 Proxy Authentication Required",
        ),
        (b"HTTP/1.0 503 \r\n\r\n<html>", "HTTP/1.0 503"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\n\r\n", "HTTP/1.1 302 Found"),
        (b"HTTP/1.1 403 G\xe9ht nicht\r\n\r\n", "HTTP/1.1 403 Géht nicht"),
        (b"HTTP/1.1 403 \x9b31mred\r\n\r\n", "HTTP/1.1 403 \\x9b31mred"),
        (b"HTTP/1.1 500 " + b"x" * 4000 + b"\r\n\r\n", "HTTP/1.1 500 " + "x" * 187),
    ],
)
def test_it_is_not(head: bytes, line: str) -> None:
    answer = ConnectAsking(TARGET).receive(head)
    assert answer is not None
    assert not answer.connected
    assert answer.line == line


@pytest.mark.parametrize(
    "data",
    [
        b"S",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"\x15\x03\x01\x00\x02\x02\x16",  # a TLS alert: it is an https proxy
        b"\r\nHTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
    ],
)
def test_it_is_nonsense(data: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"^not an HTTP answer: '"):
        ConnectAsking(TARGET).receive(data)


def test_bytes_behind_the_head_of_a_connection_are_refused() -> None:
    with pytest.raises(ProtocolError, match="unexpected bytes after"):
        ConnectAsking(TARGET).receive(b"HTTP/1.1 200 OK\r\n\r\nx")


@pytest.mark.parametrize("size", [MAX_ANSWER_BYTES - 1, MAX_ANSWER_BYTES])
def test_the_largest_head(size: int) -> None:
    start, end = b"HTTP/1.1 200 OK\r\nX: ", b"\r\n\r\n"
    head = start + b"x" * (size - len(start) - len(end)) + end
    answer = ConnectAsking(TARGET).receive(head)
    assert answer is not None
    assert answer.connected


@pytest.mark.parametrize("step", [1000, 10**6])
def test_a_larger_one(step: int) -> None:
    start, end = b"HTTP/1.1 200 OK\r\nX: ", b"\r\n\r\n"
    head = start + b"x" * (MAX_ANSWER_BYTES + 1 - len(start) - len(end)) + end
    asking = ConnectAsking(TARGET)
    with pytest.raises(ProtocolError, match="larger than 16384 bytes"):
        for at in range(0, len(head), step):
            assert asking.receive(head[at : at + step]) is None


def test_no_end_of_interim_answers() -> None:
    asking = ConnectAsking(TARGET)
    with pytest.raises(ProtocolError, match="larger"):
        for _ in range(1000):
            assert asking.receive(b"HTTP/1.1 100 Continue\r\n\r\n") is None
