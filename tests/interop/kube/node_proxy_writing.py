"""Objects into an API server, many at a time: Services, their status, EndpointSlices, a Node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from kube.api import Api
from kube.node_proxy_ground import NODE_IPS, NODE_NAME

Object = dict[str, Any]

CONNECTIONS = 8
POD_CIDRS = ("10.180.0.0/24", "fd00:180::/64")
ZONE = "zone-a"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the API."""

    method: str
    path: str
    body: Object | None = None


def run_calls(api: Api, calls: Sequence[Call], connections: int = CONNECTIONS) -> None:
    """Make calls in any order, over several connections at once; the first failure is raised."""

    def work(share: Sequence[Call]) -> None:
        with api.connection() as over:
            for call in share:
                api.call(call.method, call.path, call.body, over=over)

    shares = [share for i in range(connections) if (share := calls[i::connections])]
    with ThreadPoolExecutor(connections) as threads:
        for done in [threads.submit(work, share) for share in shares]:
            done.result()


def services_path(namespace: str) -> str:
    """Where the Services of a namespace are."""
    return f"/api/v1/namespaces/{namespace}/services"


def slices_path(namespace: str) -> str:
    """Where the EndpointSlices of a namespace are."""
    return f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"


def _where(path: str, body: Object) -> str:
    return f"{path}/{body['metadata']['name']}"


def write(api: Api, services: Iterable[Object], slices: Iterable[Object]) -> None:
    """Create objects; a status that a Service comes with is written after it.

    EndpointSlices come last: when the last of them is known to a proxy, all Services are.
    """
    services, slices = list(services), list(slices)
    run_calls(api, [Call("POST", services_path(_namespace(one)), one) for one in services])
    status = [
        Call("PATCH", f"{_where(services_path(_namespace(one)), one)}/status", {"status": said})
        for one in services
        if (said := one.get("status"))
    ]
    run_calls(api, status)
    run_calls(api, [Call("POST", slices_path(_namespace(one)), one) for one in slices])


def replace(api: Api, services: Iterable[Object] = (), slices: Iterable[Object] = ()) -> None:
    """Put changed objects in the place of those of the same name."""
    run_calls(api, [
        *(Call("PATCH", _where(services_path(_namespace(one)), one), one) for one in services),
        *(Call("PUT", _where(slices_path(_namespace(one)), one), one) for one in slices),
    ])  # fmt: skip


def delete(api: Api, services: Iterable[Object] = (), slices: Iterable[Object] = ()) -> None:
    """Delete objects."""
    run_calls(api, [
        *(Call("DELETE", _where(services_path(_namespace(one)), one)) for one in services),
        *(Call("DELETE", _where(slices_path(_namespace(one)), one)) for one in slices),
    ])  # fmt: skip


def _namespace(body: Object) -> str:
    return str(body["metadata"]["namespace"])


def write_node(api: Api) -> None:
    """Create the one Node that every proxy takes itself for."""
    labels = {"topology.kubernetes.io/zone": ZONE, "kubernetes.io/hostname": NODE_NAME}
    spec = {"podCIDR": POD_CIDRS[0], "podCIDRs": list(POD_CIDRS)}
    api.create("/api/v1/nodes", {"metadata": {"name": NODE_NAME, "labels": labels}, "spec": spec})
    addresses = [{"type": "InternalIP", "address": address} for address in NODE_IPS]
    api.call("PATCH", f"/api/v1/nodes/{NODE_NAME}/status", {"status": {"addresses": addresses}})


def write_namespaces(api: Api, *names: str) -> None:
    """Create API namespaces; nobody fills them."""
    api.create("/api/v1/namespaces", *({"metadata": {"name": name}} for name in names))


def move_node(api: Api, zone: str) -> None:
    """Put the Node into another zone."""
    labels = {"topology.kubernetes.io/zone": zone}
    api.call("PATCH", f"/api/v1/nodes/{NODE_NAME}", {"metadata": {"labels": labels}})


def add_service_cidrs(api: Api, name: str, *cidrs: str) -> None:
    """Give Services one more range, of one family or of both."""
    body = {"metadata": {"name": name}, "spec": {"cidrs": list(cidrs)}}
    api.create("/apis/networking.k8s.io/v1/servicecidrs", body)
