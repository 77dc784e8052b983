"""An agent that dies between the answer to a dial and the first byte: the dial is done again."""

from __future__ import annotations

import contextlib
import json
import signal
from typing import Any

import pytest
from clients import Target, connect_uds, head_for, tunnel
from grpc_clients import GrpcCall
from programs import Program, Programs
from stack import Stack, http_get, metric, wait_until

from isthmus.links.server_side import AgentLink
from isthmus.tunnel.first_byte import UntouchedTunnel

AGAIN = 'isthmus_server_dial_retries_total{when="before_first_byte"}'
BEFORE = 'isthmus_server_dial_retries_total{when="before_answer"}'
LINKS = pytest.mark.parametrize("link", ["mux", "grpc"], scope="module")
CUT = (ConnectionResetError, BrokenPipeError)


def who_serves(stack: Stack) -> str:
    (shown,) = stack.snapshot()["tunnels"]
    return str(shown["agentId"])


def lose(stack: Stack, agent_id: str) -> None:
    """Cut the link of an agent, as the network does."""

    def cut() -> None:
        for link in list(stack.server.links):
            if link.agent_id == agent_id:
                link.lost("cut by the test")

    stack.do(cut)


@LINKS
@pytest.mark.parametrize("rate", ["", "1Mi"])
def test_nothing_had_flowed(fresh: Stack, link: str, rate: str) -> None:
    fresh.add_server(max_bytes_per_second_per_requester=rate)
    for name in ("one", "two"):
        fresh.add_agent(agent_id=name)
    with Target() as target, fresh.tunnel("tls", target.name) as client, target.accept() as first:
        served = who_serves(fresh)
        lose(fresh, served)
        with target.accept() as second:
            assert {who_serves(fresh), served} == {"one", "two"}
            client.send(b"question")
            assert second.read_exactly(8) == b"question"
            second.send(b"answer")
            assert client.read_exactly(6) == b"answer"
            client.half_close()
            assert second.read_to_end() == b""
            second.close()
            assert client.read_to_end() == b""
        with pytest.raises(CUT):  # the first was not asked anything, and is reset
            first.read_exactly(1)
    fresh.wait_idle()
    assert metric(fresh.metrics(), AGAIN) == 1


@LINKS
@pytest.mark.parametrize("spoke", ["client", "target", "client-eof", "target-eof"])
def test_something_had_flowed(fresh: Stack, link: str, spoke: str) -> None:
    """Whether it arrived cannot be known: that is a reset, and nobody is dialed again."""
    fresh.add_server()
    for name in ("one", "two"):
        fresh.add_agent(agent_id=name)
    with Target() as target, fresh.tunnel("tls", target.name) as client, target.accept() as far:
        asks, answers = (client, far) if spoke.startswith("client") else (far, client)
        if spoke.endswith("eof"):
            asks.half_close()
            assert answers.read_to_end() == b""
        else:
            asks.send(b"x")
            assert answers.read_exactly(1) == b"x"
        lose(fresh, who_serves(fresh))
        if spoke != "target-eof":  # there, nothing more is to be read
            with pytest.raises(OSError):
                while client.recv():
                    pass
        fresh.wait_idle()
        assert metric(fresh.metrics(), AGAIN) == 0
        target._sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            target._sock.accept()


@LINKS
def test_nobody_else_is_there(fresh: Stack, link: str) -> None:
    fresh.add_server()
    agent = fresh.add_agent(agent_id="only", sync_interval_s=30.0, sync_interval_cap_s=30.0)
    with Target() as target, fresh.tunnel("tls", target.name) as client, target.accept():
        lose(fresh, agent.id)
        with pytest.raises(OSError):
            while client.recv():
                pass
    fresh.wait_idle()


def test_the_time_of_the_dial_is_over(fresh: Stack) -> None:
    fresh.add_server(backend_dial_timeout_s=0.2)
    for name in ("one", "two"):
        fresh.add_agent(agent_id=name)
    with Target() as target, fresh.tunnel("tls", target.name) as client, target.accept():
        wait_until(lambda: fresh.snapshot()["tunnels"][0]["ageSeconds"] > 0.3, "the time passes")
        lose(fresh, who_serves(fresh))
        with pytest.raises(OSError):
            while client.recv():
                pass
    fresh.wait_idle()
    assert metric(fresh.metrics(), AGAIN) == 0


@LINKS
def test_by_the_grpc_frontend(fresh: Stack, link: str) -> None:
    server = fresh.add_server(mode=("grpc",))
    for name in ("one", "two"):
        fresh.add_agent(agent_id=name)
    with Target() as target, connect_uds(server.settings.uds_name) as client:
        call = GrpcCall(client)
        assert call.dial(target.name) == ""
        with target.accept():
            lose(fresh, who_serves(fresh))
            with target.accept() as second:
                call.send(b"question")
                assert second.read_exactly(8) == b"question"
                second.send(b"answer")
                assert call.read_exactly(6) == b"answer"


