"""Agents and servers that flood or lie, over our own protocol and konnectivity's.

Each has the right certificate: what it breaks is the protocol. Its own link is ended or what it
says is for nobody; the tunnels of others carry the right bytes all the while. More lies are in
test_peers.py, and one by one in tests/unit/links/test_bad_openers.py.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from clients import LIMIT_S, TlsClient, ask, echo_target, head_for
from stack import Stack, agent_context, metric
from test_floods import carries, connect, rss_bytes
from test_floods_http2 import CALL, GREETING
from test_peers import CUT, frame, hello

from isthmus.tunnel import limits
from isthmus.wire.http2 import DATA as H2_DATA
from isthmus.wire.http2 import END_HEADERS, HEADERS, encode_headers, unpack_head
from isthmus.wire.http2 import frame as h2_frame
from isthmus.wire.link import to_bytes
from isthmus.wire.link_pb2 import Control, DialResult, Ended, Welcome
from isthmus.wire.packet import close_response, data_packet, dial_response, parse

MIB = 1024 * 1024
BURST, MANY = 500, 2000
DATA, WINDOW_UPDATE, PING, GO_AWAY = 0, 1, 2, 3
SYN, ACK, FIN, RST = 1, 2, 4, 8
FAILED = 'isthmus_%s_link_failures_total{reason="protocol"}'


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What buckets hold otherwise is in tests/unit/tunnel/test_session.py."""
    monkeypatch.setattr(limits, "BURST", BURST)
    monkeypatch.setattr(limits, "PER_SECOND", 1)


@pytest.fixture(scope="module")
def served(certificates: object) -> Iterator[Stack]:
    with Stack(certificates) as stack:  # type: ignore[arg-type]  # a PkiFiles
        server = stack.add_server()
        door = server.agent_door
        door.terms = replace(door.terms, limits=replace(door.terms.limits, max_streams=64))
        stack.add_agent()
        yield stack


def odd(count: int) -> range:
    return range(3, 3 + 2 * count, 2)


def opened(stream: int) -> bytes:
    return frame(WINDOW_UPDATE, SYN, stream, 0)


ENDED = {
    "pings": frame(PING, SYN, 0, 1) * MANY,
    "empty frames": opened(3) + frame(DATA, 0, 3, 0) * MANY,
    "streams opened and reset": b"".join(
        opened(each) + frame(WINDOW_UPDATE, RST, each, 0) for each in odd(MANY)
    ),
    "more streams than there may be": b"".join(map(opened, odd(MANY))),
    "an id that is open": opened(3) * 2,
    "more than the window": opened(3) + frame(DATA, 0, 3, 256 * 1024 + 1),
    "an id of the server's own": opened(4),
    "a go-away that nobody knows": frame(GO_AWAY, 0, 0, 9),
    "no yamux": b"\x01" * 12,
}
HARMLESS = {
    "windows beyond any number": frame(WINDOW_UPDATE, 0, 1, 2**32 - 1) * MANY,
    "data for streams that were never opened": b"".join(
        frame(DATA, 0, each, 1000, b"x" * 1000) for each in odd(MANY)
    ),
    "resets of what is not there": b"".join(frame(WINDOW_UPDATE, RST, e, 0) for e in odd(MANY)),
    "the end of streams of others": b"".join(
        frame(DATA, 0, 1, len(said), said)
        for each in range(2, 200, 2)
        for said in [to_bytes(Control(ended=Ended(stream=each, reason=Ended.RESET)))]
    ),
    "an id of a stream that is over": (opened(3) + frame(DATA, FIN, 3, 0)) * 5,
    "the end of a stream that is over": opened(3) + frame(DATA, FIN, 3, 0) * 5,
    "drain, and on it goes": frame(GO_AWAY, 0, 0, 0) * MANY,
}


@contextlib.contextmanager
def liar(stack: Stack, name: str = "liar", alpn: str = "isthmus/1") -> Iterator[TlsClient]:
    context = agent_context(stack.files)
    context.set_alpn_protocols([alpn])
    sock = connect(stack.server.agent_port)
    with TlsClient(sock, context, "localhost") as peer:
        if alpn != "h2":
            peer.send(hello(name))
            stack.wait(lambda: len(stack.server.agents) == 2, "it is linked")
        yield peer
    stack.wait(lambda: len(stack.server.links) == 1, "its link is gone")


