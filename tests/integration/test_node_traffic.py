"""From the nodes to the control plane, with real programs in a network of their own (KEP-2025)."""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import threading
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

import pytest
from clients import LIMIT_S, MIB, Client, Target, echo_target, free_port, receive_all, send_all
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from own_network import needs_root, own_network
from stack import Agent, Server, Stack, http_get, metric, wait_until

from isthmus.errors import ConfigError
from isthmus.frame.observe.tracing import Tracing
from isthmus.net import host_address
from isthmus.net.settings_bind import INTERFACE
from isthmus.programs.agent import node_traffic

pytestmark = needs_root

GATE = ("EnableClusterToMasterTraffic=true",)
ADDRESS = "10.96.0.1"
PORT = 6443


@pytest.fixture(scope="module", autouse=True)
def network() -> Iterator[None]:
    with own_network():
        yield


@pytest.fixture(scope="module", params=["mux", "grpc"])
def link(request: pytest.FixtureRequest) -> str:
    """Everything here holds over both."""
    return str(request.param)


def add_server(stack: Stack, destination: str, **settings: Any) -> Server:
    """A server with the gate that permits one destination."""
    given = {"feature_gates": GATE, "allowed_destination": (destination,)}
    return stack.add_server(**(given | settings))


def add_agent(stack: Stack, destination: str, **settings: Any) -> Agent:
    """An agent with the gate and one target."""
    given = {
        "feature_gates": GATE,
        "bind_address": (ADDRESS,),
        "target": (f"{PORT}:{destination}",),
    }
    return stack.add_agent(**(given | settings))


def listening(stack: Stack, agent: Agent) -> None:
    """Wait until the agent accepts connections from the node."""
    stack.wait(lambda: agent.node is not None and len(agent.node.listeners()) > 0, "it listens")


def connect(address: str = ADDRESS, port: int = PORT) -> Client:
    """Connect as a program of the node does."""
    return Client(socket.create_connection((address, port), LIMIT_S))


def addresses() -> str:
    """What addresses the network has."""
    done = subprocess.run(["ip", "address"], capture_output=True, text=True, timeout=LIMIT_S)
    return done.stdout


def is_refused() -> bool:
    """Nobody listens."""
    try:
        connect().close()
    except ConnectionError:
        return True
    return False


def is_reset(client: Client) -> bool:
    """The next thing that comes is a reset; not an end of file."""
    with client:
        try:
            assert client.recv() == b"", "bytes"
        except ConnectionResetError:
            return True
    return False


def meets_reset(port: int = PORT) -> bool:
    """A connection is accepted, and reset; perhaps before the one who connects looks."""
    try:
        return is_reset(connect(port=port))
    except ConnectionResetError:
        return True


@contextlib.contextmanager
def serving(stack: Stack, **settings: Any) -> Iterator[tuple[Target, Agent]]:
    """A destination, a server that permits it and an agent that leads there."""
    with Target() as target:
        add_server(stack, target.name)
        agent = add_agent(stack, target.name, **settings)
        listening(stack, agent)
        yield target, agent
        stack.wait_idle()


