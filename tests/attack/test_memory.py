"""Peers that want memory: what they send is not kept, what is kept is paid for by them alone."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from functools import partial

from clients import (
    LIMIT_S,
    MIB,
    Client,
    TlsClient,
    ask,
    connect_uds,
    echo_target,
    head_for,
    tunnel,
)
from programs import Program, Programs
from stack import agent_context, http_get, metric, wait_until
from test_floods_yamux import ACK, DATA, FIN, SYN, WINDOW_UPDATE
from test_peers import CUT, frame, hello

from isthmus.wire.http2 import END_HEADERS, END_STREAM, HEADERS, PREFACE, literal_header, settings
from isthmus.wire.http2 import frame as h2_frame
from isthmus.wire.link import to_bytes
from isthmus.wire.link_pb2 import Control, Dial, Welcome

#: What a program may grow by, whatever is sent to it: less than what is sent.
MOST_GROWTH = 48 * MIB
STUFFED = 40 * MIB
#: Fewer headers: writing and encoding many small ones takes most of the test's time.
HEADER_BYTES = 2 * MIB
#: The attack had 900. They take 15 to 30 s, most of it for the 900 threads that pour into them;
#: these take 3 s, and hold more than a budget of 16 MiB as well.
READERS = 200


def rss_bytes(program: Program) -> int:
    with open(f"/proc/{program.process.pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def counted(program: Program, name: str) -> float:
    return metric(http_get(program.port("health_port"), "/metrics")[1], f"isthmus_server_{name}")


def long_dial(number: int) -> bytes:
    """A Dial that no other is like, as long as one may be."""
    said = f"{number:08d}" * 128
    groups = [f"{number:08d}" * 16] * 32
    return to_bytes(
        Dial(
            host="127.0.0.1", port=1, requester=said, requester_groups=groups, user=said,
            user_groups=groups, tenant=said, object=said,
        )
    )  # fmt: skip


def stuffing(first: int) -> Iterator[bytes]:
    """Streams, each with one such Dial; the ids begin with ``first``."""
    sent, number = 0, first
    while sent < STUFFED:
        dial = long_dial(number)
        yield frame(DATA, SYN, number, len(dial), dial) + frame(DATA, FIN, number, 0)
        sent += len(dial)
        number += 2


@contextlib.contextmanager
def pretended_agent(programs: Programs, server: Program, name: str) -> Iterator[TlsClient]:
    port = server.port("agent_port")
    sock = socket.create_connection(("127.0.0.1", port), LIMIT_S)
    with TlsClient(sock, agent_context(programs.files), "localhost") as peer:
        peer.send(hello(name))
        peer.recv()
        yield peer


def reading(peer: TlsClient) -> threading.Thread:
    """Read whatever comes, so that answers do not pile up."""

    def read() -> None:
        with contextlib.suppress(*CUT):
            while peer.recv():
                pass

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def goes_on(programs: Programs, target: str, opened: Callable[[], Client] | None = None) -> None:
    """An honest client is served."""
    with tunnel((opened or programs.connect_uds)(), target) as client:
        client.send(b"still here")
        assert client.read_exactly(10) == b"still here"


# What was sent is not kept.


def test_an_agent_that_sends_distinct_dials_fills_no_cache(programs: Programs) -> None:
    """40 MB of Dials, each with other identities: they were kept by caches, 1 MB for each."""
    server = programs.server()
    programs.agent(server)
    with echo_target() as target:
        goes_on(programs, target.name)
        before = rss_bytes(server)
        with pretended_agent(programs, server, "stuffer") as peer:
            thread = reading(peer)
            for each in stuffing(3):
                peer.send(each)
            wait_until(
                lambda: counted(server, 'node_dial_failures_total{reason="denied"}') >= 100,
                "dials were read",
            )
            assert rss_bytes(server) - before < MOST_GROWTH
            peer.sock.shutdown(socket.SHUT_RDWR)
            thread.join(LIMIT_S)
        goes_on(programs, target.name)
        assert rss_bytes(server) - before < MOST_GROWTH


def test_a_server_that_sends_distinct_dials_fills_no_cache(programs: Programs) -> None:
    """The same from a server that an agent trusts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(programs.files.server_cert, programs.files.server_key)
    context.set_alpn_protocols(["isthmus/1"])
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(LIMIT_S)
        agent = programs.start("agent", *programs.agent_flags(door.getsockname()[1]))
        plain, _ = door.accept()
        plain.settimeout(LIMIT_S)
        with plain, context.wrap_socket(plain, server_side=True) as tls:
            tls.recv(4096)
            welcome = to_bytes(Control(welcome=Welcome(server_id="liar", server_count=1)))
            tls.sendall(frame(WINDOW_UPDATE, ACK, 1, 0) + frame(DATA, 0, 1, len(welcome), welcome))
            agent.wait_log("linked ")
            before = rss_bytes(agent)
            for number, each in enumerate(stuffing(2)):
                tls.sendall(each)
                if number % 50 == 49:
                    tls.recv(65536)  # its answers
            ready = http_get(agent.port("health_port"), "/readyz")
            assert ready[0] == 200, ready
            assert rss_bytes(agent) - before < MOST_GROWTH


