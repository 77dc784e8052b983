"""From the nodes to the control plane, the server's part: by real links and real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from clients import LIMIT_S, Client, Target, free_port, full_target
from node_clients import CLIENT, NodeDial, node, refused
from stack import Stack, metric, wait_until

from isthmus.dial.dialers.direct import PermittedOnly
from isthmus.errors import DialFailure
from isthmus.net.connect import Address, Failed
from isthmus.net.resolver import Cancel, Found
from isthmus.programs.server import node_dials
from isthmus.settings.gates import CLUSTER_TO_MASTER
from isthmus.tools.pki.making import PkiFiles
from isthmus.values import HostPort

ON = (f"{CLUSTER_TO_MASTER}=true",)
UNLISTED = "--allowed-destination of this server does not list it"
Record = dict[str, Any]


class Bed:
    """A server with an agent, and one target for each kind of destination."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.address = Target()
        self.name = Target()
        self.network = Target()
        self.unlisted = Target()
        self._seen = 0

    def start(self, **settings: Any) -> None:
        self.stack.add_server(
            feature_gates=ON,
            allowed_destination=(
                f"127.0.0.1:{self.address.port}",
                f"localhost:{self.name.port}",
                f"127.0.0.0/29:{self.network.port}",
            ),
            audit_log_path=str(self.stack.dir / "audit.log"),
            server_id="s-1",
            **settings,
        )
        self.stack.add_agent(agent_id="node-1", feature_gates=ON)

    def aliases(self, **names: Sequence[str]) -> None:
        """What the server's resolver says from now on."""
        dials = self.stack.server.node_dials
        dials.dialer.resolver = PermittedOnly(self.stack.loop, dials.destinations, names)

    def records(self) -> list[Record]:
        """What the audit log says that it did not say before, when nothing goes on any more."""
        self.stack.wait_idle()
        audit = self.stack.server.audit
        assert audit is not None
        wait_until(lambda: audit.log._taken_bytes == audit.log._put_bytes, "all is written")
        path = Path(self.stack.server.settings.audit.log_path)
        lines = path.read_text().splitlines()
        new, self._seen = lines[self._seen :], len(lines)
        return [json.loads(line) for line in new]

    def failures(self, failure: DialFailure) -> float:
        name = "isthmus_server_node_dial_failures_total"
        return metric(self.stack.metrics(), f'{name}{{reason="{failure.name.lower()}"}}')


@pytest.fixture(scope="module", params=["mux", "grpc"])
def running(request: pytest.FixtureRequest, certificates: PkiFiles) -> Iterator[Bed]:
    with Stack(certificates, request.param) as stack:
        bed = Bed(stack)
        with bed.address, bed.name, bed.network, bed.unlisted:
            bed.start()
            yield bed


@pytest.fixture
def bed(running: Bed) -> Iterator[Bed]:
    running.records()
    yield running
    running.stack.wait_idle()
    dials = running.stack.server.node_dials
    assert (len(dials.pending), dials.tunnels) == (0, 0)
    assert not dials.bounds.open and not dials.bounds.pending
    running.aliases()


def exchange(client: Client, far: Client) -> None:
    """Bytes and a half-close each way."""
    client.send(b"u" * 4321)
    client.half_close()
    assert far.read_to_end() == b"u" * 4321
    far.send(b"d" * 12345)
    far.half_close()
    assert client.read_to_end() == b"d" * 12345


# What is permitted.


def test_an_address_that_is_listed(bed: Bed) -> None:
    with node(bed.stack, "127.0.0.1", bed.address.port) as client, bed.address.accept() as far:
        exchange(client, far)
    begin, end = bed.records()
    link = next(iter(bed.stack.server.agents))
    assert begin | {"time": "", "startTime": "", "connectionId": ""} == {
        "time": "",
        "stage": "Begin",
        "connectionId": "",
        "serverId": "s-1",
        "frontend": "agent",
        "client": link.peer_address,
        "requester": {"name": link.identity.name, "kind": "certificate"}
        | ({"groups": list(link.identity.groups)} if link.identity.groups else {}),
        "claimed": begin["claimed"],
        "destination": f"127.0.0.1:{bed.address.port}",
        "address": f"127.0.0.1:{bed.address.port}",
        "agentId": "node-1",
        "linkId": link.id,
        "decision": "allow",
        "rule": f"127.0.0.1:{bed.address.port}",
        "startTime": "",
    }
    assert begin["claimed"]["believed"] is False
    assert (end["bytesToTarget"], end["bytesToClient"]) == (4321, 12345)
    assert (end["ending"], end["endedBy"]) == ("closed", "both")