def test_a_connection_reaches_the_destination_and_is_shown(fresh: Stack) -> None:
    with serving(fresh) as (target, agent):
        with connect() as client:
            client.send(b"hello")
            with target.accept() as far:
                assert far.read_exactly(5) == b"hello"
                far.send(b"and back")
                assert client.read_exactly(8) == b"and back"
                shown = fresh.snapshot(agent)
                (tunnel,) = shown["tunnels"]
                assert tunnel["frontend"] == "node" and tunnel["target"] == target.name
                ours = client.sock.getsockname()
                assert tunnel["requester"] == f"address:{ours[0]}:{ours[1]}"
                (there,) = fresh.snapshot()["tunnels"]
                assert there["connectionId"] == tunnel["connectionId"] != ""
                node = shown["nodeTraffic"]
                assert node["address"] == ADDRESS and node["open"] == 1 and node["listening"]
                assert node["targets"] == [{"localPort": PORT, "destination": target.name}]
                assert [each["carries"] for each in node["servers"]] == ["yes"]
                assert shown["featureGates"][0]["enabled"] is True
                scraped = fresh.metrics(agent)
                count = "isthmus_agent_node_connections"
                assert metric(scraped, f'{count}{{state="open"}}') == 1
                assert metric(scraped, f'{count}_total{{result="joined"}}') == 1
                # What konnectivity counts are connections to endpoints, of which there is none.
                go = "konnectivity_network_proxy_agent_open_endpoint_connections"
                assert metric(scraped, go) == 0
                gate = 'name="EnableClusterToMasterTraffic",stage="ALPHA"'
                assert metric(scraped, f"kubernetes_feature_enabled{{{gate}}}") == 1
        status, text = http_get(agent.health_port, "/readyz?verbose")
        assert status == 200 and "node-listeners" in text
        assert "listener:10.96.0.1:6443" in http_get(agent.health_port, "/livez?verbose")[1]


def test_both_directions_at_once_with_checksums(fresh: Stack) -> None:
    total = 24 * MIB
    with serving(fresh) as (target, _), connect() as client, target.accept() as far:
        sums: dict[str, object] = {}

        def work(name: str, call: Any, *args: Any) -> threading.Thread:
            def run() -> None:
                sums[name] = call(*args)

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        threads = [
            work("up", send_all, client, 1, total),
            work("down", send_all, far, 2, total),
            work("up came", receive_all, far),
            work("down came", receive_all, client),
        ]
        for thread in threads:
            thread.join(60)
        assert sums["up came"] == (total, sums["up"])
        assert sums["down came"] == (total, sums["down"])


def test_a_half_close_is_kept_both_ways(fresh: Stack) -> None:
    with serving(fresh) as (target, _):
        with connect() as client, target.accept() as far:
            client.send(b"question")
            client.half_close()
            assert far.read_to_end() == b"question"
            far.send(b"answer")
            far.half_close()
            assert client.read_to_end() == b"answer"
        with connect() as client, target.accept() as far:
            far.send(b"first word")
            far.half_close()
            assert client.read_to_end() == b"first word"
            client.send(b"last word")
            client.half_close()
            assert far.read_to_end() == b"last word"


def test_a_reset_is_kept_both_ways(fresh: Stack) -> None:
    with serving(fresh) as (target, _):
        client = connect()
        far = target.accept()
        client.send(b"x")
        assert far.read_exactly(1) == b"x"
        client.reset()
        assert is_reset(far)
        client = connect()
        far = target.accept()
        far.send(b"x")
        assert client.read_exactly(1) == b"x"
        far.reset()
        assert is_reset(client)


def test_what_the_server_does_not_list_is_reset_at_once(fresh: Stack) -> None:
    with Target() as target, Target() as other:
        add_server(fresh, other.name)
        agent = add_agent(fresh, target.name)
        listening(fresh, agent)
        assert meets_reset()
        count = 'isthmus_agent_node_connections_total{result="denied"}'
        assert metric(fresh.metrics(agent), count) == 1


def test_it_is_not_ready_while_every_connection_is_denied(fresh: Stack) -> None:
    with Target() as target, Target() as other:
        add_server(fresh, other.name)
        agent = add_agent(fresh, target.name)
        listening(fresh, agent)
        ready = "isthmus_agent_node_traffic_ready"
        for _ in range(4):
            assert meets_reset()
        assert http_get(agent.health_port, "/readyz")[0] == 200
        assert metric(fresh.metrics(agent), ready) == 1
        assert meets_reset()
        status, text = http_get(agent.health_port, "/readyz?verbose")
        assert status == 503
        assert f"the server denied the last 5 connections of the node, to {target.name}" in text
        assert metric(fresh.metrics(agent), ready) == 0
        assert "denied the last 5" in fresh.snapshot(agent)["nodeTraffic"]["waitsFor"]


