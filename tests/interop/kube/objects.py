"""The objects of the little cluster: a node, pods, services, webhooks, an API of two versions."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kube.api import Api, CallFailedError
from kube.ground import NODE, POD
from kube.programs import wait_until

Object = dict[str, Any]

KUBELET_PORT = 10250
WEB_PORT = 8080
HOOKS_PORT = 8443
GROUP = "spans.isthmus.dev"
AGGREGATED = "test.isthmus.dev"

CORE = "/api/v1/namespaces/default"
PLAIN, SOCKETS = "plain", "sockets"
# A node that declares it gets WebSockets; for another the apiserver makes SPDY of them.
NODES: Mapping[str, list[str]] = {PLAIN: [], SOCKETS: ["ExtendWebSocketsToKubelet"]}


def _named(name: str, **more: Any) -> Object:
    return {"metadata": {"name": name}, **more}


def create_nodes(api: Api) -> None:
    """Create two nodes at the same address, with a pod on each of the same name."""
    for name, features in NODES.items():
        api.create("/api/v1/nodes", _named(name))
        status: Object = {
            "addresses": [{"type": "InternalIP", "address": NODE}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET_PORT}},
            "declaredFeatures": features,
        }
        api.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})
        container = {"name": "main", "image": "none"}
        spec = {"nodeName": name, "containers": [container], "terminationGracePeriodSeconds": 0}
        api.create(f"{CORE}/pods", _named(name, spec=spec))
        pod = {
            "phase": "Running",
            "podIP": POD,
            "podIPs": [{"ip": POD}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        api.call("PATCH", f"{CORE}/pods/{name}/status", {"status": pod})


def create_service(
    api: Api, name: str, address: str, port: int, target: int, pod: str | None = None
) -> None:
    """Create a service without a selector that leads to one address, a pod's or another."""
    ports = [{"name": "main", "port": port, "targetPort": target}]
    api.create(f"{CORE}/services", _named(name, spec={"ports": ports}))
    found = [{"name": "main", "port": target, "protocol": "TCP"}]
    where: Object = {"ip": address}
    if pod is not None:  # the apiserver is a proxy for pods only
        where["targetRef"] = {"kind": "Pod", "namespace": "default", "name": pod}
    subsets = [{"addresses": [where], "ports": found}]
    api.create(f"{CORE}/endpoints", _named(name, subsets=subsets))
    slice_ = {
        "metadata": {"name": f"{name}-1", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": found,
    }
    api.create("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", slice_)


def _bundle(ca_cert: Path) -> str:
    return base64.b64encode(ca_cert.read_bytes()).decode()


def by_service(ca_cert: Path, path: str) -> Object:
    """Lead a webhook to the hooks service."""
    service = {"namespace": "default", "name": "hooks", "port": 443, "path": path}
    return {"service": service, "caBundle": _bundle(ca_cert)}


def by_url(ca_cert: Path, url: str) -> Object:
    """Lead a webhook to a URL."""
    return {"url": url, "caBundle": _bundle(ca_cert)}


def create_admission(api: Api, client: Object) -> None:
    """Create a webhook that is asked about every new config map, and wait until it is."""
    rule = {
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
        "resources": ["configmaps"],
    }  # fmt: skip
    # The apiserver's own config maps must not wait for a webhook behind a tunnel.
    only_default = {"matchLabels": {"kubernetes.io/metadata.name": "default"}}
    hook = {
        "name": "mutate.isthmus.dev", "clientConfig": client, "rules": [rule],
        "failurePolicy": "Fail", "sideEffects": "None", "timeoutSeconds": 10,
        "admissionReviewVersions": ["v1"], "namespaceSelector": only_default,
    }  # fmt: skip
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    api.create(path, _named("mutate", webhooks=[hook]))

    def asked() -> bool:
        try:
            made = api.call("POST", f"{CORE}/configmaps?dryRun=All", _named("nothing"))
        except CallFailedError as exc:  # it was asked, in vain
            return "failed calling webhook" in str(exc)
        return "labels" in made["metadata"]

    wait_until(asked, "the apiserver has heard of the webhook")


def create_spans(api: Api, client: Object) -> None:
    """Create a kind with two versions and an object of it."""
    schema = {
        "openAPIV3Schema": {
            "type": "object",
            "properties": {
                "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
            },
        }
    }
    versions = [
        {"name": name, "served": True, "storage": name == "v1", "schema": schema}
        for name in ("v1", "v2")
    ]
    spec = {
        "group": GROUP, "scope": "Namespaced", "versions": versions,
        "names": {"plural": "spans", "singular": "span", "kind": "Span"},
        "conversion": {
            "strategy": "Webhook",
            "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]},
        },
    }  # fmt: skip
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    api.create(path, _named(f"spans.{GROUP}", spec=spec))
    api.wait_for(f"{path}/spans.{GROUP}", "the kind is established", Established="True")
    span = {"apiVersion": f"{GROUP}/v1", "kind": "Span", "spec": {"length": 42}}
    api.create(f"/apis/{GROUP}/v1/namespaces/default/spans", _named("golden", **span))


def create_aggregated(api: Api, ca_cert: Path) -> None:
    """Register the aggregated API; whether it becomes available is for the caller to see."""
    spec = {
        "group": AGGREGATED, "version": "v1alpha1", "caBundle": _bundle(ca_cert),
        "groupPriorityMinimum": 1000, "versionPriority": 10,
        "service": {"namespace": "default", "name": "hooks", "port": 443},
    }  # fmt: skip
    name = f"v1alpha1.{AGGREGATED}"
    api.create("/apis/apiregistration.k8s.io/v1/apiservices", _named(name, spec=spec))


def wait_available(api: Api) -> None:
    """Wait until the aggregated API and its description can be had."""
    _wait_found(api, available=True)

    def answers() -> bool:
        try:
            api.get(f"/apis/{AGGREGATED}/v1alpha1/bridges")
            api.get(f"/openapi/v3/apis/{AGGREGATED}/v1alpha1")
        except CallFailedError:
            return False
        return True

    wait_until(answers, "the apiserver passes calls on to the aggregated API")


def wait_unavailable(api: Api) -> str:
    """Wait until the apiserver finds the aggregated API unavailable; what it says."""
    return _wait_found(api, available=False)


def _wait_found(api: Api, *, available: bool) -> str:
    path = f"/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.{AGGREGATED}"
    said: list[str] = []

    def holds() -> bool:
        # It looks every half minute by itself, and at once at what has changed.
        note = {"isthmus.dev/looked": str(time.monotonic())}
        api.call("PATCH", path, {"metadata": {"annotations": note}})
        said[:] = [
            found["message"] for found in api.conditions(path)
            if found["type"] == "Available" and found["status"] == str(available)
        ]  # fmt: skip
        return bool(said)

    wait_until(holds, f"the aggregated API is{'' if available else ' not'} available")
    return said[0]


def create_everything(api: Api, ca_cert: Path) -> None:
    """Create all of it, every webhook by service reference."""
    create_nodes(api)
    create_service(api, "web", POD, 80, WEB_PORT, pod=PLAIN)
    create_service(api, "hooks", NODE, 443, HOOKS_PORT)
    create_admission(api, by_service(ca_cert, "/mutate"))
    create_spans(api, by_service(ca_cert, "/convert"))
    create_aggregated(api, ca_cert)
