"""A server as a container in kube-apiserver's pod, as hosted control planes have it.

The other forms are server_forms.py.

Names, ports and mounts are HyperShift's. Unlike there, agents prove who they are, and readiness
asks whether there is an agent: so the Service for agents leads to servers that are not ready yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from isthmus.errors import ConfigError
from isthmus.manifests import containers, egress, objects, patches, server_volumes
from isthmus.manifests.arguments import for_pod, references
from isthmus.manifests.objects import CA, CERT, KEY
from isthmus.manifests.pods import Manifest
from isthmus.manifests.server_forms import (
    check_audit,
    count_warnings,
    form_manifest,
    form_warnings,
)
from isthmus.manifests.server_plan import ServerPlan
from isthmus.manifests.settings_server import (
    CONFIG_MAP,
    EGRESS,
    READY,
    SERVICES,
    ServerManifestSettings,
)
from isthmus.manifests.settings_server_forms import SIDECAR
from isthmus.manifests.settings_sidecar import PATCH, POD_SPEC
from isthmus.manifests.volumes import File, Volume
from isthmus.programs.server.rules_role_warnings import role_warnings
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.go_yaml_writing import to_yaml

NAME = "konnectivity-server"
#: Where sidecars and kube-apiserver expect it.
LOCAL = "konnectivity-server-local"


def server_manifest(plan: ServerPlan) -> str:
    """Write what --output says.

    Raises:
        ConfigError: the server cannot run so; one sentence.
    """
    if plan.settings.health_port == 0:
        raise ConfigError("--health-port must not be 0 in a manifest: probes have to find it")
    if plan.settings.agent_port == 0:
        raise ConfigError("--agent-port must not be 0 in a manifest: agents have to find it")
    if plan.manifest.form != SIDECAR:
        return form_manifest(plan)
    check_audit(plan)
    return _WRITERS[plan.manifest.written](plan)


def _spec(plan: ServerPlan) -> Manifest:
    manifest = plan.manifest
    ours, theirs = _server_volumes(plan), _apiserver_volumes(plan)
    objects.check_apart([*ours, *plan.extras.volumes])
    objects.check_apart(theirs)
    # Left as it is where the server does not wait for kube-apiserver.
    spec: Manifest = {"terminationGracePeriodSeconds": plan.grace_s} if manifest.pre_stop_s else {}
    if manifest.run_as:
        spec["securityContext"] = {"fsGroup": manifest.run_as}
    mounts = [volume.to_mount() for volume in theirs]
    spec["containers"] = [
        {"name": manifest.container, "volumeMounts": mounts},
        _container(plan, ours),
    ]
    spec["volumes"] = objects.specs([*ours, *plan.extras.volumes, *theirs])
    return spec


def _container(plan: ServerPlan, found: list[Volume]) -> dict[str, Any]:
    manifest, settings = plan.manifest, plan.settings
    security = containers.unprivileged_anybody()
    if manifest.run_as:
        security = containers.unprivileged(manifest.run_as)
    made = containers.container(
        NAME,
        manifest.image,
        for_pod(plan.args),
        security=security,
        references=references({**plan.given, "": plan.extras.args}),
        # Every replica needs an id of its own, and the name of a pod is one.
        environment={} if settings.server_id else {"PROXY_SERVER_ID": "POD_NAME"},
        volumes=found,
        ports=_ports(plan),
        probes=_probes(manifest, settings),
        resources={"requests": {"cpu": "10m", "memory": "64Mi"}},
    )
    if manifest.pre_stop_s:
        made["lifecycle"] = containers.going_on(math.ceil(manifest.pre_stop_s))
    return plan.extras.to_container(made)


def _probes(manifest: ServerManifestSettings, settings: ServerSettings) -> Manifest:
    found = containers.probes(
        port=settings.health_port, host=settings.health_bind_address, readiness=manifest.readiness
    )
    found["livenessProbe"]["httpGet"]["path"] = "/healthz"
    return found


def _ports(plan: ServerPlan) -> dict[str, int]:
    settings = plan.settings
    return {
        **plan.frontend_ports,
        "agents": settings.agent_port,
        "konn-health": settings.health_port,
    }


def _server_volumes(plan: ServerPlan) -> list[Volume]:
    return [
        *server_volumes.file_volumes(plan),
        *server_volumes.pod_sockets(plan),
        *server_volumes.scratch(plan),
    ]


def _apiserver_volumes(plan: ServerPlan) -> list[Volume]:
    manifest, settings = plan.manifest, plan.settings
    config = File.named("--egress-config-path", manifest.egress_config_path)
    selector = {config.path.name: config}
    found = [objects.config_map("egress-selector-config", manifest.egress_config_map, selector)]
    if egress.connection(manifest, settings).tls is None:
        return [*found, *server_volumes.pod_sockets(plan)]
    pair = {
        CERT: File.named("--egress-client-cert", manifest.egress_client_cert),
        KEY: File.named("--egress-client-key", manifest.egress_client_key),
    }
    authorities = {CA: File.named("--egress-ca-bundle", manifest.egress_ca_bundle)}
    return [
        *found,
        objects.secret("konnectivity-client", manifest.client_secret, pair),
        objects.config_map("konnectivity-ca", manifest.ca_config_map, authorities),
    ]


def _services(plan: ServerPlan) -> str:
    settings, front = plan.settings, plan.frontend_ports
    local = _service(plan, LOCAL, front, early=False)
    # An agent makes a server ready, so it has to reach one that is not.
    agents = _service(plan, NAME, {"agents": settings.agent_port}, early=True)
    return to_yaml([local, agents] if front else [agents])


def _service(plan: ServerPlan, name: str, ports: Mapping[str, int], *, early: bool) -> Manifest:
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
    return to_yaml([patches.deployment(manifest.workload, manifest.namespace, _spec(plan))])


_WRITERS: Mapping[str, Callable[[ServerPlan], str]] = {
    PATCH: _patch,
    POD_SPEC: lambda plan: to_yaml([_spec(plan)]),
    EGRESS: lambda plan: egress.egress_selector(plan.manifest, plan.settings),
    CONFIG_MAP: lambda plan: egress.config_map(plan.manifest, plan.settings),
    SERVICES: _services,
}


def plan_warnings(plan: ServerPlan) -> list[str]:
    """What is not wrong and may still not be meant, each a sentence."""
    manifest, settings = plan.manifest, plan.settings
    # The same file is the same authority; whether two files are is known where they are.
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
            "kube-apiserver's pod is ready when an agent is there: the Service for agents needs"
            " publishNotReadyAddresses, as -o=services has it, or say --readiness=/healthz"
        )
    return found