def test_a_refused_destination_is_a_reset(fresh: Stack) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    add_server(fresh, nobody)
    agent = add_agent(fresh, nobody)
    listening(fresh, agent)
    assert meets_reset()
    count = 'isthmus_agent_node_connections_total{result="failed"}'
    assert metric(fresh.metrics(agent), count) == 1


def test_nothing_listens_before_a_server_is_there(fresh: Stack) -> None:
    with Target() as target:
        agent = add_agent(fresh, target.name, linked=False, proxy_server_port=1)
        assert ADDRESS in addresses()
        status, text = http_get(agent.health_port, "/readyz")
        said = "waits for a server that carries node traffic: none is connected"
        assert status != 200 and said in text
        assert is_refused()
        assert fresh.snapshot(agent)["nodeTraffic"]["waitsFor"] == said
        fresh.stop(agent)
        assert ADDRESS not in addresses()


def test_it_waits_until_a_server_comes(fresh: Stack) -> None:
    with Target() as target:
        server = add_server(fresh, target.name)
        port = server.agent_port
        agent = add_agent(fresh, target.name)
        listening(fresh, agent)
        fresh.stop(server)
        with connect() as client:
            client.send(b"patience")
            node = agent.node
            assert node is not None
            fresh.wait(lambda: node.connections.waiting == 1, "it waits")
            add_server(fresh, target.name, agent_port=port)
            with target.accept() as far:
                assert far.read_exactly(8) == b"patience"
        fresh.wait_idle()


def test_it_waits_and_none_comes(fresh: Stack) -> None:
    with Target() as target:
        server = add_server(fresh, target.name)
        agent = add_agent(fresh, target.name, target_wait_s=0.1)
        listening(fresh, agent)
        fresh.stop(server)
        assert meets_reset()  # the port stays open
        count = 'isthmus_agent_node_connections_total{result="no_server"}'
        assert metric(fresh.metrics(agent), count) == 1


def two_servers(stack: Stack, target: Target, **second: Any) -> None:
    """Start two servers that agents find at two addresses, at the same port."""
    port = add_server(stack, target.name).agent_port
    add_server(stack, target.name, agent_bind_address="127.0.0.2", agent_port=port, **second)


def both_linked(stack: Stack, agent: Agent) -> None:
    stack.wait(lambda: agent.servers is not None and len(agent.servers.links) == 2, "two links")
    listening(stack, agent)


def test_a_server_that_ends_while_it_dials_is_replaced(fresh: Stack) -> None:
    # The kernel answers nobody while the queue is full, so that the first server's dial hangs.
    with Target(backlog=0) as target, Client(socket.socket()) as filler:
        filler.sock.connect(("127.0.0.1", target.port))
        two_servers(fresh, target)
        hosts = ("127.0.0.1", "127.0.0.2")
        agent = add_agent(fresh, target.name, proxy_server_host=hosts, dial_timeout_s=LIMIT_S)
        both_linked(fresh, agent)
        with connect() as client:
            client.send(b"anybody")

            def load(server: Server) -> int:
                return sum(link.load for link in server.links)

            fresh.wait(lambda: any(map(load, fresh.servers)), "one is asked")
            asked = [load(server) for server in fresh.servers]
            assert sorted(asked) == [0, 1]
            fresh.stop(fresh.servers[asked.index(1)])
            fresh.wait(lambda: load(fresh.server) == 1, "the other is asked")
            target.accept().close()  # makes room; the kernel asks again by itself
            with target.accept() as far:
                assert far.read_exactly(7) == b"anybody"
        fresh.wait_idle()


