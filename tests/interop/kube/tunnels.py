"""Isthmus itself in the little cluster: servers beside the control plane, agents elsewhere."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kube.ground import CONTROL_PLANE
from kube.programs import ISTHMUS, Program, connect, free_port

from isthmus.tools.pki.making import PkiFiles

LOOPBACK = "127.0.0.1"
ASK_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """A way for kube-apiserver to reach a server: protocol and transport.

    ``no_agent`` and ``no_server`` are what the apiserver then says of a dial that failed; whether
    it says the second at once depends on its own client.
    """

    name: str
    protocol: str
    server_mode: str
    uds: bool
    no_agent: str
    no_server: str
    fails_at_once: bool = True

    def __str__(self) -> str:
        return self.name

    @property
    def labels(self) -> str:
        """How the apiserver's metrics call it."""
        protocol = {"HTTPConnect": "http_connect", "GRPC": "grpc"}[self.protocol]
        return f'{{protocol="{protocol}",transport="{"uds" if self.uds else "tcp"}"}}'


HTTP_UDS = Mode(
    name="http-uds", protocol="HTTPConnect", server_mode="http-connect", uds=True,
    no_agent=r"while dialing 10\.201\.[0-9.:]+, code 503", no_server="connect: connection refused",
)  # fmt: skip
HTTP_TLS = replace(HTTP_UDS, name="http-tls", uds=False)
GRPC_UDS = replace(
    HTTP_UDS, name="grpc-uds", protocol="GRPC", server_mode="grpc", no_agent="[Nn]o agent",
    # Its gRPC client tries a socket that nobody listens on for 30 s.
    no_server="deadline exceeded", fails_at_once=False,
)  # fmt: skip
MODES = (HTTP_UDS, HTTP_TLS, GRPC_UDS)
DIRECT: dict[str, Any] = {"proxyProtocol": "Direct"}


class Tunnel:
    """A server and an agent that belongs to it; both can be ended and started again."""

    def __init__(
        self,
        name: str,
        mode: Mode,
        *,
        files: PkiFiles,
        directory: Path,
        server_namespace: str,
        agent_namespace: str,
        agent_port: int,
    ) -> None:
        self.mode = mode
        self._files = files
        self._namespace = server_namespace
        self._uds = directory / f"{name}.sock"
        self._frontend, self._health, self._admin, agent_health, agent_admin = (
            free_port(server_namespace) for _ in range(5)
        )
        server = [*ISTHMUS, "server", *self._server_flags(agent_port)]
        agent = [
            *ISTHMUS, "agent", f"--agent-id={name}",
            f"--proxy-server-host={CONTROL_PLANE}", f"--proxy-server-port={agent_port}",
            f"--ca-cert={files.ca_cert}", f"--agent-cert={files.agent_cert}",
            f"--agent-key={files.agent_key}", "--sync-interval=50ms", "--sync-interval-cap=200ms",
            f"--health-server-host={LOOPBACK}", f"--health-server-port={agent_health}",
            f"--admin-server-port={agent_admin}",
        ]  # fmt: skip
        self.server = Program(f"{name}-server", server_namespace, server, directory)
        self.agent = Program(f"{name}-agent", agent_namespace, agent, directory)

    def _server_flags(self, agent_port: int) -> list[str]:
        files = self._files
        frontend = (
            [f"--uds-name={self._uds}"] if self.mode.uds
            else [
                f"--server-port={self._frontend}", f"--server-bind-address={LOOPBACK}",
                f"--server-cert={files.server_cert}", f"--server-key={files.server_key}",
                f"--server-ca-cert={files.client_ca_cert}",
            ]
        )  # fmt: skip
        return [
            f"--mode={self.mode.server_mode}", *frontend,
            f"--agent-port={agent_port}", f"--agent-bind-address={CONTROL_PLANE}",
            f"--cluster-cert={files.server_cert}", f"--cluster-key={files.server_key}",
            f"--cluster-ca-cert={files.ca_cert}",
            f"--health-bind-address={LOOPBACK}", f"--health-port={self._health}",
            f"--admin-port={self._admin}",
        ]  # fmt: skip

    @property
    def connection(self) -> dict[str, Any]:
        """What an egress selection says to come this way."""
        files = self._files
        tls = {
            "caBundle": str(files.ca_cert),
            "clientCert": str(files.client_cert),
            "clientKey": str(files.client_key),
        }
        transport: dict[str, Any] = (
            {"uds": {"udsName": str(self._uds)}}
            if self.mode.uds
            else {"tcp": {"url": f"https://{LOOPBACK}:{self._frontend}", "tlsConfig": tls}}
        )
        return {"proxyProtocol": self.mode.protocol, "transport": transport}

    @contextlib.contextmanager
    def up(self) -> Iterator[Tunnel]:
        """Run both for the time of the block, from when they are linked."""
        with self.server.up(), self.agent.up():
            self.wait_linked()
            yield self
        for program in (self.server, self.agent):
            assert "Traceback" not in program.log, program.log

    def wait_linked(self) -> None:
        """Wait until the server has an agent."""
        self.server.wait_for(lambda: self._ask(self._health, "/readyz") == "ok", "it has an agent")

    def wait_unlinked(self) -> None:
        """Wait until the server knows that it has none."""
        lost = lambda: self._ask(self._health, "/readyz") not in ("ok", None)  # noqa: E731
        self.server.wait_for(lost, "it has no agent")

    @contextlib.contextmanager
    def without_agent(self) -> Iterator[None]:
        """Have the agent ended for the time of the block, and linked again after it."""
        with self.agent.down():
            self.wait_unlinked()
            yield
        self.wait_linked()

    @contextlib.contextmanager
    def without_server(self) -> Iterator[None]:
        """Have the server killed for the time of the block, and the agent linked after it."""
        with self.server.down():
            yield
        self.wait_linked()

    @property
    def dials(self) -> int:
        """How many dials the server was asked for in this life, and did."""
        text = self._ask(self._admin, "/snapshot")
        assert text is not None, self.server.log
        return int(json.loads(text)["totals"]["dials"])

    def _ask(self, port: int, path: str) -> str | None:
        """Ask a health or admin port; the text, or None when nobody answers."""
        try:
            sock = connect(self._namespace, (LOOPBACK, port))
        except OSError:
            return None
        asking = http.client.HTTPConnection(LOOPBACK, port, timeout=ASK_LIMIT_S)
        asking.sock = sock
        try:
            asking.request("GET", path)
            return asking.getresponse().read().decode().strip()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            asking.close()
            sock.close()