def goes_on(stack: Stack, target: str) -> None:
    """The honest agent carries bytes; the other is asked only if it drains not and is alive."""
    carries(stack.tunnel("uds", target), 1)


def only_the_honest(stack: Stack) -> None:
    """Let nobody be asked but the first agent: the liar would answer nothing."""
    for link in list(stack.server.agents):
        if link.agent_id != stack.agent.id:
            link.draining = True


def hang_up(peer: TlsClient) -> None:
    with contextlib.suppress(OSError):  # the server was first
        peer.sock.shutdown(socket.SHUT_RDWR)


def read_until_cut(peer: TlsClient) -> None:
    with contextlib.suppress(*CUT):
        while peer.recv():
            pass


@pytest.mark.parametrize("attack", ENDED)
def test_an_agent_that_floods_is_ended(served: Stack, attack: str) -> None:
    before = metric(served.metrics(), FAILED % "server")
    with echo_target() as target, liar(served) as peer:
        served.do(lambda: only_the_honest(served))
        sender = threading.Thread(target=_send, args=(peer, ENDED[attack]), daemon=True)
        sender.start()
        goes_on(served, target.name)
        read_until_cut(peer)
        sender.join(LIMIT_S)
    assert metric(served.metrics(), FAILED % "server") == before + 1
    served.wait_idle()


def _send(peer: TlsClient, raw: bytes) -> None:
    with contextlib.suppress(OSError):
        peer.send(raw)


@pytest.mark.parametrize("attack", HARMLESS)
def test_an_agent_that_says_what_means_nothing(served: Stack, attack: str) -> None:
    before, rss = metric(served.metrics(), FAILED % "server"), rss_bytes()
    with echo_target() as target, liar(served) as peer:
        served.do(lambda: only_the_honest(served))
        sender = threading.Thread(target=_send, args=(peer, HARMLESS[attack]), daemon=True)
        sender.start()
        goes_on(served, target.name)
        sender.join(LIMIT_S)
        peer.send(frame(PING, SYN, 0, 77))
        answer = frame(PING, ACK, 0, 77)
        got = b""
        while answer not in got:  # it was read to its end, and is alive
            got += peer.recv()
        assert rss_bytes() - rss < 64 * MIB
    assert metric(served.metrics(), FAILED % "server") == before
    served.wait_idle()


def test_one_that_asks_but_does_not_read(served: Stack) -> None:
    """Answers to pings that nobody takes are bounded too, whatever the buckets say."""
    limits.BURST = 10**9  # put back by the fixture
    rss = rss_bytes()
    with echo_target() as target, liar(served) as peer:
        served.do(lambda: only_the_honest(served))
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sender = threading.Thread(
            target=_send, args=(peer, frame(PING, SYN, 0, 1) * 1_000_000), daemon=True
        )
        sender.start()
        goes_on(served, target.name)
        served.wait(lambda: len(served.server.links) == 1, "it is ended")
        assert rss_bytes() - rss < 96 * MIB
        hang_up(peer)
        sender.join(LIMIT_S)


def test_records_that_are_no_tls(served: Stack) -> None:
    """A record that nobody with the keys wrote ends the link."""
    with echo_target() as target, liar(served) as peer:
        peer.sock.sendall(b"\x17\x03\x03\x00\x20" + b"j" * 32)
        read_until_cut(peer)
        goes_on(served, target.name)


# What an agent answers.


def answers(reply: Callable[[int], bytes]) -> Callable[[TlsClient], None]:
    """Answer every stream that the server opens."""

    def serve(peer: TlsClient) -> None:
        with contextlib.suppress(OSError):  # the test is over
            while True:
                _, kind, flags, stream, length = struct.unpack("!BBHII", peer.read_exactly(12))
                if kind == DATA:
                    peer.read_exactly(length)
                if flags & SYN and kind != PING:
                    peer.send(frame(WINDOW_UPDATE, ACK, stream, 0) + reply(stream))

    return serve


def data(stream: int, raw: bytes) -> bytes:
    return frame(DATA, 0, stream, len(raw), raw)


