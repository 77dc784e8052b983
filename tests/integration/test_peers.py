"""Agents that are not who they say, or do not speak the protocol: refused alone, and counted."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from pathlib import Path

import pytest
from clients import Client, Target, TlsClient
from stack import Stack, agent_context, metric, wait_until

from isthmus.links import link as link_module
from isthmus.tools.pki import making as pki
from isthmus.wire.link import take_message, to_bytes
from isthmus.wire.link_pb2 import Control, Dial, DialResult, Hello

REFUSED = 'isthmus_server_tls_refused_total{port="agent",reason="%s"}'
FAILED = 'isthmus_server_link_failures_total{reason="%s"}'
SYN, DATA, WINDOW_UPDATE = 1, 0, 1
CUT = (ssl.SSLError, ConnectionError)


def frame(kind: int, flags: int, stream: int, length: int, data: bytes = b"") -> bytes:
    """A yamux frame, by its specification's table."""
    return struct.pack("!BBHII", 0, kind, flags, stream, length) + data


def hello(agent_id: str = "pretender") -> bytes:
    """The opening of a control stream."""
    data = to_bytes(Control(hello=Hello(agent_id=agent_id)))
    return frame(WINDOW_UPDATE, SYN, 1, 0) + frame(DATA, 0, 1, len(data), data)


def connect(stack: Stack, context: ssl.SSLContext | None = None) -> TlsClient:
    sock = socket.create_connection(("127.0.0.1", stack.server.agent_port), 20)
    try:
        return TlsClient(sock, context or agent_context(stack.files), "localhost")
    except BaseException:
        sock.close()
        raise


def counted(stack: Stack, name: str) -> float:
    return metric(stack.metrics(), name)


def still_serves(stack: Stack) -> None:
    with Target() as target, stack.tunnel("uds", target.name) as client, target.accept() as far:
        client.send(b"x")
        assert far.read_exactly(1) == b"x"


def is_refused(stack: Stack, context: ssl.SSLContext) -> None:
    with pytest.raises(CUT), connect(stack, context) as peer:
        peer.send(hello())  # TLS 1.3 tells a client of its refusal only afterwards
        while peer.recv():
            pass
        raise ConnectionError("closed")


def test_an_agent_without_a_certificate(stack: Stack) -> None:
    before = counted(stack, REFUSED % "no_certificate")
    context = ssl.create_default_context(cafile=str(stack.files.ca_cert))
    context.set_alpn_protocols(["isthmus/1"])
    is_refused(stack, context)
    wait_until(
        lambda: counted(stack, REFUSED % "no_certificate") == before + 1, "the refusal is counted"
    )
    still_serves(stack)


def test_an_agent_with_a_certificate_of_another_authority(stack: Stack, tmp_path: Path) -> None:
    before = counted(stack, REFUSED % "bad_certificate")
    other = pki.init(tmp_path / "other")
    context = ssl.create_default_context(cafile=str(stack.files.ca_cert))
    context.load_cert_chain(other.agent_cert, other.agent_key)
    context.set_alpn_protocols(["isthmus/1"])
    is_refused(stack, context)
    wait_until(
        lambda: counted(stack, REFUSED % "bad_certificate") == before + 1, "the refusal is counted"
    )
    still_serves(stack)


def test_a_real_agent_with_a_wrong_certificate_never_links(stack: Stack, tmp_path: Path) -> None:
    other = pki.init(tmp_path / "other")
    before = counted(stack, REFUSED % "bad_certificate")
    agent = stack.add_agent(
        linked=False, agent_cert=str(other.agent_cert), agent_key=str(other.agent_key)
    )
    wait_until(
        lambda: counted(stack, REFUSED % "bad_certificate") > before, "the refusal is counted"
    )
    assert not stack.do(lambda: stack.is_linked(agent))
    stack.stop(agent)


def test_an_agent_that_does_not_trust_the_server_never_links(stack: Stack, tmp_path: Path) -> None:
    other = pki.init(tmp_path / "other")
    agent = stack.add_agent(linked=False, ca_cert=str(other.ca_cert))
    name = 'isthmus_agent_link_failures_total{reason="tls"}'
    wait_until(lambda: metric(stack.metrics(agent), name) > 0, "the failure is counted")
    assert not stack.do(lambda: stack.is_linked(agent))
    stack.stop(agent)


def test_a_frontend_client_without_a_certificate(stack: Stack) -> None:
    name = 'isthmus_server_tls_refused_total{port="frontend",reason="no_certificate"}'
    before = counted(stack, name)
    context = ssl.create_default_context(cafile=str(stack.files.ca_cert))
    port = stack.server.frontend_port or 0
    sock = socket.create_connection(("127.0.0.1", port), 20)
    with sock, pytest.raises(CUT):
        client = TlsClient(sock, context, "localhost")
        client.send(b"CONNECT a:1 HTTP/1.1\r\n\r\n")
        while client.recv():
            pass
        raise ConnectionError("closed")
    wait_until(lambda: counted(stack, name) == before + 1, "the refusal is counted")


def test_plain_text_on_the_agent_port(stack: Stack) -> None:
    before = counted(stack, REFUSED % "not_tls")
    sock = socket.create_connection(("127.0.0.1", stack.server.agent_port), 20)
    with Client(sock) as peer:
        peer.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            while peer.recv():
                pass
        except ConnectionResetError:
            pass
    wait_until(lambda: counted(stack, REFUSED % "not_tls") == before + 1, "it is counted")
    still_serves(stack)


