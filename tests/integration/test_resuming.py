"""Links that survive: the connection of a link is cut, and its tunnels go on."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest
from clients import Client, Target, head_for
from cutting_relay import CuttingRelay
from stack import Stack

from isthmus.links import link as link_module
from isthmus.programs.agent import resuming
from isthmus.tools.pki.making import PkiFiles


@pytest.fixture
def stack(certificates: PkiFiles, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    monkeypatch.setattr(resuming, "SPREAD_S", 0.05)
    with Stack(certificates) as stack:
        yield stack


@pytest.fixture
def relay(stack: Stack) -> Iterator[CuttingRelay]:
    server = stack.add_server()
    with CuttingRelay(server.agent_port) as relay:
        stack.add_agent(proxy_server_port=relay.port)
        yield relay


def resumed(stack: Stack, times: int) -> None:
    """Both sides have gone on by another connection."""
    stack.wait(
        lambda: (
            sum(link.resumes for link in stack.server.links) >= times
            and all(not link.suspended for link in stack.server.links)
            and all(not link.suspended for link in stack.agent.servers.links.values())
        ),  # type: ignore[union-attr]
        f"the link resumed {times} times",
    )


@pytest.mark.parametrize("reset", [True, False])
def test_a_tunnel_survives_a_cut(stack: Stack, relay: CuttingRelay, reset: bool) -> None:
    with Target() as target, stack.tunnel("uds", target.name) as near, target.accept() as far:
        for time in range(1, 6):
            near.send(b"to the target")
            assert far.read_exactly(13) == b"to the target"
            assert relay.cut(reset=reset) == 1
            far.send(b"while it is cut")
            near.send(b"both ways")
            assert near.read_exactly(15) == b"while it is cut"
            assert far.read_exactly(9) == b"both ways"
            resumed(stack, time)
        near.half_close()
        assert far.recv() == b""
        far.send(b"last words")
        far.half_close()
        assert near.read_exactly(10) == b"last words"
        assert near.recv() == b""
    stack.wait_idle()
    links = stack.snapshot()["links"]
    assert [(link["resumes"], link["state"]) for link in links] == [(5, "open")]


def echo(far: Client, size: int, seen: list[bytes]) -> None:
    left = size
    while left:
        data = far.recv()
        assert data
        far.send(data)
        left -= len(data)
    seen.append(b"done")


def test_bulk_both_ways_and_many_cuts(stack: Stack, relay: CuttingRelay) -> None:
    size = 8 * 1024 * 1024
    data = random.Random(5).randbytes(size)
    seen: list[bytes] = []
    with Target() as target, stack.tunnel("uds", target.name) as near, target.accept() as far:
        answering = threading.Thread(target=echo, args=(far, size, seen), daemon=True)
        answering.start()
        sending = threading.Thread(target=near.send, args=(data,), daemon=True)
        sending.start()
        came = bytearray()
        cuts = 0
        while len(came) < size:
            piece = near.recv()
            assert piece
            came += piece
            if len(came) > size * (cuts + 1) // 8 and cuts < 7:
                cuts += relay.cut()
        sending.join(20)
        answering.join(20)
    assert came == data
    assert seen == [b"done"]
    assert cuts >= 5
    stack.wait_idle()
    # What is kept goes with the acknowledgements.
    stack.wait(
        lambda: all(link.kept_bytes < 4096 for link in stack.server.links), "nothing is kept"
    )


def test_a_reset_while_it_is_cut_arrives_as_one(stack: Stack, relay: CuttingRelay) -> None:
    with Target() as target, stack.tunnel("uds", target.name) as near, target.accept() as far:
        relay.shut = True
        relay.cut()
        far.reset()
        stack.wait(lambda: not len(stack.agent.tunnels), "the agent's tunnel ended")
        relay.shut = False
        assert near.recv() == b""  # a UNIX socket has no word for it
    stack.wait_idle()


def test_a_dial_waits_for_the_link(stack: Stack, relay: CuttingRelay) -> None:
    relay.shut = True
    relay.cut()
    stack.wait(lambda: any(link.suspended for link in stack.server.links), "it is suspended")
    with Target() as target, stack.uds() as near:
        near.send(head_for(target.name) + b"early")
        relay.shut = False
        assert near.read_head().startswith(b"HTTP/1.1 200 ")
        with target.accept() as far:
            assert far.read_exactly(5) == b"early"


def test_a_connection_that_is_silently_dead(
    stack: Stack, relay: CuttingRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "SUSPECT_S", 1.0)
    with Target() as target, stack.tunnel("uds", target.name) as near, target.accept() as far:
        relay.freeze()
        near.send(b"into the void")
        links = stack.agent.servers
        assert links is not None
        stack.wait(
            lambda: all(link.suspended for link in (*stack.server.agents, *links.open_links)),
            "both sides suspect the connection",
        )
        relay.cut()
        relay.thaw()
        assert far.read_exactly(13) == b"into the void"
        far.send(b"and back")
        assert near.read_exactly(8) == b"and back"


def test_an_idle_link_sends_no_more_than_pings(
    stack: Stack, relay: CuttingRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = stack.do(lambda: next(iter(stack.server.links)))
    stack.wait(lambda: link.kept_bytes < 200, "the greeting was acknowledged")
    session = link.talk.session
    began = session.received_bytes
    for _ in range(50):
        stack.do(link._tick)
    assert session.received_bytes == began


def test_an_agent_that_never_comes_back(stack: Stack, certificates: PkiFiles) -> None:
    server = stack.add_server(link_resume_timeout_s=0.5)
    with CuttingRelay(server.agent_port) as relay:
        stack.add_agent(proxy_server_port=relay.port)
        with Target() as target, stack.tunnel("uds", target.name) as near, target.accept():
            relay.shut = True
            relay.cut()
            while near.recv():
                pass
        stack.wait(lambda: not stack.server.links, "the link is over")


def test_resuming_is_switched_off(stack: Stack) -> None:
    server = stack.add_server(link_resume_timeout_s=0)
    with CuttingRelay(server.agent_port) as relay:
        stack.add_agent(proxy_server_port=relay.port)
        assert all(link.lasting is None for link in server.links)
        with Target() as target, stack.tunnel("uds", target.name) as near, target.accept():
            relay.cut()
            while near.recv():
                pass
