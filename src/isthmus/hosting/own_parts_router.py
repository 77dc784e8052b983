"""The control plane's own router, run by ``isthmus sni-router`` in place of HyperShift's haproxy.

One Deployment has the pods behind both of the router's Services, for everybody and for the guest's
own network, so it has the names of both. An ingress of many clusters is not ours to run.
"""

from __future__ import annotations

from typing import Any

from isthmus.hosting.model import Plan, Service
from isthmus.hosting.objects import PRIVATE_ROUTER
from isthmus.hosting.own_parts_konnectivity import Choices
from isthmus.hosting.own_parts_routes import (
    NamedRoute,
    SharedAddress,
    routes_document,
    shared_addresses,
)
from isthmus.manifests import containers, pods, volumes
from isthmus.manifests.arguments import arguments, for_pod
from isthmus.manifests.pods import Manifest, Pod
from isthmus.manifests.volumes import File
from isthmus.programs.sni_router.settings import SniRouterSettings
from isthmus.settings.go_yaml_writing import to_yaml
from isthmus.settings.options import options_of
from isthmus.settings.parsing import load

#: Where the Services of a plan lead: a port of this name.
PORT_NAME, PORT = "https", 8443
CONFIG_MAP = "router-routes"
_CONFIG = "/etc/isthmus/router/routes.yaml"
_SERVICE = "Service/"
_SPARE_S = 5


def router_routes(plan: Plan) -> SharedAddress | None:
    """The names of all addresses that the router has; None where there is no router."""
    found = [each for each in shared_addresses(plan) if each.through.startswith(_SERVICE)]
    if not found:
        return None
    merged: dict[Service, NamedRoute] = {}
    for route in (route for each in found for route in each.routes):
        before = merged.get(route.service)
        hosts = (*(before.hosts if before else ()), *route.hosts)
        merged[route.service] = NamedRoute(
            service=route.service, hosts=tuple(dict.fromkeys(hosts)), backend=route.backend
        )
    default = next((each.default for each in found if each.default), "")
    return SharedAddress(
        through=f"{_SERVICE}{PRIVATE_ROUTER}", routes=tuple(merged.values()), default=default
    )


def router_files(plan: Plan, choices: Choices) -> dict[str, str]:
    """The router's ConfigMap and Deployment; nothing where there is no router."""
    shared = router_routes(plan)
    if shared is None:
        return {}
    space = plan.cluster.control_plane
    config: Manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIG_MAP, "namespace": space},
        "data": {"routes.yaml": routes_document(shared)},
    }
    return {"router.yaml": to_yaml([config, _deployment(space, choices)])}


def _deployment(namespace: str, choices: Choices) -> Manifest:
    flags = {"config": (_CONFIG,), "listen": (f":{PORT}",)}
    settings = load(SniRouterSettings, flags, {})
    settings.validate()
    file = File.named("--config", _CONFIG)
    volume = volumes.config_map("routes", CONFIG_MAP, {file.path.name: file})
    container = containers.container(
        "sni-router",
        choices.image,
        for_pod(["sni-router", *arguments(options_of(SniRouterSettings), flags)]),
        security=containers.unprivileged_anybody(),
        volumes=[volume],
        ports={PORT_NAME: PORT, "health": settings.health_port},
        probes=containers.probes(port=settings.health_port, host=settings.health_bind_address),
        resources=containers.resources(),
    )
    pod = Pod(
        name=PRIVATE_ROUTER,
        namespace=namespace,
        containers=[container],
        volumes=[volume],
        grace_s=int(settings.graceful_shutdown_timeout_s) + _SPARE_S,
        extra={"automountServiceAccountToken": False},
    )
    made = pods.deployment(pod, replicas=min(choices.replicas, 2))
    labels: dict[str, Any] = made["spec"]["template"]["metadata"]["labels"]
    made["spec"]["template"]["metadata"]["labels"] = {**labels, "app": PRIVATE_ROUTER}
    return made
