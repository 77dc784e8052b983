"""Sidecars, the SNI router and the apiserver proxy with two workers each, and systemd's sockets."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clients import LIMIT_S, Client, echo_target, free_port, head_for, status_of
from programs import Program, Programs
from sni_bed import Tenant, hello_bytes
from stack import Stack, http_get, metric, wait_until
from systemd_bed import Manager, listening
from workers_bed import HANDED, START_S, WORKERS, serving, wait_workers

from isthmus.wire.proxy_protocol import ProxyHeader, Tlv

PORTS = ("--health-bind-address=127.0.0.1", "--health-port=0", "--admin-port=0", "--workers=2")


def started(programs: Programs, *args: str) -> Program:
    program = serving(programs, *args, *PORTS)
    wait_workers(program)
    return program


def handed(program: Program) -> list[float]:
    text = http_get(program.port("admin_port"), "/metrics")[1]
    return [metric(text, f'{HANDED}{{worker="{index}"}}') for index in range(WORKERS)]


def snapshot(program: Program) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(http_get(program.port("admin_port"), "/snapshot")[1])
    return found


def echoes(connect: Callable[[], Client]) -> None:
    with connect() as client:
        client.send(b"hello")
        assert client.read_exactly(5) == b"hello"


def plain(program: Program) -> Client:
    port = program.port("port")
    return Client(socket.create_connection(("127.0.0.1", port), LIMIT_S))


def test_the_sidecars(stack: Stack, programs: Programs, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"  # it is there, and nobody asks: targets are addresses
    kubeconfig.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: x\n"
        "contexts: [{name: x, context: {cluster: x, user: x}}]\n"
        "clusters: [{name: x, cluster: {server: 'https://127.0.0.1:1'}}]\n"
        "users: [{name: x, user: {token: t}}]\n"
    )
    sidecars = {
        "socks5-proxy": ["--disable-resolver"],
        "https-proxy": [f"--kubeconfig={kubeconfig}"],
    }
    with echo_target() as target:
        for name, more in sidecars.items():
            sidecar = started(
                programs, name, "--serving-port=0",
                *more,
                f"--konnectivity-uds={stack.server.settings.uds_name}",
            )  # fmt: skip

            def connect(sidecar: Program = sidecar, name: str = name) -> Client:
                client = plain(sidecar)
                if name == "https-proxy":
                    client.send(head_for(target.name))
                    assert status_of(client.read_head()) == 200
                    return client
                client.send(b"\x05\x01\x00")
                assert client.read_exactly(2) == b"\x05\x00"
                port = target.port.to_bytes(2, "big")
                client.send(b"\x05\x01\x00\x01" + socket.inet_aton("127.0.0.1") + port)
                assert client.read_exactly(10)[:2] == b"\x05\x00"
                return client

            for _ in range(2 * WORKERS):
                echoes(connect)
            assert all(handed(sidecar))
            assert snapshot(sidecar)["program"] == name
            assert snapshot(sidecar)["totals"]["dials"] == 2 * WORKERS


def test_the_sni_router(programs: Programs, tmp_path: Path) -> None:
    with Tenant("tenant-a", tmp_path) as tenant:
        routes = tmp_path / "routes.yaml"
        routes.write_text(
            "apiVersion: isthmus.dev/v1alpha1\nkind: SNIRoutes\nroutes:\n"
            "- name: a\n  hosts: [api.tenant-a.example.com]\n"
            f"  backends: ['127.0.0.1:{tenant.port}']\n"
            f"- name: a-pods\n  tlv: [a]\n  backends: ['127.0.0.1:{tenant.port}']\n"
        )
        by_tlv = free_port()
        router = started(
            programs, "sni-router", f"--config={routes}", "--listen=127.0.0.1:0",
            f"--listen-proxy=127.0.0.1:{by_tlv}",
        )  # fmt: skip
        for _ in range(2 * WORKERS):
            with plain(router) as client:
                client.send(hello_bytes("api.tenant-a.example.com"))
                assert client.read_exactly(1) == b"\x16"  # its ServerHello
        assert all(handed(router))
        names = [route["name"] for route in snapshot(router)["routes"]]
        assert names == ["a", "a-pods"]
        assert snapshot(router)["totals"]["dials"] == 2 * WORKERS
        with Client(socket.create_connection(("127.0.0.1", by_tlv), LIMIT_S)) as client:
            header = ProxyHeader(tlvs=(Tlv(0x20, b"a"),)).to_bytes()
            client.send(header + hello_bytes("kubernetes.default.svc"))
            assert client.read_exactly(1) == b"\x16"


def test_the_apiserver_proxy(programs: Programs) -> None:
    with echo_target() as target:
        proxy = started(
            programs, "apiserver-proxy", f"--upstream={target.name}", "--listen=127.0.0.1:0",
            "--health-check=tcp", "--manage-address=false",
        )  # fmt: skip
        for _ in range(2 * WORKERS):
            echoes(lambda: plain(proxy))
        assert all(handed(proxy))
        shown = snapshot(proxy)
        assert shown["listeners"] == [f"127.0.0.1:{proxy.port('port')}"]
        assert [it["address"] for it in shown["upstreams"]] == [target.name]
        assert shown["totals"]["dials"] == 2 * WORKERS


def test_sockets_and_news_of_systemd_are_the_parents(programs: Programs, tmp_path: Path) -> None:
    path = Path(programs.uds)
    with Manager(tmp_path) as manager, listening(path) as sock:
        flags = [*programs.server_flags(), "--workers=2"]
        unit = manager.start("server", *flags, sockets=[sock], names=["frontend"])
        wait_until(lambda: "READY=1" in manager.hear(), "it is ready", START_S)
        assert any("2 of 2 workers" in text for text in manager.hear()), manager.heard
        with programs.connect_uds() as client:
            client.send(b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.read_head().startswith(b"HTTP/1.1 503 ")  # there is no agent
        unit.stop()
        assert manager.hear().count("READY=1") == 1
        assert path.exists()  # it is systemd's
