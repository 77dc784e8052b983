"""Server and agent as their pods and units run: their user, capabilities and read-only root."""

from __future__ import annotations

import os
import shlex
import socket
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from clients import LIMIT_S, Client, Target, TlsClient, connect_uds, free_port, tunnel
from forked import run
from own_network import needs_root, own_network
from pods import USER, Node, can_run
from sni_bed import hello_bytes
from stack import client_context, http_get, wait_until

from isthmus.tools.pki import making as pki
from isthmus.wire.proxy_protocol import ProxyHeader, Tlv

pytestmark = needs_root

KINDS = ("Pod", "DaemonSet", "Deployment")
SOCKET = "/run/isthmus/server.sock"


@pytest.fixture(scope="module", autouse=True)
def network() -> Iterator[None]:
    if not can_run():
        pytest.skip("another user cannot run this Python")
    with own_network():
        yield


def pod(*args: str) -> dict[str, Any]:
    done = run("manifest", *args, timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stderr
    if "--as=systemd" in args:
        return as_pod(done.stdout)
    (found,) = [each["spec"] for each in yaml.safe_load_all(done.stdout) if each["kind"] in KINDS]
    spec: dict[str, Any] = found["template"]["spec"] if "template" in found else found
    return spec


def as_pod(unit: str) -> dict[str, Any]:
    """A unit, as if it were a pod: systemd makes its directory, and gives it to its user."""
    lines = unit.replace("\\\n", " ").splitlines()
    said = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    assert said["ProtectSystem"] == "strict" and not said["CapabilityBoundingSet"]
    directory = f"/run/{said['RuntimeDirectory']}"
    words = shlex.split(said["ExecStart"])
    ports = dict(word[2:].split("=", 1) for word in words if "-port=" in word)
    get = {"port": int(ports["health-port"])}
    server = {
        "command": ["isthmus"],
        "args": words[1:],
        "securityContext": {"runAsUser": USER, "capabilities": {}},
        "volumeMounts": [{"mountPath": directory}],
        "livenessProbe": {"httpGet": {**get, "path": "/livez"}},
        "readinessProbe": {"httpGet": {**get, "path": "/readyz"}},
    }
    setup = {
        "command": ["isthmus"],
        "args": ["server", "setup-socket", f"--uds-name={SOCKET}", f"--owner={USER}"],
        "securityContext": {"runAsUser": 0, "capabilities": {"add": ["CHOWN"]}},
        "volumeMounts": [{"mountPath": directory}],
    }
    return {"containers": [server], "initContainers": [setup]}


@pytest.fixture
def node(certificates: pki.PkiFiles) -> Iterator[Node]:
    """A node with every file where the manifests of every form look for it."""
    files = certificates
    with Node() as made:
        for directory in (
            "/etc/isthmus", "/etc/isthmus/server", "/etc/isthmus/ca", "/etc/isthmus/frontend",
            "/etc/isthmus/client-ca", "/etc/isthmus/agent", "/run/isthmus",
        ):  # fmt: skip
            made.directory(directory)
        for path, source in {
            "/etc/isthmus/server.crt": files.server_cert,
            "/etc/isthmus/server.key": files.server_key,
            "/etc/isthmus/ca.crt": files.ca_cert,
            "/etc/isthmus/server/tls.crt": files.server_cert,
            "/etc/isthmus/server/tls.key": files.server_key,
            "/etc/isthmus/frontend/tls.crt": files.server_cert,
            "/etc/isthmus/frontend/tls.key": files.server_key,
            "/etc/isthmus/ca/ca.crt": files.ca_cert,
            "/etc/isthmus/client-ca/ca.crt": files.client_ca_cert,
            "/etc/isthmus/agent/tls.crt": files.agent_cert,
            "/etc/isthmus/agent/tls.key": files.agent_key,
        }.items():
            made.put(path, source)
        yield made


def probe(container: dict[str, Any], kind: str) -> int:
    """What the kubelet is answered."""
    get = container[f"{kind}Probe"]["httpGet"]
    return http_get(get["port"], get["path"])[0]


def is_ready(container: dict[str, Any]) -> bool:
    return probe(container, "readiness") == 200


def test_a_router_works_as_it_is_confined(tmp_path: Path) -> None:
    port = free_port()
    with Target() as target, Node() as node:
        routes = tmp_path / "routes.yaml"
        routes.write_text(
            "apiVersion: isthmus.dev/v1alpha1\nkind: SNIRoutes\n"
            f"routes: [{{name: r, tlv: [id], backends: ['{target.name}']}}]\n"
        )
        node.directory("/etc/isthmus/routes")
        node.put("/etc/isthmus/routes/routes.yaml", routes)
        spec = pod(
            "sni-router", f"--routes={routes}", f"--listen=:{free_port()}",
            f"--listen-proxy=:{port}", f"--health-port={free_port()}",
            f"--admin-port={free_port()}",
        )  # fmt: skip
        (container,) = spec["containers"]
        router = node.start(container, "router")
        router.wait_log("serving ")
        assert probe(container, "liveness") == 200 and is_ready(container)
        hello = hello_bytes("kubernetes.default.svc")
        told = ProxyHeader(tlvs=(Tlv(0x20, b"id"),)).to_bytes()
        with Client(socket.create_connection(("127.0.0.1", port), LIMIT_S)) as client:
            client.send(told + hello)
            with target.accept() as far:
                assert far.read_exactly(len(hello)) == hello
        router.stop()


def connect(form: str, node: Node, server: dict[str, Any], files: pki.PkiFiles) -> Client:
    if form != "deployment":
        return connect_uds(node.here(SOCKET))
    (port,) = [each["containerPort"] for each in server["ports"] if each["name"] == "http-connect"]
    sock = socket.create_connection(("127.0.0.1", port), LIMIT_S)
    return TlsClient(sock, client_context(files), "localhost")


@pytest.mark.parametrize("form", ["static-pod", "daemonset", "deployment", "systemd"])
def test_pods_work_as_they_are_confined(form: str, node: Node, certificates: pki.PkiFiles) -> None:
    agents = free_port()
    clients = (
        "--server-ca-cert=/etc/isthmus/client-ca/ca.crt", "--client-ca-config-map=client-ca",
    )  # fmt: skip
    spec = pod(
        "server", f"--as={form}", "--mode=http-connect", "--server-count=1",
        *(clients if form == "deployment" else ()),
        f"--agent-port={agents}", f"--health-port={free_port()}", f"--admin-port={free_port()}",
    )  # fmt: skip
    (container,) = spec["containers"]
    for setup in spec.get("initContainers", ()):
        node.run(setup)
        node.run(setup)  # safe to repeat
    server = node.start(container, "server")
    server.wait_log("serving ")
    assert probe(container, "liveness") == 200
    assert probe(container, "readiness") != 200  # nobody is there yet
    if form != "deployment":
        found = os.stat(node.here(SOCKET))
        assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o660, USER, USER)
    agent = pod(
        "agent", "--as=daemonset", "--proxy-server-host=127.0.0.1",
        f"--proxy-server-port={agents}", "--ca-cert=/etc/isthmus/agent/ca.crt",
        "--agent-cert=/etc/isthmus/agent/tls.crt", "--agent-key=/etc/isthmus/agent/tls.key",
        f"--health-server-port={free_port()}", f"--admin-server-port={free_port()}",
    )["containers"][0]  # fmt: skip
    node.put("/etc/isthmus/agent/ca.crt", certificates.ca_cert)
    running = node.start(agent, "agent")
    running.wait_log("linked ")
    for each in (container, agent):
        wait_until(partial(is_ready, each), "it is ready")
        assert probe(each, "liveness") == 200
    with (
        Target() as target,
        tunnel(connect(form, node, container, certificates), target.name) as here,
        target.accept() as far,
    ):
        here.send(b"through")
        assert far.read_exactly(7) == b"through"
    running.stop()
    server.stop()
    assert not os.path.exists(node.here(SOCKET))


def test_without_the_setup_there_is_no_socket(node: Node) -> None:
    """What the init container is for."""
    ports = [f"--{name}-port={free_port()}" for name in ("agent", "health", "admin")]
    spec = pod("server", "--as=static-pod", "--server-count=1", *ports)
    server = node.start(spec["containers"][0], "server")
    assert server.process.wait(LIMIT_S) == 2
    assert "cannot listen: Permission denied" in server.log