def test_a_server_without_the_gate_is_said_and_not_asked(
    fresh: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "isthmus.agent"), echo_target() as target:
        two_servers(fresh, target, feature_gates=(), allowed_destination=())
        agent = add_agent(fresh, target.name, proxy_server_host=("127.0.0.1", "127.0.0.2"))
        both_linked(fresh, agent)
        for _ in range(10):
            with connect() as client:
                client.send(b"x")
                assert client.read_exactly(1) == b"x"
        off = fresh.servers[1]
        (line,) = [
            record
            for record in caplog.records
            if record.getMessage().startswith("the feature gate EnableClusterToMasterTraffic is on")
        ]
        assert line.getMessage().endswith(
            "is on here and off at the server: it carries no connections from this node"
        )
        assert vars(line)["fields"]["server_id"] == off.id
        states = fresh.snapshot(agent)["nodeTraffic"]["servers"]
        assert {each["serverId"]: each["carries"] for each in states} == {
            fresh.server.id: "yes",
            off.id: "no",
        }
        fresh.stop(fresh.server)
        fresh.wait(lambda: agent.servers is not None and len(agent.servers.links) == 1, "one link")
        text = http_get(agent.health_port, "/readyz?verbose")[1]
        assert f"it is off at {off.id}" in text
        fresh.wait_idle()


def test_two_hundred_at_once(fresh: Stack) -> None:
    with echo_target() as target:
        add_server(fresh, target.name)
        agent = add_agent(fresh, target.name)
        listening(fresh, agent)
        with contextlib.ExitStack() as opened:
            clients = [opened.enter_context(connect()) for _ in range(200)]
            for number, client in enumerate(clients):
                client.send(b"%04d" % number)
            for number, client in enumerate(clients):
                assert client.read_exactly(4) == b"%04d" % number
            node = agent.node
            assert node is not None
            assert fresh.do(lambda: (node.connections.waiting, node.connections.open)) == (0, 200)
        fresh.wait_idle()
        assert fresh.do(lambda: node.connections.open) == 0


def test_two_agents_of_one_node_cannot_have_one_port(fresh: Stack) -> None:
    with Target() as target:
        add_server(fresh, target.name)
        agent = add_agent(fresh, target.name)
        with pytest.raises(ConfigError) as raised:
            add_agent(fresh, target.name)
        assert str(raised.value) == (
            f"--target {PORT}:{target.name}: cannot listen on {ADDRESS}:{PORT}: another agent or"
            " program on this node uses that port"
        )
        assert ADDRESS in addresses()  # it is the first one's
        second = add_agent(fresh, target.name, target=(f"7443:{target.name}",))
        listening(fresh, second)
        fresh.stop(agent)
        assert ADDRESS in addresses()
        with connect(port=7443) as client, target.accept() as far:
            far.send(b"x")
            assert client.read_exactly(1) == b"x"
        fresh.wait_idle()


def test_an_address_of_ipv6(fresh: Stack) -> None:
    with (
        serving(fresh, bind_address=("fd00:96::1",)) as (target, _),
        connect("fd00:96::1") as client,
        target.accept() as far,
    ):
        client.send(b"six")
        assert far.read_exactly(3) == b"six"


def test_an_address_of_each_family(fresh: Stack) -> None:
    both = (ADDRESS, "fd00:96::1")
    with serving(fresh, bind_address=both) as (target, agent):
        for address in both:
            assert address in addresses()
            with connect(address) as client, target.accept() as far:
                client.send(b"hello")
                assert far.read_exactly(5) == b"hello"
        shown = fresh.snapshot(agent)["nodeTraffic"]
        assert (shown["address"], shown["addresses"]) == (ADDRESS, list(both))
        # One of them is taken away: it is put back, and the other is there all the time.
        where = ["dev", shown["interface"]]
        subprocess.run(["ip", "address", "del", f"{ADDRESS}/32", *where], check=True)
        with connect(both[1]) as client, target.accept() as far:
            far.send(b"x")
            assert client.read_exactly(1) == b"x"
        fresh.wait_idle()
        fresh.stop(agent)
        assert not any(address in addresses() for address in both)


