"""Several servers: an agent links to each of them, wherever they are, and they to many agents."""

from __future__ import annotations

import contextlib
import itertools
import selectors
import socket
import threading
from collections.abc import Hashable, Iterator, Sequence

import pytest
from clients import Target, connect_uds, free_port, head_for, tunnel
from stack import Agent, Server, Stack, http_get, metric, wait_until

from isthmus.net.connect import Failed, literal
from isthmus.net.resolver import Cancel, Found, Resolver, nothing
from isthmus.values import HostPort


@pytest.fixture(scope="module", params=["mux", "grpc"])
def link(request: pytest.FixtureRequest) -> str:
    """Everything here holds over both."""
    return str(request.param)


def links_of(agent: Agent) -> set[str]:
    assert agent.servers is not None
    return set(agent.servers.links)


def each_server_reaches(stack: Stack) -> None:
    with Target() as target:
        for server in stack.servers:
            with (
                tunnel(connect_uds(server.settings.uds_name), target.name, b"x"),
                target.accept() as far,
            ):
                assert far.read_exactly(1) == b"x"


@contextlib.contextmanager
def round_robin(ports: Sequence[int]) -> Iterator[int]:
    """A load balancer: each new connection goes to the next port."""
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()
    selector = selectors.DefaultSelector()
    turns = itertools.cycle(ports)
    opened: set[socket.socket] = {listener}

    def pass_on(a: socket.socket, b: socket.socket) -> None:
        try:
            data = a.recv(65536)
            if data:
                b.sendall(data)
                return
        except OSError:
            pass
        for sock in (a, b):
            if sock in opened:
                selector.unregister(sock)
                opened.discard(sock)
                sock.close()

    def accept() -> None:
        a, _ = listener.accept()
        b = socket.create_connection(("127.0.0.1", next(turns)), 20)
        a.settimeout(20)
        opened.update((a, b))
        selector.register(a, selectors.EVENT_READ, lambda: pass_on(a, b))
        selector.register(b, selectors.EVENT_READ, lambda: pass_on(b, a))

    def serve() -> None:
        while not stop.is_set():
            for key, _ in selector.select(0.05):
                if key.fileobj in opened:
                    key.data()

    selector.register(listener, selectors.EVENT_READ, accept)
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        stop.set()
        thread.join(20)
        selector.close()
        for sock in opened:
            sock.close()


def two_servers(stack: Stack, **more: object) -> tuple[Server, Server]:
    one = stack.add_server(server_id="one", **more)
    two = stack.add_server(server_id="two", **more)
    return one, two


def test_every_host_that_was_named_is_linked(fresh: Stack) -> None:
    port = free_port()
    for number, host in enumerate(("127.0.0.1", "127.0.0.2")):
        fresh.add_server(server_id=f"s{number}", agent_bind_address=host, agent_port=port)
    agent = fresh.add_agent(
        linked=False, proxy_server_host=("127.0.0.1", "127.0.0.2"), proxy_server_port=port
    )
    fresh.wait(lambda: links_of(agent) == {"s0", "s1"}, "both hosts are linked")
    each_server_reaches(fresh)


def test_a_server_whose_certificate_has_another_name_is_not(fresh: Stack) -> None:
    port = free_port()
    for number, host in enumerate(("127.0.0.1", "127.0.0.3")):
        fresh.add_server(server_id=f"s{number}", agent_bind_address=host, agent_port=port)
    agent = fresh.add_agent(proxy_server_host=("127.0.0.3", "127.0.0.1"), proxy_server_port=port)
    name = 'isthmus_agent_link_failures_total{reason="tls"}'
    wait_until(lambda: metric(fresh.metrics(agent), name) > 0, "the name is refused")
    assert links_of(agent) == {"s0"}


def test_every_address_of_a_name_is_linked(fresh: Stack) -> None:
    port = free_port()
    for number, host in enumerate(("127.0.0.1", "127.0.0.2")):
        fresh.add_server(server_id=f"s{number}", agent_bind_address=host, agent_port=port)
    agent = fresh.add_agent(
        linked=False,
        host_alias=("localhost=127.0.0.1", "localhost=127.0.0.2"),
        proxy_server_host=("localhost",),
        proxy_server_port=port,
    )
    fresh.wait(lambda: links_of(agent) == {"s0", "s1"}, "both addresses are linked")
    each_server_reaches(fresh)


def test_two_servers_behind_one_address(fresh: Stack) -> None:
    one, two = two_servers(fresh, server_count=2)
    with round_robin([one.agent_port, two.agent_port]) as port:
        agent = fresh.add_agent(linked=False, proxy_server_port=port)
        fresh.wait(lambda: links_of(agent) == {"one", "two"}, "both servers are linked")
        assert fresh.snapshot(agent)["knownServers"] == 2
        each_server_reaches(fresh)
        fresh.stop(agent)