def test_who_connected_at_the_agent_is_what_the_agent_says(bed: Bed) -> None:
    with node(bed.stack, "127.0.0.1", bed.address.port), bed.address.accept():
        pass
    begin, _ = bed.records()
    assert begin["claimed"] == {"believed": False, "client": CLIENT}
    assert begin["requester"]["name"] != CLIENT


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "localhost."])
def test_a_name_that_is_listed(bed: Bed, host: str) -> None:
    with node(bed.stack, host, bed.name.port) as client, bed.name.accept() as far:
        exchange(client, far)
    begin, _ = bed.records()
    assert begin["rule"] == f"localhost:{bed.name.port}"
    assert begin["address"] == f"127.0.0.1:{bed.name.port}"


def test_of_a_name_that_is_not_listed_only_addresses_that_are(bed: Bed) -> None:
    asked: list[list[str]] = []

    class Watched(PermittedOnly):
        def lookup(
            self, target: HostPort, found: Found, failed: Failed, client: Hashable = ""
        ) -> Cancel:
            def saw(addresses: Sequence[Address]) -> None:
                asked.append([address[0] for _, address in addresses])
                found(addresses)

            return super().lookup(target, saw, failed, client)

    dials = bed.stack.server.node_dials
    names = {"api.internal": ["192.0.2.1", "127.0.0.9", "127.0.0.1", "::ffff:127.0.0.3"]}
    dials.dialer.resolver = Watched(bed.stack.loop, dials.destinations, names)
    with node(bed.stack, "api.internal", bed.network.port) as client, bed.network.accept() as far:
        exchange(client, far)
    assert asked == [["127.0.0.1", "::ffff:127.0.0.3"]]
    begin, _ = bed.records()
    assert begin["rule"] == f"127.0.0.0/29:{bed.network.port}"
    assert begin["destination"] == f"api.internal:{bed.network.port}"


def test_a_name_is_resolved_once(bed: Bed) -> None:
    """What answers otherwise the second time gains nothing."""
    answers = iter([["127.0.0.1"], ["127.0.0.200"]])
    dials = bed.stack.server.node_dials

    class Rebinding(PermittedOnly):
        def lookup(
            self, target: HostPort, found: Found, failed: Failed, client: Hashable = ""
        ) -> Cancel:
            self._aliases = {target.host: tuple((it, 0) for it in next(answers))}
            return super().lookup(target, found, failed, client)

    dials.dialer.resolver = Rebinding(bed.stack.loop, dials.destinations)
    with node(bed.stack, "rebinds.example", bed.network.port), bed.network.accept():
        pass
    assert list(answers) == [["127.0.0.200"]]


def test_a_mapped_address_is_the_one_that_it_maps(bed: Bed) -> None:
    with node(bed.stack, "::ffff:7f00:1", bed.address.port), bed.address.accept():
        pass
    begin, _ = bed.records()
    assert begin["address"] == f"127.0.0.1:{bed.address.port}"


# What is denied.


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "::ffff:127.0.0.1"])
def test_what_is_not_listed_is_denied(bed: Bed, host: str) -> None:
    before = bed.failures(DialFailure.DENIED)
    failure, detail = refused(bed.stack, host, bed.unlisted.port)
    assert failure is DialFailure.DENIED
    assert host in detail and str(bed.unlisted.port) in detail and detail.endswith(UNLISTED)
    [record] = bed.records()
    assert (record["stage"], record["decision"]) == ("Refused", "deny")
    assert (record["rule"], record["failure"]) == ("(unlisted)", "denied by policy")
    assert record["agentId"] == "node-1" and record["reason"] == detail
    assert bed.failures(DialFailure.DENIED) == before + 1


@pytest.mark.parametrize(
    "host", ["0x7f.1", "2130706433", "0177.1", "127.1", "127.0.0.1.", "*", " "]
)
def test_odd_spellings_of_a_listed_address_are_denied(bed: Bed, host: str) -> None:
    before = bed.failures(DialFailure.DENIED)
    failure, detail = refused(bed.stack, host, bed.address.port)
    assert failure is DialFailure.DENIED
    # A gRPC link has one text for both.
    asked = f"{host!r} port {bed.address.port}", repr(f"{host}:{bed.address.port}")
    [record] = bed.records()
    assert record["destination"] == asked[bed.stack.link == "grpc"]
    assert detail == f"{record['destination']}: {UNLISTED}" == record["reason"]
    assert (record["stage"], record["decision"]) == ("Refused", "deny")
    assert bed.failures(DialFailure.DENIED) == before + 1


