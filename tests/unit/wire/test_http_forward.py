"""Plain requests to a forward proxy: RFC 9110 §7.6.1, RFC 9112 §3.2, RFC 7617."""

from __future__ import annotations

import h11
import pytest

from isthmus.values import HostPort
from isthmus.wire.http_connect import BadRequest
from isthmus.wire.http_forward import (
    PlainRequest,
    end_to_end,
    password_in,
    read_request,
    trailers,
)


def read(target: str, *headers: tuple[str, str], method: str = "GET") -> PlainRequest:
    event = h11.Request(method=method, target=target, headers=[("Host", "asked"), *headers])
    return read_request(event)


def sent(request: PlainRequest, **how: object) -> dict[bytes, bytes]:
    event = request.to_send(**how)  # type: ignore[arg-type]
    return dict(event.headers) | {b":target": event.target}


@pytest.mark.parametrize(
    ("url", "target", "path"),
    [
        ("http://a.example/x?y=1", HostPort("a.example", 80), b"/x?y=1"),
        ("HTTP://A.example:8080", HostPort("A.example", 8080), b"/"),
        ("http://a.example:/", HostPort("a.example", 80), b"/"),
        ("http://a.example?q", HostPort("a.example", 80), b"/?q"),
        ("http://[::1]/", HostPort("::1", 80), b"/"),
        ("http://[::1]:81/@", HostPort("::1", 81), b"/@"),
    ],
)
def test_targets(url: str, target: HostPort, path: bytes) -> None:
    request = read(url)
    assert (request.target, request.path) == (target, path)
    assert sent(request)[b":target"] == path
    assert sent(request, proxy=True)[b":target"] == url.encode()
    assert sent(request)[b"host"] == url.encode().split(b"/")[2].split(b"?")[0]


def test_options_of_a_whole_server() -> None:
    assert read("http://a.example", method="OPTIONS").path == b"*"
    assert read("http://a.example/", method="OPTIONS").path == b"/"


@pytest.mark.parametrize(
    "url",
    ["/", "*", "a.example:80", "https://a.example/", "http://", "http:///x", "http://a b/",
     "http://u@a.example/", "http://a.example@b.example/", "http://a.example:0/",
     "http://a.example:port/", "http://[::1/", "http://a.example/#x", "http://127.1/"],
)  # fmt: skip
def test_no_targets(url: str) -> None:
    with pytest.raises((BadRequest, h11.LocalProtocolError)):
        read(url)


def test_what_is_for_us_alone_goes_no_further() -> None:
    request = read(
        "http://a.example/",
        ("X-Mine", "1"),
        ("Connection", "close, X-Hop ,host,content-length"),
        ("X-Hop", "1"),
        ("Keep-Alive", "5"),
        ("Proxy-Connection", "keep-alive"),
        ("Proxy-Authorization", "Basic eDp5"),
        ("TE", "trailers"),
        ("Upgrade", "h2c"),
        ("Content-Length", "5"),
    )
    assert request.headers == ((b"X-Mine", b"1"), (b"Content-Length", b"5"))
    assert (request.has_body, request.upgrade) == (True, b"")
    assert b"proxy-authorization" not in sent(request)
    assert sent(request, authorization="Basic eA==")[b"proxy-authorization"] == b"Basic eA=="


def test_an_upgrade_is_asked_for_again() -> None:
    request = read("http://a.example/", ("Connection", "Upgrade"), ("Upgrade", "websocket"))
    assert sent(request)[b"upgrade"] == b"websocket"
    assert sent(request)[b"connection"] == b"Upgrade"
    assert not request.may_be_repeated


def test_chunked_is_sent_as_such() -> None:
    request = read("http://a.example/", ("Transfer-Encoding", "chunked"))
    assert request.chunked
    assert sent(request)[b"transfer-encoding"] == b"chunked"
    assert b"content-length" not in sent(request)


def test_two_ends_of_one_request_are_refused() -> None:
    with pytest.raises(BadRequest, match="both Content-Length and Transfer-Encoding"):
        read("http://a.example/", ("Transfer-Encoding", "chunked"), ("Content-Length", "5"))


def test_what_may_be_repeated() -> None:
    assert read("http://a.example/").may_be_repeated
    assert read("http://a.example/", method="DELETE").may_be_repeated
    assert not read("http://a.example/", method="POST").may_be_repeated
    assert not read("http://a.example/", ("Content-Length", "1"), method="PUT").may_be_repeated


def test_names_keep_their_letters() -> None:
    event = h11.Response(status_code=200, headers=[("X-MiXed", "1"), ("Upgrade", "h2c")])
    assert end_to_end(event.headers) == [(b"X-MiXed", b"1")]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b"Basic bWU6c2VjcmV0", (b"me", b"secret")),
        (b"basic  bWU6YTpi ", (b"me", b"a:b")),
        (b"Basic Og==", (b"", b"")),
        (b"Basic bWU=", None),
        (b"Basic !!!", None),
        (b"Basic b", None),
        (b"Bearer bWU6c2VjcmV0", None),
        (b"", None),
    ],
)
def test_passwords(value: bytes, found: tuple[bytes, bytes] | None) -> None:
    assert password_in([(b"proxy-authorization", value)]) == found
    assert password_in([(b"proxy-authorization", value)] * 2) is None
    assert password_in([]) is None


def test_a_trailer_says_nothing_about_the_message_itself() -> None:
    # RFC 9110 §6.5.1
    names = ["Host", "Content-Length", "Authorization", "Cookie", "Set-Cookie", "Expect", "Via"]
    end = h11.EndOfMessage(headers=[*((each, "1") for each in names), ("X", "y")])
    assert trailers(end.headers) == [(b"X", b"y")]
