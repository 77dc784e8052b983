"""Agents that prove who they are by a token: real servers, real agents, a real kube-apiserver."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clients import free_port, tunnel
from konnpeers import GoPeer, Peers
from kube.api import Api, write_kubeconfig
from kube_api.relays import Relay
from programs import Program
from stack import http_get, metric, wait_until

pytestmark = pytest.mark.interop

AUDIENCE = "system:konnectivity-server"
AGENT = "konnectivity-agent"
ACCOUNT = f"system:serviceaccount:default:{AGENT}"
KINDS = ("mux", "grpc")


class Bed:
    """A server that asks for tokens, and agents that show some."""

    def __init__(self, api: Api, peers: Peers, files: Path) -> None:
        self.api = api
        self.peers = peers
        self.path = files / "token"
        self.tokens: set[str] = set()
        self._started: list[Program] = []

    def token(self, name: str = AGENT, audience: str = AUDIENCE) -> str:
        """A new token of an account."""
        made = self.api.service_account_token(name, audience=audience)
        self.tokens.add(made)
        return made

    def show(self, token: str, path: Path | None = None) -> None:
        """Put a token where agents look for it, as kubelets do: by a rename."""
        self.tokens.add(token)
        path = path or self.path
        new = path.with_suffix(".new")
        new.write_text(token)
        new.rename(path)

    def server(self, *more: str, kubeconfig: Path | None = None) -> Program:
        started = self.peers.server(
            "--cluster-ca-cert=",
            "--agent-namespace=default",
            f"--agent-service-account={AGENT}",
            f"--authentication-audience={AUDIENCE}",
            f"--kubeconfig={kubeconfig or self.api.kubeconfig}",
            *more,
        )
        self._started.append(started)
        return started

    def agent(self, server: Program, *more: str, path: Path | None = None) -> Program:
        """Start an agent without a certificate; whether it links is for the test."""
        started = self.peers.start(
            "agent",
            *self.peers.agent_flags(server.port("agent_port")),
            "--agent-cert=",
            "--agent-key=",
            f"--service-account-token-path={path or self.path}",
            *more,
        )
        self._started.append(started)
        return started

    def go_agent(self, server: Program, *more: str) -> GoPeer:
        """Start what stands in for konnectivity's agent, without a certificate."""
        return self.peers.start_go(
            "agent",
            f"--address=localhost:{server.port('agent_port')}",
            "--id=go-agent",
            f"--ca={self.peers.files.ca_cert}",
            *more,
        )

    def check_logs(self) -> None:
        """No log of ours has a token in it, nor a part that would be one."""
        for program in self._started:
            for token in filter(None, self.tokens):
                pieces = [token, *(piece for piece in token.split(".") if len(piece) > 8)]
                assert not [piece for piece in pieces if piece in program.log], program.log


@pytest.fixture
def bed(kube_api: Api, peers: Peers, tmp_path: Path) -> Iterator[Bed]:
    """A bed whose logs are searched for tokens when the test is over."""
    made = Bed(kube_api, peers, tmp_path)
    yield made
    made.check_logs()


def lines(program: Program, text: str) -> list[str]:
    return [line for line in program.log.splitlines() if text in line]


def reason_of(line: str) -> str:
    found = re.search(r'reason="(.*?)"( |$)', line)
    assert found, line
    return found[1]


def carries(peers: Peers) -> None:
    with tunnel(peers.connect_uds(), peers.target["echo"]) as client:
        client.send(b"hello")
        assert client.read_exactly(5) == b"hello"


def refusals(server: Program) -> float:
    text = http_get(server.port("health_port"), "/metrics")[1]
    return metric(text, 'isthmus_server_link_failures_total{reason="refused"}')


def refused(bed: Bed, server: Program, agent: Program, why: str) -> None:
    """Both sides say why, once, and the audit does too; nobody is linked."""
    agent.wait_log("cannot link to the server")
    wait_until(lambda: refusals(server) > 1, "it tries again")
    (line,) = lines(agent, "cannot link to the server")
    assert re.search(why, reason_of(line)), line
    (audited,) = lines(server, "audit] agent refused")
    assert re.search(why, reason_of(audited)), audited
    assert 'agent_id="it"' in audited and "address=" in audited
    assert not lines(server, "agent link refused")  # the audit has said it
    assert not lines(agent, "] linked") and not lines(server, "agent linked")
    assert agent.process.poll() is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_good_token_links(bed: Bed, kind: str) -> None:
    server = bed.server()
    bed.show(bed.token() + "\n")
    bed.agent(server, f"--link={kind}").wait_log("] linked")
    server.wait_log("agent linked")
    assert f'identity="token:{ACCOUNT}"' in lines(server, "agent linked")[0]
    carries(bed.peers)