def test_a_listed_host_with_another_port_is_denied(bed: Bed) -> None:
    assert refused(bed.stack, "127.0.0.1", bed.name.port)[0] is DialFailure.DENIED
    assert refused(bed.stack, "localhost", bed.unlisted.port)[0] is DialFailure.DENIED


@pytest.mark.parametrize("to", [["192.0.2.1"], ["127.0.0.8", "::1"], None])
def test_what_a_name_resolves_to_is_not_told(bed: Bed, to: list[str] | None) -> None:
    """Nor whether there is such a name."""
    if to is not None:
        bed.aliases(**{"secret.invalid": to})
    failure, detail = refused(bed.stack, "secret.invalid", bed.network.port)
    assert failure is DialFailure.DENIED
    assert detail == f"secret.invalid:{bed.network.port}: {UNLISTED}"
    [record] = bed.records()
    assert record["reason"] == detail
    assert "address" not in record


def test_a_name_that_no_address_could_permit_is_not_even_resolved(bed: Bed) -> None:
    class Never(PermittedOnly):
        def lookup(
            self, target: HostPort, found: Found, failed: Failed, client: Hashable = ""
        ) -> Cancel:
            raise AssertionError("looked up")

    dials = bed.stack.server.node_dials
    dials.dialer.resolver = Never(bed.stack.loop, dials.destinations)
    assert refused(bed.stack, "any.example", bed.unlisted.port)[0] is DialFailure.DENIED


def test_denials_are_logged_once_in_a_while(
    certificates: PkiFiles, caplog: pytest.LogCaptureFixture
) -> None:
    with Stack(certificates) as stack, Target() as target:
        stack.add_server(feature_gates=ON, allowed_destination=("localhost:1",))
        stack.add_agent(agent_id="node-1", feature_gates=ON)
        for _ in range(5):
            refused(stack, "127.0.0.1", target.port)
        said = [it for it in caplog.records if "denied a dial from a node" in it.getMessage()]
        assert len(said) == 1 and said[0].levelno == logging.WARNING
        assert said[0].fields["destination"] == target.name  # type: ignore[attr-defined]
        assert said[0].fields["agent_id"] == "node-1"  # type: ignore[attr-defined]
        assert stack.server.once.suppressed == 4