def test_a_balancer_that_repeats_itself(fresh: Stack) -> None:
    one, two = two_servers(fresh, server_count=2)
    turns = [one.agent_port] * 5 + [two.agent_port]
    with round_robin(turns) as port:
        agent = fresh.add_agent(linked=False, proxy_server_port=port)
        fresh.wait(lambda: links_of(agent) == {"one", "two"}, "both servers are linked")
        # A second link to the same server is closed, not kept.
        fresh.wait(lambda: len(one.agents) == len(two.agents) == 1, "one link to each")
        fresh.stop(agent)


def test_a_server_that_comes_back_is_linked_again(fresh: Stack) -> None:
    port = free_port()
    first = fresh.add_server(agent_port=port)
    agent = fresh.add_agent()
    fresh.stop(first)
    fresh.wait(lambda: not links_of(agent), "the agent knows")
    second = fresh.add_server(agent_port=port)
    fresh.wait(lambda: links_of(agent) == {second.id}, "it links to the new one")
    each_server_reaches(fresh)


def test_dials_are_spread_over_agents(fresh: Stack) -> None:
    fresh.add_server()
    for name in ("a", "b", "c"):
        fresh.add_agent(agent_id=name)
    with Target() as target, contextlib.ExitStack() as opened:
        for _ in range(60):
            opened.enter_context(fresh.tunnel("uds", target.name))
            opened.enter_context(target.accept())
        counts = {agent["id"]: agent["tunnels"] for agent in fresh.snapshot()["agents"]}
    assert sum(counts.values()) == 60
    assert min(counts.values()) > 5, counts


def test_the_agent_that_names_the_host_is_chosen(fresh: Stack) -> None:
    fresh.add_server(proxy_strategies=("destHost", "default"))
    fresh.add_agent(agent_id="any")
    fresh.add_agent(agent_id="named", agent_identifiers="ipv4=127.0.0.1")
    with Target() as target:
        for _ in range(5):
            with fresh.tunnel("uds", target.name), target.accept():
                assert [t["agentId"] for t in fresh.snapshot()["tunnels"]] == ["named"]
            fresh.wait_idle()


def test_one_server_at_two_addresses_is_linked_once_and_left_alone(fresh: Stack) -> None:
    server = fresh.add_server(agent_bind_address="")
    fresh.add_agent(
        proxy_server_host=("127.0.0.1", "127.0.0.2"),
        sync_interval_s=0.001,
        sync_interval_cap_s=0.002,
    )
    fresh.wait(lambda: server.metrics.links_opened == 2, "both addresses are tried")
    fresh.wait(lambda: len(server.links) == 1, "one link is left")
    for _ in range(20):
        each_server_reaches(fresh)
    assert server.metrics.links_opened == 2


def test_only_links_that_said_hello_are_shown(fresh: Stack) -> None:
    server = fresh.add_server()
    fresh.add_agent()
    with socket.create_connection(("127.0.0.1", server.agent_port), 10):
        fresh.wait(lambda: len(server.links) == 2, "a connection that says nothing")
        assert len(fresh.snapshot()["links"]) == 1


class SilentResolver(Resolver):
    """Answers when the test says so."""

    found: Found | None = None

    def lookup(
        self, target: HostPort, found: Found, failed: Failed, client: Hashable = ""
    ) -> Cancel:
        self.found = found
        return nothing


def test_a_draining_agent_waits_for_its_dials(fresh: Stack) -> None:
    fresh.add_server()
    agent = fresh.add_agent()
    resolver = fresh.do(lambda: SilentResolver(agent.loop))
    agent.dialer.resolver = resolver
    with Target() as target, fresh.uds() as client:
        address = literal("127.0.0.1", int(target.name.rpartition(":")[2]))
        client.send(head_for(f"slow.example:{address[1][1]}"))
        fresh.wait(lambda: len(agent.dials) == 1, "the dial is under way")
        draining = fresh.do(lambda: agent.loop.create_task(agent.drain(20)))
        fresh.wait(lambda: agent.draining, "it drains")
        status, text = http_get(agent.health_port, "/readyz")
        assert status == 503 and "draining" in text and not draining.done()
        fresh.do(lambda: resolver.found([address]))  # type: ignore[misc]
        assert b" 200 " in client.read_head()
        with target.accept() as far:
            assert not agent.dials and not draining.done()
            far.half_close()
            client.half_close()
            fresh.wait(draining.done, "the last tunnel ended")
