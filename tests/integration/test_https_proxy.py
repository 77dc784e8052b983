"""The HTTP proxy sidecar by curl, httpx and by hand: tunnels, plain requests, other proxies."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import random
import signal
import socket
import ssl
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from clients import (
    LIMIT_S,
    MIB,
    Client,
    Target,
    ask,
    blocks,
    echo_target,
    free_port,
    full_target,
    head_for,
    status_of,
)
from lifecycles import StartedSidecar
from programs import Programs
from proxies_bed import NAME, Origin, ProxiesBed, connect, curl, origin_server, port_of
from stack import Stack, http_get, metric, wait_until

from isthmus.programs.sidecar import connections as sidecar_connections
from isthmus.programs.sidecar.metrics import Unserved
from isthmus.tools.pki import making as pki
from isthmus.tools.pki.making import PkiFiles

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


@pytest.fixture
def bed(stack: Stack, tmp_path: Path) -> Iterator[ProxiesBed]:
    with ProxiesBed(stack, tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    with origin_server() as server:
        yield server


@pytest.fixture(scope="module")
def echo() -> Iterator[Target]:
    with echo_target() as target:
        yield target


def url_of(proxy: StartedSidecar, user: str = "") -> str:
    return f"http://{user}127.0.0.1:{port_of(proxy)}"


def tunnel(proxy: StartedSidecar, target: str, early: bytes = b"") -> Client:
    client = connect(proxy)
    client.send(head_for(target) + early)
    assert client.read_head() == ESTABLISHED
    return client


def read_answer(client: Client) -> tuple[int, bytes]:
    """One answer with a Content-Length; its status and body."""
    head = client.read_head()
    size = next(
        (
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        ),
        0,
    )
    return status_of(head), client.read_exactly(size)


# Tunnels.


def test_curl_with_connect(bed: ProxiesBed, origin: Origin) -> None:
    proxy = bed.https()
    for name in (NAME, "127.0.0.1"):
        code, out, err = curl("-p", "-x", url_of(proxy), f"http://{name}:{origin.port}/tunnelled")
        assert (code, json.loads(out)["path"]) == (0, "/tunnelled"), err
    env = {"https_proxy": url_of(proxy), "NO_PROXY": NAME}
    url = f"https://{NAME}:{origin.port}/"
    assert curl(url, env=env)[0] == 6  # not by us: only the guest cluster has the name
    assert curl(url, env={**env, "NO_PROXY": ""})[0] == 35  # by us: and there is no TLS there
    bed.wait_empty(proxy)


def test_a_tunnel_keeps_what_tcp_has(bed: ProxiesBed) -> None:
    proxy = bed.https(**bed.tls_flags)
    with Target() as target:
        with tunnel(proxy, target.name, b"early") as client, target.accept() as far:
            assert far.read_exactly(5) == b"early"
            client.half_close()
            assert far.read_to_end() == b""
            far.send(b"late")
            far.half_close()
            assert client.read_to_end() == b"late"
        with tunnel(proxy, target.name) as client, target.accept() as far:
            far.reset()
            with pytest.raises(ConnectionResetError):
                client.recv()
        with tunnel(proxy, target.name) as client, target.accept() as far:
            client.reset()
            with pytest.raises(ConnectionResetError):
                far.recv()
    bed.wait_empty(proxy)


def test_failures_are_said(bed: ProxiesBed) -> None:
    proxy = bed.https()
    nobody = f"127.0.0.1:{free_port()}"
    with connect(proxy) as client:
        answer = ask(client, head_for(nobody))
        assert answer.status == 502
        assert answer.body.startswith(f"cannot dial {nobody}: connection refused")
    with connect(proxy) as client:
        request = f"GET http://{nobody}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        answer = ask(client, request)
        assert (answer.status, nobody in answer.body) == (502, True)
        assert "connection: close" in answer.head.lower()
    with connect(proxy) as client:
        assert ask(client, head_for("nowhere.guest.example:443")).status == 502
    bed.wait_unserved(proxy, Unserved.NO_DESTINATION, 3)


def test_a_dial_that_takes_too_long(bed: ProxiesBed) -> None:
    with full_target() as full:
        proxy = bed.https(dial_timeout_s=0.5)
        with connect(proxy) as client:
            assert ask(client, head_for(full.name)).status == 504


# Plain requests.


def test_a_plain_request_is_rewritten(bed: ProxiesBed, origin: Origin) -> None:
    proxy = bed.https()
    code, out, err = curl(
        "-x", url_of(proxy), f"http://{NAME}:{origin.port}/a/b?c=d", "-H", "X-Mine: 1",
        "-H", "Connection: X-Hop", "-H", "X-Hop: gone", "-H", "Keep-Alive: 5",
        "-H", "Proxy-Authorization: Basic eDp5", "-H", "TE: trailers",
    )  # fmt: skip
    assert code == 0, err
    said = json.loads(out)
    assert said["path"] == "/a/b?c=d"
    headers = said["headers"]
    assert headers["host"] == f"{NAME}:{origin.port}"
    assert headers["x-mine"] == "1"
    assert headers["via"] == "1.1 isthmus"
    gone = {"connection", "proxy-connection", "x-hop", "keep-alive", "proxy-authorization", "te"}
    assert not gone & headers.keys()


def test_the_targets_host_counts_not_the_header(bed: ProxiesBed, origin: Origin) -> None:
    proxy = bed.https()
    target = f"127.0.0.1:{origin.port}"
    with connect(proxy) as client:
        client.send(f"GET http://{target} HTTP/1.1\r\nHost: elsewhere\r\n\r\n".encode())
        status, body = read_answer(client)
        said = json.loads(body)
        assert (status, said["path"], said["headers"]["host"]) == (200, "/", target)


def test_several_requests_to_different_hosts(bed: ProxiesBed, origin: Origin) -> None:
    proxy = bed.https()
    with origin_server() as other, connect(proxy) as client:
        before = origin.connections
        for number in range(3):
            for server in (origin, origin, other):
                head = f"GET http://{NAME}:{server.port}/{number} HTTP/1.1\r\nHost: x\r\n\r\n"
                client.send(head.encode())
                status, body = read_answer(client)
                said = json.loads(body)
                assert (status, said["path"]) == (200, f"/{number}")
                assert said["headers"]["host"] == f"{NAME}:{server.port}"
        assert origin.connections - before == 3
        assert bed.stack.do(lambda: proxy.metrics.reused) == 3
        assert bed.stack.do(lambda: proxy.metrics.answers["2xx"]) == 9
        client.half_close()
        assert client.read_to_end() == b""
    bed.wait_empty(proxy)
    assert not bed.unserved(proxy)


def test_pipelined_requests_are_answered_in_order(bed: ProxiesBed, origin: Origin) -> None:
    proxy = bed.https()
    with connect(proxy) as client:
        client.send(
            b"".join(
                b"GET http://127.0.0.1:%d/%d HTTP/1.1\r\nHost: x\r\n\r\n" % (origin.port, number)
                for number in range(10)
            )
        )
        for number in range(10):
            status, body = read_answer(client)
            assert (status, json.loads(body)["path"]) == (200, f"/{number}")
        client.send(head_for(f"127.0.0.1:{origin.port}"))  # and then a tunnel
        assert client.read_head() == ESTABLISHED


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 5\r\n\r\nhello",
        b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    ],
)
def test_a_half_close_behind_a_whole_body_while_it_is_dialed(
    bed: ProxiesBed, pieces: int, rest: bytes
) -> None:
    proxy = bed.https(**bed.tls_flags)
    with Target() as target, connect(proxy) as client:
        head = f"POST http://{target.name}/x HTTP/1.1\r\nHost: x\r\n".encode()
        whole = head + rest
        cut = len(whole) if pieces == 1 else len(head + rest.partition(b"\r\n\r\n")[0]) + 4
        client.send(whole[:cut])
        client.send(whole[cut:])
        client.half_close()
        with target.accept() as far:
            far.read_head()
            body = rest.partition(b"\r\n\r\n")[2]
            assert far.read_exactly(5 if body == b"hello" else len(body)) == body
            far.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            assert read_answer(client) == (200, b"ok")
            assert client.read_to_end() == b""
    bed.wait_empty(proxy)


def test_a_half_close_within_a_body_while_it_is_dialed(bed: ProxiesBed) -> None:
    proxy = bed.https(**bed.tls_flags)
    with Target() as target, connect(proxy) as client:
        head = f"POST http://{target.name}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
        client.send(head.encode() + b"hell")
        client.half_close()
        assert client.read_to_end() == b""
    bed.wait_unserved(proxy, Unserved.LEFT)
    bed.wait_empty(proxy)


@pytest.mark.parametrize("start", [b"GET http://%b/ ", b"CONNECT %b "])
def test_blank_lines_before_a_request(bed: ProxiesBed, origin: Origin, start: bytes) -> None:
    proxy = bed.https()
    with connect(proxy) as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = start % b"127.0.0.1:%d" % origin.port + b"HTTP/1.1\r\nHost: x\r\n\r\n"
        for byte in b"\r\n\r\n" + head:
            client.send(bytes([byte]))
        assert status_of(client.read_head()) == 200


def test_byte_by_byte(bed: ProxiesBed, origin: Origin) -> None:
    proxy = bed.https()
    with connect(proxy) as client:
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"POST http://{NAME}:{origin.port}/x HTTP/1.1\r\nHost: x\r\n"
        for text in (head + "Content-Length: 5\r\n\r\nhello", head + "Transfer-Encoding: chunked"
                     "\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"):  # fmt: skip
            for byte in text.encode():
                client.send(bytes([byte]))
            status, body = read_answer(client)
            said = json.loads(body)
            assert (status, said["size"]) == (200, 5)
            assert said["body"] == hashlib.sha256(b"hello").hexdigest()


@pytest.mark.parametrize("chunked", [False, True])
def test_bodies_are_streamed_both_ways(bed: ProxiesBed, origin: Origin, chunked: bool) -> None:
    proxy = bed.https()
    total = 20 * MIB
    wanted = hashlib.sha256(b"".join(blocks(1, total))).hexdigest()
    with httpx.Client(proxy=url_of(proxy), timeout=LIMIT_S) as client:
        headers = {} if chunked else {"Content-Length": str(total)}
        url = f"http://{NAME}:{origin.port}/up"
        answer = client.put(url, content=blocks(1, total), headers=headers).json()
        assert (answer["size"], answer["body"]) == (total, wanted)
        framing = (
            answer["headers"].get("transfer-encoding"),
            answer["headers"].get("content-length"),
        )
        assert framing == (("chunked", None) if chunked else (None, str(total)))
        assert len(client.get(f"http://{NAME}:{origin.port}/big/{total}").content) == total
        assert client.get(f"http://{NAME}:{origin.port}/chunked").text == "hello" * 3
        assert client.get(f"http://{NAME}:{origin.port}/until-close").status_code == 200
        assert client.head(f"http://{NAME}:{origin.port}/").headers["x-origin"] == "yes"
    bed.wait_empty(proxy)


def test_a_slow_reader_stops_its_sender(bed: ProxiesBed) -> None:
    proxy = bed.https()
    with Target() as target, connect(proxy) as client:
        client.send(f"GET http://{target.name}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        with target.accept() as far:
            far.read_head()
            far.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
            far.sock.settimeout(0.5)
            sent = 0
            with pytest.raises(TimeoutError):
                while sent < 200 * MIB:
                    sent += far.sock.send(bytes(MIB))
            assert sent < 100 * MIB
    bed.wait_empty(proxy)


@pytest.mark.parametrize("path", ["/until-close", "/big/40000000"])
def test_the_last_answer_is_read_however_slowly(
    bed: ProxiesBed, origin: Origin, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar_connections, "FAREWELL_S", 0.05)
    proxy = bed.https()
    with connect(proxy) as client:
        head = f"GET http://127.0.0.1:{origin.port}{path} HTTP/1.1\r\nHost: x\r\n"
        client.send(f"{head}Connection: close\r\n\r\n".encode())
        assert status_of(client.read_head()) == 200
        if path == "/until-close":
            bed.wait_empty(proxy)  # it has left; what it said is still there
            assert b'"/until-close"' in client.read_to_end()
        else:
            size = 0
            while size < 38_000_000:
                size += len(client.recv())
            slow = proxy.connections._slow
            bed.stack.wait(lambda: bool(slow) or not len(proxy.connections), "it waits for us")
            assert size + len(client.read_to_end()) == 40_000_000
    bed.wait_empty(proxy)
    assert not bed.unserved(proxy)


def test_a_slow_destination_stops_its_client(bed: ProxiesBed) -> None:
    proxy = bed.https()
    with Target() as target, connect(proxy) as client:
        head = (
            f"PUT http://{target.name}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n"
        )
        client.send(head.encode())
        with target.accept() as far:
            far.read_head()
            client.sock.settimeout(0.5)
            sent = 0
            with pytest.raises(TimeoutError):
                while sent < 200 * MIB:
                    sent += client.sock.send(bytes(MIB))
            assert sent < 100 * MIB
            client.sock.settimeout(LIMIT_S)
            far.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
            assert status_of(client.read_head()) == 413
    bed.wait_empty(proxy)


def test_expect_100_continue(bed: ProxiesBed) -> None:
    proxy = bed.https()
    with Target() as target, connect(proxy) as client:
        head = f"POST http://{target.name}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
        client.send((head + "Expect: 100-continue\r\n\r\n").encode())
        with target.accept() as far:
            assert b"Expect: 100-continue" in far.read_head()
            far.send(b"HTTP/1.1 100 Continue\r\n\r\n")
            assert client.read_head().startswith(b"HTTP/1.1 100 ")
            client.send(b"hello")
            assert far.read_exactly(5) == b"hello"
            far.send(b"HTTP/1.1 204 No Content\r\n\r\n")
            assert status_of(client.read_head()) == 204


def test_an_answer_before_the_body_is_whole_is_the_last(bed: ProxiesBed) -> None:
    proxy = bed.https()
    with Target() as target, connect(proxy) as client:
        head = f"POST http://{target.name}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
        client.send(head.encode() + b"half")
        with target.accept() as far:
            far.read_head()
            far.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
            answer = client.read_head()
            assert status_of(answer) == 413
            assert b"\r\nConnection: close\r\n" in answer  # RFC 9112 §9.6
            assert client.read_to_end() == b"no"
    bed.wait_empty(proxy)


def test_upgrade(bed: ProxiesBed) -> None:
    proxy = bed.https()
    with Target() as target, connect(proxy) as client:
        head = f"GET http://{target.name}/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
        client.send((head + "Upgrade: chat\r\n\r\nearly").encode())
        with target.accept() as far:
            asked = far.read_head().lower()
            assert b"connection: upgrade\r\n" in asked and b"upgrade: chat\r\n" in asked
            far.send(b"HTTP/1.1 101 Now\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\nwelcome")
            answer = client.read_head()
            assert answer.startswith(b"HTTP/1.1 101 ") and b"Upgrade: chat" in answer
            assert client.read_exactly(7) == b"welcome"
            assert far.read_exactly(5) == b"early"
            client.half_close()
            assert far.read_to_end() == b""
            far.send(b"bye")
            far.half_close()
            assert client.read_to_end() == b"bye"
    bed.wait_empty(proxy)


def test_an_answer_that_is_cut_is_a_reset(
    bed: ProxiesBed, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = bed.https()
    with Target() as target:
        for end in (Client.close, Client.reset):
            with connect(proxy) as client:
                client.send(f"GET http://{target.name}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                far = target.accept()
                far.read_head()
                far.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
                client.read_head()
                assert client.read_exactly(4) == b"half"
                end(far)
                with pytest.raises(ConnectionResetError):
                    client.recv()
    bed.wait_empty(proxy)
    # Two within a minute to one host are one line.
    assert [it.getMessage() for it in caplog.records if it.levelno >= logging.WARNING] == [
        "plain request without a complete answer"
    ]


def test_a_body_that_breaks_the_rules_behind_an_answer_is_the_clients_fault(
    bed: ProxiesBed,
) -> None:
    proxy = bed.https()
    with Target() as target, connect(proxy) as client:
        head = f"POST http://{target.name}/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
        client.send(f"{head}\r\n2\r\nhe\r\n".encode())
        with target.accept() as far:
            far.read_head()
            far.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")
            client.read_head()
            client.send(b"nonsense\r\n")
            with pytest.raises(ConnectionResetError):
                client.read_to_end()
    bed.wait_unserved(proxy, Unserved.BAD_REQUEST)
    bed.wait_empty(proxy)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said besides what is always said, whatever level another test has set."""
    return [it.getMessage() for it in caplog.records if it.levelno >= logging.WARNING]


