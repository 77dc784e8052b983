"""The CONNECT head: vectors typed from RFC 9110 and 9112, and from what real clients send."""

from __future__ import annotations

import h11
import pytest

from isthmus.errors import ProtocolError
from isthmus.values import HostPort
from isthmus.wire import http_connect
from isthmus.wire.http_connect import (
    ESTABLISHED,
    MAX_HEAD_BYTES,
    MAX_HEADER_LINES,
    MAX_LINE_BYTES,
    BadRequest,
    ConnectRequest,
    reply,
    take_connect,
)

# RFC 9110 §9.3.6, first example.
RFC_9110 = b"CONNECT server.example.com:80 HTTP/1.1\r\nHost: server.example.com\r\n\r\n"
KUBE_APISERVER = b"CONNECT 10.0.0.1:443 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
CURL = (
    b"CONNECT demo.internal:8080 HTTP/1.1\r\n"
    b"Host: demo.internal:8080\r\n"
    b"User-Agent: curl/7.88.1\r\n"
    b"Proxy-Connection: Keep-Alive\r\n"
    b"\r\n"
)
GO = (
    b"CONNECT [fd00::10]:10250 HTTP/1.1\r\n"
    b"Host: [fd00::10]:10250\r\n"
    b"User-Agent: Go-http-client/1.1\r\n"
    b"\r\n"
)
SOCAT = b"CONNECT demo.internal:22 HTTP/1.0\r\n\r\n"
COMMON = [
    (RFC_9110, HostPort("server.example.com", 80)),
    (KUBE_APISERVER, HostPort("10.0.0.1", 443)),
    (CURL, HostPort("demo.internal", 8080)),
    (GO, HostPort("fd00::10", 10250)),
]
LENIENT = [
    (SOCAT, HostPort("demo.internal", 22)),
    (b"CONNECT a:1 HTTP/1.1\nHost: a\n\n", HostPort("a", 1)),
    (b"CONNECT a:1 HTTP/1.1\r\nHost: a\n\r\n", HostPort("a", 1)),
    (b"CONNECT a:1 HTTP/1.1\r\nUser-Agent: x\r\nHOST: a\r\n\r\n", HostPort("a", 1)),
    (b"CONNECT a:00080 HTTP/1.1\r\nHost: a\r\n\r\n", HostPort("a", 80)),
    (b"CONNECT a:1 HTTP/1.1\r\nHost:\r\n\r\n", HostPort("a", 1)),
    (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", HostPort("a", 1)),
    (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\nX: \xe9\r\n\r\n", HostPort("a", 1)),
    (b"CONNECT a_b.c:1 HTTP/1.1\r\nHost: a\r\n\r\n", HostPort("a_b.c", 1)),
]


def head(line: str, *headers: str) -> bytearray:
    return bytearray("\r\n".join([line, *headers, "", ""]).encode("latin-1"))


def refused(buffer: bytearray) -> BadRequest:
    before = bytes(buffer)
    with pytest.raises(BadRequest) as info:
        take_connect(buffer)
    assert buffer == before
    return info.value


@pytest.mark.parametrize(("data", "target"), COMMON + LENIENT)
@pytest.mark.parametrize("early", [b"", b"\x16\x03\x01early", b"\r\n\r\n", b"\n\nSSH-2.0-x\r\n"])
def test_a_head_is_taken_and_what_follows_it_stays(
    data: bytes, target: HostPort, early: bytes
) -> None:
    buffer = bytearray(data + early)
    request = take_connect(buffer)
    assert request is not None
    assert request.target == target
    assert buffer == early


@pytest.mark.parametrize(("data", "target"), COMMON + LENIENT)
def test_a_head_that_comes_byte_by_byte(data: bytes, target: HostPort) -> None:
    buffer = bytearray()
    for byte in data[:-1]:
        buffer.append(byte)
        assert take_connect(buffer) is None
    buffer.append(data[-1])
    assert take_connect(buffer) is not None
    assert not buffer


@pytest.mark.parametrize(("data", "target"), COMMON)
def test_what_common_clients_send_never_reaches_h11(
    data: bytes, target: HostPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(h11, "Connection")
    request = take_connect(bytearray(data))
    assert request is not None and request.target == target


def test_headers_are_split_when_asked_for() -> None:
    request = take_connect(bytearray(CURL))
    assert request is not None
    assert request.headers == (
        (b"host", b"demo.internal:8080"),
        (b"user-agent", b"curl/7.88.1"),
        (b"proxy-connection", b"Keep-Alive"),
    )
    assert request.header(b"user-agent") == b"curl/7.88.1"
    assert request.header(b"traceparent") is None


def test_headers_read_by_h11_look_the_same() -> None:
    request = take_connect(head("CONNECT a:1 HTTP/1.0", "X-One:  1\t", "X-Two: a", "  folded"))
    assert request is not None
    assert request.headers == ((b"x-one", b"1"), (b"x-two", b"a folded"))


def test_a_request_is_a_value() -> None:
    assert ConnectRequest(HostPort("a", 1)) == ConnectRequest(HostPort("a", 1), b"")
    assert ConnectRequest(HostPort("a", 1)).headers == ()


@pytest.mark.parametrize(
    "authority",
    [
        "example.com",  # no port
        "example.com:",
        "example.com:0",
        "example.com:65536",
        "example.com:123456",
        "example.com:-1",
        "example.com:+80",
        "example.com:http",
        ":443",
        "[]:443",
        "[::1]",
        "::1:443",  # IPv6 without brackets
        "[::1:443",
        "::1]:443",
        "[10.0.0.1]:443",
        "[fe80::1%25eth0]:443",  # a zone means something on one machine only
        "[::1]x:443",
        "user@example.com:443",
        "user:pass@example.com:443",
        "-example.com:443",
        "exa%6dple.com:443",
        "example..com:443",
        "a" * 64 + ":443",
        "a." * 127 + "a:443",
        "http://example.com:443",
        "http://example.com/",  # absolute-form
        "/",  # origin-form
        "/rpc:443",
        "*",  # asterisk-form
        "example.com:443/",
        "example.com:443?x",
        "10.0.0.256:443",
        "10.0.1:443",  # resolvers read these four as addresses
        "0x7f.1:443",
        "2130706433:443",
        "127.0.0.1.:443",
    ],
)
@pytest.mark.parametrize("headers", [["Host: a"], ["X: y", "Host: a"]])
def test_a_bad_destination_is_400_on_either_path(authority: str, headers: list[str]) -> None:
    error = refused(head(f"CONNECT {authority} HTTP/1.1", *headers))
    assert error.status == 400
    assert authority[:40] in str(error)


@pytest.mark.parametrize(
    ("status", "line", "headers"),
    [
        (405, "GET / HTTP/1.1", ["Host: a"]),
        (405, "GET http://example.com/ HTTP/1.1", ["Host: a"]),
        (405, "OPTIONS * HTTP/1.1", ["Host: a"]),
        (405, "connect a:1 HTTP/1.1", ["Host: a"]),  # RFC 9110 §9.1: methods are case-sensitive
        (505, "PRI * HTTP/2.0", []),  # RFC 9113 §3.4: the HTTP/2 preface
        (505, "CONNECT a:1 HTTP/2.0", ["Host: a"]),
        (505, "CONNECT a:1 HTTP/1.2", ["Host: a"]),
        (505, "CONNECT a:1 HTTP/0.9", []),
        (400, "CONNECT a:1 HTTP/11.1", ["Host: a"]),
        (400, "CONNECT a:1 http/1.1", ["Host: a"]),
        (400, "CONNECT a:1", ["Host: a"]),
        (400, "CONNECT  a:1 HTTP/1.1", ["Host: a"]),
        (400, "CONNECT a b:1 HTTP/1.1", ["Host: a"]),
        (400, "CONNECT a:1 HTTP/1.1 ", ["Host: a"]),
        (400, "CONNECT\ta:1 HTTP/1.1", ["Host: a"]),
        (400, "CONNECT a\x00:1 HTTP/1.1", ["Host: a"]),
        (400, "CONNECT \xe9:1 HTTP/1.1", ["Host: a"]),
        (400, "CONNECT a:1 HTTP/1.1", []),  # RFC 9112 §3.2: HTTP/1.1 needs Host
        (400, "CONNECT a:1 HTTP/1.1", ["Host: a", "Host: a"]),
        (400, "CONNECT a:1 HTTP/1.1", ["Host: a", "X: y", "hOST: b"]),
        (400, "CONNECT a:1 HTTP/1.1", ["Host: a", "Content-Length: 5"]),
        (400, "CONNECT a:1 HTTP/1.1", ["Host: a", "content-length: 0, 5"]),
        (400, "CONNECT a:1 HTTP/1.1", ["Host: a", "Content-Length: 0", "Content-Length: 1"]),
        (400, "CONNECT a:1 HTTP/1.1", ["Host: a", "Content-Length: x"]),
        (400, "CONNECT a:1 HTTP/1.1", ["Host: a", "Transfer-Encoding: chunked"]),
        (400, "CONNECT a:1 HTTP/1.1", ["Host: a", "transfer-encoding: gzip"]),
        (400, "CONNECT a:1 HTTP/1.1", ["Host: a", "TRANSFER-ENCODING:"]),
        (400, "CONNECT a:1 HTTP/1.0", ["Transfer-Encoding: chunked"]),
        (400, "CONNECT a:1 HTTP/1.1", ["Host : a"]),  # RFC 9112 §5.1: no blank before the colon
        (400, "CONNECT a:1 HTTP/1.1", [" Host: a"]),
        (400, "CONNECT a:1 HTTP/1.1", ["Host: a", "no colon"]),
        (400, "CONNECT a:1 HTTP/1.1", ["Host: a", ": nameless"]),
        (400, "CONNECT a:1 HTTP/1.1", ["Host: a", "X: \x00"]),
        (400, "CONNECT a:1 HTTP/1.1", ["Host: a", "X: bare\rreturn"]),
    ],
)
def test_a_head_that_breaks_a_rule(status: int, line: str, headers: list[str]) -> None:
    error = refused(head(line, *headers))
    assert error.status == status
    assert isinstance(error, ProtocolError)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", "TLS"),
        (b"\x16", "TLS"),
        (b"\x05\x01\x00", "SOCKS5"),
        (b"\x04\x01\x00\x50", "SOCKS4"),
        (b"\x00", "method"),
        (b"\r\n", "method"),
        (b" CONNECT", "method"),
        (b"{", "method"),
        (b"CONNECT\r", "method"),
        (b"CONN\xffECT", "method"),
        (b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", "request line"),
        (b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n", "request line"),
    ],
)
def test_what_cannot_become_http_is_refused_before_a_blank_line(data: bytes, says: str) -> None:
    error = refused(bytearray(data))
    assert error.status == 400
    assert says in error.reason


def test_a_megabyte_of_headers_is_refused_at_the_bound() -> None:
    buffer = bytearray(b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n")
    line = b"X-Pad: " + b"x" * 4089 + b"\r\n"
    with pytest.raises(BadRequest) as info:
        while True:
            assert take_connect(buffer) is None
            buffer += line
    assert info.value.status == 431
    assert MAX_HEAD_BYTES <= len(buffer) < MAX_HEAD_BYTES + len(line)


def test_a_head_may_fill_the_bound_and_not_one_byte_more() -> None:
    start, end = b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\nX: ", b"\r\n\r\n"
    whole = start + b"x" * (200 - len(start) - len(end)) + end
    assert take_connect(bytearray(whole), max_head_bytes=200) is not None
    with pytest.raises(BadRequest) as info:
        take_connect(bytearray(whole), max_head_bytes=199)
    assert info.value.status == 431
    # A reader that stops reading at the bound must not be left waiting.
    assert take_connect(bytearray(whole[:199]), max_head_bytes=200) is None
    with pytest.raises(BadRequest):
        take_connect(bytearray(whole[:199]), max_head_bytes=199)


def test_early_bytes_do_not_count_towards_the_bound() -> None:
    buffer = bytearray(KUBE_APISERVER + b"x" * (2 * MAX_HEAD_BYTES))
    assert take_connect(buffer) is not None
    assert len(buffer) == 2 * MAX_HEAD_BYTES


@pytest.mark.parametrize("ended", [b"", b" HTTP/1.1\r\n", b" HTTP/1.1\r\nHost: a\r\n\r\n"])
def test_a_request_line_that_is_too_long_is_400(ended: bytes) -> None:
    error = refused(bytearray(b"CONNECT " + b"a" * MAX_LINE_BYTES + ended))
    assert error.status == 400
    assert "longer" in error.reason


@pytest.mark.parametrize("ended", [b"", b"\r\n", b"\r\n\r\n"])
def test_a_header_line_that_is_too_long_is_431(ended: bytes) -> None:
    start = b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n"
    assert refused(bytearray(start + b"X: " + b"x" * MAX_LINE_BYTES + ended)).status == 431
    fits = b"X: " + b"x" * (MAX_LINE_BYTES - 4)  # and its carriage return
    assert take_connect(bytearray(start + fits + b"\r\n\r\n")) is not None


@pytest.mark.parametrize("first", ["Host: a", "hosT: a"])
def test_header_lines_are_counted(first: str) -> None:
    many = [f"X-{n}: y" for n in range(MAX_HEADER_LINES - 1)]
    request = take_connect(head("CONNECT a:1 HTTP/1.1", first, *many))
    assert request is not None and len(request.headers) == MAX_HEADER_LINES
    assert refused(head("CONNECT a:1 HTTP/1.1", first, *many, "One: more")).status == 431
    assert refused(head("CONNECT a:1 HTTP/1.1", first, *many, "x")).status == 431


def test_the_same_destination_is_the_same_value() -> None:
    one, two = take_connect(bytearray(KUBE_APISERVER)), take_connect(bytearray(KUBE_APISERVER))
    assert one is not None and two is not None
    assert one.target is two.target
    assert http_connect._target.cache_info().maxsize == 1024


def test_established_is_a_head_and_nothing_else() -> None:
    assert ESTABLISHED == b"HTTP/1.1 200 Connection Established\r\n\r\n"


def test_a_reply_is_exactly_this() -> None:
    assert reply(502, "cannot dial a:1: connection refused") == (
        b"HTTP/1.1 502 Bad Gateway\r\n"
        b"Content-Type: text/plain; charset=utf-8\r\n"
        b"Content-Length: 36\r\n"
        b"Connection: close\r\n"
        b"\r\n"
        b"cannot dial a:1: connection refused\n"
    )


@pytest.mark.parametrize(
    ("status", "phrase"),
    [
        (400, b"Bad Request"),
        (403, b"Forbidden"),
        (405, b"Method Not Allowed"),
        (431, b"Request Header Fields Too Large"),
        (500, b"Internal Server Error"),
        (503, b"Service Unavailable"),
        (504, b"Gateway Timeout"),
        (505, b"HTTP Version Not Supported"),
    ],
)
def test_a_client_reads_every_reply(status: int, phrase: bytes) -> None:
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="CONNECT", target="a:1", headers=[("Host", "a")]))
    client.receive_data(reply(status, "é\r\nX: \x1b[31m\u202e\x00\n"))
    response, body, end = client.next_event(), client.next_event(), client.next_event()
    assert isinstance(response, h11.Response) and isinstance(body, h11.Data)
    assert (response.status_code, response.reason) == (status, phrase)
    assert body.data.decode() == "é\\r\\nX: \\x1b[31m\\u202e\\x00\n"
    assert isinstance(end, h11.EndOfMessage)
    assert client.their_state is h11.MUST_CLOSE


def test_a_reply_survives_what_is_not_text() -> None:
    assert reply(400, "lone \ud800").endswith(b"lone \\ud800\n")


def test_a_reply_takes_headers_but_no_second_line() -> None:
    assert b"\r\nRetry-After: 1\r\n" in reply(503, "x", headers=[("Retry-After", "1")])
    with pytest.raises(ValueError, match="not a header"):
        reply(503, "x", headers=[("X", "1\r\nY: 2")])
    with pytest.raises(ValueError, match="299"):
        reply(299, "x")


def test_405_says_what_is_allowed_and_400_does_not() -> None:
    data = refused(head("GET / HTTP/1.1", "Host: a")).to_bytes()
    assert data.startswith(b"HTTP/1.1 405 Method Not Allowed\r\nAllow: CONNECT\r\n")
    assert b"Allow" not in refused(bytearray(b"\x16\x03")).to_bytes()


def test_what_a_peer_sent_is_quoted_short_and_printable() -> None:
    error = refused(head("CONNECT " + "@" * 5000 + ":1 HTTP/1.1", "Host: a"))
    assert len(error.reason) < 400
    error = refused(bytearray(b"CONNECT \x1b[31m HTTP/1.1\n"))
    assert error.reason.isprintable()
    error = refused(head("CONNECT a:1 HTTP/1.1", "Host: a", "\x1b" * 5000))
    assert error.reason.isprintable() and len(error.reason) < 400
