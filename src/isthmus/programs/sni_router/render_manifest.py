"""An SNI router in a cluster: its Deployment, its Service, and its disruption budget.

The pods need no rights in the cluster: no account, no token, no capability. The Service preserves
source addresses (``externalTrafficPolicy: Local``), because routes match them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from isthmus.errors import ConfigError
from isthmus.manifests import around, containers, pods, volumes
from isthmus.manifests.arguments import Given, arguments, for_pod, references
from isthmus.manifests.around import WorkloadOwner
from isthmus.manifests.containers import PodContainer, fields
from isthmus.manifests.pods import Manifest, Pod
from isthmus.manifests.volumes import FlagFile, Volume
from isthmus.programs.sni_router.settings import SniRouterSettings
from isthmus.programs.sni_router.settings_manifest import CLUSTER_IP, SniRouterManifestSettings
from isthmus.settings.options import options_of
from isthmus.text.go_yaml import to_yaml
from isthmus.values import HostPort

PROGRAM_NAME = "sni-router"
#: Where the pods find their routes and listen, unless flags say otherwise.
CONFIG = "/etc/isthmus/routes/routes.yaml"
LISTEN = ":8443"
SPARE_S = 5
#: Names of Service ports: for connections by server name, as HyperShift calls it, and by TLV.
PORT_NAME, PROXY_PORT_NAME = "https", "proxied"
_LOWEST = 1024
_EVERY_ADDRESS = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterPlan:
    """The settings of the manifest and of the router in it.

    ``given`` has the router's flags as they were typed, ``settings`` their values. ``routes`` is
    the text of the ConfigMap, or None if the ConfigMap comes from elsewhere.
    """

    manifest: SniRouterManifestSettings
    settings: SniRouterSettings
    given: Given
    routes: str | None = None

    @property
    def ports(self) -> dict[str, int]:
        """The ports of the container by name, without the health port."""
        found: dict[str, int] = {}
        for name, listeners in (
            (PORT_NAME, self.settings.listeners),
            (PROXY_PORT_NAME, self.settings.proxy_listeners),
        ):
            for number, port in enumerate(dict.fromkeys(port for _, port in listeners), 1):
                found[name if number == 1 else f"{name}-{number}"] = port
        return found

    @property
    def config(self) -> FlagFile:
        """The file with the routes.

        Raises:
            ConfigError: its path cannot be used in a manifest.
        """
        return FlagFile.named("--config", self.settings.config)

    @property
    def volumes(self) -> list[Volume]:
        """The routes, and one Secret with all other files that flags name.

        Raises:
            ConfigError: a path cannot be used in a manifest, or cannot be mounted.
        """
        manifest, config = self.manifest, self.config
        files = volumes.flag_files(self.settings, without=("config",))
        items = {config.path.name: config}
        routes = volumes.config_map("routes", manifest.routes_config_map, items)
        found = volumes.secret_directory(files, secret=manifest.secret or manifest.name)
        volumes.check_apart([routes, *found])
        return [routes, *found]

    @property
    def grace_s(self) -> int:
        """The termination grace period of a pod, in seconds."""
        return math.ceil(self.settings.graceful_shutdown_timeout_s) + SPARE_S


def with_usual(given: Given) -> Given:
    """The router's flags, with defaults for a pod where none were typed."""
    return {"config": (CONFIG,), "listen": (LISTEN,), **given}


def sni_router_manifest(plan: RouterPlan) -> str:
    """Write the manifest.

    Raises:
        ConfigError: the router cannot run in such pods; the message has the reason.
    """
    check_router(plan.settings)
    return to_yaml(_objects(plan))


