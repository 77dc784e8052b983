"""konnectivity's agents and kube-apiserver's client against a server with two workers."""

from __future__ import annotations

import pytest
from konnpeers import Peers
from programs import Program
from workers_bed import WORKERS, serving

pytestmark = pytest.mark.interop


def server_with_workers(peers: Peers) -> Program:
    flags = [*peers.server_flags(), "--mode=grpc", "--server-id=one", f"--workers={WORKERS}"]
    return serving(peers, "server", *flags)


def test_a_go_agent_meets_every_worker_in_turn(peers: Peers) -> None:
    server = server_with_workers(peers)
    # An agent of konnectivity's connects again until it has met as many ids as it was told of.
    said = [peers.go_agent(server, "--id=same").wait("connected") for _ in range(WORKERS)]
    assert [it["serverCount"] for it in said] == [[str(WORKERS)]] * WORKERS
    assert sorted(it["serverID"][0] for it in said) == ["one-w0", "one-w1"]
    assert peers.check("echo", "echo", "--n=10", "--rounds=1")


@pytest.mark.parametrize("link", ["mux", "grpc"])
@pytest.mark.parametrize("tunnel", [(), ("--reusable",)], ids=["single-use", "reusable"])
def test_the_client_of_kube_apiserver(peers: Peers, tunnel: tuple[str, ...], link: str) -> None:
    server = server_with_workers(peers)
    peers.agent(server, f"--link={link}")
    peers.wait_ready(server)
    assert peers.check("dial", "echo", *tunnel)["dial_error"] == ""
    assert peers.check("echo", "echo", "--n=20", "--rounds=2", *tunnel)