@pytest.mark.parametrize("said", [b"", b"not http\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Le"])
def test_no_answer_is_a_bad_gateway(
    bed: ProxiesBed, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = bed.https()
    with Target() as target, connect(proxy) as client:
        client.send(f"GET http://{target.name}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        with target.accept() as far:
            far.read_head()
            far.send(said)
            far.half_close()
            assert status_of(client.read_head()) == 502
            assert client.read_to_end().startswith(f"{target.name} did not answer: ".encode())
    bed.wait_empty(proxy)
    assert [it.getMessage() for it in caplog.records if it.levelno >= logging.WARNING] == [
        "plain request without a complete answer"
    ]


def test_a_kept_connection_that_was_closed_is_no_loss(bed: ProxiesBed, origin: Origin) -> None:
    proxy = bed.https()
    with Target() as target, connect(proxy) as client:
        request = f"GET http://{target.name}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        client.send(request)
        with target.accept() as far:
            far.read_head()
            far.send(answer)
            assert read_answer(client) == (200, b"ok")
            client.send(request)
            far.read_head()  # it takes the second request, and leaves without a word
        with target.accept() as far:
            far.read_head()
            far.send(answer)
            assert read_answer(client) == (200, b"ok")
        assert bed.stack.do(lambda: proxy.metrics.sent_again) == 1


def test_a_client_that_leaves_takes_its_request_along(bed: ProxiesBed) -> None:
    proxy = bed.https(**bed.tls_flags)
    with Target() as target:
        client = connect(proxy)
        client.send(f"GET http://{target.name}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        with target.accept() as far:
            far.read_head()
            client.reset()
            with pytest.raises(ConnectionResetError):
                far.recv()
    bed.wait_unserved(proxy, Unserved.LEFT)
    bed.wait_empty(proxy)


def test_older_clients(bed: ProxiesBed, origin: Origin) -> None:
    proxy = bed.https()
    for path in ("/", "/chunked", "/until-close"):
        with connect(proxy) as client:
            client.send(f"GET http://{NAME}:{origin.port}{path} HTTP/1.0\r\n\r\n".encode())
            client.half_close()
            assert status_of(client.read_head()) == 200
            body = client.read_to_end()
            assert body == b"hello" * 3 if path == "/chunked" else json.loads(body)["path"] == path


WRONG: list[tuple[bytes, int, str]] = [
    (b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", 400, "this is a proxy"),
    (b"GET https://a.example/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "use CONNECT for"),
    (b"GET ftp://a.example/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "ftp"),
    (b"GET http:/// HTTP/1.1\r\nHost: x\r\n\r\n", 400, "destination"),
    (b"GET http://a.example:0/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "destination"),
    (b"GET http://u:p@a.example/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "user name"),
    (b"GET http://a.example/ HTTP/1.1\r\nNo header\r\n\r\n", 400, "malformed"),
    (
        b"GET http://a.example/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
        501,
        "chunked",
    ),
    (b"GET http://a.example/ HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 70_000, 431, "malformed"),
    (b"CONNECT a.example HTTP/1.1\r\nHost: x\r\n\r\n", 400, "host:port"),
    (b"CONNECT a.example:99999 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "destination"),
    (b"\x05\x01\x00", 400, "SOCKS5"),
    (b"\x16\x03\x01\x00\x05", 400, "TLS"),
    (b"garbage\r\n\r\n", 400, "malformed"),
]


@pytest.mark.parametrize(("request_", "status", "word"), WRONG)
def test_wrong_requests(bed: ProxiesBed, request_: bytes, status: int, word: str) -> None:
    proxy = bed.https()
    with connect(proxy) as client:
        answer = ask(client, request_)
        assert (answer.status, word.lower() in answer.body.lower()) == (status, True), answer
        assert answer.body.count("\n") == 1
    bed.wait_unserved(proxy, Unserved.BAD_REQUEST)
    bed.wait_empty(proxy)


def test_slow_heads_and_idle_connections(bed: ProxiesBed, origin: Origin) -> None:
    proxy = bed.https(handshake_timeout_s=0.3)
    with connect(proxy) as client:
        client.send(b"GET http://a.exam")
        assert status_of(client.read_head()) == 408
    bed.wait_unserved(proxy, Unserved.LATE)


def test_three_hundred_at_once(bed: ProxiesBed, echo: Target, origin: Origin) -> None:
    proxy = bed.https()
    with ThreadPoolExecutor(32) as pool:
        opened = list(pool.map(lambda _: tunnel(proxy, f"{NAME}:{echo.port}"), range(300)))
    for number, client in enumerate(opened):
        client.send(b"%04d" % number)
    for number, client in enumerate(opened):
        assert client.read_exactly(4) == b"%04d" % number
        client.close()
    with httpx.Client(
        proxy=url_of(proxy), timeout=LIMIT_S, limits=httpx.Limits(max_connections=50)
    ) as client:
        with ThreadPoolExecutor(50) as pool:
            url = f"http://{NAME}:{origin.port}/"
            answers = list(pool.map(lambda number: client.get(f"{url}{number}"), range(300)))
        assert [it.json()["path"] for it in answers] == [f"/{number}" for number in range(300)]
    bed.wait_empty(proxy)
    assert not bed.unserved(proxy)


# Passwords, ports, draining.


def test_with_a_password_nobody_gets_in_without(
    bed: ProxiesBed, origin: Origin, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text("secret\n")
    proxy = bed.https(username="me", password_file=str(tmp_path / "password"))
    url = f"http://{NAME}:{origin.port}/"
    for more in ((), ("-p",)):
        code, out, err = curl(*more, "-x", url_of(proxy, "me:secret@"), url)
        assert (code, "proxy-authorization" in out) == (0, False), err
        for wrong in ("", "me:wrong@", "you:secret@"):
            status = curl(*more, "-x", url_of(proxy, wrong), url, "-o", "/dev/null", "-w",
                          "%{http_code}" if not more else "%{http_connect}")[1]  # fmt: skip
            assert status == "407"
    assert bed.unserved(proxy) == {Unserved.WRONG_PASSWORD: 6}


def test_ports_and_drain(bed: ProxiesBed, origin: Origin) -> None:
    proxy = bed.https()
    request = f"GET http://{NAME}:{origin.port}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    with connect(proxy) as idle, connect(proxy) as busy, Target() as target:
        idle.send(request)
        assert read_answer(idle)[0] == 200
        busy.send(f"GET http://{target.name}/ HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        with target.accept() as far:
            far.read_head()
            shown = json.loads(http_get(proxy.admin_port, "/snapshot")[1])
            assert (shown["program"], shown["requests"]) == ("https-proxy", 1)
            scraped = http_get(proxy.health_port, "/metrics")[1]
            assert metric(scraped, 'isthmus_https_proxy_answers_total{status="2xx"}') == 1
            drained = threading.Thread(target=lambda: bed.stack.run(proxy.drain(LIMIT_S)))
            drained.start()
            assert idle.read_to_end() == b""
            far.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            answer = busy.read_head()
            assert b"connection: close" in answer.lower()
            assert busy.read_to_end() == b"ok"
        drained.join(LIMIT_S)
        assert not drained.is_alive()


def test_plain_requests_are_counted_as_tunnels_are(bed: ProxiesBed) -> None:
    proxy = bed.https()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    with Target() as target, connect(proxy) as client:
        client.send(f"PUT http://{target.name}/ HTTP/1.1\r\nHost: x\r\n".encode())
        client.send(b"Content-Length: 1000\r\n\r\n" + bytes(1000))
        with target.accept() as far:
            sent = len(far.read_head()) + len(far.read_exactly(1000))
            scraped = http_get(proxy.health_port, "/metrics")[1]
            name = "isthmus_https_proxy_bytes_total"
            assert metric(scraped, name + '{direction="to_target"}') == sent
            assert metric(scraped, name + '{direction="to_client"}') == 0
            far.send(answer)
            got = len(client.read_head()) + len(client.read_exactly(5))
            shown = json.loads(http_get(proxy.admin_port, "/snapshot")[1])["totals"]
            assert (shown["bytesToTarget"], shown["bytesToClient"]) == (sent, got)
    # A tunnel behind it counts once.
    with Target() as target, tunnel(proxy, target.name, b"early") as client:
        with target.accept() as far:
            assert far.read_exactly(5) == b"early"
        assert client.read_to_end() == b""
    bed.wait_empty(proxy)
    assert bed.stack.do(proxy.metrics.bytes_carried) == (sent + 5, got)


def test_as_a_program(programs: Programs, origin: Origin, tmp_path: Path) -> None:
    server = programs.server()
    programs.agent(server)
    programs.wait_ready(server)
    kubeconfig = tmp_path / "kubeconfig"
    cluster = {"name": "a", "cluster": {"server": f"http://127.0.0.1:{free_port()}"}}
    context = {"name": "c", "context": {"cluster": "a", "user": "u"}}
    kubeconfig.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [context],
                "clusters": [cluster],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )
    proxy = programs.start(
        "https-proxy", "run", f"--konnectivity-uds={programs.uds}", "--serving-port=0",
        "--health-bind-address=127.0.0.1", "--health-port=0", "--admin-port=0", "--kubeconfig",
        str(kubeconfig), "--no-proxy", "localhost",
    )  # fmt: skip
    proxy.wait_log("serving ")
    at = f"http://127.0.0.1:{proxy.port('port')}"
    assert curl("-x", at, f"http://127.0.0.1:{origin.port}/")[0] == 0
    proxy.signal(signal.SIGTERM)
    assert proxy.wait_exit() == 0
    assert "Traceback" not in proxy.log


# The hosted cluster's own proxy.


class UserProxy:
    """An HTTP proxy in the guest cluster: CONNECT and plain requests, all to loopback."""

    def __init__(self, files: PkiFiles | None) -> None:
        self.asked: list[str] = []
        self.passwords: list[str] = []
        self.refuse = b""
        self._context: ssl.SSLContext | None = None
        if files is not None:
            self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._context.load_cert_chain(files.server_cert, files.server_key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
            sock.settimeout(LIMIT_S)
            opened.enter_context(sock)
            if self._context is not None:
                sock = opened.enter_context(self._context.wrap_socket(sock, server_side=True))
            client = Client(sock)
            head = client.read_head()
            line, *headers = head.decode().split("\r\n")
            self.asked.append(line)
            for header in headers:
                if header.lower().startswith("proxy-authorization: basic "):
                    self.passwords.append(b64decode(header.split(" ")[2]).decode())
            if self.refuse:
                client.send(self.refuse)
                return
            target = line.split(" ")[1].removeprefix("http://").split("/")[0]
            port = int(target.rpartition(":")[2])
            far = opened.enter_context(
                Client(socket.create_connection(("127.0.0.1", port), LIMIT_S))
            )
            if line.startswith("CONNECT"):
                client.send(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                path = "/" + line.split(" ")[1].split("/", 3)[3]
                kept = [it for it in headers if not it.lower().startswith("proxy-")]
                far.send("\r\n".join([f"{line.split(' ')[0]} {path} HTTP/1.1", *kept]).encode())
            back = threading.Thread(target=_copy, args=(far, client), daemon=True)
            back.start()
            _copy(client, far)
            back.join(LIMIT_S)


def _copy(source: Client, sink: Client) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv():
            sink.send(data)
    with contextlib.suppress(OSError):
        if isinstance(sink.sock, ssl.SSLSocket):
            sink.sock.unwrap()
        else:
            sink.half_close()


@pytest.fixture
def user_proxy(certificates: PkiFiles) -> Iterator[Callable[[str], UserProxy]]:
    with contextlib.ExitStack() as stack:

        def start(scheme: str) -> UserProxy:
            made = UserProxy(certificates if scheme == "https" else None)
            stack.callback(made.close)
            return made

        yield start


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("way", ["uds", "tls"])
def test_by_the_hosted_clusters_proxy(
    bed: ProxiesBed,
    origin: Origin,
    user_proxy: Callable[[str], UserProxy],
    scheme: str,
    way: str,
) -> None:
    user = user_proxy(scheme)
    bed.zone.put("localhost", "A", "127.0.0.1")
    url = f"{scheme}://me:p%40ss@localhost:{user.port}"
    proxy = bed.https(
        http_proxy=url,
        https_proxy=url,
        no_proxy=f".direct.example,{NAME}",
        proxy_ca_path=(str(bed.stack.files.ca_cert),),
        **bed.tls_flags if way == "tls" else {},
    )
    target = f"only.the-proxy-knows.example:{origin.port}"
    code, out, err = curl("-x", url_of(proxy), f"http://{target}/plain?x")
    assert code == 0, err
    said = json.loads(out)
    assert (said["path"], said["headers"]["host"]) == ("/plain?x", target)
    code, out, err = curl("-p", "-x", url_of(proxy), f"http://{target}/tunnel")
    assert (code, json.loads(out)["path"]) == (0, "/tunnel"), err
    assert user.asked == [f"GET http://{target}/plain?x HTTP/1.1", f"CONNECT {target} HTTP/1.1"]
    assert user.passwords == ["me:p@ss"] * 2
    # Without it: exempt names, and addresses of loopback.
    for name in (NAME, "127.0.0.1"):
        assert curl("-x", url_of(proxy), f"http://{name}:{origin.port}/")[0] == 0
        assert curl("-p", "-x", url_of(proxy), f"http://{name}:{origin.port}/")[0] == 0
    assert len(user.asked) == 2
    # Many bytes, there and back.
    with httpx.Client(proxy=url_of(proxy), timeout=LIMIT_S) as client:
        answer = client.put(f"http://{target}/up", content=blocks(3, 5 * MIB)).json()
        assert answer["size"] == 5 * MIB
    # On a connection of its own: the proxy here looks at the first request only.
    answered = httpx.get(f"http://{target}/big/{5 * MIB}", proxy=url_of(proxy), timeout=LIMIT_S)
    assert len(answered.content) == 5 * MIB
    bed.wait_empty(proxy)


@pytest.mark.parametrize("direct", [True, False])
def test_cloud_apis_go_by_the_management_proxy_and_not_by_the_users(
    bed: ProxiesBed,
    origin: Origin,
    user_proxy: Callable[[str], UserProxy],
    monkeypatch: pytest.MonkeyPatch,
    direct: bool,
) -> None:
    user, management = user_proxy("http"), user_proxy("http")
    bed.zone.put("px.example", "A", "127.0.0.1")
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{management.port}")
    monkeypatch.setenv("NO_PROXY", "")
    url = f"http://px.example:{user.port}"
    proxy = bed.https(http_proxy=url, https_proxy=url, connect_directly_to_cloud_apis=direct)
    cloud, other = f"ec2.eu-west-1.amazonaws.com:{origin.port}", f"x.example:{origin.port}"
    for target in (cloud, other):
        assert curl("-x", url_of(proxy), f"http://{target}/plain")[0] == 0
        assert curl("-p", "-x", url_of(proxy), f"http://{target}/tunnel")[0] == 0
    asked = [f"GET http://{other}/plain HTTP/1.1", f"CONNECT {other} HTTP/1.1"]
    if direct:
        # Both by CONNECT: to the management proxy a plain request is a connection as any other.
        assert management.asked == [f"CONNECT {cloud} HTTP/1.1"] * 2
    else:
        assert management.asked == []
        asked = [f"GET http://{cloud}/plain HTTP/1.1", f"CONNECT {cloud} HTTP/1.1", *asked]
    assert user.asked == asked
    ways = json.loads(http_get(proxy.admin_port, "/snapshot")[1])["names"]["ways"]
    counted = {"way": "directly, by the management proxy if there is one", "count": 2 * direct}
    assert counted in ways
    bed.wait_empty(proxy)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_tunnels_by_a_proxy_end_as_tcp_does(
    bed: ProxiesBed, user_proxy: Callable[[str], UserProxy], scheme: str
) -> None:
    user = user_proxy(scheme)
    bed.zone.put("localhost", "A", "127.0.0.1")
    proxy = bed.https(
        https_proxy=f"{scheme}://localhost:{user.port}",
        proxy_ca_path=(str(bed.stack.files.ca_cert),),
        **bed.tls_flags,
    )
    with Target() as target:
        name = f"x.example:{target.port}"
        with tunnel(proxy, name, b"early") as client, target.accept() as far:
            assert far.read_exactly(5) == b"early"
            far.send(b"late")
            assert client.read_exactly(4) == b"late"
            client.half_close()
            assert far.read_to_end() == b""
        with tunnel(proxy, name) as client, target.accept() as far:
            client.reset()
            with contextlib.suppress(ConnectionResetError):
                assert far.read_to_end() == b""
    bed.wait_empty(proxy)


@pytest.mark.parametrize(
    ("answer", "status", "word"),
    [
        (b"HTTP/1.1 407 Who?\r\nContent-Length: 0\r\n\r\n", 403, "407 Who?"),
        (b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n", 403, "denied by policy"),
        (b"HTTP/1.1 504 Late\r\nContent-Length: 0\r\n\r\n", 504, "504 Late"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", 502, "503 Busy"),
        (b"SSH-2.0-x\r\n", 502, "not an HTTP answer"),
        (b"HTTP/1.1 ", 502, "before it answered"),
    ],
)
def test_a_proxy_that_refuses(
    bed: ProxiesBed,
    user_proxy: Callable[[str], UserProxy],
    answer: bytes,
    status: int,
    word: str,
) -> None:
    user = user_proxy("http")
    user.refuse = answer
    bed.zone.put("px.example", "A", "127.0.0.1")
    proxy = bed.https(
        http_proxy=f"http://px.example:{user.port}", https_proxy=f"http://px.example:{user.port}"
    )
    with connect(proxy) as client:
        said = ask(client, head_for("x.example:443"))
        assert (said.status, word in said.body) == (status, True), said
        assert "px.example" in said.body
    if b"407" in answer:
        with connect(proxy) as client:
            said = ask(client, b"GET http://x.example/ HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (said.status, "407" in said.body) == (403, True)


def test_an_https_proxy_that_nobody_vouches_for(
    bed: ProxiesBed, user_proxy: Callable[[str], UserProxy]
) -> None:
    user = user_proxy("https")
    bed.zone.put("localhost", "A", "127.0.0.1")
    proxy = bed.https(https_proxy=f"https://localhost:{user.port}")  # the system's CAs
    with connect(proxy) as client:
        said = ask(client, head_for("x.example:443"))
        assert (said.status, "certificate" in said.body) == (502, True), said
    assert not user.asked
    wait_until(lambda: not bed.stack.do(lambda: len(proxy.connections)), "nothing is left")


def test_garbage_harms_nobody(bed: ProxiesBed, echo: Target, origin: Origin) -> None:
    proxy = bed.https()
    chance = random.Random(7)
    at = f"127.0.0.1:{origin.port}".encode()
    heads = [
        b"",
        b"GET http://%b/ HTTP/1.1\r\n" % at,
        b"GET http://%b/ HTTP/1.1\r\nHost: x\r\n\r\n" % at,
        b"POST http://%b/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % at,
        b"POST http://%b/ HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n" % at,
        b"CONNECT ",
    ]
    with tunnel(proxy, echo.name) as other:
        for _ in range(200):
            said = chance.choice(heads) + chance.randbytes(chance.randrange(1, 60))
            with connect(proxy) as client, contextlib.suppress(ConnectionError):
                client.send(said)
                client.half_close()
                client.read_to_end()
        other.send(b"hello")
        assert other.read_exactly(5) == b"hello"
    bed.wait_empty(proxy)


def test_new_authorities_of_the_proxy_are_used(
    bed: ProxiesBed,
    origin: Origin,
    user_proxy: Callable[[str], UserProxy],
    tmp_path: Path,
) -> None:
    user = user_proxy("https")
    bed.zone.put("localhost", "A", "127.0.0.1")
    ca = tmp_path / "proxy-ca.crt"
    ca.write_bytes(pki.init(tmp_path / "pki", server_names=("localhost",)).ca_cert.read_bytes())
    other = tmp_path / "other-ca.crt"
    other.write_bytes(ca.read_bytes())
    proxy = bed.https(
        https_proxy=f"https://localhost:{user.port}", proxy_ca_path=(str(ca), str(other))
    )
    request = head_for(f"x.example:{origin.port}")

    def status() -> int:
        with connect(proxy) as client:
            client.send(request)
            return status_of(client.read_head())

    assert status() == 502
    ca.write_bytes(bed.stack.files.ca_cert.read_bytes())
    wait_until(lambda: status() == 200, "the new authorities are used")


def test_the_systems_authorities_stay_beside_those_that_are_given(
    bed: ProxiesBed,
    origin: Origin,
    user_proxy: Callable[[str], UserProxy],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    user = user_proxy("https")
    bed.zone.put("localhost", "A", "127.0.0.1")
    stranger = pki.init(tmp_path / "pki", server_names=("localhost",)).ca_cert
    monkeypatch.setenv("SSL_CERT_FILE", str(bed.stack.files.ca_cert))
    proxy = bed.https(https_proxy=f"https://localhost:{user.port}", proxy_ca_path=(str(stranger),))
    with connect(proxy) as client:
        client.send(head_for(f"x.example:{origin.port}"))
        assert status_of(client.read_head()) == 200