def forged(token: str) -> str:
    """The same claims with a signature that does not fit."""
    head, claims, signature = token.split(".")
    return f"{head}.{claims}.{signature[::-1]}"


def of_a_deleted_account(bed: Bed) -> str:
    token = bed.token("leaving")
    bed.api.call("DELETE", "/api/v1/namespaces/default/serviceaccounts/leaving")
    return token


NOT_ACCEPTED = "the Kubernetes API does not accept the token"
BAD: dict[str, tuple[Callable[[Bed], str], str]] = {
    "another audience": (lambda bed: bed.token(audience="https://elsewhere"), NOT_ACCEPTED),
    "another account": (
        lambda bed: bed.token("somebody"),
        f"the token is of '?system:serviceaccount:default:somebody'?, not of {ACCOUNT}",
    ),
    "forged": (lambda bed: forged(bed.token()), NOT_ACCEPTED),
    "a deleted account": (of_a_deleted_account, NOT_ACCEPTED),
    "garbage": (lambda bed: "this-is-no-token-at-all", NOT_ACCEPTED),
    "none": (lambda bed: "", "no token was sent, but this server requires one"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", BAD)
def test_a_bad_token_is_refused(bed: Bed, what: str, kind: str) -> None:
    make, why = BAD[what]
    server = bed.server()
    bed.show(make(bed))
    refused(bed, server, bed.agent(server, f"--link={kind}", "--agent-id=it"), why)


def test_an_agent_without_a_token_file(bed: Bed) -> None:
    server = bed.server()
    agent = bed.agent(server)
    agent.wait_log("cannot link to the server")
    (line,) = lines(agent, "cannot link to the server")
    assert reason_of(line) == f"cannot read token {bed.path}: no such file"
    bed.show(bed.token())
    agent.wait_log("] linked")


@pytest.mark.parametrize("kind", KINDS)
def test_a_rotated_token_is_used_at_the_next_connect(bed: Bed, kind: str) -> None:
    port = f"--agent-port={free_port()}"
    first = bed.server(port)
    bed.show("not-yet-a-token")
    agent = bed.agent(first, f"--link={kind}")
    agent.wait_log("cannot link to the server")
    bed.show(bed.token())
    agent.wait_log("] linked")
    bed.show(bed.token("somebody"))
    carries(bed.peers)  # who is in stays in
    first.process.terminate()
    assert first.wait_exit() == 0
    second = bed.server(port)
    second.wait_log("not of system:serviceaccount")
    bed.show(bed.token())
    second.wait_log("agent linked")
    carries(bed.peers)


@contextlib.contextmanager
def way_to_the_api(bed: Bed, directory: Path) -> Iterator[tuple[Relay, Path]]:
    """A kubeconfig by which the API is reached only while the relay is whole."""
    with Relay([bed.api.port]) as relay:
        path = directory / "relayed"
        url = f"https://127.0.0.1:{relay.port}"
        yield relay, write_kubeconfig(path, url, bed.api.ca_cert, bed.api.token)


@pytest.mark.parametrize("kind", KINDS)
def test_while_the_api_is_away_links_stay_and_new_ones_wait(
    bed: Bed, tmp_path: Path, kind: str
) -> None:
    with way_to_the_api(bed, tmp_path) as (relay, kubeconfig):
        server = bed.server(kubeconfig=kubeconfig)
        bed.show(bed.token())
        first = bed.agent(server, f"--link={kind}", "--agent-id=first")
        first.wait_log("] linked")
        relay.cut()
        # Another token: what was accepted a moment ago is remembered for some seconds.
        other = tmp_path / "other"
        bed.show(bed.token(), other)
        second = bed.agent(server, f"--link={kind}", "--agent-id=second", path=other)
        server.wait_log("cannot review agent tokens, new agents wait")
        carries(bed.peers)
        assert not lines(first, "link ended") and not lines(second, "] linked")
        assert not lines(server, "agent refused")
        relay.mend()
        second.wait_log("] linked")
        assert len(lines(server, "cannot review agent tokens")) == 1
        assert not lines(first, "link ended")


def test_a_server_that_starts_without_the_api_waits_for_it(bed: Bed, tmp_path: Path) -> None:
    with way_to_the_api(bed, tmp_path) as (relay, kubeconfig):
        relay.cut()
        server = bed.server(kubeconfig=kubeconfig)
        bed.show(bed.token())
        agent = bed.agent(server)
        server.wait_log("cannot review agent tokens, new agents wait")
        relay.mend()
        agent.wait_log("] linked")


@pytest.mark.parametrize("kind", KINDS)
def test_an_api_that_says_nothing(bed: Bed, tmp_path: Path, kind: str) -> None:
    with (
        way_to_the_api(bed, tmp_path) as (relay, kubeconfig),
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        relay.lead_to(silent.getsockname()[1])
        server = bed.server(kubeconfig=kubeconfig)
        bed.show(bed.token())
        agent = bed.agent(server, f"--link={kind}")
        agent.wait_log("cannot link to the server")
        (line,) = lines(agent, "cannot link to the server")
        assert "the server cannot reach the Kubernetes API to review tokens" in line
        assert len(lines(server, "cannot review agent tokens, new agents wait")) == 1
        assert not lines(server, "agent refused")
        relay.cut()
        relay.lead_to(bed.api.port)
        relay.mend()
        agent.wait_log("] linked")
        assert len(lines(agent, "cannot link to the server")) == 1


def end_of(peer: GoPeer) -> dict[str, Any]:
    peer.wait_exit()
    return peer.events[-1]


def test_a_go_agent_with_a_token(bed: Bed) -> None:
    server = bed.server()
    bed.show(bed.token())
    bed.go_agent(server, f"--token-file={bed.path}").wait("connected")
    server.wait_log("agent linked")
    assert f'identity="token:{ACCOUNT}"' in lines(server, "agent linked")[0]
    carries(bed.peers)


@pytest.mark.parametrize("what", BAD)
def test_a_go_agent_with_a_bad_token_is_unauthenticated(bed: Bed, what: str) -> None:
    make, why = BAD[what]
    server = bed.server()
    bed.show(make(bed))
    flags = [f"--token-file={bed.path}"] if what != "none" else []
    said = str(end_of(bed.go_agent(server, *flags)))
    assert "Unauthenticated" in said and re.search(why.replace("'", "."), said), said
    audited = lines(server, "audit] agent refused")
    assert len(audited) == 1 and 'agent_id="go-agent"' in audited[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_binds_the_agent_id(bed: Bed, kind: str) -> None:
    server = bed.server("--agent-identity-binding=name")
    bed.show(bed.token())
    liar = bed.agent(server, f"--link={kind}", "--agent-id=it")
    refused(bed, server, liar, f"{ACCOUNT} may not claim agent id 'it'")
    bed.agent(server, f"--link={kind}", f"--agent-id={AGENT}").wait_log("] linked")


def token_of_a_pod(bed: Bed, node: str) -> str:
    """A token as the kubelet of a node gets it for one of its pods."""
    bed.token()  # the account, if there is none yet
    bed.api.create("/api/v1/nodes", {"metadata": {"name": node}})
    pods = "/api/v1/namespaces/default/pods"
    container = {"name": "agent", "image": "agent"}
    pod = bed.api.call(
        "POST",
        pods,
        {
            "metadata": {"name": f"agent-on-{node}"},
            "spec": {"serviceAccountName": AGENT, "nodeName": node, "containers": [container]},
        },
    )["metadata"]
    bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["name"], "uid": pod["uid"]}
    made = bed.api.call(
        "POST",
        f"/api/v1/namespaces/default/serviceaccounts/{AGENT}/token",
        {"spec": {"audiences": [AUDIENCE], "boundObjectRef": bound}},
    )
    return str(made["status"]["token"])


@pytest.mark.parametrize("kind", KINDS)
def test_the_token_of_a_pod_binds_the_agent_to_its_node(bed: Bed, kind: str) -> None:
    server = bed.server("--agent-identity-binding=name")
    node = f"node-{kind}"
    bed.show(token_of_a_pod(bed, node))
    liar = bed.agent(server, f"--link={kind}", "--agent-id=it")
    refused(bed, server, liar, f"node {node}.* may not claim agent id 'it'")
    claim = f"--agent-identifiers=host={node}"
    bed.agent(server, f"--link={kind}", f"--agent-id={node}", claim).wait_log("] linked")
