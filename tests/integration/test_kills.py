"""Either side killed or frozen in the middle of a transfer, and what comes after."""

from __future__ import annotations

import signal
import ssl
import threading
from dataclasses import replace
from typing import Any

import pytest
from clients import Client, Target, ask, free_port, head_for, tunnel
from programs import Program, Programs
from stack import Stack, wait_until

from isthmus.links import link as link_module
from isthmus.links.link import LinkTerms
from isthmus.links.server_side import AgentLink
from isthmus.tunnel.limits import Limits

CUT = (ConnectionResetError, BrokenPipeError, ssl.SSLError)
LINKS = pytest.mark.parametrize("link", ["mux", "grpc"], scope="module")


def pour(far: Client) -> threading.Thread:
    """Keep sending until the connection breaks."""

    def send() -> None:
        with pytest.raises(OSError):
            while True:
                far.send(b"x" * 65536)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def works(programs: Programs) -> bool:
    """A new tunnel carries bytes."""
    with Target() as target, programs.connect_uds() as client:
        client.send(head_for(target.name) + b"x")
        if not client.read_head().startswith(b"HTTP/1.1 200 "):
            return False
        with target.accept() as far:
            return far.read_exactly(1) == b"x"


def kill(program: Program) -> None:
    program.signal(signal.SIGKILL)
    assert program.wait_exit() == -signal.SIGKILL


@LINKS
def test_the_agent_killed_in_the_middle_and_another_started(programs: Programs, link: str) -> None:
    server = programs.server("--link-resume-timeout=1s")
    agent = programs.agent(server, f"--link={link}")
    with (
        Target() as target,
        tunnel(programs.connect_tls(server), target.name) as over_tls,
        target.accept() as far_tls,
        tunnel(programs.connect_uds(), target.name) as over_uds,
        target.accept() as far_uds,
    ):
        pouring = [pour(far_tls), pour(far_uds)]
        over_tls.read_exactly(1_000_000)
        over_uds.read_exactly(1_000_000)
        kill(agent)
        with pytest.raises(CUT):  # an error, never a short success
            while over_tls.recv():
                pass
        while over_uds.recv():  # a UNIX socket has no word for it
            pass
        for thread in pouring:
            thread.join(20)
            assert not thread.is_alive()
    with programs.connect_uds() as client:
        assert ask(client, head_for("127.0.0.1:1")).status == 503
    programs.agent(server)
    programs.wait_ready(server)
    assert works(programs)


@LINKS
def test_the_server_killed_in_the_middle_and_started_again(programs: Programs, link: str) -> None:
    port = free_port()
    server = programs.server(f"--agent-port={port}", "--link-resume-timeout=1s")
    agent = programs.agent(server, f"--link={link}")
    with (
        Target() as target,
        tunnel(programs.connect_tls(server), target.name) as client,
        target.accept() as far,
    ):
        pouring = pour(far)
        client.read_exactly(1_000_000)
        kill(server)
        with pytest.raises(CUT):
            while client.recv():
                pass
        pouring.join(20)
        assert not pouring.is_alive()  # the agent reset the target's side
    again = programs.server(f"--agent-port={port}")  # over the socket file that the dead one left
    programs.wait_ready(again)
    assert works(programs)
    assert agent.process.poll() is None


class QuickLink(AgentLink):
    """A link that is dead after half a second of silence."""

    def __init__(self, terms: LinkTerms, *args: Any, **more: Any) -> None:
        quick = replace(terms, limits=Limits(ping_every_s=0.1, dead_after_s=0.5))
        super().__init__(quick, *args, **more)


@LINKS
def test_a_frozen_agent_is_dropped_and_its_tunnels_reset(
    programs: Programs, fresh: Stack, monkeypatch: pytest.MonkeyPatch, link: str
) -> None:
    monkeypatch.setattr(link_module, "_TICK_S", 0.05)
    monkeypatch.setattr("isthmus.programs.server.agents.AgentLink", QuickLink)
    server = fresh.add_server()
    flags = programs.agent_flags(server.agent_port)
    frozen = programs.start("agent", *flags, "--agent-id=frozen", f"--link={link}")
    frozen.wait_log("linked ")
    fresh.wait(lambda: len(server.agents) == 1, "the agent is linked")
    with Target() as target, fresh.tunnel("tls", target.name) as client, target.accept():
        frozen.signal(signal.SIGSTOP)
        with pytest.raises(CUT):
            client.recv()
    fresh.wait(lambda: len(server.agents) == 0, "the frozen agent is dropped")
    with fresh.uds() as client:
        assert ask(client, head_for("127.0.0.1:1")).status == 503
    assert fresh.snapshot()["recentEndings"][0]["ending"] == "link lost"
    frozen.signal(signal.SIGCONT)
    wait_until(lambda: len(server.agents) == 1, "it comes back by itself")


def test_a_killed_agent_that_comes_back_ends_what_it_had(programs: Programs) -> None:
    server = programs.server()
    agent = programs.agent(server, "--agent-id=one")
    with (
        Target() as target,
        tunnel(programs.connect_tls(server), target.name) as client,
        target.accept() as far,
    ):
        client.send(b"x")
        assert far.read_exactly(1) == b"x"
        kill(agent)
        programs.agent(server, "--agent-id=one")
        with pytest.raises(CUT):
            client.read_exactly(1)
    assert works(programs)
