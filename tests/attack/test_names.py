"""Clients that ask for names which no DNS server answers, against a running server and agent."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import Client, Target, echo_target, head_for, status_of
from node_clients import NodeDial, node
from stack import Stack, http_get, wait_until

from isthmus.net import name_service
from isthmus.programs.agent.target_dial import TargetDials
from isthmus.settings.gates import CLUSTER_TO_MASTER

sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "net"))

from name_server import NameServer  # found by the line above


@pytest.fixture
def dns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    """A DNS server that answers for honest.example alone, and everybody who starts now asks it."""
    with NameServer() as server:
        server.put("honest.example", "127.0.0.1")
        monkeypatch.setattr(name_service, "SYSTEM", server.paths(tmp_path))
        yield server


def asks_for(client: Client, target: str) -> Client:
    client.send(head_for(target))
    return client


def is_served(client: Client, target: Target) -> bool:
    """Whether an honest name gets there, and a byte with it."""
    with client:
        asks_for(client, f"honest.example:{target.port}")
        if status_of(client.read_head()) != 200:
            return False
        client.send(b"honest")
        return client.read_exactly(6) == b"honest"


def hang(stack: Stack, opened: contextlib.ExitStack, count: int, kind: str = "uds") -> list[Client]:
    clients = [opened.enter_context(stack.client(kind)) for _ in range(count)]
    for n, client in enumerate(clients):
        asks_for(client, f"hang{n}.{kind}.example:80")
    return clients


def test_names_without_an_answer_do_not_stop_others_of_the_same_client(
    fresh: Stack, dns: NameServer
) -> None:
    """One client asks for 200 names that are never answered, and then for one that is."""
    fresh.add_server()
    agent = fresh.add_agent()
    with echo_target() as target, contextlib.ExitStack() as opened:
        hang(fresh, opened, 200)
        fresh.wait(lambda: agent.part(TargetDials)._targets.pending == 200, "all hang")
        assert is_served(fresh.uds(), target)
        assert fresh.do(lambda: agent.part(TargetDials)._targets.pending) == 200
        assert http_get(agent.health_port, "/readyz")[0] == 200


def test_dials_that_are_taken_back_free_their_lookups(fresh: Stack, dns: NameServer) -> None:
    """A client asks for names that are never answered and goes away, again and again."""
    fresh.add_server()
    agent = fresh.add_agent()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with contextlib.ExitStack() as opened:
            hang(fresh, opened, 100)
            fresh.wait(lambda: agent.part(TargetDials)._targets.pending == 100, "all hang")
        fresh.wait(lambda: agent.part(TargetDials)._targets.pending == 0, "none is left")
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before + 10, "nor a socket of any")
    with echo_target() as target:
        assert is_served(fresh.uds(), target)


def test_a_thousand_hanging_names_of_one_client_do_not_stop_another(
    fresh: Stack, dns: NameServer
) -> None:
    """One client asks for 1,000 names that are never answered; another one's are, all the same."""
    fresh.add_server()
    agent = fresh.add_agent()
    resolver = agent.part(TargetDials)._targets
    resolver._most = 512  # as of a host with 4,096 descriptors
    with echo_target() as target, contextlib.ExitStack() as opened:
        hang(fresh, opened, 1000)
        fresh.wait(lambda: resolver.pending == 256, "it has its half of all lookups")
        for _ in range(3):
            assert is_served(fresh.tls(), target)
        assert fresh.do(lambda: resolver.pending) == 256


def test_nodes_that_ask_for_names_without_an_answer_do_not_stop_the_listed_ones(
    fresh: Stack, dns: NameServer
) -> None:
    """An agent asks its server for names that are never answered; listed ones are still found."""
    gate = (f"{CLUSTER_TO_MASTER}=true",)
    with echo_target() as target:
        server = fresh.add_server(
            feature_gates=gate,
            allowed_destination=(f"honest.example:{target.port}", "127.0.0.0/8:80"),
        )
        fresh.add_agent(feature_gates=gate)
        hanging = [NodeDial(fresh, f"hang{n}.example", 80) for n in range(100)]
        fresh.wait(lambda: server.node_dials.resolver.pending == 100, "all hang")
        with node(fresh, "honest.example", target.port) as client:
            client.send(b"honest")
            assert client.read_exactly(6) == b"honest"
        for one in hanging:
            one.take_back()
        fresh.wait(lambda: server.node_dials.resolver.pending == 0, "none is left")