@pytest.mark.parametrize("alpn", ["h2", "http/1.1"])
def test_a_peer_of_another_protocol_must_begin_with_the_preface(stack: Stack, alpn: str) -> None:
    context = agent_context(stack.files)
    context.set_alpn_protocols([alpn])
    before = counted(stack, FAILED % "protocol")
    is_refused(stack, context)
    wait_until(lambda: counted(stack, FAILED % "protocol") == before + 1, "it is counted")
    still_serves(stack)


@pytest.mark.parametrize("spoken", ["mux", "grpc"])
def test_a_server_that_is_told_what_to_speak_speaks_nothing_else(fresh: Stack, spoken: str) -> None:
    fresh.add_server(link=spoken)
    other = fresh.add_agent(linked=False, link="grpc" if spoken == "mux" else "mux")
    failures = 'isthmus_agent_link_failures_total{reason="%s"}'
    wait_until(
        lambda: any(metric(fresh.metrics(other), failures % why) for why in ("tls", "lost")),
        "the agent counts it",
    )
    fresh.add_agent()  # which knows both
    assert fresh.do(lambda: [it.talk and it.talk.name for it in fresh.server.agents]) == [spoken]


def test_an_agent_without_a_name_is_told(stack: Stack) -> None:
    before = counted(stack, FAILED % "refused")
    with connect(stack) as peer:
        peer.send(hello(""))
        assert b"agent id is empty" in peer.read_to_end()
        peer.close()
    wait_until(lambda: counted(stack, FAILED % "refused") == before + 1, "it is counted")
    still_serves(stack)


BROKEN = {
    "garbage": b"\xff" * 64,
    "an http request": b"GET / HTTP/1.1\r\n\r\n",
    "an unknown type": struct.pack("!BBHII", 0, 9, 0, 1, 0),
    "an id that is not the peer's": frame(WINDOW_UPDATE, SYN, 2, 0),
    "a stream opened twice": frame(WINDOW_UPDATE, SYN, 1, 0) * 2,
    "more than the window": frame(WINDOW_UPDATE, SYN, 1, 0) + frame(DATA, 0, 1, 300_000),
    "an unknown go-away": struct.pack("!BBHII", 0, 3, 0, 0, 77),
    "a message that is too long": frame(WINDOW_UPDATE, SYN, 1, 0)
    + frame(DATA, 0, 1, 4, b"\xff\xff\xff\xff"),
    "no message": frame(WINDOW_UPDATE, SYN, 1, 0) + frame(DATA, 0, 1, 7, b"\0\0\0\3\xff\xff\xff"),
    "something before hello": frame(WINDOW_UPDATE, SYN, 1, 0) + frame(DATA, 0, 1, 4, b"\0\0\0\0"),
    "hello twice": hello() + hello()[12:],
    "broken after hello": hello() + b"\xff" * 12,
    "a dial that is none": hello()
    + frame(WINDOW_UPDATE, SYN, 3, 0)
    + frame(DATA, 0, 3, 7, b"\0\0\0\3\xff\xff\xff"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_frames_close_that_link_and_no_other(stack: Stack, name: str) -> None:
    before = counted(stack, FAILED % "protocol")
    with (
        Target() as target,
        stack.tunnel("uds", target.name) as client,
        target.accept() as far,
        connect(stack) as peer,
    ):
        peer.send(BROKEN[name])
        got = b""
        try:
            while data := peer.recv():
                got += data
        except CUT:
            pass
        # The last frame is a go-away that says why: type 3, code 1.
        assert struct.pack("!BBHII", 0, 3, 0, 0, 1) == got[-12:]
        wait_until(lambda: counted(stack, FAILED % "protocol") == before + 1, "it is counted")
        client.send(b"still here")
        assert far.read_exactly(10) == b"still here"
    assert len(stack.server.agents) == 1


def test_a_peer_that_says_no_hello_is_dropped(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "HANDSHAKE_S", 0.2)
    before = counted(stack, FAILED % "timed_out")
    with connect(stack) as peer, pytest.raises(CUT):
        assert peer.recv() != b""
        raise ConnectionError
    sock = socket.create_connection(("127.0.0.1", stack.server.agent_port), 20)
    # Not even a TLS handshake.
    with Client(sock) as silent, contextlib.suppress(ConnectionResetError):
        assert silent.recv() == b""
    wait_until(lambda: counted(stack, FAILED % "timed_out") == before + 2, "both are counted")
    still_serves(stack)


def test_agents_may_not_dial_the_control_plane_yet(stack: Stack) -> None:
    dial = to_bytes(Dial(host="127.0.0.1", port=1, dial_id=1))
    with connect(stack) as peer:
        peer.send(hello("asker"))
        stack.wait(lambda: len(stack.server.agents) == 2, "it is linked")
        peer.send(frame(WINDOW_UPDATE, SYN, 3, 0) + frame(DATA, 0, 3, len(dial), dial))
        answer = bytearray()
        while True:
            _, kind, _, stream, length = struct.unpack("!BBHII", peer.read_exactly(12))
            data = peer.read_exactly(length) if kind == DATA else b""
            if stream == 3:
                answer += data
                if (result := take_message(answer, DialResult)) is not None:
                    break
        assert result.failure == DialResult.DENIED
        peer.close()
    stack.wait(lambda: len(stack.server.agents) == 1, "it is gone")
