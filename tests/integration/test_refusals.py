"""Dials that fail and requests that are wrong: the right status, the reason, and others go on."""

from __future__ import annotations

import contextlib
import logging
import socket

import pytest
from clients import Client, Target, ask, free_port, full_target, head_for, status_of, tunnel
from stack import Stack, metric

from isthmus.dial.frontends import http_connect
from isthmus.links.mux import MuxTalk
from isthmus.tunnel.limits import Limits

KINDS = pytest.mark.parametrize("kind", ["uds", "tls"])


def still_serves(stack: Stack) -> None:
    with Target() as target, stack.tunnel("uds", target.name) as client, target.accept() as far:
        client.send(b"x")
        assert far.read_exactly(1) == b"x"


# Dials that fail.


@KINDS
def test_nobody_listens(stack: Stack, kind: str) -> None:
    target = f"127.0.0.1:{free_port()}"
    with stack.client(kind) as client:
        answer = ask(client, head_for(target))
    assert answer.status == 502
    assert target in answer.body and "connection refused" in answer.body
    still_serves(stack)


@KINDS
def test_a_name_that_does_not_exist(stack: Stack, kind: str) -> None:
    with stack.client(kind) as client:
        answer = ask(client, head_for("no-such-host.invalid:443"))
    assert answer.status == 502
    assert "no-such-host.invalid:443" in answer.body and "name not resolved" in answer.body


def test_no_agent(fresh: Stack) -> None:
    fresh.add_server()
    with fresh.uds() as client:
        answer = ask(client, head_for("127.0.0.1:1") + b"early bytes")
    assert answer.status == 503
    assert answer.body == "cannot dial 127.0.0.1:1: no agent available\n"


def test_konnectivitys_statuses(fresh: Stack) -> None:
    fresh.add_server(
        compat="konnectivity",
        server_port=None,
        server_cert="",
        server_key="",
        server_ca_cert="",
        agent_port=free_port_for_go(),
        health_port=free_port_for_go(),
        admin_port=free_port_for_go(),
    )
    with fresh.uds() as client:
        answer = ask(client, head_for("127.0.0.1:1"))
    assert answer.status == 500
    assert "no agent available" in answer.body
    fresh.add_agent()
    with fresh.uds() as client:
        assert ask(client, head_for(f"127.0.0.1:{free_port()}")).status == 502


def free_port_for_go() -> int:
    """Go's konnectivity takes ports from 1024 to 49151 only."""
    while (port := free_port()) > 49151:
        pass
    return port


@KINDS
def test_a_target_that_never_answers(fresh: Stack, kind: str) -> None:
    fresh.add_server()
    fresh.add_agent(dial_timeout_s=0.2)
    with full_target() as target, fresh.client(kind) as client:
        answer = ask(client, head_for(target.name))
        assert answer.status == 504
        assert target.name in answer.body and "timed out" in answer.body
    still_serves(fresh)


def test_an_agent_that_never_answers(fresh: Stack) -> None:
    fresh.add_server(backend_dial_timeout_s=0.2)
    fresh.add_agent()
    with full_target() as target, fresh.uds() as client:
        answer = ask(client, head_for(target.name))
        assert answer.status == 504
        assert target.name in answer.body and "timed out" in answer.body
        fresh.wait_idle()
        assert metric(
            fresh.metrics(), 'isthmus_server_dial_failures_total{reason="timed_out"}'
        ) == 1  # fmt: skip


@pytest.mark.parametrize("link", ["mux", "grpc"])
def test_a_server_that_stops_fails_the_dials_that_wait(fresh: Stack, link: str) -> None:
    server = fresh.add_server()
    fresh.add_agent(link=link)
    with full_target() as target, fresh.uds() as client:
        client.send(head_for(target.name))
        fresh.wait(lambda: len(server.dialer.pending) == 1, "the dial waits")
        fresh.stop(server)
        assert client.read_head().startswith(b"HTTP/1.1 502 ")
        said = client.read_to_end().decode()
    assert said == f"cannot dial {target.name}: agent lost: server is stopping\n"
    seen = server.metrics.render().decode()
    assert metric(seen, 'isthmus_server_dial_failures_total{reason="agent_lost"}') == 1
    assert metric(seen, 'isthmus_server_dial_failures_total{reason="timed_out"}') == 0


@pytest.mark.parametrize(("link", "errors"), [("mux", 0), ("grpc", 1)])
def test_a_lost_call_of_an_agent_is_a_stream_error(fresh: Stack, link: str, errors: int) -> None:
    server = fresh.add_server()
    agent = fresh.add_agent(link=link)
    fresh.do(lambda: next(iter(server.links)).lost("cut"))
    fresh.wait(lambda: server.metrics.links_opened == 2, "it links again")
    fresh.stop(agent)  # in good order
    fresh.wait(lambda: not server.links, "it is gone")
    counted = [
        line
        for line in fresh.metrics().splitlines()
        if line.startswith("konnectivity_network_proxy_server_stream_errors_total{")
    ]
    code = '{code="Unavailable",packet_type="Unknown",segment="from_agent"} 1.0'
    assert [line.partition("_total")[2] for line in counted] == [code] * errors


