"""The rights of a node proxy's manifest, at a kube-apiserver that enforces them.

That every form is accepted is test_helm_install.py's to say, and with which capabilities one runs
tests/integration/test_node_proxy_pod.py's.
"""

from __future__ import annotations

import http
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from kube.api import Api, CallFailedError
from kube.node_proxy_ground import NODE_IPS, NODE_NAME, Nodes
from kube.node_proxy_objects import marker
from kube.node_proxy_programs import Kind, proxy
from kube.node_proxy_writing import write

pytestmark = pytest.mark.interop

MANIFEST = Path(__file__).parents[2] / "golden" / "node_proxy_manifests" / "daemonset.yaml"
ACCOUNT, NAMESPACE = "isthmus-node-proxy", "kube-system"
API_AUDIENCE = "https://kubernetes.default.svc"


@pytest.fixture(scope="module")
def api(ground: Nodes) -> Iterator[Api]:
    """One that enforces rights, with a Node and a Service, asked as the manifest's account."""
    with ground.apiserver("--authorization-mode=RBAC") as running:
        objects, _ = marker(1)
        write(running, objects.services, objects.slices)
        spec = {"podCIDR": "10.7.0.0/24", "podCIDRs": ["10.7.0.0/24"]}
        running.create("/api/v1/nodes", {"metadata": {"name": NODE_NAME}, "spec": spec})
        addresses = [{"type": "InternalIP", "address": address} for address in NODE_IPS]
        status = {"status": {"addresses": addresses}}
        running.call("PATCH", f"/api/v1/nodes/{NODE_NAME}/status", status)
        rights = [
            each for each in yaml.safe_load_all(MANIFEST.read_text()) if each["kind"] != "DaemonSet"
        ]
        text = "\n---\n".join(map(json.dumps, rights))
        running.kubectl("apply", "-f", "-", stdin=text.encode())
        token = running.service_account_token(ACCOUNT, audience=API_AUDIENCE, namespace=NAMESPACE)
        yield replace(running, token=token)


def test_rights_are_enough(ground: Nodes, api: Api) -> None:
    flags = ("--detect-local=node-cidr", "--iptables-min-sync-period=10ms")
    with proxy(ground, api, Kind.ISTHMUS, "nftables", flags) as one:
        cluster_ip = next(iter(marker(1)[0].services))["spec"]["clusterIP"]
        one.wait_shows("nftables", cluster_ip, "10.7.0.0/24")
        snapshot = json.loads(one.page("/snapshot"))
        assert (snapshot["node"], snapshot["ready"]) == (NODE_NAME, True)
        assert "forbidden" not in one.program.log.lower(), one.program.log


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/api/v1/services", True),
        ("GET", "/api/v1/nodes", True),
        ("GET", "/apis/discovery.k8s.io/v1/endpointslices", True),
        ("GET", "/apis/networking.k8s.io/v1/servicecidrs", True),
        ("GET", f"/api/v1/nodes/{NODE_NAME}", False),
        ("PATCH", f"/api/v1/nodes/{NODE_NAME}", False),
        ("GET", "/api/v1/secrets", False),
        ("GET", "/api/v1/pods", False),
        ("GET", "/api/v1/configmaps", False),
        ("POST", "/api/v1/namespaces/default/services", False),
        ("POST", "/api/v1/namespaces/default/events", False),
    ],
)
def test_rights_are_no_more(api: Api, method: str, path: str, allowed: bool) -> None:
    try:
        api.call(method, path, {} if method != "GET" else None)
    except CallFailedError as error:
        assert (error.status == http.HTTPStatus.FORBIDDEN) is not allowed, error
    else:
        assert allowed
