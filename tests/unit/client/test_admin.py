"""The client of admin ports against real sockets: what it sends, and each thing that goes wrong."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from isthmus.client import admin
from isthmus.client.admin import AdminClient, AdminError, Trouble, explain, read_token
from isthmus.errors import ConfigError
from isthmus.tools.pki import making as pki

LIMIT_S = 20.0
Served = tuple[int, list[bytes]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    return pki.init(tmp_path_factory.mktemp("pki"))


@contextlib.contextmanager
def serving(
    *replies: bytes, wrap: Callable[[socket.socket], socket.socket] | None = None
) -> Iterator[Served]:
    """A port that takes one connection per reply; the requests that came."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.settimeout(LIMIT_S)

        def serve() -> None:
            for reply in replies:
                plain, _ = sock.accept()
                plain.settimeout(LIMIT_S)
                with plain, contextlib.suppress(OSError), wrap(plain) if wrap else plain as conn:
                    heard.append(_head(conn))
                    conn.sendall(reply)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield sock.getsockname()[1], heard
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def _head(conn: socket.socket) -> bytes:
    got = b""
    while b"\r\n\r\n" not in got and not got.startswith(b"\x16"):
        piece = conn.recv(4096)
        if not piece:
            break
        got += piece
    return got


def reply(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", "")
    return "\r\n".join(lines).encode() + body


def fails(client: AdminClient, path: str = "/snapshot") -> AdminError:
    with pytest.raises(AdminError) as caught:
        client.get(path)
    said = str(caught.value)
    assert said.startswith(client.url) and "\n" not in said and not said.endswith(".")
    return caught.value


def test_asks_directly_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with serving(reply(b'{"kind": "X"}')) as (port, heard):
        client = AdminClient(f"127.0.0.1:{port}", token="secret")
        assert client.get("/snapshot?limit=0") == {"kind": "X"}
    assert heard[0].startswith(b"GET /snapshot?limit=0 HTTP/1.1\r\n")
    assert f"Host: 127.0.0.1:{port}\r\n".encode() in heard[0]
    assert b"Authorization: Bearer secret\r\n" in heard[0]
    assert "secret" not in repr(client)


def test_a_change_says_that_it_is_meant() -> None:
    with serving(reply(b'{"ended": 7}')) as (port, heard):
        assert AdminClient(f"127.0.0.1:{port}").post("/tunnels/7/end") == {"ended": 7}
    assert heard[0].startswith(b"POST /tunnels/7/end HTTP/1.1\r\n")
    assert b"\r\nX-Isthmus-Intent: end\r\n" in heard[0]


@pytest.mark.parametrize(
    ("status", "body", "why", "says"),
    [
        ("401 Unauthorized", b"", Trouble.UNAUTHORIZED, "wants a token; give --token-file"),
        ("403 Forbidden", b"not you.\nmore", Trouble.FORBIDDEN, "does not allow it: not you"),
        ("404 Not Found", b"page\x1b[31m", Trouble.NOT_FOUND, "does not know /snapshot: page"),
        ("500 Oh", b"", Trouble.STATUS, "answers /snapshot with 500"),
        ("200 OK", b"<html>", Trouble.NOT_JSON, "does not answer with a JSON object"),
        ("200 OK", b"[1]", Trouble.NOT_JSON, "does not answer with a JSON object"),
        ("200 OK", b"[" * 9000, Trouble.NOT_JSON, "does not answer with a JSON object"),
    ],
)
def test_an_answer_that_is_no_snapshot(status: str, body: bytes, why: Trouble, says: str) -> None:
    with serving(reply(body, status)) as (port, _):
        error = fails(AdminClient(f"127.0.0.1:{port}"))
    assert error.why is why and says in str(error) and "\x1b" not in str(error)
    assert error.status == int(status[:3])


def test_an_older_program_without_a_path() -> None:
    with serving(reply(b"", "404 Not Found"), reply(b"", "403 No")) as (port, _):
        client = AdminClient(f"127.0.0.1:{port}")
        assert client.get_if_known("/history") is None
        with pytest.raises(AdminError):
            client.get_if_known("/history")


def test_a_token_that_is_not_known() -> None:
    with serving(reply(b"", "401 Unauthorized")) as (port, _):
        error = fails(AdminClient(f"127.0.0.1:{port}", token="wrong"))
    assert "does not know the token of --token-file" in str(error) and "wrong" not in str(error)


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    error = fails(AdminClient(f"http://127.0.0.1:{port}"))
    assert error.why is Trouble.REFUSED and "nothing listens there" in str(error)


def test_somebody_who_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        error = fails(AdminClient(f"127.0.0.1:{sock.getsockname()[1]}", timeout_s=0.05))
    assert error.why is Trouble.TIMED_OUT


@pytest.mark.parametrize("begun", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n{"])
def test_somebody_who_never_comes_to_an_end(begun: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:

        def drip() -> None:
            conn, _ = sock.accept()
            with conn, contextlib.suppress(OSError):
                conn.sendall(begun)
                while True:  # until whoever asks has hung up
                    conn.sendall(b"y")
                    time.sleep(0.01)

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        error = fails(AdminClient(f"127.0.0.1:{sock.getsockname()[1]}", timeout_s=0.2))
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert error.why is Trouble.TIMED_OUT


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (b"", "hung up without an answer; perhaps it speaks HTTPS"),
        (b"\x15\x03\x03\x00\x02\x02\x46\r\n", "does not answer in HTTP; try https://"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "hung up in the middle"),
    ],
)
def test_no_http(said: bytes, says: str) -> None:
    with serving(said) as (port, _):
        error = fails(AdminClient(f"127.0.0.1:{port}"))
    assert error.why is Trouble.NOT_HTTP and says in str(error)


def test_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "MOST_BYTES", 1 << 20)
    endless = b"HTTP/1.1 200 OK\r\n\r\n" + bytes(3 << 20)
    with serving(endless) as (port, _):
        error = fails(AdminClient(f"127.0.0.1:{port}"))
    assert error.why is Trouble.TOO_LARGE and "more than 1 MiB" in str(error)


def test_health_is_read_whatever_its_status_and_a_redirect_is_followed_without_token() -> None:
    with serving(reply(b"metrics")) as (other, heard):
        moved = reply(b"", "301 Moved", f"Location: //127.0.0.1:{other}/metrics?a=b")
        with serving(reply(b"[-]agents failed: none\n", "500 No"), moved) as (port, _):
            client = AdminClient(f"127.0.0.1:{port}", token="secret")
            answer = client.ask("/readyz?verbose")
            assert (answer.status, answer.text) == (500, "[-]agents failed: none\n")
            assert client.text("/metrics") == "metrics"
    assert heard[0].startswith(b"GET /metrics?a=b HTTP/1.1\r\n") and b"secret" not in heard[0]


def test_a_redirect_to_elsewhere_is_not_followed() -> None:
    moved = reply(b"", "302 Found", "Location: http://127.0.0.2:1/")
    with serving(moved) as (port, _):
        assert fails(AdminClient(f"127.0.0.1:{port}")).why is Trouble.STATUS


def _tls(files: pki.PkiFiles, mutual: bool, sock: socket.socket) -> socket.socket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.server_cert, files.server_key)
    if mutual:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(files.client_ca_cert)
    return context.wrap_socket(sock, server_side=True)


