"""What an operator sees: health, readiness, metrics and snapshots of both programs."""

from __future__ import annotations

import json
from datetime import datetime

from clients import Target, ask, free_port, head_for
from prometheus_client.parser import text_string_to_metric_families
from stack import Stack, http_get, metric, wait_until

import isthmus


def test_a_server_is_ready_when_it_has_an_agent(fresh: Stack) -> None:
    server = fresh.add_server()
    assert http_get(server.health_port, "/healthz") == (200, "ok")
    assert http_get(server.health_port, "/readyz") == (500, "no connection to any proxy agent")
    agent = fresh.add_agent()
    assert http_get(server.health_port, "/readyz") == (200, "ok")
    assert http_get(server.health_port, "/ready?verbose")[1].startswith(
        "[+]ping ok\n[+]agents ok\n"
    )
    fresh.stop(agent)
    wait_until(lambda: http_get(server.health_port, "/readyz")[0] == 500, "it is not ready")


def test_an_agent_is_ready_when_it_has_a_server(fresh: Stack) -> None:
    server = fresh.add_server()
    agent = fresh.add_agent()
    port = agent.health_port
    assert http_get(port, "/healthz") == (200, "ok")
    wait_until(lambda: http_get(port, "/readyz")[0] == 200, "it is ready")
    fresh.stop(server)
    wait_until(lambda: http_get(port, "/readyz")[0] == 503, "it is not ready")
    assert "[-]server-connected failed" in http_get(port, "/readyz")[1]


def test_metrics_of_both_programs(fresh: Stack) -> None:
    fresh.add_server()
    fresh.add_agent()
    with Target() as target:
        with fresh.tunnel("uds", target.name) as client, target.accept() as far:
            client.send(b"12345")
            assert far.read_exactly(5) == b"12345"
            far.send(b"1234567")
            assert client.read_exactly(7) == b"1234567"
            text = fresh.metrics()
            assert metric(text, "konnectivity_network_proxy_server_established_connections") == 1
            assert metric(text, 'isthmus_server_bytes_total{direction="to_target"}') == 5
            agents = fresh.metrics(fresh.agent)
            name = "konnectivity_network_proxy_agent_open_endpoint_connections"
            assert metric(agents, name) == 1
        fresh.wait_idle()
    with fresh.uds() as refused:
        assert ask(refused, head_for(f"127.0.0.1:{free_port()}")).status == 502
    text, agents = fresh.metrics(), fresh.metrics(fresh.agent)
    assert list(text_string_to_metric_families(text))
    assert list(text_string_to_metric_families(agents))
    assert metric(text, 'isthmus_server_bytes_total{direction="to_client"}') == 7
    assert metric(text, 'isthmus_server_dial_failures_total{reason="refused"}') == 1
    assert metric(text, "konnectivity_network_proxy_server_dial_duration_seconds_count") == 1
    assert metric(text, "konnectivity_network_proxy_server_ready_backend_connections") == 1
    assert metric(text, "isthmus_server_links") == 1
    assert metric(agents, "konnectivity_network_proxy_agent_open_server_connections") == 1
    assert metric(agents, "konnectivity_network_proxy_agent_known_server_count") == 1
    assert metric(agents, 'isthmus_agent_dial_failures_total{reason="refused"}') == 1
    cert = fresh.files.server_cert
    expiry = metric(text, f'isthmus_server_certificate_expiry_timestamp_seconds{{file="{cert}"}}')
    assert expiry > 1e9
    # The server's admin port has them too, the agent's points to its health port.
    assert http_get(fresh.server.admin_port, "/metrics")[0] == 200
    status, moved = http_get(fresh.agent.admin_port, "/metrics")
    assert status == 200 and "isthmus_agent_links" in moved


def test_the_servers_snapshot(fresh: Stack) -> None:
    server = fresh.add_server(server_id="here")
    fresh.add_agent(agent_id="there", agent_identifiers="host=node-1&default-route=true")
    with Target() as target, fresh.tunnel("tls", target.name) as client, target.accept() as far:
        client.send(b"12345")
        assert far.read_exactly(5) == b"12345"
        view = fresh.snapshot()
    assert view["kind"] == "ServerSnapshot" and view["serverId"] == "here"
    assert view["version"] == isthmus.__version__
    assert view["draining"] is False and view["uptimeSeconds"] >= 0
    datetime.fromisoformat(view["takenAt"])
    (agent,) = view["agents"]
    assert (agent["id"], agent["identity"]) == ("there", "certificate:isthmus-agent")
    assert (agent["links"], agent["tunnels"], agent["draining"]) == (1, 1, False)
    assert "host=node-1" in agent["identifiers"]
    (link,) = view["links"]
    assert (link["peerId"], link["carrier"], link["state"]) == ("there", "mux", "open")
    assert link["peerAddress"].startswith("127.0.0.1:") and link["receivedBytes"] > 0
    assert link["peerVersion"] == isthmus.__version__
    assert (link["windowGrowthBytes"], link["windowGrowthPeakBytes"]) == (0, 0)
    (tunnel,) = view["tunnels"]
    assert (tunnel["target"], tunnel["agentId"], tunnel["state"]) == (target.name, "there", "open")
    assert (tunnel["frontend"], tunnel["linkId"]) == ("http-connect", link["id"])
    assert (tunnel["bytesToTarget"], tunnel["bytesToClient"]) == (5, 0)
    assert tunnel["stalled"] == "" and tunnel["ageSeconds"] >= 0
    assert view["totals"]["dials"] == 1 and view["totals"]["dialsFailed"] == 0
    assert {c["file"] for c in view["certificates"]} >= {str(fresh.files.server_cert)}
    fresh.wait_idle()
    (ended,) = fresh.snapshot()["recentEndings"]
    assert (ended["target"], ended["bytesToTarget"]) == (target.name, 5)
    limited = json.loads(http_get(server.admin_port, "/snapshot?limit=0")[1])
    assert limited["tunnels"] == []


def test_the_agents_snapshot(fresh: Stack) -> None:
    fresh.add_server(server_id="here")
    agent = fresh.add_agent(agent_id="there")
    with Target() as target, fresh.tunnel("tls", target.name) as client, target.accept() as far:
        far.send(b"123")
        assert client.read_exactly(3) == b"123"
        view = fresh.snapshot(agent)
    assert view["kind"] == "AgentSnapshot" and view["agentId"] == "there"
    assert view["knownServers"] == 1
    (link,) = view["links"]
    assert (link["peerId"], link["state"]) == ("here", "open")
    (tunnel,) = view["tunnels"]
    assert (tunnel["target"], tunnel["bytesToClient"]) == (target.name, 3)
    assert "isthmus-client" in tunnel["requester"]
    assert view["totals"]["dials"] == 1
