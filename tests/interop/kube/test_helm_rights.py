"""The rights of an installation, at a kube-apiserver that enforces them.

Server and agent run by the command lines of their pods, with tokens of their accounts: what they
are allowed is enough. And it is no more than that.
"""

from __future__ import annotations

import http
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kube.api import Api, CallFailedError, write_kubeconfig
from kube.build import Binaries
from kube.cluster import plain_control_plane
from kube.documents import make_namespace
from kube.helm_chart import NAMESPACE, Helm, Key, Object
from kube.programs import ISTHMUS, Program, free_port, wait_until

from isthmus.tools.pki.making import PkiFiles

pytestmark = pytest.mark.interop

AUDIENCE = "system:konnectivity-server"
API_AUDIENCE = "https://kubernetes.default.svc"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
OTHERS = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
LEASE = "konnectivity-proxy-server-one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """An apiserver with the chart's accounts and rights in it, and who may run there."""

    api: Api
    files: PkiFiles
    directory: Path
    objects: dict[Key, Object]
    ports: dict[str, int]

    def token(self, account: str, audience: str) -> str:
        return self.api.service_account_token(account, audience=audience, namespace=NAMESPACE)

    def kubeconfig(self, account: str) -> Path:
        path = self.directory / f"{account}.kubeconfig"
        token = self.token(account, API_AUDIENCE)
        return write_kubeconfig(path, self.api.url, self.files.ca_cert, token)

    def program(self, name: str, *more: str) -> Program:
        """The program of a pod, with the node's own files in place of the pod's."""
        spec = self.objects["DaemonSet", NAMESPACE, f"isthmus-{name}"]["spec"]["template"]["spec"]
        moved = {
            "/run/isthmus/server.sock": str(self.directory / "s"),
            "/etc/isthmus/server/tls.crt": str(self.files.server_cert),
            "/etc/isthmus/server/tls.key": str(self.files.server_key),
            "/etc/isthmus/ca/ca.crt": str(self.files.ca_cert),
            "/var/run/secrets/isthmus/token": str(self.directory / "token"),
            "$(POD_IP)": "127.0.0.1",
        }
        args = list(spec["containers"][0]["args"])
        for before, after in moved.items():
            args = [arg.replace(before, after) for arg in args]
        access = f"--kubeconfig={self.kubeconfig(f'isthmus-{name}')}"
        return Program(name, None, [*ISTHMUS, *args, access, *more], self.directory)


@pytest.fixture(scope="module")
def ground(kube_binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    directory = tmp_path_factory.mktemp("rights")
    names = ("server.agentPort", "server.healthPort", "server.adminPort")
    ports = {name: free_port(None) for name in (*names, "agent.healthPort", "agent.adminPort")}
    changes: dict[str, Any] = {
        **ports,
        "agent.countServerLeases": True,
        "agent.servers.hosts": ["127.0.0.1"],
        "agent.servers.port": ports["server.agentPort"],
    }
    objects = Helm(kube_binaries.helm, directory).template(changes)
    with (
        plain_control_plane(kube_binaries) as (control_plane, files),
        control_plane.apiserver("--authorization-mode=RBAC") as api,
    ):
        make_namespace(api, NAMESPACE)
        for (kind, namespace, _), each in objects.items():
            if kind in ("Namespace", "ServiceAccount") or "Role" in kind:
                api.create(path_of(kind, namespace), each)
        yield Ground(api=api, files=files, directory=directory, objects=objects, ports=ports)


def path_of(kind: str, namespace: str) -> str:
    group = (
        "api/v1" if kind in ("Namespace", "ServiceAccount") else "apis/rbac.authorization.k8s.io/v1"
    )
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"/{group}{where}/{kind.lower()}s"


def test_rights_are_enough(ground: Ground) -> None:
    token = ground.directory / "token"
    token.write_text(ground.token("isthmus-agent", AUDIENCE))
    server = ground.program("server", "--server-id=one")
    agent = ground.program("agent", "--agent-id=node-1", "--sync-interval=100ms")
    with server.up(), agent.up():
        server.wait_for(lambda: "lease held" in server.log, "it has its Lease")
        agent.wait_for(lambda: "linked " in agent.log, "its token is accepted, and it is linked")
        lease = ground.api.get(f"{LEASES}/{LEASE}")
        assert lease["spec"]["holderIdentity"] == "one"
        port = ground.ports["server.agentPort"]
        address = lease["metadata"]["annotations"]["isthmus.dev/agent-address"]
        assert address == f"127.0.0.1:{port}"
        # One that nobody keeps any more, which a server removes.
        dead = {**lease["spec"], "renewTime": "2001-01-01T00:00:00.000000Z", "holderIdentity": "x"}
        metadata = {"name": f"{LEASE}-dead", "labels": lease["metadata"]["labels"]}
        ground.api.create(LEASES, {"metadata": metadata, "spec": dead})
        server.wait_for(lambda: "expired lease deleted" in server.log, "it removes another's Lease")
        for each in (server, agent):
            assert "forbidden" not in each.log.lower(), each.log
    # It was killed, so its Lease is still there: a server that comes again takes it over.
    with server.up():
        server.wait_for(lambda: server.log.count("lease held") == 2, "it has its Lease again")
        os.kill(server.pid, signal.SIGTERM)
        wait_until(lambda: not ground.api.has(f"{LEASES}/{LEASE}"), "the Lease is given back")
    assert "forbidden" not in server.log.lower(), server.log


@pytest.mark.parametrize("account", ["isthmus-server", "isthmus-agent"])
def test_rights_are_no_more(ground: Ground, account: str) -> None:
    token = ground.token(account, API_AUDIENCE)
    is_server = account == "isthmus-server"
    asked = {
        ("GET", LEASES): True,
        ("POST", LEASES): is_server,
        ("GET", f"{LEASES}/none"): is_server,
        ("DELETE", f"{LEASES}/none"): is_server,
        ("PATCH", f"{LEASES}/none"): False,
        ("DELETE", LEASES): False,
        ("GET", LEASES.replace(NAMESPACE, "default")): False,
        # Those that say who leads the control plane.
        ("GET", OTHERS): False,
        ("POST", OTHERS): False,
        ("GET", f"{OTHERS}/kube-scheduler"): False,
        ("PUT", f"{OTHERS}/kube-scheduler"): False,
        ("DELETE", f"{OTHERS}/kube-scheduler"): False,
        ("GET", "/apis/coordination.k8s.io/v1/leases"): False,
        ("GET", "/api/v1/namespaces/kube-system/secrets"): False,
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/pods"): False,
        ("GET", "/api/v1/nodes"): False,
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews"): is_server,
        ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews"): False,
        ("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/isthmus-agent/token"): False,
    }
    for (method, path), allowed in asked.items():
        assert may(ground.api, token, method, path) is allowed, (method, path)


def may(api: Api, token: str, method: str, path: str) -> bool:
    """Whether it is not forbidden; what else may be wrong with it does not matter."""
    try:
        api.call(method, path, {} if method in ("POST", "PATCH") else None, token=token)
    except CallFailedError as exc:
        return exc.status != http.HTTPStatus.FORBIDDEN
    return True
