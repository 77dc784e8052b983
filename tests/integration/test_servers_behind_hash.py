"""Servers behind a balancer that always takes the same one: they hand agents on to each other."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import selectors
import signal
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Self

import pytest
from clients import (
    LIMIT_S,
    Target,
    connect_uds,
    free_port,
    full_target,
    head_for,
    receive_all,
    reset,
    send_all,
    status_of,
    tunnel,
)
from programs import Program, Programs
from stack import Agent, Server, Stack, agent_context, metric, wait_until

from isthmus.links.agent_side import ServerLink
from isthmus.net import peek
from isthmus.net.poller import IN, Poller
from isthmus.programs.server import agents as server_agents
from isthmus.programs.server import hand_on
from isthmus.programs.server.metrics import HandOn, TlsPort, TlsRefusal
from isthmus.tools.pki import making as pki
from isthmus.values import ServerId
from isthmus.wire.client_hello import ClientHello, hello_in

IDS = ("a", "b", "c")


class SourceHash:
    """A balancer that sends everybody to the first of its servers that is up."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = tuple(ports)
        self.taken: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(LIMIT_S)
        for sock in [self._listener, *self._pairs]:
            sock.close()
        self._selector.close()

    def _serve(self) -> None:
        while not self._stop.is_set():
            for key, _ in self._selector.select(0.05):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._pairs:
                    assert isinstance(key.fileobj, socket.socket)
                    self._pass_on(key.fileobj)

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        for port in self._ports:
            with contextlib.suppress(OSError):
                far = socket.create_connection(("127.0.0.1", port), LIMIT_S)
                self.taken.append(port)
                for one, other in ((near, far), (far, near)):
                    one.settimeout(LIMIT_S)
                    self._pairs[one] = other
                    self._selector.register(one, selectors.EVENT_READ)
                return
        near.close()

    def _pass_on(self, one: socket.socket) -> None:
        other = self._pairs[one]
        with contextlib.suppress(OSError):
            data = one.recv(65536)
            if data:
                other.sendall(data)
                return
        for sock in (one, other):
            del self._pairs[sock]
            self._selector.unregister(sock)
            sock.close()


class Cluster:
    """Servers of a stack that know each other, each at its port."""

    def __init__(self, stack: Stack, ids: Sequence[str] = IDS, *, host: str = "127.0.0.1") -> None:
        self.stack = stack
        self.host = host
        self.ports = {each: free_port() for each in ids}
        self.servers: dict[str, Server] = {}

    @property
    def flags(self) -> tuple[str, ...]:
        """What every replica is told alike."""
        return tuple(f"{each}={self.host}:{port}" for each, port in self.ports.items())

    def start(self, *ids: str, **more: object) -> None:
        for each in ids or self.ports:
            given = {"peer_server": self.flags, "uds_name": str(self.stack.dir / each), **more}
            self.servers[each] = self.stack.add_server(
                server_id=each, agent_port=self.ports[each], **given
            )

    def stop(self, server_id: str) -> None:
        self.stack.stop(self.servers.pop(server_id))

    def front(self) -> SourceHash:
        return SourceHash(list(self.ports.values()))

    def links_of(self, agent: Agent) -> set[str]:
        assert agent.servers is not None
        return {each for each, link in agent.servers.links.items() if link.ready}

    def wait_links(self, agent: Agent, *ids: str) -> None:
        self.stack.wait(lambda: self.links_of(agent) == set(ids), f"links to {ids}")

    def passing(self) -> int:
        return sum(len(server.agent_door.handing) for server in self.servers.values())

    def reach(self) -> None:
        """Every server reaches a target through its own link."""
        with Target() as target:
            for server in self.servers.values():
                with (
                    tunnel(connect_uds(server.settings.uds_name), target.name, b"x"),
                    target.accept() as far,
                ):
                    assert far.read_exactly(1) == b"x"


def count(server: Server, result: HandOn) -> int:
    return server.metrics.hand_ons[result]


def asking(stack: Stack, *alpn: str) -> ssl.SSLContext:
    context = agent_context(stack.files)
    context.set_alpn_protocols(list(alpn))
    return context


def first_hello(context: ssl.SSLContext) -> bytes:
    written = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), written, server_hostname="localhost").do_handshake()
    return written.read()