@LINKS
def test_an_administrator_ends_a_tunnel_that_nobody_used(fresh: Stack, link: str) -> None:
    fresh.add_server()
    for name in ("one", "two"):
        fresh.add_agent(agent_id=name)
    with Target() as target, fresh.tunnel("tls", target.name) as client, target.accept():
        (shown,) = fresh.snapshot()["tunnels"]
        assert fresh.do(lambda: fresh.server.tunnels.end(shown["id"], "somebody"))
        with pytest.raises(OSError):
            while client.recv():
                pass
    fresh.wait_idle()
    assert metric(fresh.metrics(), AGAIN) == 0


def test_a_tunnel_is_a_plain_one_after_its_first_byte(fresh: Stack) -> None:
    fresh.add_server()
    fresh.add_agent()
    with Target() as target, fresh.tunnel("uds", target.name) as client, target.accept() as far:
        (made,) = fresh.do(lambda: list(fresh.server.tunnels._open.values()))
        assert isinstance(made, UntouchedTunnel) and made.client.peer is not made.far
        client.send(b"x")
        assert far.read_exactly(1) == b"x"
        assert fresh.do(lambda: made.client.peer is made.far and made.far.peer is made.client)
    fresh.wait_idle()


# Processes that are killed.


def kill(program: Program) -> None:
    program.signal(signal.SIGKILL)
    assert program.wait_exit() == -signal.SIGKILL


@pytest.mark.parametrize("spoken", ["mux", "grpc"])
def test_the_agent_is_killed_after_the_answer(programs: Programs, spoken: str) -> None:
    server = programs.server()
    agents = {
        name: programs.agent(server, f"--link={spoken}", f"--agent-id={name}")
        for name in ("one", "two")
    }
    with (
        Target() as target,
        tunnel(programs.connect_tls(server), target.name) as client,
        target.accept(),
    ):
        (shown,) = json.loads(http_get(server.port("admin_port"), "/snapshot")[1])["tunnels"]
        kill(agents[shown["agentId"]])
        with target.accept() as second:
            client.send(b"question")
            assert second.read_exactly(8) == b"question"
            second.send(b"answer")
            assert client.read_exactly(6) == b"answer"


@pytest.mark.parametrize("spoken", ["mux", "grpc"])
def test_the_agent_is_lost_before_the_answer(
    fresh: Stack, spoken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh.link = spoken
    fresh.add_server()
    for name in ("one", "two"):
        fresh.add_agent(agent_id=name)
    lost: list[str] = []
    ask = AgentLink.open_dial

    def open_and_lose(self: AgentLink, *args: object, **kw: object) -> object:
        stream = ask(self, *args, **kw)  # type: ignore[arg-type]
        if not lost:
            lost.append(self.agent_id)
            self.loop.call_soon(self.lost, "cut by the test")
        return stream

    monkeypatch.setattr(AgentLink, "open_dial", open_and_lose)
    with Target() as target, fresh.uds() as client:
        client.send(head_for(target.name) + b"x")
        assert client.read_head().startswith(b"HTTP/1.1 200 ")
        wait_until(lambda: who_serves(fresh) not in lost, "another one serves")
        brought = b""
        while not brought:  # the first may have been dialed too: it brings a reset
            with target.accept() as far, contextlib.suppress(ConnectionResetError):
                brought = far.recv()
        assert brought == b"x"
    fresh.wait_idle()
    assert metric(fresh.metrics(), BEFORE) == 1


@pytest.mark.parametrize("spoken", ["mux", "grpc"])
@pytest.mark.parametrize("others", [True, False], ids=["another", "nobody"])
def test_the_agent_goes_silent_before_the_answer(
    programs: Programs, spoken: str, others: bool
) -> None:
    """It is not lost yet, and may come back: others are asked, if there are any."""
    server = programs.server()
    frozen = programs.agent(server, f"--link={spoken}", "--agent-id=frozen")
    with Target() as target, programs.connect_uds() as client:
        frozen.signal(signal.SIGSTOP)
        client.send(head_for(target.name) + b"x")
        wait_until(lambda: pending(server) == 1, "it was asked")
        if others:
            programs.agent(server, f"--link={spoken}", "--agent-id=other")
        else:
            wait_until(lambda: links(server) == {"frozen": "stuck"}, "it is found to be silent")
            frozen.signal(signal.SIGCONT)
        assert client.read_head().startswith(b"HTTP/1.1 200 ")
        with target.accept() as far:
            assert far.read_exactly(1) == b"x"
        (served,) = snapshot(server)["tunnels"]
        assert served["agentId"] == ("other" if others else "frozen")
    frozen.signal(signal.SIGCONT)


def pending(server: Program) -> float:
    _, text = http_get(server.port("health_port"), "/metrics")
    return metric(text, "konnectivity_network_proxy_server_pending_backend_dials")


def snapshot(server: Program) -> dict[str, Any]:
    return dict(json.loads(http_get(server.port("admin_port"), "/snapshot")[1]))


def links(server: Program) -> dict[str, str]:
    return {it["peerId"]: it["state"] for it in snapshot(server)["links"]}