def test_a_second_address_that_is_taken_leaves_nothing_behind(fresh: Stack) -> None:
    subprocess.run(["ip", "address", "add", "fd00:96::2/128", "dev", "lo"], check=True)
    try:
        with Target() as target:
            add_server(fresh, target.name)
            with pytest.raises(ConfigError, match="fd00:96::2 is already an address of lo"):
                add_agent(fresh, target.name, bind_address=(ADDRESS, "fd00:96::2"))
            assert ADDRESS not in addresses()
    finally:
        subprocess.run(["ip", "address", "del", "fd00:96::2/128", "dev", "lo"], check=True)


def test_with_the_gate_off_nothing_is_bound_and_leftovers_go(
    fresh: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    left = host_address.put(ip_address(ADDRESS), interface=INTERFACE)
    left._user.close()  # as the kernel does for an agent that is killed
    assert ADDRESS in addresses()
    with caplog.at_level(logging.INFO, "isthmus.agent"), Target() as target:
        add_server(fresh, target.name)
        agent = add_agent(fresh, target.name, feature_gates=())
        assert agent.node is None
        assert ADDRESS not in addresses()
        assert "--target and --bind-address have no effect" in caplog.text
        assert "is off here and on at the server" in caplog.text
        with fresh.tunnel("uds", target.name) as client, target.accept() as far:
            far.send(b"the other way goes on")
            assert client.read_exactly(5) == b"the o"
        assert "node-listeners" not in http_get(agent.health_port, "/readyz?verbose")[1]
        assert fresh.snapshot(agent)["nodeTraffic"] is None
        fresh.wait_idle()


def test_a_target_without_an_address_serves_only_the_control_plane(
    fresh: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "isthmus.agent"), Target() as target:
        add_server(fresh, target.name)
        agent = add_agent(fresh, target.name, bind_address=())
        assert agent.node is None
        assert "only traffic from the control plane is served" in caplog.text
        with fresh.tunnel("uds", target.name) as client, target.accept() as far:
            far.send(b"x")
            assert client.read_exactly(1) == b"x"
        fresh.wait_idle()


def test_an_agent_that_drains_serves_new_connections_until_the_last_is_done(fresh: Stack) -> None:
    with Target() as target:
        add_server(fresh, target.name)
        agent = add_agent(fresh, target.name)
        listening(fresh, agent)
        with connect() as client, target.accept() as far:
            drained = threading.Thread(target=fresh.run, args=(agent.drain(LIMIT_S),))
            drained.start()
            fresh.wait(lambda: agent.draining, "it drains")
            for _ in range(5):
                with connect() as another, target.accept() as its:
                    another.send(b"anew")
                    assert its.read_exactly(4) == b"anew"
            assert ADDRESS in addresses()
            client.send(b"still here")
            assert far.read_exactly(10) == b"still here"
            assert drained.is_alive()
        drained.join(LIMIT_S)
        # Nobody is let in whose connection the end of the agent would reset.
        assert is_refused()
        fresh.stop(agent)
        assert ADDRESS not in addresses()


def test_a_connection_after_the_drain_of_a_server_is_for_the_next_one(fresh: Stack) -> None:
    with Target() as target:
        server = add_server(fresh, target.name)
        port = server.agent_port
        listening(fresh, add_agent(fresh, target.name))
        (link,) = server.links
        fresh.run(server.drain(LIMIT_S))
        heard = fresh.do(lambda: link.carrier.bytes_in)
        with connect() as client:
            fresh.wait(lambda: link.carrier.bytes_in > heard, "the old server was asked")
            fresh.stop(server)
            add_server(fresh, target.name, agent_port=port)
            with target.accept() as far:
                client.send(b"patient")
                assert far.read_exactly(7) == b"patient"


def test_an_address_that_somebody_takes_away_comes_back(
    fresh: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_traffic, "REFRESH_S", 0.05)
    with serving(fresh) as (target, agent):
        assert agent.node is not None
        interface = agent.node.view().interface
        away = ["ip", "address", "del", f"{ADDRESS}/32", "dev", interface]
        subprocess.run(away, check=True, timeout=LIMIT_S)
        wait_until(lambda: ADDRESS in addresses(), "it is there again")
        with connect() as client, target.accept() as far:
            client.send(b"x")
            assert far.read_exactly(1) == b"x"


def test_it_is_not_ready_while_the_address_cannot_be_put_back(
    fresh: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_traffic, "REFRESH_S", 0.05)
    with serving(fresh) as (_, agent):
        node = agent.node
        assert node is not None and node.waits_for() == ""

        def ip(*args: str) -> None:
            subprocess.run(["ip", *args], check=True, timeout=LIMIT_S)

        # Somebody else has it now.
        ip("link", "add", "other", "type", "bridge")
        try:
            ip("address", "add", f"{ADDRESS}/24", "dev", "other")
            ip("address", "del", f"{ADDRESS}/32", "dev", node.view().interface)
            fresh.wait(lambda: "is already an address of other" in node.waits_for(), "it is said")
            status, body = http_get(agent.health_port, "/readyz?verbose")
            assert status == 503 and "node-listeners failed: --bind-address" in body
        finally:
            ip("link", "del", "other")
        fresh.wait(lambda: node.waits_for() == "", "it is back")


def test_who_comes_in_by_an_uplink_is_reset(fresh: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody does while our rule stands; without it the kernel names the interface.
    with serving(fresh) as (_, agent):
        monkeypatch.setattr(host_address.HostAddress, "uplink_of", lambda self, sock: "eth0")
        assert meets_reset()
        count = 'isthmus_agent_node_connections_total{result="outside"}'
        assert metric(fresh.metrics(agent), count) == 1


def test_an_address_that_cannot_be_taken_away_is_said_and_keeps_nobody(
    fresh: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(fresh) as (_, agent):
        take_away = host_address.HostAddress.take_away

        def refuse(self: host_address.HostAddress) -> None:
            take_away(self)
            raise ConfigError("the firewall refuses")

        monkeypatch.setattr(host_address.HostAddress, "take_away", refuse)
        fresh.stop(agent)
        assert "cannot remove the address" in caplog.text


# Traces.


def test_a_trace_begins_at_the_agent_and_goes_on_at_the_server(
    fresh: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    nobody = f"127.0.0.1:{free_port()}"
    with Target() as target:
        add_server(fresh, target.name, allowed_destination=(target.name, nobody))
        agent = add_agent(fresh, "", target=(f"{PORT}:{target.name}", f"{PORT + 1}:{nobody}"))
        listening(fresh, agent)
        for program in (fresh.server, agent):
            monkeypatch.setattr(program, "tracing", Tracing(provider))
        with connect() as client, target.accept() as far:
            client.send(b"x")
            assert far.read_exactly(1) == b"x"
        spans = {span.name: span for span in kept.get_finished_spans()}
        assert set(spans) == {f"isthmus.{it}" for it in ("dial", "choose", "ask", "connect")}
        dial, asked, servers = (spans[f"isthmus.{it}"] for it in ("dial", "ask", "connect"))
        said = dict(dial.attributes or {})
        assert said["isthmus.frontend"] == "node" and said["server.port"] == target.port
        assert said["isthmus.agent_id"] == agent.id
        assert said["network.peer.address"] == target.name
        assert said["isthmus.connection_id"] == (servers.attributes or {})["isthmus.connection_id"]
        assert asked.context is not None and servers.parent is not None
        assert servers.parent.span_id == asked.context.span_id
        kept.clear()
        assert meets_reset(PORT + 1)
        fresh.wait_idle()
        errors = {
            it.name: (it.attributes or {}).get("error.type") for it in kept.get_finished_spans()
        }
        assert [errors[f"isthmus.{it}"] for it in ("dial", "ask", "connect")] == ["refused"] * 3