@contextlib.contextmanager
def shaken(port: int, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    sock = socket.create_connection(("127.0.0.1", port), LIMIT_S)
    with context.wrap_socket(sock, server_hostname="localhost") as tls:
        yield tls


def ends(sock: socket.socket) -> bool:
    """The other side closes or resets within the limit."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionError:
        return True
    return True


# The mesh.


def test_every_server_is_linked_though_only_one_is_ever_met(fresh: Stack) -> None:
    cluster = Cluster(fresh)
    cluster.start()
    with cluster.front() as front:
        agent = fresh.add_agent(linked=False, proxy_server_port=front.port)
        cluster.wait_links(agent, *IDS)
        assert set(front.taken) == {cluster.ports["a"]}
        assert fresh.snapshot(agent)["knownServers"] == 3
        cluster.reach()
        a = cluster.servers["a"]
        fresh.wait(lambda: len(a.agent_door.handing) == 2, "two connections pass through")
        scrape = fresh.metrics(a)
        joined = 'isthmus_server_agent_connections_handed_on_total{result="joined"}'
        assert metric(scrape, joined) == count(a, HandOn.JOINED) >= 2
        assert metric(scrape, "isthmus_server_agent_connections_passing") == 2
        assert all(not len(cluster.servers[each].agent_door.handing) for each in "bc")
        fresh.stop(agent)
        fresh.wait(lambda: not len(a.agent_door.handing), "nothing passes through any more")


def test_several_agents_have_a_mesh_each(fresh: Stack) -> None:
    cluster = Cluster(fresh, host="localhost")
    cluster.start()
    with cluster.front() as front:
        agents = [
            fresh.add_agent(linked=False, agent_id=f"n{n}", proxy_server_port=front.port)
            for n in range(4)
        ]
        for agent in agents:
            cluster.wait_links(agent, *IDS)
        for server in cluster.servers.values():
            fresh.wait(lambda s=server: len(s.agents) == 4, "one link of each agent")
        for agent in agents:
            fresh.stop(agent)


def test_bytes_and_half_closes_pass_through(fresh: Stack) -> None:
    cluster = Cluster(fresh, ("a", "b"))
    cluster.start()
    with cluster.front() as front, Target() as target:
        agent = fresh.add_agent(linked=False, proxy_server_port=front.port)
        cluster.wait_links(agent, "a", "b")
        total = 8 * 1024 * 1024
        uds = cluster.servers["b"].settings.uds_name
        with tunnel(connect_uds(uds), target.name) as client, target.accept() as far:
            sent: list[str] = []
            sender = threading.Thread(target=lambda: sent.append(send_all(client, 1, total)))
            sender.start()
            got = receive_all(far)
            sender.join(LIMIT_S)
            assert got == (total, sent[0])
            far.send(b"reply after the half-close")
            far.half_close()
            assert client.read_to_end() == b"reply after the half-close"
        fresh.stop(agent)


def test_a_server_that_is_replaced_under_its_id_is_linked_again(fresh: Stack) -> None:
    cluster = Cluster(fresh)
    cluster.start()
    with cluster.front() as front:
        agent = fresh.add_agent(linked=False, proxy_server_port=front.port)
        cluster.wait_links(agent, *IDS)
        cluster.stop("b")
        cluster.wait_links(agent, "a", "c")
        cluster.start("b")
        cluster.wait_links(agent, *IDS)
        cluster.reach()
        fresh.stop(agent)


def test_when_the_one_that_is_met_goes_the_next_one_hands_on(fresh: Stack) -> None:
    cluster = Cluster(fresh)
    cluster.start()
    with cluster.front() as front:
        agent = fresh.add_agent(linked=False, proxy_server_port=front.port)
        cluster.wait_links(agent, *IDS)
        cluster.stop("a")  # and with it every link that passed through it
        cluster.wait_links(agent, "b", "c")
        fresh.wait(lambda: len(cluster.servers["b"].agent_door.handing) == 1, "b hands on")
        cluster.reach()
        cluster.start("a")
        cluster.wait_links(agent, *IDS)
        cluster.reach()
        fresh.stop(agent)


def test_a_peer_whose_address_is_dead_keeps_nobody_from_the_others(fresh: Stack) -> None:
    cluster = Cluster(fresh, (*IDS, "dead"))
    cluster.start(*IDS)
    with cluster.front() as front:
        agent = fresh.add_agent(linked=False, proxy_server_port=front.port)
        cluster.wait_links(agent, *IDS)
        a = cluster.servers["a"]
        fresh.wait(lambda: count(a, HandOn.UNREACHED) > 1, "the dead one is asked for again")
        assert agent.servers is not None and agent.servers.missing == ["dead"]
        assert cluster.links_of(agent) == set(IDS)
        cluster.reach()
        fresh.stop(agent)
        fresh.wait(lambda: cluster.passing() == 0, "nothing is left behind")


# What agents ask for, or do not.


@pytest.mark.parametrize(
    ("offer", "chosen", "at"),
    [
        (["isthmus/1@b", "isthmus/1", "h2"], "isthmus/1@b", "b"),
        (["isthmus/1@a", "isthmus/1", "h2"], "isthmus/1@a", "a"),
        (["isthmus/1@stranger", "isthmus/1", "h2"], "isthmus/1", "a"),
        (["isthmus/1@b b", "isthmus/1", "h2"], "isthmus/1", "a"),
        (["isthmus/1", "h2"], "isthmus/1", "a"),
        (["h2"], "h2", "a"),
        (["foreign"], None, "a"),
    ],
)
def test_who_serves_what_is_asked_for(
    fresh: Stack, offer: list[str], chosen: str | None, at: str
) -> None:
    cluster = Cluster(fresh, ("a", "b"))
    cluster.start()
    with shaken(cluster.ports["a"], asking(fresh, *offer)) as tls:
        assert tls.selected_alpn_protocol() == chosen
        other = "b" if at == "a" else "a"
        fresh.wait(lambda: len(cluster.servers[at].links) == 1, "it is served there")
        assert not cluster.servers[other].links


def test_the_certificate_is_that_of_the_server_that_was_asked_for(
    fresh: Stack, tmp_path: Path
) -> None:
    theirs = pki.init(tmp_path, server_names=("localhost",))
    cluster = Cluster(fresh, ("a", "b"))
    cluster.start("a")
    cluster.start("b", cluster_cert=str(theirs.server_cert), cluster_key=str(theirs.server_key))
    context = ssl.create_default_context(cafile=str(theirs.ca_cert))
    context.load_cert_chain(fresh.files.agent_cert, fresh.files.agent_key)
    with pytest.raises(ssl.SSLCertVerificationError), shaken(cluster.ports["a"], context):
        pass
    context.set_alpn_protocols(["isthmus/1@b"])
    with shaken(cluster.ports["a"], context):
        b = cluster.servers["b"]
        fresh.wait(lambda: any(link.identity.name for link in b.links), "b knows the agent")


def test_a_hello_in_single_bytes_is_handed_on(fresh: Stack) -> None:
    cluster = Cluster(fresh, ("a", "b"))
    cluster.start()
    hello = first_hello(asking(fresh, "isthmus/1@b", "isthmus/1"))
    with socket.create_connection(("127.0.0.1", cluster.ports["a"]), LIMIT_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(hello)):
            sock.sendall(hello[at : at + 1])
        assert sock.recv(1) == b"\x16"  # the ServerHello
        assert len(cluster.servers["b"].links) == 1
        assert count(cluster.servers["a"], HandOn.JOINED) == 1


def test_grpc_agents_are_served_where_they_come(fresh: Stack) -> None:
    cluster = Cluster(fresh)
    cluster.start()
    with cluster.front() as front:
        agent = fresh.add_agent(linked=False, proxy_server_port=front.port, link="grpc")
        a = cluster.servers["a"]
        cluster.wait_links(agent, "a")
        fresh.wait(lambda: a.metrics.links_opened > 3, "it looks for the others")
        assert cluster.links_of(agent) == {"a"}
        assert not sum(a.metrics.hand_ons.values())
        fresh.stop(agent)


def test_a_count_below_the_number_of_names_does_not_hide_any(fresh: Stack) -> None:
    cluster = Cluster(fresh)
    cluster.start(server_count=1)
    with cluster.front() as front:
        agent = fresh.add_agent(linked=False, proxy_server_port=front.port)
        cluster.wait_links(agent, *IDS)
        assert fresh.snapshot(agent)["knownServers"] == 3
        fresh.stop(agent)


def test_a_dead_address_beside_the_balancers_hides_nobody(fresh: Stack) -> None:
    cluster = Cluster(fresh, ("a", "b"))
    cluster.start()
    with cluster.front() as front:
        agent = fresh.add_agent(
            linked=False,
            proxy_server_port=front.port,
            proxy_server_host=("127.0.0.1", "127.0.0.2"),
        )
        cluster.wait_links(agent, "a", "b")
        fresh.stop(agent)


def test_without_peers_nobody_looks(fresh: Stack) -> None:
    server = fresh.add_server(server_id="a")
    agent = fresh.add_agent()
    assert agent.servers is not None and not agent.servers.missing
    with shaken(server.agent_port, asking(fresh, "isthmus/1@b", "isthmus/1")) as tls:
        assert tls.selected_alpn_protocol() == "isthmus/1"
        fresh.wait(lambda: len(server.links) == 2, "it is served here")


# Those that mean no good, and wrong addresses.


@pytest.mark.parametrize("cut", [0, 1, 5, 60])
def test_half_a_hello_is_waited_for_only_so_long(
    fresh: Stack, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    monkeypatch.setattr(hand_on, "HANDSHAKE_S", 0.2)
    cluster = Cluster(fresh, ("a", "b"))
    cluster.start()
    hello = first_hello(asking(fresh, "isthmus/1@b"))
    with socket.create_connection(("127.0.0.1", cluster.ports["a"]), LIMIT_S) as sock:
        sock.sendall(hello[:cut])
        assert ends(sock)
    late = 'isthmus_server_link_failures_total{reason="timed_out"}'
    assert metric(fresh.metrics(cluster.servers["a"]), late) == 1
    assert not cluster.servers["a"].agent_door.handing.looking


@pytest.mark.parametrize("cut", [0, 60])
def test_who_leaves_in_the_middle_of_its_hello_is_forgotten(fresh: Stack, cut: int) -> None:
    cluster = Cluster(fresh, ("a", "b"))
    cluster.start()
    a = cluster.servers["a"]
    hello = first_hello(asking(fresh, "isthmus/1@b"))
    with socket.create_connection(("127.0.0.1", cluster.ports["a"]), LIMIT_S) as sock:
        sock.sendall(hello[:cut])
        fresh.wait(lambda: a.agent_door.handing.looking == 1, "it is looked at")
        sock.shutdown(socket.SHUT_WR)
        assert ends(sock)
    fresh.wait(lambda: not a.agent_door.handing.looking and not a.links, "it is forgotten")
    late = 'isthmus_server_link_failures_total{reason="timed_out"}'
    assert metric(fresh.metrics(a), late) == 0  # nobody waited for the rest


@pytest.mark.parametrize("cut", [0, 60])
def test_who_breaks_off_in_the_middle_of_its_hello_is_forgotten(fresh: Stack, cut: int) -> None:
    cluster = Cluster(fresh, ("a", "b"))
    cluster.start()
    a = cluster.servers["a"]
    sock = socket.create_connection(("127.0.0.1", cluster.ports["a"]), LIMIT_S)
    sock.sendall(first_hello(asking(fresh, "isthmus/1@b"))[:cut])
    fresh.wait(lambda: a.agent_door.handing.looking == 1, "it is looked at")
    reset(sock)
    fresh.wait(lambda: not a.agent_door.handing.looking and not a.links, "it is forgotten")
    assert metric(fresh.metrics(a), 'isthmus_server_link_failures_total{reason="lost"}') == 1


def test_those_that_are_looked_at_count_as_strangers(
    fresh: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_agents, "MOST_GREETING", 3)
    cluster = Cluster(fresh, ("a", "b"))
    cluster.start()
    a = cluster.servers["a"]
    with contextlib.ExitStack() as opened:
        for _ in range(3):
            opened.enter_context(socket.create_connection(("127.0.0.1", cluster.ports["a"])))
        fresh.wait(lambda: a.agent_door.handing.looking == 3, "three are looked at")
        # The reset may come before connect() has said that it is connected.
        with (
            contextlib.suppress(ConnectionResetError),
            socket.create_connection(("127.0.0.1", cluster.ports["a"]), LIMIT_S) as sock,
        ):
            assert ends(sock)
        assert a.agent_door.handing.looking == 3


def test_what_is_no_tls_is_refused_as_before(fresh: Stack) -> None:
    cluster = Cluster(fresh, ("a", "b"))
    cluster.start()
    a = cluster.servers["a"]
    with socket.create_connection(("127.0.0.1", cluster.ports["a"]), LIMIT_S) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert ends(sock)
    fresh.wait(lambda: a.metrics.tls_refusals[TlsPort.AGENT, TlsRefusal.NOT_TLS] == 1, "counted")


@pytest.mark.parametrize("bind", ["127.0.0.1", ""])
def test_a_peer_at_our_own_address_is_not_dialed_in_circles(fresh: Stack, bind: str) -> None:
    cluster = Cluster(fresh, ("a", "b"))
    cluster.ports["b"] = cluster.ports["a"]
    cluster.start("a", agent_bind_address=bind)
    a = cluster.servers["a"]
    agent = fresh.add_agent()
    fresh.wait(lambda: count(a, HandOn.LOOP) > 0, "the loop is seen")
    assert cluster.links_of(agent) == {"a"} and not count(a, HandOn.JOINED)
    fresh.stop(agent)
    fresh.wait(lambda: not len(a.agent_door.handing), "nothing is left")


def test_a_circle_of_servers_is_seen_when_it_closes(fresh: Stack) -> None:
    cluster = Cluster(fresh, ("a", "c"))
    a, c = (f"127.0.0.1:{cluster.ports[each]}" for each in ("a", "c"))
    # Each takes the other for b.
    cluster.start("a", peer_server=(f"b={c}",))
    cluster.start("c", peer_server=(f"b={a}",))
    hello = first_hello(asking(fresh, "isthmus/1@b"))
    with socket.create_connection(("127.0.0.1", cluster.ports["a"]), LIMIT_S) as sock:
        sock.sendall(hello)
        assert ends(sock)
    fresh.wait(lambda: cluster.passing() == 0, "the whole circle is gone")
    assert (count(cluster.servers["a"], HandOn.LOOP), count(cluster.servers["c"], HandOn.LOOP)) == (
        1,
        0,
    )
    assert sum(count(each, HandOn.JOINED) for each in cluster.servers.values()) == 2


def test_a_circle_through_the_balancer_is_seen_when_it_closes(fresh: Stack) -> None:
    cluster = Cluster(fresh, ("a", "b"))
    with SourceHash([cluster.ports["a"]]) as front:
        cluster.ports["b"] = front.port
        cluster.start("a")
        a = cluster.servers["a"]
        with socket.create_connection(("127.0.0.1", cluster.ports["a"]), LIMIT_S) as sock:
            sock.sendall(first_hello(asking(fresh, "isthmus/1@b")))
            assert ends(sock)
        fresh.wait(lambda: cluster.passing() == 0, "the circle is gone")
        assert (count(a, HandOn.JOINED), count(a, HandOn.LOOP)) == (1, 1)
        assert len(front.taken) == 1


def test_a_server_that_the_list_knows_by_another_id_is_linked(fresh: Stack) -> None:
    cluster = Cluster(fresh, ("a", "b"))
    flags = cluster.flags
    cluster.start("a")
    cluster.ports["x"] = cluster.ports.pop("b")  # it has b's flags and b's address, and is x
    cluster.start("x", peer_server=flags)
    with cluster.front() as front:
        agent = fresh.add_agent(linked=False, proxy_server_port=front.port)
        cluster.wait_links(agent, "a", "x")
        assert count(cluster.servers["x"], HandOn.LOOP) >= 1  # and somebody should hear of it
        cluster.reach()
        fresh.stop(agent)


def test_what_is_said_while_a_peer_is_dialed_is_not_lost(fresh: Stack) -> None:
    # It is dialed in vain, in the end served here, and its hello is still where it was.
    cluster = Cluster(fresh, ("a", "b"))
    cluster.ports["b"] = cluster.ports["a"]
    cluster.start("a")
    with shaken(cluster.ports["a"], asking(fresh, "isthmus/1@b", "isthmus/1")) as tls:
        assert tls.selected_alpn_protocol() == "isthmus/1"
        fresh.wait(lambda: len(cluster.servers["a"].links) == 1, "it is served here")
        assert not cluster.passing()


# Bounds: whoever asks has proved nothing.


def test_who_stays_when_its_server_has_gone_is_ended_soon(
    fresh: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_on, "GOODBYE_S", 0.2, raising=False)
    cluster = Cluster(fresh, ("a", "b"))
    cluster.start()
    alert = b"\x15\x03\x03\x00\x02\x02\x28"  # fatal: b closes at once
    with socket.create_connection(("127.0.0.1", cluster.ports["a"]), LIMIT_S) as sock:
        sock.sendall(first_hello(asking(fresh, "isthmus/1@b")) + alert)
        fresh.wait(lambda: count(cluster.servers["a"], HandOn.JOINED) == 1, "it is joined")
        fresh.wait(lambda: cluster.passing() == 0, "nothing is kept for it")


def test_a_server_that_stays_when_the_agent_has_gone_is_left_soon(
    fresh: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_on, "GOODBYE_S", 0.2, raising=False)
    cluster = Cluster(fresh, ("a", "other"))
    cluster.start("a")
    with (
        socket.create_server(("127.0.0.1", cluster.ports["other"])) as other,
        socket.create_connection(("127.0.0.1", cluster.ports["a"]), LIMIT_S) as sock,
    ):
        hello = first_hello(asking(fresh, "isthmus/1@other"))
        sock.sendall(hello)
        far, _ = other.accept()
        with far:
            far.settimeout(LIMIT_S)
            far.sendall(b"an answer")
            assert sock.recv(64) == b"an answer"
            sock.sendall(b"the last words")
            sock.shutdown(socket.SHUT_WR)
            got = b""
            while data := far.recv(65536):
                got += data
            assert got == hello + b"the last words"
            far.sendall(b"nobody needs this")
            assert ends(sock)
            fresh.wait(lambda: cluster.passing() == 0, "nothing is kept for it")


def test_what_waits_when_a_server_goes_arrives_first(fresh: Stack) -> None:
    cluster = Cluster(fresh, ("a", "other"))
    cluster.start("a")
    a = cluster.servers["a"]
    with (
        socket.create_server(("127.0.0.1", cluster.ports["other"])) as other,
        socket.create_connection(("127.0.0.1", cluster.ports["a"]), LIMIT_S) as sock,
    ):
        hello = first_hello(asking(fresh, "isthmus/1@other"))
        sock.sendall(hello)
        far, _ = other.accept()
        with far:
            assert far.recv(len(hello), socket.MSG_WAITALL) == hello
            far.sendall(b"x" * 500_000)
        got = 0
        while data := sock.recv(65536):
            got += len(data)
        assert got == 500_000
    fresh.wait(lambda: not len(a.agent_door.handing), "and then it is over")


def test_no_more_pass_than_descriptors_allow(fresh: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hand_on.most_passing() == soft // 4
    monkeypatch.setattr(hand_on, "most_passing", lambda: 2)
    cluster = Cluster(fresh, ("a", "b", "c"))
    cluster.start()
    with contextlib.ExitStack() as opened:
        for each in "bc":
            context = asking(fresh, f"isthmus/1@{each}")
            opened.enter_context(shaken(cluster.ports["a"], context))
        with pytest.raises(ConnectionResetError), shaken(cluster.ports["a"], context):
            pass
        assert count(cluster.servers["a"], HandOn.TOO_MANY) == 1
        assert cluster.passing() == 2


def test_those_that_wait_for_a_dead_peer_keep_nobody_from_another(
    fresh: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_on, "MOST_WAITING", 3)
    with full_target() as target, contextlib.ExitStack() as opened:
        cluster = Cluster(fresh, ("a", "b", "full"))
        cluster.ports["full"] = target.port
        cluster.start("a", "b")
        for number in range(1, 5):
            sock = socket.create_connection(("127.0.0.1", cluster.ports["a"]), LIMIT_S)
            opened.enter_context(sock)
            sock.sendall(first_hello(asking(fresh, "isthmus/1@full")))
            if number <= 3:
                fresh.wait(lambda n=number: cluster.passing() == n, "it waits")
        assert ends(sock)  # the fourth
        a = cluster.servers["a"]
        assert count(a, HandOn.TOO_MANY) == 1
        with shaken(cluster.ports["a"], asking(fresh, "isthmus/1@b")) as tls:
            assert tls.selected_alpn_protocol() == "isthmus/1@b"
        assert count(a, HandOn.TOO_MANY) == 1


def test_a_peer_that_could_not_be_dialed_is_left_alone_for_a_moment(
    fresh: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_on, "FAILED_FOR_S", LIMIT_S, raising=False)
    cluster = Cluster(fresh, ("a", "dead"))
    cluster.start("a")
    a = cluster.servers["a"]

    def ask() -> None:
        with socket.create_connection(("127.0.0.1", cluster.ports["a"]), LIMIT_S) as sock:
            sock.sendall(first_hello(asking(fresh, "isthmus/1@dead")))
            with pytest.raises(ConnectionResetError):
                sock.recv(1)

    ask()
    with socket.create_server(("127.0.0.1", cluster.ports["dead"])) as there:
        ask()
        assert count(a, HandOn.UNREACHED) == 2
        there.setblocking(False)
        with pytest.raises(BlockingIOError):
            there.accept()  # nobody dialed it
        fresh.do(lambda: setattr(a.agent_door.handing, "_failed_until", {}))
        there.settimeout(LIMIT_S)
        with socket.create_connection(("127.0.0.1", cluster.ports["a"]), LIMIT_S) as sock:
            sock.sendall(first_hello(asking(fresh, "isthmus/1@dead")))
            there.accept()[0].close()


def test_a_hello_is_not_read_again_for_each_of_its_bytes(
    fresh: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    hello = first_hello(asking(fresh, "isthmus/1@b", "isthmus/1"))
    reads: list[int] = []
    seen: list[ClientHello] = []

    def read(data: bytes) -> ClientHello | int:
        reads.append(len(data))
        return hello_in(data)

    monkeypatch.setattr(peek, "hello_in", read)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        poller = Poller(loop)
        near, far = socket.socketpair()
        near.setblocking(False)
        with near, far:
            look = peek.HelloPeek(
                loop,
                poller,
                near,
                timeout_s=LIMIT_S,
                seen=lambda _, found, __: seen.append(found),
                lost=lambda *_: pytest.fail("lost"),
            )
            edges = [*range(20), *range(20, len(hello), 50), len(hello)]
            for at, end in pairwise(edges):
                far.sendall(hello[at:end])
                look._on_events(IN)
            look.close()
            poller.shut_down()

    asyncio.run(main())
    assert [found.alpn for found in seen] == [("isthmus/1@b", "isthmus/1")]
    assert reads == [*range(1, 10), len(hello)]  # the headers, byte by byte, and then all of it


def test_a_peer_that_never_answers_is_given_up(
    fresh: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(fresh, ("a", "mute"))
    cluster.start("a")
    monkeypatch.setattr(hand_on, "HANDSHAKE_S", 0.5)
    with (
        socket.create_server(("127.0.0.1", cluster.ports["mute"])),
        socket.create_connection(("127.0.0.1", cluster.ports["a"]), LIMIT_S) as sock,
    ):
        sock.sendall(first_hello(asking(fresh, "isthmus/1@mute")))
        fresh.wait(lambda: count(cluster.servers["a"], HandOn.JOINED) == 1, "it is joined")
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    assert cluster.passing() == 0


def test_a_peer_that_cannot_be_dialed_in_time_is_given_up(
    fresh: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_on, "DIAL_S", 0.2)
    with full_target() as target:
        cluster = Cluster(fresh, ("a", "full"))
        cluster.ports["full"] = target.port
        cluster.start("a")
        with socket.create_connection(("127.0.0.1", cluster.ports["a"]), LIMIT_S) as sock:
            sock.sendall(first_hello(asking(fresh, "isthmus/1@full")))
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
        assert count(cluster.servers["a"], HandOn.UNREACHED) == 1
        assert cluster.passing() == 0


def test_an_agent_that_leaves_takes_the_dial_with_it(fresh: Stack) -> None:
    with full_target() as target:
        cluster = Cluster(fresh, ("a", "full"))
        cluster.ports["full"] = target.port
        cluster.start("a")
        sock = socket.create_connection(("127.0.0.1", cluster.ports["a"]), LIMIT_S)
        sock.sendall(first_hello(asking(fresh, "isthmus/1@full")))
        fresh.wait(lambda: cluster.passing() == 1, "it is dialed")
        reset(sock)
        fresh.wait(lambda: count(cluster.servers["a"], HandOn.LEFT) == 1, "it left")
        assert cluster.passing() == 0


def test_a_connection_that_has_gone_silent_is_ended(
    fresh: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_on, "HANDSHAKE_S", 0.5)
    monkeypatch.setattr(hand_on, "_SILENCE_S", 0.1)
    cluster = Cluster(fresh, ("a", "mute"))
    cluster.start("a")
    with (
        socket.create_server(("127.0.0.1", cluster.ports["mute"])) as mute,
        socket.create_connection(("127.0.0.1", cluster.ports["a"]), LIMIT_S) as sock,
    ):
        sock.sendall(first_hello(asking(fresh, "isthmus/1@mute")))
        far, _ = mute.accept()
        with far:
            far.settimeout(LIMIT_S)
            far.sendall(b"an answer")
            assert sock.recv(64) == b"an answer"
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
            with pytest.raises(ConnectionResetError):
                while far.recv(65536):
                    pass
    assert cluster.passing() == 0


def test_a_server_that_stops_resets_what_passes_through_it(fresh: Stack) -> None:
    cluster = Cluster(fresh, ("a", "b"))
    cluster.start()
    with shaken(cluster.ports["a"], asking(fresh, "isthmus/1@b")) as tls:
        fresh.wait(lambda: cluster.passing() == 1, "it passes through")
        cluster.stop("a")
        with pytest.raises(ConnectionResetError):
            socket.socket.recv(tls, 1)  # SSLSocket's own takes a reset for an end
    fresh.wait(lambda: not cluster.servers["b"].links, "b knows, too")


# Draining.


def test_who_drains_lets_the_balancer_take_another(fresh: Stack) -> None:
    cluster = Cluster(fresh, ("a", "b", "c"))
    cluster.start("a", "b")
    with cluster.front() as front, Target() as target:
        agent = fresh.add_agent(linked=False, proxy_server_port=front.port)
        cluster.wait_links(agent, "a", "b")
        a = cluster.servers["a"]
        with tunnel(connect_uds(a.settings.uds_name), target.name), target.accept():
            drained = asyncio.run_coroutine_threadsafe(a.drain(LIMIT_S), fresh.loop)
            fresh.wait(lambda: a.draining, "it drains")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", cluster.ports["a"]), LIMIT_S)
            cluster.start("c")
            cluster.wait_links(agent, "a", "b", "c")
            assert not drained.done()
        drained.result(LIMIT_S)
        fresh.stop(agent)


def test_who_drains_alone_still_takes_agents(fresh: Stack) -> None:
    cluster = Cluster(fresh, ("a",))
    cluster.start()
    a = cluster.servers["a"]
    fresh.run(a.drain(1.0))
    with shaken(cluster.ports["a"], asking(fresh, "isthmus/1")) as tls:
        assert tls.selected_alpn_protocol() == "isthmus/1"
        fresh.wait(lambda: len(a.links) == 1, "it is served")


class Dialing:
    """Dials through some servers again and again, while something happens to others."""

    def __init__(self, *servers: Server) -> None:
        self._paths = [server.settings.uds_name for server in servers]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._dial_on)
        self.done = 0
        self.statuses: set[int] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(LIMIT_S)
        assert self.done > len(self._paths) and self.statuses == {200}

    def _dial_on(self) -> None:
        with Target() as target:
            while not self._stop.is_set():
                for path in self._paths:
                    with connect_uds(path) as client:
                        client.send(head_for(target.name))
                        self.statuses.add(status_of(client.read_head()))
                    target.accept().close()
                    self.done += 1


def link_to(agent: Agent, server_id: str) -> ServerLink:
    assert agent.servers is not None
    return agent.servers.links[ServerId(server_id)]


def test_who_drains_is_left_before_it_ends(fresh: Stack) -> None:
    cluster = Cluster(fresh)
    cluster.start()
    with cluster.front() as front:
        agent = fresh.add_agent(linked=False, proxy_server_port=front.port)
        cluster.wait_links(agent, *IDS)
        a, b, c = (cluster.servers[each] for each in IDS)
        before = {each: link_to(agent, each) for each in "bc"}
        with Dialing(b, c):
            asyncio.run_coroutine_threadsafe(a.drain(LIMIT_S), fresh.loop).result(LIMIT_S)
            assert not len(a.agent_door.handing)
            now = {each: link_to(agent, each) for each in "bc"}
            assert all(now[each] is not before[each] for each in "bc")
            cluster.stop("a")
            cluster.wait_links(agent, "b", "c")
        assert {each: link_to(agent, each) for each in "bc"} == now  # nobody noticed
        fresh.stop(agent)


def test_when_several_drain_their_ways_are_left_for_one_that_stays(fresh: Stack) -> None:
    cluster = Cluster(fresh, ("a", "b", "c", "d", "e"))
    cluster.start()
    with cluster.front() as front:
        agent = fresh.add_agent(linked=False, proxy_server_port=front.port)
        cluster.wait_links(agent, *cluster.ports)
        with Dialing(cluster.servers["d"], cluster.servers["e"]):
            draining = {
                each: asyncio.run_coroutine_threadsafe(
                    cluster.servers[each].drain(LIMIT_S), fresh.loop
                )
                for each in "abc"
            }
            for each in "cba":  # what passes through a, to b and c, ends with those
                draining[each].result(LIMIT_S)
                assert not len(cluster.servers[each].agent_door.handing)
                cluster.stop(each)
            cluster.wait_links(agent, "d", "e")
        fresh.stop(agent)


def test_who_drains_waits_for_tunnels_that_pass_through_it(fresh: Stack) -> None:
    cluster = Cluster(fresh, ("a", "b"))
    cluster.start()
    with cluster.front() as front, Target() as target:
        agent = fresh.add_agent(linked=False, proxy_server_port=front.port)
        cluster.wait_links(agent, "a", "b")
        a, b = cluster.servers["a"], cluster.servers["b"]
        uds = b.settings.uds_name
        before = link_to(agent, "b")
        with tunnel(connect_uds(uds), target.name) as client, target.accept() as far:
            drained = asyncio.run_coroutine_threadsafe(a.drain(LIMIT_S), fresh.loop)
            fresh.wait(lambda: link_to(agent, "b") is not before, "there is another way")
            cluster.servers = {"b": b}
            cluster.reach()
            assert len(a.agent_door.handing) == 1 and not drained.done()
            client.send(b"still here")
            assert far.read_exactly(10) == b"still here"
            far.send(b"and here")
            assert client.read_exactly(8) == b"and here"
        drained.result(LIMIT_S)
        assert not len(a.agent_door.handing)
        fresh.wait(lambda: len(b.links) == 1, "the old link is gone")
        fresh.stop(agent)


def test_a_tunnel_that_does_not_end_is_waited_for_only_so_long(fresh: Stack) -> None:
    """What passes through the server that stops goes on by another connection."""
    cluster = Cluster(fresh, ("a", "b"))
    cluster.start()
    with cluster.front() as front, Target() as target:
        agent = fresh.add_agent(linked=False, proxy_server_port=front.port)
        cluster.wait_links(agent, "a", "b")
        a, b = cluster.servers["a"], cluster.servers["b"]
        client = tunnel(connect_uds(b.settings.uds_name), target.name, b"x")
        with client, target.accept() as far:
            assert far.read_exactly(1) == b"x"
            fresh.run(a.drain(0.3))
            assert len(a.agent_door.handing) == 1
            cluster.stop("a")
            client.send(b"y")
            assert far.read_exactly(1) == b"y"
        fresh.stop(agent)


# As processes.


def cluster_of(programs: Programs, ports: dict[str, int], server_id: str) -> Program:
    peers = [f"--peer-server={each}=127.0.0.1:{port}" for each, port in ports.items()]
    return programs.server(
        f"--server-id={server_id}",
        f"--agent-port={ports[server_id]}",
        f"--uds-name={programs.uds}.{server_id}",
        *peers,
    )


def linked(agent: Program, server_id: str) -> int:
    return agent.log.count(f'linked server_id="{server_id}"')


def test_killed_servers_are_found_again(programs: Programs) -> None:
    ports = {each: free_port() for each in IDS}
    running = {each: cluster_of(programs, ports, each) for each in IDS}
    with SourceHash(list(ports.values())) as front:
        agent = programs.start("agent", *programs.agent_flags(front.port))
        for each in IDS:
            wait_until(lambda e=each: linked(agent, e) > 0, f"{each} is linked")
        # One behind, then the one that everybody meets.
        for gone in ("b", "a"):
            before = linked(agent, gone)
            running[gone].signal(signal.SIGKILL)
            running[gone].wait_exit()
            running[gone] = cluster_of(programs, ports, gone)
            wait_until(lambda e=gone, n=before: linked(agent, e) > n, f"{gone} is linked again")
        for server in running.values():
            programs.wait_ready(server)
        agent.signal(signal.SIGTERM)
        assert agent.wait_exit() == 0


def test_peers_without_an_own_id_are_one_sentence(programs: Programs) -> None:
    server = programs.start("server", *programs.server_flags(), "--peer-server=b=127.0.0.1:1")
    assert server.wait_exit() == 2
    assert "--peer-server needs --server-id as well" in server.log