def test_a_port_that_closes_before_its_alert_is_read() -> None:
    gone = ssl.SSLEOFError(8, "EOF occurred in violation of protocol")
    why, says = explain(gone, https=True)
    assert why is Trouble.TLS and "wants a client certificate" in says


def test_tls(files: pki.PkiFiles) -> None:
    ca, cert, key = map(str, (files.ca_cert, files.client_cert, files.client_key))
    with serving(b"", reply(b'{"a": 1}'), wrap=partial(_tls, files, False)) as (port, _):
        url = f"https://127.0.0.1:{port}"
        error = fails(AdminClient(url))
        assert error.why is Trouble.TLS and "not trusted" in str(error)
        assert AdminClient(url, cacert=ca).get("/") == {"a": 1}
    with serving(b"", reply(b'{"a": 1}'), wrap=partial(_tls, files, True)) as (port, _):
        url = f"https://127.0.0.1:{port}"
        assert "wants a client certificate" in str(fails(AdminClient(url, cacert=ca)))
        assert AdminClient(url, cacert=ca, cert=cert, key=key).get("/") == {"a": 1}
    with serving(b"HTTP/1.1 400 Bad Request\r\n\r\n") as (port, _):
        assert "does not speak TLS" in str(fails(AdminClient(f"https://127.0.0.1:{port}")))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://127.0.0.1:1", "the scheme is http or https"),
        ("127.0.0.1", "not a URL such as"),
        ("http://127.0.0.1:99999", "not a URL"),
        ("http://u:hush@127.0.0.1:1", "use --token-file"),
        ("http://127.0.0.1:1/?a", "without ? and #"),
        ("http://127.0.0.1:1/ b", "not a URL such as"),
        ("", "not a URL such as"),
    ],
)
def test_a_wrong_url(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"^--admin") as caught:
        AdminClient(url)
    assert says in str(caught.value) and "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("127.0.0.1:8095", "http://127.0.0.1:8095"),
        ("localhost:8095/", "http://localhost:8095"),
        ("[::1]:8095", "http://[::1]:8095"),
        ("server.example.com:8095", "https://server.example.com:8095"),
        ("http://127.0.0.1:8001/api/proxy/", "http://127.0.0.1:8001/api/proxy"),
    ],
)
def test_a_url(given: str, url: str) -> None:
    assert AdminClient(given).url == url


def test_files_and_tokens_that_cannot_be_used(files: pki.PkiFiles, tmp_path: Path) -> None:
    url, ca, key = "https://localhost:1", str(files.ca_cert), str(files.client_key)
    empty, missing = tmp_path / "empty", tmp_path / "missing"
    empty.write_text("\n")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"cacert": str(missing)}, f"cannot read --cacert {missing}: no such file"),
        ({"cacert": str(empty)}, f"--cacert {empty}: cannot be read as PEM"),
        ({"key": key}, "--key needs --cert"),
        ({"cert": ca}, f"--cert {ca}: cannot be read as PEM with a key in it; is --key missing?"),
        ({"cert": ca, "key": key}, "does not belong to the certificate"),
        ({"token": "a\nb"}, "the token has characters"),
    ]
    for options, says in wrong:
        with pytest.raises(ConfigError, match=says):
            AdminClient(url, **options)
    with pytest.raises(ConfigError, match="not sent over plain HTTP"):
        AdminClient("http://192.0.2.1:8095", token="secret")
    with pytest.raises(ConfigError, match="has no token"):
        read_token(str(empty))
    with pytest.raises(ConfigError, match="no such file"):
        read_token(str(missing))
    empty.write_text(" abc\n")
    assert read_token(str(empty)) == "abc"