def test_too_many(fresh: Stack) -> None:
    fresh.add_server()
    fresh.add_agent()
    link = next(iter(fresh.server.links))
    assert isinstance(link.talk, MuxTalk)
    link.talk.session.limits = Limits(max_streams=3)  # the control stream is one
    with Target() as target:
        with fresh.tunnel("uds", target.name), fresh.tunnel("uds", target.name):
            with fresh.uds() as client:
                answer = ask(client, head_for(target.name))
            assert answer.status == 503
            assert target.name in answer.body and "too many open connections" in answer.body
        for _ in range(2):
            target.accept().close()
        fresh.wait_idle()
        still_serves(fresh)


def test_a_link_lost_while_dialing_is_tried_elsewhere(fresh: Stack) -> None:
    fresh.add_server()
    first = fresh.add_agent(agent_id="first")
    with full_target() as target, fresh.uds() as client:
        client.send(head_for(target.name))
        fresh.wait(lambda: len(fresh.server.dialer.pending) == 1, "the dial is under way")
        second = fresh.add_agent(agent_id="second")
        fresh.stop(first)
        # The other agent has it now; make room for its connection.
        fresh.wait(
            lambda: any(
                link.agent_id == second.id and link.load > 0 for link in fresh.server.links
            ),
            "the second agent was asked",
        )
        fresh.stop(second)
        assert status_of(client.read_head()) == 502
        assert "agent lost" in client.read_to_end().decode()


# Requests that are wrong.

BAD = {
    "get": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    "post with a body": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody", 405),
    "no port": (b"CONNECT host HTTP/1.1\r\nHost: host\r\n\r\n", 400),
    "port 0": (b"CONNECT host:0 HTTP/1.1\r\nHost: host\r\n\r\n", 400),
    "port too large": (b"CONNECT host:65536 HTTP/1.1\r\nHost: host\r\n\r\n", 400),
    "bare ipv6": (b"CONNECT ::1:80 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "number as a name": (b"CONNECT 2130706433:80 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "url": (b"CONNECT http://host:80/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "garbage": (bytes(range(128, 256)) * 10, 400),
    "tls hello on a plain port": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "body announced": (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", 400),
    "chunked": (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "http/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "one long line": (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 20_000 + b"\r\n\r\n", 431),
}


@KINDS
@pytest.mark.parametrize("name", BAD)
def test_a_bad_request(stack: Stack, kind: str, name: str) -> None:
    request, status = BAD[name]
    with stack.client(kind) as client:
        answer = ask(client, request)
    assert answer.status == status, answer
    assert "Connection: close" in answer.head
    assert answer.body.endswith("\n") and len(answer.body) > 10
    if status == 405:
        assert "Allow: CONNECT" in answer.head
    still_serves(stack)


@KINDS
def test_a_megabyte_of_headers(stack: Stack, kind: str) -> None:
    head = b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n" + b"X-Filler: 0123456789012345678\r\n" * 32_000
    assert len(head) > 900_000
    with stack.client(kind) as client:
        # It never ends: the answer comes in the middle, and everything sent is read all the same.
        answer = ask(client, head)
    assert answer.status == 431
    still_serves(stack)


@KINDS
def test_an_end_before_the_head_is_whole(stack: Stack, kind: str) -> None:
    with stack.client(kind) as client:
        client.send(b"CONNECT a:1 HT")
        client.half_close()
        assert client.read_to_end() == b""
    still_serves(stack)


@KINDS
def test_a_head_that_is_too_slow(fresh: Stack, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connect, "HEAD_S", 0.2)
    fresh.add_server()
    fresh.add_agent()
    with fresh.client(kind) as client:
        client.send(b"CONNECT a:1 HT")
        head = client.read_head()
        assert status_of(head) == 408
        assert "did not arrive in time" in client.read_to_end().decode()
    still_serves(fresh)


def test_a_handshake_that_never_comes(fresh: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connect, "HEAD_S", 0.2)
    fresh.add_server()
    fresh.add_agent()
    port = fresh.server.frontend_port
    with (
        Client(socket.create_connection(("127.0.0.1", port))) as client,
        contextlib.suppress(ConnectionResetError),
    ):
        assert client.recv() == b""
    still_serves(fresh)


def test_a_refused_client_that_does_not_leave_is_left(
    fresh: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connect, "GOODBYE_S", 0.2)
    fresh.add_server()
    with fresh.uds() as client:
        before = fresh.do(lambda: len(fresh.server.poller))
        assert ask(client, head_for("127.0.0.1:1")).status == 503
        # The client keeps its side open; the server must not keep the socket for ever.
        fresh.wait(lambda: len(fresh.server.poller) < before, "the server left")


def test_the_same_mistake_is_logged_once(fresh: Stack, caplog: pytest.LogCaptureFixture) -> None:
    fresh.add_server()
    with caplog.at_level(logging.WARNING, "isthmus"):
        for _ in range(20):
            with fresh.uds() as client:
                assert ask(client, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").status == 405
    said = [record for record in caplog.records if "refused a request" in record.getMessage()]
    assert len(said) == 1
    text = fresh.metrics()
    assert metric(text, 'isthmus_server_requests_refused_total{status="405"}') == 20
    assert metric(text, "isthmus_server_log_lines_suppressed_total") == 19


def test_two_requests_at_once_do_not_mix(stack: Stack) -> None:
    with Target() as one, Target() as two, stack.uds() as a, stack.uds() as b:
        half = len(head_for(one.name)) // 2
        a.send(head_for(one.name)[:half])
        tunnel(b, two.name, b"b")
        with two.accept() as far:
            assert far.read_exactly(1) == b"b"
        a.send(head_for(one.name)[half:] + b"a")
        with one.accept() as far:
            assert far.read_exactly(1) == b"a"