@pytest.mark.parametrize("link", ["mux", "grpc"])
def test_with_the_gate_off_everything_is_denied(
    certificates: PkiFiles, link: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Stack(certificates, link) as stack, Target() as target:
        stack.add_server(
            allowed_destination=(target.name,), audit_log_path=str(stack.dir / "audit.log")
        )
        stack.add_agent(agent_id="node-1", feature_gates=ON)
        failure, detail = refused(stack, "127.0.0.1", target.port)
        assert failure is DialFailure.DENIED
        assert "EnableClusterToMasterTraffic is off at this server" in detail
        name = "isthmus_server_node_dial_failures_total"
        assert metric(stack.metrics(), f'{name}{{reason="denied"}}') == 1
        assert any("--allowed-destination has no effect" in it for it in caplog.messages)
        said = [it for it in caplog.records if "is on at this agent and off" in it.getMessage()]
        assert len(said) == 1 and said[0].levelno == logging.WARNING


def test_a_gate_on_one_side_only_is_said_once_and_not_at_every_link(
    certificates: PkiFiles, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with Stack(certificates) as stack:
        stack.add_server(feature_gates=ON, allowed_destination=("localhost:1",))
        agent = stack.add_agent(agent_id="node-1")
        opened = stack.server.metrics.links_opened
        link = next(iter(stack.server.agents))
        stack.do(lambda: link.lost("cut by the test"))
        stack.wait(lambda: stack.server.metrics.links_opened > opened, "it links again")
        said = [it for it in caplog.messages if "is on at this server and off at this agent" in it]
        assert len(said) == 1
        stack.stop(agent)
        stack.add_agent(agent_id="node-1", feature_gates=ON)
        assert not any("is off" in it for it in caplog.messages[-1:])


# What becomes of a tunnel.


def test_a_reset_of_the_node_is_one_at_the_destination(bed: Bed) -> None:
    client = node(bed.stack, "127.0.0.1", bed.address.port)
    with bed.address.accept() as far:
        client.send(b"x")
        assert far.read_exactly(1) == b"x"
        client.reset()
        with pytest.raises(ConnectionResetError):
            far.recv()
    _, end = bed.records()
    assert (end["ending"], end["endedBy"]) == ("reset by peer", "client")


def test_a_reset_of_the_destination_is_one_at_the_node(bed: Bed) -> None:
    with node(bed.stack, "127.0.0.1", bed.address.port) as client:
        far = bed.address.accept()
        far.send(b"x")
        assert client.read_exactly(1) == b"x"
        far.reset()
        with pytest.raises(ConnectionResetError):
            client.recv()
    _, end = bed.records()
    assert (end["ending"], end["endedBy"]) == ("reset by peer", "target")


def test_a_destination_that_refuses(bed: Bed, certificates: PkiFiles) -> None:
    port = free_port()
    with Stack(certificates, bed.stack.link) as stack:
        stack.add_server(feature_gates=ON, allowed_destination=(f"127.0.0.1:{port}",))
        stack.add_agent(feature_gates=ON)
        failure, detail = refused(stack, "127.0.0.1", port)
        assert failure is DialFailure.REFUSED and ("ECONNREFUSED" in detail or "refused" in detail)


# Dials under way.


@pytest.fixture
def slow(certificates: PkiFiles) -> Iterator[tuple[Bed, Target]]:
    """A server whose one destination never answers."""
    with full_target() as target, Stack(certificates) as stack:
        bed = Bed(stack)
        stack.add_server(
            feature_gates=ON,
            allowed_destination=(target.name,),
            audit_log_path=str(stack.dir / "audit.log"),
        )
        stack.add_agent(feature_gates=ON)
        with bed.address, bed.name, bed.network, bed.unlisted:
            yield bed, target


def pending(bed: Bed, number: int) -> None:
    dials = bed.stack.server.node_dials
    bed.stack.wait(lambda: len(dials.pending) == number, f"{number} dials are under way")


def test_a_dial_that_is_taken_back_is_given_up(slow: tuple[Bed, Target]) -> None:
    bed, target = slow
    dial = NodeDial(bed.stack, "127.0.0.1", target.port)
    pending(bed, 1)
    assert metric(bed.stack.metrics(), "isthmus_server_node_pending_dials") == 1
    dial.take_back()
    pending(bed, 0)
    [record] = bed.records()
    assert (record["stage"], record["decision"]) == ("Failed", "allow")
    assert record["reason"] == "the agent cancelled it before the answer"


def test_a_dial_whose_link_is_lost_is_given_up(slow: tuple[Bed, Target]) -> None:
    bed, target = slow
    dial = NodeDial(bed.stack, "127.0.0.1", target.port)
    pending(bed, 1)
    link = next(iter(bed.stack.server.agents))
    bed.stack.do(lambda: link.lost("cut by the test"))
    assert dial.answer() is None
    pending(bed, 0)
    assert not bed.stack.server.node_dials.bounds.open


def test_a_dial_has_its_own_time_limit(slow: tuple[Bed, Target]) -> None:
    bed, target = slow
    bed.stack.server.node_dials.limit_s = 3600.0
    dial = NodeDial(bed.stack, "127.0.0.1", target.port, timeout_s=0.05)
    assert dial.refusal()[0] is DialFailure.TIMED_OUT
    assert bed.failures(DialFailure.TIMED_OUT) == 1


def test_the_server_has_a_time_limit_too(certificates: PkiFiles) -> None:
    with full_target() as target, Stack(certificates) as stack:
        stack.add_server(
            feature_gates=ON, allowed_destination=(target.name,), backend_dial_timeout_s=0.05
        )
        stack.add_agent(feature_gates=ON)
        assert refused(stack, "127.0.0.1", target.port)[0] is DialFailure.TIMED_OUT


@pytest.mark.parametrize(
    ("bound", "sentence"),
    [("most", "this server already has 2"), ("most_per_link", "this agent already has 2")],
)
def test_there_are_bounds(slow: tuple[Bed, Target], bound: str, sentence: str) -> None:
    bed, target = slow
    setattr(bed.stack.server.node_dials.bounds, bound, 2)
    with (
        NodeDial(bed.stack, "127.0.0.1", target.port),
        NodeDial(bed.stack, "127.0.0.1", target.port),
    ):
        pending(bed, 2)
        failure, detail = refused(bed.stack, "127.0.0.1", target.port)
        assert failure is DialFailure.TOO_MANY and detail.startswith(sentence)
    pending(bed, 0)
    with NodeDial(bed.stack, "127.0.0.1", target.port):
        pending(bed, 1)


def test_an_agent_that_asks_and_takes_back_without_end_is_refused_and_fills_no_log(
    slow: tuple[Bed, Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_dials, "BURST_PER_LINK", 5)
    monkeypatch.setattr(node_dials, "PER_S_PER_LINK", 1e-6)
    bed, target = slow
    for _ in range(5):
        with NodeDial(bed.stack, "127.0.0.1", target.port):
            pending(bed, 1)
        pending(bed, 0)
    before = bed.failures(DialFailure.TOO_MANY)
    for _ in range(20):
        failure, detail = refused(bed.stack, "127.0.0.1", target.port)
        assert failure is DialFailure.TOO_MANY and "per second" in detail
    assert bed.failures(DialFailure.TOO_MANY) == before + 20
    assert len(bed.records()) == 5


def test_open_tunnels_count_for_the_bounds(bed: Bed) -> None:
    bounds = bed.stack.server.node_dials.bounds
    most, bounds.most = bounds.most, 1
    try:
        with node(bed.stack, "127.0.0.1", bed.address.port), bed.address.accept():
            failure, _ = refused(bed.stack, "127.0.0.1", bed.address.port)
            assert failure is DialFailure.TOO_MANY
            assert metric(bed.stack.metrics(), "isthmus_server_node_tunnels") == 1
    finally:
        bounds.most = most


def test_a_server_that_stops_gives_up_what_is_under_way(slow: tuple[Bed, Target]) -> None:
    bed, target = slow
    dial = NodeDial(bed.stack, "127.0.0.1", target.port)
    pending(bed, 1)
    bed.stack.stop(bed.stack.server)
    answer = dial.answer()
    assert answer is None or answer.detail == "server is stopping"


def test_a_server_that_drains_waits_for_what_is_under_way(slow: tuple[Bed, Target]) -> None:
    bed, target = slow
    server = bed.stack.server
    dial = NodeDial(bed.stack, "127.0.0.1", target.port)
    pending(bed, 1)
    draining = asyncio.run_coroutine_threadsafe(server.drain(LIMIT_S), bed.stack.loop)
    with pytest.raises(TimeoutError):
        draining.result(0.2)
    dial.take_back()
    draining.result(LIMIT_S)


@pytest.mark.parametrize("link", ["mux", "grpc"])
def test_tunnels_of_nodes_are_drained_like_all_others(certificates: PkiFiles, link: str) -> None:
    with Stack(certificates, link) as stack, Target() as target:
        server = stack.add_server(feature_gates=ON, allowed_destination=(target.name,))
        stack.add_agent(feature_gates=ON)
        with node(stack, "127.0.0.1", target.port) as client, target.accept() as far:
            draining = asyncio.run_coroutine_threadsafe(server.drain(LIMIT_S), stack.loop)
            stack.wait(lambda: server.draining, "it drains")
            client.send(b"still here")
            assert far.read_exactly(10) == b"still here"
            assert not draining.done()
            exchange(client, far)
            draining.result(LIMIT_S)


# What is shown.


def test_snapshot_and_metrics_show_gates_destinations_and_tunnels(bed: Bed) -> None:
    with node(bed.stack, "127.0.0.1", bed.address.port), bed.address.accept():
        shown = bed.stack.snapshot()
        text = bed.stack.metrics()
    assert shown["featureGates"] == [{"name": CLUSTER_TO_MASTER, "stage": "ALPHA", "enabled": True}]
    assert shown["allowedDestinations"] == [
        f"127.0.0.1:{bed.address.port}",
        f"localhost:{bed.name.port}",
        f"127.0.0.0/29:{bed.network.port}",
    ]
    [tunnel] = shown["tunnels"]
    assert (tunnel["frontend"], tunnel["agentId"]) == ("agent", "node-1")
    labels = f'{{name="{CLUSTER_TO_MASTER}",stage="ALPHA"}}'
    assert metric(text, f"kubernetes_feature_enabled{labels}") == 1
    assert metric(text, "isthmus_server_node_tunnels") == 1
    # What konnectivity counts are dials of kube-apiserver's.
    assert metric(text, "konnectivity_network_proxy_server_dial_duration_seconds_count") == 0
