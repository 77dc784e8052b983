"""A server without agents reaches targets through the agents of another, one hop at most."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from clients import Target, ask, connect_uds, echo_target, free_port, head_for, tunnel
from grpc_clients import GrpcCall
from relay_bed import NAME, SENT, TAKEN, Relays, peer_files
from stack import Stack, http_get, wait_until

from isthmus.dial.dialers.through_agent import PeerLinks
from isthmus.tools.pki import making as pki


@pytest.fixture(scope="module", params=["mux", "grpc"])
def link(request: pytest.FixtureRequest) -> str:
    """What agents speak; servers among each other always speak mux."""
    return str(request.param)


@pytest.fixture
def relays(fresh: Stack, certificates: pki.PkiFiles, tmp_path: Path) -> Iterator[Relays]:
    yield Relays(fresh, peer_files(certificates, tmp_path / "peer"))


def test_three_servers_agents_at_two_and_the_third_serves_at_once(relays: Relays) -> None:
    stack = relays.stack
    b, c = relays.helper("b"), relays.helper("c")
    relays.agent(b, "agent-b")
    relays.agent(c, "agent-c")
    fresh = relays.asker(b, c)
    relays.wait_relay(fresh, 2)
    assert http_get(fresh.health_port, "/readyz")[0] == 200
    with echo_target() as target:
        for _ in range(4):
            with relays.tunnel(fresh, target.name) as client:
                client.send(b"hello")
                assert client.read_exactly(5) == b"hello"
                (shown,) = stack.snapshot(fresh)["tunnels"]
                assert shown["relay"] in ("b", "c")
                assert shown["agentId"] == f"agent-{shown['relay']}"
            stack.wait_idle()
    assert relays.counted(fresh, SENT % "joined") == 4
    assert relays.counted(b, TAKEN % "joined") + relays.counted(c, TAKEN % "joined") == 4
    sides = {it["direction"]: it for it in stack.snapshot(b)["relays"]}
    assert sides["from"]["serverId"] == "asks" and not stack.snapshot(b)["truncated"]
    assert {it["serverId"] for it in stack.snapshot(fresh)["relays"]} == {"b", "c"}
    assert {it["peerId"] for it in stack.snapshot(b)["links"]} == {"agent-b"}
    # Its own agents come: nobody else is asked any more.
    relays.agent(fresh, "own")
    with echo_target() as target, relays.tunnel(fresh, target.name) as client:
        client.send(b"x")
        assert client.read_exactly(1) == b"x"
        (shown,) = stack.snapshot(fresh)["tunnels"]
        assert (shown["agentId"], shown.get("relay", "")) == ("own", "")
    assert relays.counted(fresh, SENT % "joined") == 4
    # And go: the others are asked again.
    stack.stop(stack.agents[-1])
    stack.wait(lambda: not len(fresh.agents), "the agent is gone")
    with echo_target() as target, relays.tunnel(fresh, target.name) as client:
        client.send(b"x")
        assert client.read_exactly(1) == b"x"
    assert relays.counted(fresh, SENT % "joined") == 5
    stack.wait_idle()


def test_by_the_grpc_frontend(relays: Relays) -> None:
    b = relays.helper("b")
    relays.agent(b, "agent-b")
    fresh = relays.asker(b, mode=("grpc",))
    relays.wait_relay(fresh)
    with Target() as target, connect_uds(fresh.settings.uds_name) as client:
        call = GrpcCall(client)
        assert call.dial(target.name) == ""
        with target.accept() as far:
            call.send(b"question")
            assert far.read_exactly(8) == b"question"
            far.send(b"answer")
            assert call.read_exactly(6) == b"answer"
    relays.end_all()


def test_failures_come_back_as_what_they_are(relays: Relays) -> None:
    b = relays.helper("b")
    relays.agent(b, "agent-b")
    fresh = relays.asker(b)
    relays.wait_relay(fresh)
    with connect_uds(fresh.settings.uds_name) as client:
        answer = ask(client, head_for(f"127.0.0.1:{free_port()}"))
        assert answer.status == 502 and "refused" in answer.body
    assert relays.counted(fresh, SENT % "failed") == 1
    assert relays.counted(b, TAKEN % "failed") == 1


def test_nobody_has_an_agent(relays: Relays) -> None:
    b = relays.helper("b")
    fresh = relays.asker(b)
    assert fresh.relays is not None
    links = fresh.relays.links
    relays.stack.wait(lambda: len(links) == 1, "linked")
    assert not relays.stack.do(lambda: links.ready)
    assert http_get(fresh.health_port, "/readyz")[0] == 500
    with connect_uds(fresh.settings.uds_name) as client:
        assert ask(client, head_for("127.0.0.1:1")).status == 503
    assert relays.counted(fresh, SENT % "no_agent") == 0  # it said that it has none: not asked
    relays.agent(b, "late")
    relays.wait_relay(fresh)  # and it is told when that changes
    assert http_get(fresh.health_port, "/readyz")[0] == 200
    relays.stack.stop(relays.stack.agents[-1])
    relays.wait_relay(fresh, 0)


def is_linked(links: PeerLinks) -> bool:
    return len(links) == 1


def lie(links: PeerLinks) -> None:
    for each in links:
        each.agents = True


def test_a_circle_of_servers_is_not_gone_round(relays: Relays) -> None:
    """Even if each believes that the other has agents."""
    stack = relays.stack
    ports = {"b": free_port(), "c": free_port()}
    peers = tuple(f"{name}=127.0.0.1:{port}" for name, port in ports.items())
    b, c = (
        relays.asker(
            name=name, agent_port=port, peer_server=peers, peer_relay_name=(NAME,)
        )
        for name, port in ports.items()
    )  # fmt: skip
    for server in (b, c):
        assert server.relays is not None
        links = server.relays.links
        stack.wait(partial(is_linked, links), "linked to the other")
        stack.do(partial(lie, links))
    with connect_uds(b.settings.uds_name) as client:
        answer = ask(client, head_for("127.0.0.1:1"))
    assert answer.status == 503 and "other servers could not help" in answer.body
    assert relays.counted(b, SENT % "no_agent") == 1
    assert relays.counted(c, TAKEN % "no_agent") == 1
    assert relays.counted(c, SENT % "no_agent") == relays.counted(b, TAKEN % "no_agent") == 0


def test_an_address_that_leads_to_ourselves(relays: Relays) -> None:
    port = free_port()
    fresh = relays.asker(
        agent_port=port, peer_server=(f"other=127.0.0.1:{port}",), peer_relay_name=(NAME,)
    )
    assert fresh.relays is not None
    failed = 'isthmus_server_link_failures_total{reason="refused"}'
    wait_until(lambda: relays.counted(fresh, failed) > 0, "it notices")
    assert not relays.stack.do(lambda: fresh.relays is None or len(fresh.relays.links))
    with connect_uds(fresh.settings.uds_name) as client:
        assert ask(client, head_for("127.0.0.1:1")).status == 503


# What may be dialed.

POLICY = """apiVersion: isthmus.dev/v1alpha1
kind: ConnectivityPolicy
rules:
- {{name: no-web, effect: deny, match: {{ports: [{port}]}}}}
- {{name: rest, effect: allow}}
"""


@pytest.mark.parametrize("where", ["asks", "b"])
def test_a_denial_of_either_server_stands(relays: Relays, tmp_path: Path, where: str) -> None:
    policy, audit = tmp_path / "policy.yaml", tmp_path / "audit.log"
    with Target() as target:
        policy.write_text(POLICY.format(port=target.port))
        given = {"policy_file": str(policy)}
        b = relays.helper("b", audit_log_path=str(audit), **(given if where == "b" else {}))
        relays.agent(b, "agent-b")
        fresh = relays.asker(b, **(given if where == "asks" else {}))
        relays.wait_relay(fresh)
        with connect_uds(fresh.settings.uds_name) as client:
            assert ask(client, head_for(target.name)).status == 403
        denied = relays.counted(b, TAKEN % "denied")
        assert denied == (1 if where == "b" else 0)
        assert relays.counted(b, TAKEN % "joined") == 0


def test_both_write_down_who_asked(relays: Relays, tmp_path: Path) -> None:
    logs = {name: tmp_path / f"{name}.log" for name in ("asks", "b")}
    b = relays.helper("b", audit_log_path=str(logs["b"]))
    relays.agent(b, "agent-b")
    fresh = relays.asker(b, audit_log_path=str(logs["asks"]))
    relays.wait_relay(fresh)
    with echo_target() as target, relays.tunnel(fresh, target.name) as client:
        client.send(b"x")
        assert client.read_exactly(1) == b"x"
    relays.end_all()

    def records(name: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in logs[name].read_text().splitlines()]

    wait_until(lambda: all(len(records(name)) == 2 for name in logs), "all lines are written")
    ours, theirs = records("asks"), records("b")
    assert [it["stage"] for it in ours] == [it["stage"] for it in theirs] == ["Begin", "End"]
    assert {it["agentId"] for it in (*ours, *theirs)} == {"agent-b"}
    assert len({it["connectionId"] for it in (*ours, *theirs)}) == 1
    assert ours[0]["requester"] == theirs[0]["requester"]
    assert ours[0]["relay"] == "b" and "relayedBy" not in ours[0]
    assert theirs[0]["relayedBy"] == "asks" and theirs[0]["frontend"] == "relay"
    assert ours[1]["bytesToTarget"] == theirs[1]["bytesToTarget"] == 1


def test_networks_are_the_same_at_both(relays: Relays) -> None:
    network = ("red=127.0.0.0/8",)
    b = relays.helper("b", cluster_network=(*network, "blue=192.0.2.0/24"))
    relays.agent(b, "agent-b", agent_network="red")
    fresh = relays.asker(b, cluster_network=(*network, "blue=192.0.2.0/24"))
    relays.wait_relay(fresh)
    with echo_target() as target, relays.tunnel(fresh, target.name) as client:
        client.send(b"x")
        assert client.read_exactly(1) == b"x"
    with connect_uds(fresh.settings.uds_name) as client:
        assert ask(client, head_for("192.0.2.1:1")).status == 503  # no agent of blue anywhere
    assert relays.counted(b, TAKEN % "no_agent") == 1
    relays.end_all()


def test_over_tls_with_what_the_client_said(relays: Relays) -> None:
    b = relays.helper("b")
    relays.agent(b, "agent-b")
    fresh = relays.asker(b)
    relays.wait_relay(fresh)
    stack = relays.stack
    stack.servers.reverse()  # the first server is the one that clients of the stack use
    with echo_target() as target, tunnel(stack.tls(), target.name) as client:
        client.send(b"x")
        assert client.read_exactly(1) == b"x"
        (shown,) = stack.snapshot(b)["tunnels"]
        assert shown["requester"] == "certificate:isthmus-client" and shown["frontend"] == "relay"
    stack.wait_idle()
