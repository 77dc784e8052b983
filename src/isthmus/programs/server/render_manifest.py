"""Implements ``isthmus manifest server``: a server next to kube-apiserver in its pod, or separate.

Names, ports and mounts next to kube-apiserver are HyperShift's; unlike there, agents authenticate,
and readiness requires one. render_manifest_forms.py has the other forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from isthmus.errors import ConfigError
from isthmus.manifests import containers, volumes
from isthmus.manifests.arguments import for_pod
from isthmus.manifests.containers import PodContainer
from isthmus.manifests.pods import Manifest, deployment_patch
from isthmus.manifests.settings import (
    PATCH,
    POD_SPEC,
)
from isthmus.manifests.volumes import CA, CERT, KEY, FlagFile, Volume
from isthmus.programs.server.plan_manifest import (
    ServerPlan,
    connection,
    egress_config_map,
    egress_selector,
    file_volumes,
    pod_sockets,
    scratch,
)
from isthmus.programs.server.render_manifest_forms import (
    check_audit,
    count_warnings,
    env_of,
    form_manifest,
    form_warnings,
)
from isthmus.programs.server.rules_role_warnings import role_warnings
from isthmus.programs.server.settings_manifest import (
    CONFIG_MAP,
    EGRESS,
    HEALTHY,
    READY,
    SERVICES,
    SIDECAR,
)
from isthmus.text.go_yaml import to_yaml

NAME = "konnectivity-server"
#: The port that sidecars and kube-apiserver expect.
LOCAL = "konnectivity-server-local"
SIDECAR_RESOURCES = {"requests": {"cpu": "10m", "memory": "64Mi"}}


def server_manifest(plan: ServerPlan) -> str:
    """Write the --part.

    Raises:
        ConfigError: the server cannot run in that form.
    """
    if plan.settings.admin.health_port == 0:
        raise ConfigError("--health-port must not be 0 in a manifest: probes need a fixed port")
    if plan.settings.agent_port == 0:
        raise ConfigError("--agent-port must not be 0 in a manifest: agents need a fixed port")
    if plan.manifest.form != SIDECAR:
        return form_manifest(plan)
    check_audit(plan)
    return _SIDECAR_WRITERS[plan.manifest.written](plan)


def _spec(plan: ServerPlan) -> Manifest:
    manifest = plan.manifest
    ours, theirs = _sidecar_volumes(plan), _apiserver_volumes(plan)
    volumes.check_apart(ours)
    volumes.check_apart(theirs)
    # Unchanged if the server does not wait for kube-apiserver.
    spec: Manifest = {"terminationGracePeriodSeconds": plan.grace_s} if manifest.pre_stop_s else {}
    if manifest.run_as:
        spec["securityContext"] = {"fsGroup": manifest.run_as}
    mounts = [volume.to_mount() for volume in theirs]
    spec["containers"] = [
        {"name": manifest.container, "volumeMounts": mounts},
        _container(plan, ours),
    ]
    spec["volumes"] = volumes.specs([*ours, *theirs])
    return spec


def _container(plan: ServerPlan, found: list[Volume]) -> dict[str, Any]:
    manifest, settings = plan.manifest, plan.settings
    security = containers.unprivileged_anybody()
    if manifest.run_as:
        security = containers.unprivileged(manifest.run_as)
    container = PodContainer(
        name=NAME,
        image=manifest.image,
        args=for_pod(plan.args),
        security=security,
        env=env_of(plan),
        volumes=found,
        ports=_ports(plan),
        probes=containers.probes_of(
            settings.admin,
            readiness=manifest.readiness,
            liveness=HEALTHY,
        ),
        resources=SIDECAR_RESOURCES,
        lifecycle=containers.going_on(math.ceil(manifest.pre_stop_s))
        if manifest.pre_stop_s
        else {},
    )
    return container.to_spec()


def _ports(plan: ServerPlan) -> dict[str, int]:
    settings = plan.settings
    return {
        **plan.frontend_ports,
        "agents": settings.agent_port,
        "konn-health": settings.admin.health_port,
    }


def _sidecar_volumes(plan: ServerPlan) -> list[Volume]:
    return [
        *file_volumes(plan),
        *pod_sockets(plan),
        *scratch(plan),
    ]


def _apiserver_volumes(plan: ServerPlan) -> list[Volume]:
    manifest, settings = plan.manifest, plan.settings
    config = FlagFile.named("--egress-config-path", manifest.egress_config_path)
    selector = {config.path.name: config}
    found = [volumes.config_map("egress-selector-config", manifest.egress_config_map, selector)]
    if connection(manifest, settings).tls is None:
        return [*found, *pod_sockets(plan)]
    pair = {
        CERT: FlagFile.named("--egress-client-cert", manifest.egress_client_cert),
        KEY: FlagFile.named("--egress-client-key", manifest.egress_client_key),
    }
    authorities = {CA: FlagFile.named("--egress-ca-bundle", manifest.egress_ca_bundle)}
    return [
        *found,
        volumes.secret("konnectivity-client", manifest.client_secret, pair),
        volumes.config_map("konnectivity-ca", manifest.ca_config_map, authorities),
    ]


def _sidecar_services(plan: ServerPlan) -> str:
    settings, front = plan.settings, plan.frontend_ports
    local = _sidecar_service(plan, LOCAL, front, early=False)
    # An agent makes a server ready, so it has to reach an unready one.
    agents = _sidecar_service(plan, NAME, {"agents": settings.agent_port}, early=True)
    return to_yaml([local, agents] if front else [agents])


def _sidecar_service(
    plan: ServerPlan, name: str, ports: Mapping[str, int], *, early: bool
) -> Manifest:
    label, _, value = plan.manifest.selector.partition("=")
    metadata: Manifest = {"name": name}
    if plan.manifest.namespace:
        metadata["namespace"] = plan.manifest.namespace
    spec: Manifest = {
        "selector": {label: value},
        "ports": [{"name": each, "port": port} for each, port in ports.items()],
        **({"publishNotReadyAddresses": True} if early else {}),
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _patch(plan: ServerPlan) -> str:
    manifest = plan.manifest
    return to_yaml([deployment_patch(manifest.workload, manifest.namespace, _spec(plan))])


_SIDECAR_WRITERS: Mapping[str, Callable[[ServerPlan], str]] = {
    PATCH: _patch,
    POD_SPEC: lambda plan: to_yaml([_spec(plan)]),
    EGRESS: lambda plan: egress_selector(plan.manifest, plan.settings),
    CONFIG_MAP: lambda plan: egress_config_map(plan.manifest, plan.settings),
    SERVICES: _sidecar_services,
}


def plan_warnings(plan: ServerPlan) -> list[str]:
    """Warnings about valid but probably unintended settings."""
    manifest, settings = plan.manifest, plan.settings
    # The same file is the same authority; two files cannot be compared here.
    found = [
        *settings.warnings(),
        *role_warnings(settings, lambda path: frozenset({path.encode()})),
    ]
    if manifest.form != SIDECAR:
        return [*found, *form_warnings(plan)]
    if manifest.written not in (PATCH, POD_SPEC):
        return found
    found.append(
        f"kube-apiserver needs --egress-selector-config-file={manifest.egress_config_path}, which a"
        " patch cannot add to its args"
    )
    found += count_warnings(settings)
    if manifest.readiness == READY:
        found.append(
            "kube-apiserver's pod is ready only with an agent: the Service for agents needs"
            " publishNotReadyAddresses, as with --part=services, or use --readiness=/healthz"
        )
    return found