YES = to_bytes(DialResult(address="10.0.0.1:1"))
LIES = {
    "no message": lambda stream: data(stream, b"\0\0\0\3\xff\xff\xff"),
    "a message without an end": lambda stream: data(stream, b"\xff\xff\xff\xff"),
    "an end at once": lambda stream: frame(DATA, FIN, stream, 0),
    "a reset": lambda stream: frame(WINDOW_UPDATE, RST, stream, 0),
    "a failure that nobody knows": lambda stream: data(stream, to_bytes(DialResult(failure=99))),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("lie", LIES)
def test_an_answer_that_is_none_is_a_failed_dial(fresh: Stack, lie: str) -> None:
    server = fresh.add_server()
    sock = connect(server.agent_port)
    with TlsClient(sock, agent_context(fresh.files), "localhost") as peer:
        peer.send(hello("liar"))
        fresh.wait(lambda: len(server.agents) == 1, "it is linked")
        threading.Thread(target=answers(LIES[lie]), args=(peer,), daemon=True).start()
        with fresh.uds() as client:
            answer = ask(client, head_for("10.0.0.1:1"))
        assert answer.status in (502, 503), answer
        fresh.wait(lambda: not server.dialer.pending, "no dial is left")
        hang_up(peer)
    fresh.wait(lambda: not server.links, "it is gone")


def test_a_second_answer_is_only_bytes_of_its_own_tunnel(fresh: Stack) -> None:
    server = fresh.add_server()
    sock = connect(server.agent_port)
    with TlsClient(sock, agent_context(fresh.files), "localhost") as peer:
        peer.send(hello("liar"))
        fresh.wait(lambda: len(server.agents) == 1, "it is linked")
        lie = answers(lambda stream: data(stream, YES) + data(stream, YES))
        threading.Thread(target=lie, args=(peer,), daemon=True).start()
        with fresh.tunnel("uds", "10.0.0.1:1") as client:
            assert client.read_exactly(len(YES)) == YES
        hang_up(peer)
    fresh.wait(lambda: not server.links, "it is gone")


# Konnectivity's packets: numbers are an agent's own, and mean nothing on another's link.


class GrpcLiar:
    """An agent that speaks konnectivity by hand."""

    def __init__(self, peer: TlsClient) -> None:
        self.peer = peer
        block = encode_headers(
            (*CALL[:2], (b":path", b"/AgentService/Connect"), *CALL[3:],
             (b"agentid", b"liar"), (b"agentidentifiers", b"host=liar"))
        )  # fmt: skip
        peer.send(GREETING + h2_frame(HEADERS, END_HEADERS, 1, block))
        self._messages = bytearray()

    def say(self, *packets: bytes) -> None:
        for packet in packets:
            self.peer.send(h2_frame(H2_DATA, 0, 1, packet))

    def packet(self) -> object:
        """The next packet that the server sent."""
        while True:
            if len(self._messages) >= 5:
                end = 5 + int.from_bytes(self._messages[1:5], "big")
                if len(self._messages) >= end:
                    packet = parse(bytes(self._messages[5:end]))
                    del self._messages[:end]
                    return packet
            high, low, kind, _, _ = unpack_head(self.peer.read_exactly(9))
            payload = self.peer.read_exactly(high << 8 | low)
            if kind == H2_DATA:
                self._messages += payload


def test_packets_for_the_connections_of_another_agent(certificates: object) -> None:
    """The honest agent speaks konnectivity too: the same numbers, on another link."""
    with Stack(certificates, "grpc") as stack, echo_target() as target:  # type: ignore[arg-type]
        stack.add_server()
        stack.add_agent()
        with contextlib.ExitStack() as held:
            tunnels = [held.enter_context(stack.tunnel("uds", target.name)) for _ in range(5)]
            with liar(stack, alpn="h2") as peer:
                agent = GrpcLiar(peer)
                stack.wait(lambda: len(stack.server.agents) == 2, "it is linked")
                stack.do(lambda: only_the_honest(stack))
                for number in range(1, 60):
                    agent.say(
                        data_packet(number, b"forged"),
                        close_response(number, "forged"),
                        dial_response(number, number),
                        dial_response(number, error="forged"),
                    )
                carries(stack.tunnel("uds", target.name), 3)
                for number, client in enumerate(tunnels):
                    client.send(b"%04d" % number)
                    assert client.read_exactly(4) == b"%04d" % number
                assert stack.do(lambda: len(stack.server.agents)) == 2, "it is harmless, and stays"


def test_two_answers_and_one_number_for_two_dials(fresh: Stack) -> None:
    server = fresh.add_server()
    with contextlib.ExitStack() as held:
        context = agent_context(fresh.files)
        context.set_alpn_protocols(["h2"])
        sock = connect(server.agent_port)
        agent = GrpcLiar(held.enter_context(TlsClient(sock, context, "localhost")))
        fresh.wait(lambda: len(server.agents) == 1, "it is linked")
        clients = [held.enter_context(fresh.uds()) for _ in range(2)]
        for number, client in enumerate(clients):
            client.send(head_for("10.0.0.1:1"))
            asked = agent.packet()
            random = asked.dialRequest.random  # type: ignore[attr-defined]  # a Packet
            # Two answers to each dial, and the same number for both.
            agent.say(dial_response(random, 7), dial_response(random, 8 + number))
            assert client.read_head().startswith(b"HTTP/1.1 200 ")
        with contextlib.suppress(ConnectionResetError):
            assert clients[0].recv() == b""  # its number is another's now: never the other's bytes
        agent.say(data_packet(7, b"for the second"))
        assert clients[1].read_exactly(14) == b"for the second"


# Servers that lie to agents.


class LyingServer:
    """Welcomes agents and then says what no server would."""

    def __init__(self, stack: Stack, said: bytes, port: int) -> None:
        self._said = said
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(stack.files.server_cert, stack.files.server_key)
        self._context.set_alpn_protocols(["isthmus/1"])
        self._sock = socket.create_server(("127.0.0.2", port))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> LyingServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._thread.join(LIMIT_S)

    def _serve(self) -> None:
        while True:
            try:
                plain, _ = self._sock.accept()
            except OSError:
                return
            plain.settimeout(LIMIT_S)
            wrap = self._context.wrap_socket
            with contextlib.suppress(OSError), plain, wrap(plain, server_side=True) as tls:
                tls.recv(4096)
                welcome = to_bytes(Control(welcome=Welcome(server_id="liar", server_count=2)))
                tls.sendall(frame(WINDOW_UPDATE, ACK, 1, 0) + data(1, welcome) + self._said)
                while tls.recv(65536):
                    pass


SERVER_LIES = {
    "pings": frame(PING, SYN, 0, 1) * MANY,
    "dials opened and reset": b"".join(
        frame(WINDOW_UPDATE, SYN, each, 0) + frame(WINDOW_UPDATE, RST, each, 0)
        for each in range(2, 2 * MANY, 2)
    ),
    "an id of the agent's own": frame(WINDOW_UPDATE, SYN, 3, 0),
    "more than the window": frame(WINDOW_UPDATE, SYN, 2, 0) + frame(DATA, 0, 2, 300_000),
    "a dial that is none": frame(WINDOW_UPDATE, SYN, 2, 0) + data(2, b"\0\0\0\3\xff\xff\xff"),
    "a message that is too long": data(1, b"\xff\xff\xff\xff"),
    "no control message": data(1, b"\0\0\0\3\xff\xff\xff"),
    "garbage": b"\xff" * 64,
}


@pytest.mark.parametrize("lie", SERVER_LIES)
def test_a_server_that_lies_is_left_and_the_other_is_not(fresh: Stack, lie: str) -> None:
    server = fresh.add_server(server_count=2)
    with LyingServer(fresh, SERVER_LIES[lie], server.agent_port), echo_target() as target:
        agent = fresh.add_agent(proxy_server_host=("127.0.0.1", "127.0.0.2"))
        with fresh.tunnel("uds", target.name) as client:
            # Welcomed and left, again and again.
            fresh.wait(lambda: agent.metrics.links_opened >= 3, "it is left, and left again")
            client.send(b"still here")
            assert client.read_exactly(10) == b"still here"
        carries(fresh.tunnel("uds", target.name), 5)
