"""Every program, started with as few flags as it takes: no line of its log says None."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clients import Target, ask, free_port, head_for
from own_network import needs_root, own_network
from programs import Program, Programs

PORTS = ("--health-bind-address=127.0.0.1", "--health-port=0", "--admin-port=0")
ROUTES = Path(__file__).parents[2] / "examples" / "sni-router" / "routes.yaml"
KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
contexts: [{name: c, context: {cluster: c, user: ""}}]
current-context: c
"""


@pytest.fixture(params=["text", "json"])
def fmt(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def start(programs: Programs, fmt: str, *args: str) -> Program:
    return programs.start(*args, f"--log-format={fmt}", "--v=5")


def end(program: Program, fmt: str) -> None:
    """Have it stop by itself, and read everything that it said."""
    program.process.terminate()
    program.wait_exit()
    lines = program.log.splitlines()
    assert any("serving" in line for line in lines)
    for line in lines:
        assert "None" not in line
        if fmt == "json" and line.startswith("{"):
            assert None not in json.loads(line).values(), line


def test_server_and_agent(programs: Programs, fmt: str) -> None:
    files, port = programs.files, free_port()
    server = start(
        programs, fmt, "server", f"--uds-name={programs.uds}", "--mode=http-connect",
        "--server-port=0", f"--agent-port={port}", f"--cluster-cert={files.server_cert}",
        f"--cluster-key={files.server_key}", "--insecure-agents", *PORTS,
    )  # fmt: skip
    server.wait_log("serving")
    agent = start(
        programs, fmt, "agent", f"--proxy-server-port={port}", f"--ca-cert={files.ca_cert}",
        "--health-server-host=127.0.0.1", "--health-server-port=0", "--admin-server-port=0",
    )  # fmt: skip
    agent.wait_log("linked")
    server.wait_log("agent linked")
    with Target() as target, programs.connect_uds() as client:
        client.send(head_for(target.name))
        assert b"200" in client.read_head()
    with programs.connect_uds() as refused:
        ask(refused, head_for(f"127.0.0.1:{free_port()}"))
    end(agent, fmt)
    end(server, fmt)


@pytest.mark.parametrize("kind", ["socks5-proxy", "https-proxy"])
def test_a_sidecar(programs: Programs, fmt: str, kind: str, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    program = start(
        programs, fmt, kind, "--serving-port=0", f"--konnectivity-uds={programs.uds}",
        f"--kubeconfig={kubeconfig}", *PORTS,
    )  # fmt: skip
    program.wait_log("serving")
    end(program, fmt)


def test_an_sni_router(programs: Programs, fmt: str) -> None:
    program = start(
        programs, fmt, "sni-router", f"--config={ROUTES}", "--listen=127.0.0.1:0", *PORTS
    )
    program.wait_log("serving")
    end(program, fmt)


def test_an_apiserver_proxy(programs: Programs, fmt: str) -> None:
    program = start(
        programs, fmt, "apiserver-proxy", f"--upstream=127.0.0.1:{free_port()}",
        "--listen=127.0.0.1:0", "--health-check=tcp", "--manage-address=false", *PORTS,
    )  # fmt: skip
    program.wait_log("serving")
    end(program, fmt)


@needs_root
def test_a_node_proxy(programs: Programs, fmt: str, tmp_path: Path) -> None:
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    with own_network():
        program = start(
            programs, fmt, "node-proxy", f"--manifests={manifests}", "--proxy-mode=nftables",
            "--healthz-bind-address=127.0.0.1:0", "--metrics-bind-address=",
            "--conntrack-max-per-core=0", "--oom-score-adj=0",
        )  # fmt: skip
        program.wait_log("synced")
        end(program, fmt)
