"""Node traffic over a server that is not ours: konnectivity's ignores an agent's DIAL_REQ."""

from __future__ import annotations

import socket

import pytest
from clients import LIMIT_S, Client
from konnpeers import Peers
from own_network import needs_root, own_network
from stack import http_get

ADDRESS = ("10.96.0.1", 6443)


@needs_root
def test_a_go_server_is_noticed_by_its_silence(peers: Peers) -> None:
    with own_network():
        server = peers.go_server()
        agent = peers.agent_of(
            server,
            "--feature-gates=EnableClusterToMasterTraffic=true",
            f"--bind-address={ADDRESS[0]}",
            f"--target={ADDRESS[1]}:localhost:6443",
            "--dial-timeout=300ms",
            "--target-wait=500ms",
        )
        agent.wait_log("accepting connections from the node")  # it does not say that it cannot
        for _ in range(2):
            with Client(socket.create_connection(ADDRESS, LIMIT_S)) as client:
                client.send(b"hello")
                with pytest.raises(ConnectionResetError):
                    client.recv()
        text = "the server did not answer a connection from the node: konnectivity's own server"
        assert agent.log.count(text) == 1
        assert server.count("agent_gone") == 0  # the link is unharmed
        _, ready = http_get(agent.port("health_port"), "/readyz")
        assert "go-server did not answer, as konnectivity's own servers do not" in ready
