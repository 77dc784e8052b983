"""Node ports on localhost with nftables: real rules, real connections, a network of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clients import LIMIT_S, Client
from node_proxy_bed import NODE, LocalhostProxy, metric, page, say_who, web
from own_network import needs_root, own_network
from stack import wait_until

pytestmark = [
    needs_root,
    pytest.mark.skipif(not all(map(shutil.which, ("nft", "curl"))), reason="needs nft and curl"),
]
A, B = "10.1.0.7", "10.1.0.8"
A6 = "fd00:1::7"


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[LocalhostProxy]:
    """A node proxy that is not started yet, and endpoints that say who they are."""
    with own_network(), contextlib.ExitStack() as stack:
        for address in (A, B, "192.0.2.1", A6):
            add_address(address)
        for address in (A, B, A6):
            stack.enter_context(say_who(address))
        made = stack.enter_context(LocalhostProxy.made(tmp_path))
        made.write(node=NODE)
        yield made


def add_address(address: str) -> None:
    subprocess.run(
        ["ip", "address", "add", address, "dev", "lo", "nodad"], check=True, timeout=LIMIT_S
    )


def curl(where: str) -> str:
    """What an HTTP client gets; "refused" where nobody listens."""
    argv = ["curl", "-sS", "--max-time", "20", "--http0.9", f"http://{where}/"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    return "refused" if done.returncode == 7 else done.stdout


def snapshot() -> dict[str, Any]:
    status, text = page("/snapshot")
    assert status == 200, text
    found: dict[str, Any] = json.loads(text)
    return found


def ports() -> dict[str, Any]:
    return {each["address"]: each for each in snapshot()["localhostNodePorts"]}


def test_node_ports_are_reached_and_follow_changes(proxy: LocalhostProxy) -> None:
    proxy.write(web=web("10.96.0.10", 30080, [A]), six=web("fd00:96::1", 30080, [A6], name="six"))
    proxy.start()
    wait_until(lambda: curl("127.0.0.1:30080") == A, "the port on localhost")
    wait_until(lambda: curl("[::1]:30080") == A6, "the port of IPv6")
    assert curl("192.0.2.1:30080") == A  # by the rules, to the same endpoint
    assert "127.0.0.1" not in subprocess.run(
        ["nft", "list", "ruleset"], capture_output=True, text=True, timeout=LIMIT_S, check=True
    ).stdout  # fmt: skip
    assert page("/readyz", 10256)[0] == 200
    assert ports()["127.0.0.1:30080"]["endpoints"] == [f"{A}:8080"]
    assert metric("isthmus_node_proxy_localhost_ports") == 2
    # Another endpoint, then none, then a Service that is gone.
    proxy.write(web=web("10.96.0.10", 30080, [B]))
    wait_until(lambda: curl("127.0.0.1:30080") == B, "the other endpoint")
    proxy.write(web=web("10.96.0.10", 30080, []))
    wait_until(lambda: curl("127.0.0.1:30080") == "refused", "nobody listens")
    proxy.write(web=web("10.96.0.10", 30081, [B]))
    wait_until(lambda: curl("127.0.0.1:30081") == B, "the other port")
    assert curl("127.0.0.1:30080") == "refused"
    bytes_to = 'isthmus_node_proxy_localhost_bytes_total{direction="to_client"}'
    wait_until(lambda: metric(bytes_to) >= len(A) + len(B), "bytes are counted")


def test_affinity_and_endpoints_that_fail(proxy: LocalhostProxy) -> None:
    gone = "10.1.0.9"  # on this host, and nobody listens
    add_address(gone)
    proxy.write(
        free=web("10.96.0.10", 30080, [A, B, gone], name="free"),
        sticky=web("10.96.0.11", 30081, [A, B], name="sticky", affinity_s=600),
    )
    proxy.start()
    wait_until(lambda: "127.0.0.1:30081" in ports(), "ports")
    wait_until(lambda: curl("127.0.0.1:30081") in (A, B), "the port on localhost")
    assert len({curl("127.0.0.1:30081") for _ in range(8)}) == 1
    # A new connection that fails has lost nothing: another endpoint is tried.
    said = [curl("127.0.0.1:30080") for _ in range(20)]
    assert set(said) == {A, B}
    assert metric("isthmus_node_proxy_localhost_dial_failures_total") > 0


def test_a_port_that_is_taken_is_said_with_its_owner_and_tried_again(
    proxy: LocalhostProxy,
) -> None:
    other = socket.create_server(("0.0.0.0", 30080))
    proxy.write(web=web("10.96.0.10", 30080, [A]), two=web("10.96.0.11", 30082, [A], name="two"))
    program = proxy.start()
    with other:
        program.wait_log("node port on localhost is in use")
        (line,) = [it for it in program.log.splitlines() if "localhost is in use" in it]
        assert 'service="default/web"' in line
        assert f"({os.getpid()})" in line
        assert "of user root" in line
        wait_until(lambda: curl("127.0.0.1:30082") == A, "the other port")
        assert f"({os.getpid()})" in ports()["127.0.0.1:30080"]["trouble"]
        assert page("/readyz", 10256)[0] == 200
    wait_until(lambda: curl("127.0.0.1:30080") == A, "the port once it is free")
    assert program.log.count("localhost is in use") == 1


def test_open_connections_outlive_their_service_and_a_drain(proxy: LocalhostProxy) -> None:
    with socket.create_server((A, 9000)) as target:
        target.settimeout(LIMIT_S)
        proxy.write(web=web("10.96.0.10", 30080, [A], port=9000))
        program = proxy.start("--graceful-shutdown-timeout=20s")
        wait_until(lambda: "127.0.0.1:30080" in ports(), "the port")
        with Client(socket.create_connection(("127.0.0.1", 30080), LIMIT_S)) as client:
            far = Client(target.accept()[0])
            proxy.write(web=None)
            wait_until(lambda: not ports(), "the Service is gone")
            client.send(b"still")
            assert far.read_exactly(5) == b"still"
            program.signal(signal.SIGTERM)
            program.wait_log("draining")
            client.half_close()
            assert far.recv() == b""
            far.send(b"and here")
            far.close()
            assert client.read_exactly(8) == b"and here"
            assert client.recv() == b""
        assert program.wait_exit() == 0


def test_without_the_flag_nobody_listens(proxy: LocalhostProxy) -> None:
    proxy.write(web=web("10.96.0.10", 30080, [A]))
    proxy.start(localhost=False)
    wait_until(lambda: curl("192.0.2.1:30080") == A, "the rules")
    assert curl("127.0.0.1:30080") == "refused"
    assert snapshot()["localhostNodePorts"] == []
