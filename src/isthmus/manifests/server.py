"""A server as a container in kube-apiserver's pod, as hosted control planes have it.

Names, ports and mounts are HyperShift's. Unlike there, agents prove who they are, and readiness
asks whether there is an agent: so the Service for agents leads to servers that are not ready yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from isthmus.config.go_yaml_writing import to_yaml
from isthmus.config.manifest_server import (
    CONFIG_MAP,
    EGRESS,
    READY,
    SERVICES,
    ServerManifestSettings,
)
from isthmus.config.manifest_sidecar import PATCH, POD_SPEC
from isthmus.config.options import options_of
from isthmus.config.server import BY_NAME_WORD, ServerSettings
from isthmus.errors import ConfigError
from isthmus.manifests import containers, egress, objects, patches, volumes
from isthmus.manifests.arguments import Given, arguments, for_pod, references
from isthmus.manifests.objects import CA, CERT, KEY
from isthmus.manifests.pods import Manifest
from isthmus.manifests.volumes import File, Volume

NAME = "konnectivity-server"
#: Where sidecars and kube-apiserver expect it.
LOCAL = "konnectivity-server-local"
_FILE = "FILE"
_AUTHORITIES = ("server_ca_cert", "cluster_ca_cert")
_ELSEWHERE = frozenset({"server_cert", "server_key", "cluster_cert", "cluster_key", *_AUTHORITIES})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """Where a server is put, and its flags: ``given`` as typed, ``settings`` what they mean."""

    manifest: ServerManifestSettings
    settings: ServerSettings
    given: Given

    @property
    def grace_s(self) -> int:
        """How long the pod may take to end: kube-apiserver first, the server after it."""
        stopping = self.settings.graceful_shutdown_timeout_s
        return math.ceil(self.manifest.pre_stop_s) + math.ceil(stopping)


def server_manifest(plan: ServerPlan) -> str:
    """Write what --output says.

    Raises:
        ConfigError: the server cannot run so; one sentence.
    """
    if plan.settings.health_port == 0:
        raise ConfigError("--health-port must not be 0 in a manifest: probes have to find it")
    if plan.settings.agent_port == 0:
        raise ConfigError("--agent-port must not be 0 in a manifest: agents have to find it")
    return _WRITERS[plan.manifest.output](plan)


def _spec(plan: ServerPlan) -> Manifest:
    manifest = plan.manifest
    ours, theirs = _server_volumes(plan), _apiserver_volumes(plan)
    objects.check_apart(ours)
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
    spec["volumes"] = objects.specs([*ours, *theirs])
    return spec


def _container(plan: ServerPlan, found: list[Volume]) -> dict[str, Any]:
    manifest, settings = plan.manifest, plan.settings
    security = containers.unprivileged_anybody()
    if manifest.run_as:
        security = containers.unprivileged(manifest.run_as)
    made = containers.container(
        NAME,
        manifest.image,
        for_pod(["server", *arguments(options_of(ServerSettings), plan.given)]),
        security=security,
        references=references(plan.given),
        # Every replica needs an id of its own, and the name of a pod is one.
        environment={} if settings.server_id else {"PROXY_SERVER_ID": "POD_NAME"},
        volumes=found,
        ports=_ports(settings),
        probes=_probes(manifest, settings),
        resources={"requests": {"cpu": "10m", "memory": "64Mi"}},
    )
    if manifest.pre_stop_s:
        # No shell in the image; Kubernetes has this since 1.30.
        sleep = {"sleep": {"seconds": math.ceil(manifest.pre_stop_s)}}
        made["lifecycle"] = {"preStop": sleep}
    return made


def _probes(manifest: ServerManifestSettings, settings: ServerSettings) -> Manifest:
    found = containers.probes(
        port=settings.health_port, host=settings.health_bind_address, readiness=manifest.readiness
    )
    found["livenessProbe"]["httpGet"]["path"] = "/healthz"
    return found


def _ports(settings: ServerSettings) -> dict[str, int]:
    doors = {f"{door.mode}": door.port for door in settings.doors if door.port}
    return {**doors, "agents": settings.agent_port, "konn-health": settings.health_port}


def _server_volumes(plan: ServerPlan) -> list[Volume]:
    manifest, settings = plan.manifest, plan.settings
    found = []
    for name, secret, pair in (
        ("server-certs", manifest.server_secret, ("server_cert", "server_key")),
        ("cluster-certs", manifest.cluster_secret, ("cluster_cert", "cluster_key")),
    ):
        files = [_file(attribute, getattr(settings, attribute)) for attribute in pair]
        if files[0] is not None and files[1] is not None:
            found.append(objects.secret(name, secret, {CERT: files[0], KEY: files[1]}))
    mounted: dict[str, Volume] = {}
    for attribute in _AUTHORITIES:
        file = _file(attribute, getattr(settings, attribute))
        if file is not None:
            volume = objects.config_map("konnectivity-ca", manifest.ca_config_map, {CA: file})
            mounted[volume.mount] = volume
    found += mounted.values()
    found += _others(plan)
    found += _sockets(settings)
    if settings.kubeconfig:
        found.append(replace(volumes.scratch(), name="konnectivity-tmp"))
    return found


def _others(plan: ServerPlan) -> list[Volume]:
    settings = plan.settings
    named = {
        option.attribute: getattr(settings, option.attribute)
        for option in options_of(ServerSettings)
        if option.metavar == _FILE and option.attribute not in _ELSEWHERE
    }
    if settings.agent_identity_binding != BY_NAME_WORD:
        named["agent_identity_binding"] = settings.agent_identity_binding
    files = [file for attribute, path in named.items() if (file := _file(attribute, path))]
    if files and not plan.manifest.secret:
        raise ConfigError(f"{files[0].flag} needs --secret: the Secret that has the file")
    found = volumes.secret_directory(files, secret=plan.manifest.secret)
    return [replace(volume, name="konnectivity-files") for volume in found]


def _sockets(settings: ServerSettings) -> list[Volume]:
    """The directories of UNIX sockets, which both containers have."""
    paths = {f"--{door.uds_flag}": door.uds for door in settings.doors if door.uds}
    files = [File.named(flag, path) for flag, path in paths.items()]
    volumes.check_mountable(files)
    directories = dict.fromkeys(str(file.directory) for file in files)
    return [
        Volume(
            name=f"konnectivity-uds-{number}",
            mount=directory,
            source={"emptyDir": {"medium": "Memory"}},
            read_only=False,
        )
        for number, directory in enumerate(directories, 1)
    ]


def _apiserver_volumes(plan: ServerPlan) -> list[Volume]:
    manifest, settings = plan.manifest, plan.settings
    config = File.named("--egress-config-path", manifest.egress_config_path)
    selector = {config.path.name: config}
    found = [objects.config_map("egress-selector-config", manifest.egress_config_map, selector)]
    if egress.connection(manifest, settings).tls is None:
        return [*found, *_sockets(settings)]
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


def _file(attribute: str, path: str) -> File | None:
    return File.named(f"--{attribute.replace('_', '-')}", path) if path else None


def _services(plan: ServerPlan) -> str:
    settings = plan.settings
    front = {door.mode: door.port for door in settings.doors if door.port}
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
    found = settings.warnings()
    if manifest.output not in (PATCH, POD_SPEC):
        return found
    found.append(
        f"kube-apiserver needs --egress-selector-config-file={manifest.egress_config_path}, which a"
        " patch cannot add to its args"
    )
    counted = settings.server_count is not None or settings.peer_server
    if not (counted or settings.enable_lease_controller):
        found.append("without --server-count, agents take this server for the only one")
    if manifest.readiness == READY:
        found.append(
            "kube-apiserver's pod is ready when an agent is there: the Service for agents needs"
            " publishNotReadyAddresses, as -o=services has it, or say --readiness=/healthz"
        )
    return found