def check_router(settings: SniRouterSettings) -> None:
    """Check that pods without privileges can run with these flags.

    Raises:
        ConfigError: they cannot; the message has the reason.
    """
    if settings.admin.health_port == 0:
        raise ConfigError("--health-port must not be 0 in a manifest: probes need a fixed port")
    if settings.admin.health_bind_address not in _EVERY_ADDRESS:
        raise ConfigError(
            f"--health-bind-address {settings.admin.health_bind_address}: the kubelet probes the"
            " pod's address, which is not known in advance; leave the flag out"
        )
    own = {settings.admin.health_port: "--health-port", settings.admin.port: "--admin-port"}
    for flag, listeners in (
        ("--listen", settings.listeners),
        ("--listen-proxy", settings.proxy_listeners),
    ):
        for host, port in listeners:
            if not port:
                raise ConfigError(f"{flag} needs a port in a manifest: the Service leads to it")
            if port < _LOWEST:
                raise ConfigError(
                    f"{flag} {host}:{port}: a pod without privileges needs a port of at least"
                    f" {_LOWEST}, such as :8443; clients connect to --service-port"
                )
            if host not in _EVERY_ADDRESS:
                raise ConfigError(
                    f"{flag} {HostPort(host, port)}: the Service connects to the pod's address,"
                    f" which is not known in advance; use :{port}"
                )
            if port in own:
                raise ConfigError(f"{flag} :{port} is also the port of {own[port]}; choose another")


def _objects(plan: RouterPlan) -> list[Manifest]:
    manifest, settings = plan.manifest, plan.settings
    owner = WorkloadOwner(name=manifest.name, namespace=manifest.namespace)
    found: list[Manifest] = []
    if plan.routes is not None:
        data = {plan.config.path.name: plan.routes}
        found.append(around.config_map(owner, manifest.routes_config_map, data))
    if manifest.disruption_budget and manifest.replicas > 1:
        found.append(around.disruption_budget(owner))
    if manifest.network_policy:
        ports = (*plan.ports.values(), settings.admin.health_port)
        found.append(around.network_policy(owner, [around.to_ports(*ports)]))
    return [*found, _service(plan, owner), workload(plan)]


def _service(plan: RouterPlan, owner: WorkloadOwner) -> Manifest:
    first, *others = plan.ports.items()
    ports = {first[0]: plan.manifest.service_port, **dict(others)}
    if len(set(ports.values())) < len(ports):
        raise ConfigError(
            f"--service-port {plan.manifest.service_port} is also the port of another listener;"
            " choose another"
        )
    made = around.service(owner, ports, kind=plan.manifest.service_type)
    return made if plan.manifest.service_type == CLUSTER_IP else keeping_sources(made)


def keeping_sources(service: Manifest) -> Manifest:
    """The Service, which sends connections to no other node: that would hide their source."""
    service["spec"]["externalTrafficPolicy"] = "Local"
    return service


def workload(plan: RouterPlan, *, security: Manifest | None = None) -> Manifest:
    """The Deployment; ``security`` is its container's, where the manifest's user does not apply.

    Raises:
        ConfigError: files cannot be mounted as they are named.
    """
    manifest, settings = plan.manifest, plan.settings
    found = plan.volumes
    container = PodContainer(
        name=PROGRAM_NAME,
        image=manifest.image,
        args=for_pod([PROGRAM_NAME, *arguments(options_of(SniRouterSettings), plan.given)]),
        security=security or containers.unprivileged(manifest.run_as),
        env=fields(references(plan.given)),
        volumes=found,
        ports={**plan.ports, "health": settings.admin.health_port},
        probes=containers.probes_of(settings.admin),
        resources=containers.resources(),
    )
    pod = Pod(
        name=manifest.name,
        namespace=manifest.namespace,
        containers=[container.to_spec()],
        volumes=found,
        grace_s=plan.grace_s,
        extra={
            "automountServiceAccountToken": False,
            **({} if security else {"securityContext": {"fsGroup": manifest.run_as}}),
        },
    )
    return pods.deployment(pod, replicas=manifest.replicas)


def plan_warnings(plan: RouterPlan) -> list[str]:
    """Warnings, one text each."""
    found = []
    if plan.routes is None:
        found.append(
            f"the ConfigMap {plan.manifest.routes_config_map} must exist, with the key"
            f" {plan.config.path.name}; --routes=FILE writes it"
        )
    if plan.manifest.service_type == CLUSTER_IP and not plan.settings.proxy_from:
        found.append(
            "the proxy in front of a ClusterIP is the source of every connection: allowedCIDRs of"
            " routes need its PROXY headers, and --proxy-from"
        )
    return found