def test_a_client_that_sends_distinct_headers_fills_no_cache(programs: Programs) -> None:
    """Megabytes of gRPC requests over the UNIX socket, each with 100 headers that no other has."""
    server = programs.server("--mode=grpc")
    before = rss_bytes(server)
    sent, number = 0, 1
    required = (
        (b":method", b"GET"),
        (b":scheme", b"http"),
        (b":path", b"/"),
        (b":authority", b"a"),
    )
    head = b"".join(literal_header(*each) for each in required)
    while sent < HEADER_BYTES:
        with programs.connect_uds() as client:
            client.send(PREFACE + settings())
            for stream in range(1, 400, 2):
                number += 1
                some = (literal_header(b"x%x" % it, b"%x" % number) for it in range(100))
                block = head + b"".join(some)
                client.send(h2_frame(HEADERS, END_HEADERS | END_STREAM, stream, block))
                sent += len(block)
            client.half_close()
            with contextlib.suppress(ConnectionError):
                client.read_to_end()
    assert rss_bytes(server) - before < MOST_GROWTH
    assert http_get(server.port("health_port"), "/healthz")[0] == 200


# What is kept is charged.


def test_unfinished_dials_on_eight_links_of_one_certificate(programs: Programs) -> None:
    """8 links, each with 1,000 streams whose Dial never ends: they held 1 GB."""
    server = programs.server("--memory-budget=32Mi")
    programs.agent(server, "--agent-id=honest")
    unfinished = long_dial(0)[:-1]
    with echo_target() as target, contextlib.ExitStack() as links:
        goes_on(programs, target.name)
        before, free = rss_bytes(server), counted(server, "memory_budget_used_bytes")
        peers = [
            links.enter_context(pretended_agent(programs, server, f"liar-{number}"))
            for number in range(8)
        ]
        threads = [reading(peer) for peer in peers]
        for stream in range(3, 2003, 2):
            for peer in peers:
                with contextlib.suppress(OSError):
                    peer.send(frame(DATA, SYN, stream, len(unfinished), unfinished))
            if counted(server, "memory_budget_over_share_total") > 1000:
                break
        assert counted(server, "memory_budget_over_share_total") > 0
        assert counted(server, "memory_budget_used_bytes") < 40 * MIB
        assert rss_bytes(server) - before < MOST_GROWTH
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.sock.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(LIMIT_S)
        goes_on(programs, target.name)
        wait_until(
            lambda: counted(server, "memory_budget_used_bytes") <= free, "everything is given back"
        )


class Pouring:
    """A target that sends a pattern to whoever connects, until they have it all or left."""

    def __init__(self, size: int) -> None:
        self.block = bytes(range(256)) * 256
        self.size = size
        self._door = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.name = f"127.0.0.1:{self._door.getsockname()[1]}"
        self._serving = threading.Thread(target=self._serve, daemon=True)
        self._pouring: list[tuple[threading.Thread, socket.socket]] = []

    def __enter__(self) -> Pouring:
        self._serving.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self._serving.join(LIMIT_S)
        self._door.close()
        for thread, sock in self._pouring:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            thread.join(LIMIT_S)
            sock.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._door.accept()
                thread = threading.Thread(target=self._pour, args=(sock,), daemon=True)
                self._pouring.append((thread, sock))
                thread.start()

    def _pour(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            for _ in range(self.size // len(self.block)):
                sock.sendall(self.block)
            sock.shutdown(socket.SHUT_WR)


def test_stalled_readers_of_one_client_cost_another_nothing(programs: Programs) -> None:
    """200 readers of one client stop: another's paused reader, on the same link, gets every byte.

    The one client is over its share and slowed down; nobody is reset.
    """
    server = programs.server("--memory-budget=16Mi")
    programs.agent(server)
    size = 8 * MIB
    with (
        Pouring(size) as target,
        contextlib.ExitStack() as stalled,
        tunnel(programs.connect_tls(server), target.name) as paused,
    ):
        first = paused.read_exactly(MIB)
        for _ in range(READERS):
            hog = connect_uds(programs.uds)
            stalled.callback(hog.close)
            hog.send(head_for(target.name))
        over_share = partial(counted, server, "memory_budget_over_share_total")
        wait_until(lambda: over_share() > READERS, "the hog's readers hold too much", 60.0)
        # Another client gets through, by a new tunnel and by the one that paused.
        with tunnel(programs.connect_tls(server), target.name) as other:
            assert len(other.read_exactly(2 * MIB)) == 2 * MIB
        whole = first + paused.read_exactly(size - MIB)
        assert whole == target.block * (size // len(target.block))
        assert counted(server, "streams_reset_for_budget_total") == 0


def test_stalled_readers_without_an_agent_are_charged(programs: Programs) -> None:
    """Where a network is reached directly no link counts: the sockets do, until they are closed."""
    server = programs.server("--memory-budget=8Mi", "--cluster-network=near=127.0.0.0/8;via=direct")
    with Pouring(16 * MIB) as target, contextlib.ExitStack() as stalled:
        used = partial(counted, server, "memory_budget_used_bytes")
        for _ in range(160):
            hog = connect_uds(programs.uds)
            stalled.callback(hog.close)
            hog.send(head_for(target.name))
        wait_until(lambda: used() >= 8 * MIB, "they hold all that they may")
        with programs.connect_uds() as one_more:
            assert ask(one_more, head_for(target.name)).status == 503
        with tunnel(programs.connect_tls(server), target.name) as other:
            assert len(other.read_exactly(MIB)) == MIB
        stalled.close()
        wait_until(lambda: used() == 0, "everything is given back")
