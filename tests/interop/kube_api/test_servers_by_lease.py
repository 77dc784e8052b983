"""Servers counted by Leases: agents find all of them behind one address, and follow changes."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
from clients import Client, connect_uds, echo_target, free_port, tunnel
from kube.api import Api, write_kubeconfig
from kube_api.relays import Relay
from programs import Program, Programs
from stack import http_get, metric, wait_until

from isthmus.tools.pki.making import PkiFiles

pytestmark = pytest.mark.interop

NAMESPACE = "kube-system"
PREFIX = "konnectivity-proxy-server-"
PATIENCE_S = 60.0
GO = "konnectivity_network_proxy_server_"


class Bed:
    """Servers with Leases of a label of their own, behind a load balancer."""

    def __init__(self, api: Api, programs: Programs, balancer: Relay) -> None:
        self.api = api
        self.programs = programs
        self.balancer = balancer
        self.label = f"k8s-app=test-{uuid.uuid4().hex[:8]}"
        self.servers: dict[str, Program] = {}

    # Servers.

    def uds(self, name: str) -> str:
        return f"{Path(self.programs.uds).parent}/{name}.sock"

    def server(self, name: str, *more: str) -> Program:
        """Start a server and let the balancer know it."""
        started = self.programs.server(f"--server-id={name}", f"--uds-name={self.uds(name)}", *more)
        self.servers[name] = started
        self._balance()
        return started

    def leased(self, name: str, *more: str) -> Program:
        """Start a server that has a Lease."""
        started = self.server(
            name,
            "--enable-lease-controller",
            f"--lease-label={self.label}",
            f"--kubeconfig={self.api.kubeconfig}",
            *more,
        )
        wait_until(lambda: PREFIX + name in self.leases(), f"{name} has a lease")
        return started

    def _balance(self) -> None:
        self.balancer.lead_to(*(s.port("agent_port") for s in self.servers.values()))

    def stop(self, name: str, by: signal.Signals = signal.SIGTERM) -> int:
        """End a server; the balancer hears it before."""
        server = self.servers.pop(name)
        if self.servers:
            self._balance()
        server.signal(by)
        return server.wait_exit()

    def snapshot(self, name: str) -> dict[str, Any]:
        status, text = http_get(self.servers[name].port("admin_port"), "/snapshot")
        assert status == 200
        found: dict[str, Any] = json.loads(text)
        return found

    def agents(self, name: str) -> list[str]:
        """The agents that a server has, one entry for each link."""
        return sorted(link["peerId"] for link in self.snapshot(name)["links"])

    def wait_mesh(self, agents: Sequence[str]) -> None:
        """Wait until every server has every agent, once."""
        for name in list(self.servers):
            wait_until(
                lambda name=name: self.agents(name) == sorted(agents),  # type: ignore[misc]
                f"{name} has {agents}",
                PATIENCE_S,
            )

    # Leases, as kubectl sees them.

    def leases(self) -> dict[str, Any]:
        found = json.loads(
            self.api.kubectl("get", "leases", "-n", NAMESPACE, "-l", self.label, "-o", "json")
        )
        return {item["metadata"]["name"]: item for item in found["items"]}

    # Agents.

    def agent(self, name: str, *more: str) -> Agent:
        """Start an agent that knows the balancer and nothing else."""
        return Agent(self, name, more)

    def counting(self, name: str, *more: str) -> Agent:
        """Start one that counts Leases."""
        return self.agent(
            name,
            "--count-server-leases",
            f"--lease-label-selector={self.label}",
            f"--kubeconfig={self.api.kubeconfig}",
            *more,
        )


class Agent:
    """An agent as a process, and what it says of itself."""

    def __init__(self, bed: Bed, name: str, more: Sequence[str]) -> None:
        self.health_port, self.admin_port = free_port(), free_port()
        self.program = bed.programs.start(
            "agent",
            *bed.programs.agent_flags(bed.balancer.port),
            f"--agent-id={name}",
            f"--health-server-port={self.health_port}",
            f"--admin-server-port={self.admin_port}",
            *more,
        )

    def wait_linked(self) -> None:
        self.program.wait_log("] linked")

    @property
    def known_servers(self) -> int:
        """0 while it has not begun to listen."""
        try:
            said = http_get(self.admin_port, "/snapshot")[1]
        except URLError as exc:
            if not isinstance(exc.reason, ConnectionRefusedError):
                raise
            return 0
        return int(json.loads(said)["knownServers"])

    @property
    def metrics(self) -> str:
        return http_get(self.health_port, "/metrics")[1]


@pytest.fixture
def bed(kube_api: Api, certificates: PkiFiles, tmp_path: Path) -> Iterator[Bed]:
    with ExitStack() as stack:
        balancer = stack.enter_context(Relay([free_port()]))
        programs = stack.enter_context(Programs(certificates, tmp_path))
        yield Bed(kube_api, programs, balancer)


def each_carries(bed: Bed) -> None:
    with echo_target() as target:
        for name in bed.servers:
            client: Client
            with tunnel(connect_uds(bed.uds(name)), target.name) as client:
                client.send(b"hello")
                assert client.read_exactly(5) == b"hello"


def test_a_lease_is_kubernetes_as_konnectivity_writes_it_and_goes_with_its_server(bed: Bed) -> None:
    bed.leased("one")
    lease = bed.leases()[f"{PREFIX}one"]
    key, _, value = bed.label.partition("=")
    assert lease["metadata"]["labels"] == {key: value}
    assert lease["spec"]["holderIdentity"] == "one"
    assert lease["spec"]["leaseDurationSeconds"] == 30
    assert bed.stop("one") == 0
    assert bed.leases() == {}


@pytest.mark.parametrize("kind", ["mux", "grpc"])
def test_agents_that_count_leases_link_to_all_behind_one_address(bed: Bed, kind: str) -> None:
    for name in ("one", "two", "three"):
        bed.leased(name)
    agents = [bed.counting(name, f"--link={kind}") for name in ("a", "b")]
    bed.wait_mesh(["a", "b"])
    assert [agent.known_servers for agent in agents] == [3, 3]
    each_carries(bed)
    assert bed.stop("two") == 0
    for agent in agents:
        wait_until(lambda agent=agent: agent.known_servers == 2, "one is gone")  # type: ignore[misc]
    bed.leased("four")
    bed.wait_mesh(["a", "b"])
    each_carries(bed)
    # Neither polled nor listed twice: one list and one watch told it all.
    text = agents[0].metrics
    answer = '{http_response_code="200",reason=""} 1.0'
    for counted in ("lists", "watches"):
        assert f"konnectivity_network_proxy_agent_lease_{counted}_total{answer}" in text, text


def test_without_leases_agents_follow_what_servers_push(bed: Bed) -> None:
    bed.leased("one")
    agent = bed.agent("a")
    agent.wait_linked()
    assert agent.known_servers == 1
    bed.leased("two")
    bed.wait_mesh(["a"])
    bed.leased("three")
    bed.wait_mesh(["a"])
    assert agent.known_servers == 3
    each_carries(bed)
    assert bed.stop("one") == 0
    wait_until(lambda: agent.known_servers == 2, "the others say that it is gone")
    bed.wait_mesh(["a"])


def test_the_larger_of_leases_and_what_servers_say(bed: Bed) -> None:
    for name in ("one", "two"):
        bed.server(name, "--server-count=2")
    # No Lease counts as one server, as in Go.
    largest = bed.counting("largest", "--server-count-source=max")
    counted = bed.counting("counted")
    for name in ("one", "two"):
        wait_until(lambda name=name: "largest" in bed.agents(name), f"{name} has it")  # type: ignore[misc]
    wait_until(lambda: counted.known_servers == 1, "only Leases count")
    assert largest.known_servers == 2


def test_a_server_that_is_killed_stops_counting_when_its_lease_ends(bed: Bed) -> None:
    bed.leased("one")
    bed.leased("two")
    agent = bed.counting("a")
    bed.wait_mesh(["a"])
    bed.stop("two", signal.SIGKILL)
    assert f"{PREFIX}two" in bed.leases()
    wait_until(lambda: agent.known_servers == 1, "its lease has ended", PATIENCE_S)
    wait_until(lambda: set(bed.leases()) == {f"{PREFIX}one"}, "it is collected", PATIENCE_S)
    bed.wait_mesh(["a"])
    text = http_get(bed.servers["one"].port("health_port"), "/metrics")[1]
    good = '{http_status_code="200",reason=""}'
    assert metric(text, f"{GO}culled_leases_count") == 1
    assert metric(text, f"{GO}lease_delete_total{good}") == 1
    assert metric(text, f"{GO}lease_list_total{good}") > 1
    assert metric(text, f'{GO}lease_list_latency_seconds_count{{http_status_code="200"}}') > 1


def test_servers_and_agents_go_on_while_the_api_is_away(bed: Bed, tmp_path: Path) -> None:
    with Relay([bed.api.port]) as way:
        path = tmp_path / "relayed"
        write_kubeconfig(path, f"https://127.0.0.1:{way.port}", bed.api.ca_cert, bed.api.token)
        relayed = f"--kubeconfig={path}"
        for name in ("one", "two"):
            bed.leased(name, relayed)
        agent = bed.counting("a", relayed)
        bed.wait_mesh(["a"])
        way.cut()
        agent.program.wait_log("request to the Kubernetes API failed")
        each_carries(bed)
        assert agent.known_servers == 2
        # A server that comes meanwhile has no Lease, and serves nevertheless.
        late = bed.server(
            "late", "--enable-lease-controller", f"--lease-label={bed.label}", relayed
        )
        late.wait_log("request to the Kubernetes API failed")
        assert f"{PREFIX}late" not in bed.leases()
        way.mend()
        wait_until(lambda: f"{PREFIX}late" in bed.leases(), "it gets one", PATIENCE_S)
        bed.wait_mesh(["a"])
        agent.program.wait_log("requests to the Kubernetes API succeed again")
        assert agent.known_servers == 3
