"""The Isthmus programs of a plan: files by name, and those that cannot be written yet.

The server beside kube-apiserver and the nodes' agents, a node's own address for kube-apiserver, and
the control plane's own router, which replaces HyperShift's haproxy. Flags are those of the
programs, manifests those of ``isthmus manifest``; only what a plan decides is filled in here.
objects.py makes the Services and Routes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from isthmus import __version__
from isthmus.hosting.endpoints import way
from isthmus.hosting.model import (
    ControlPlaneService,
    HostedCluster,
    PlannedEndpoint,
    Platform,
    PublishPlan,
    Viewpoint,
)
from isthmus.hosting.objects import PRIVATE_ROUTER
from isthmus.hosting.own_parts_names import (
    NamedRoute,
    SharedAddress,
    advertise_address,
    certificates,
    components_no_proxy,
    no_proxy,
    routes_document,
    shared_addresses,
    with_metrics,
)
from isthmus.hosting.visibility import SHARED_INGRESS, is_private
from isthmus.manifests import containers
from isthmus.manifests.arguments import arguments
from isthmus.manifests.pods import Manifest
from isthmus.manifests.settings import DAEMON_SET, PATCH, STATIC_POD
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.programs.agent.render_manifest import AgentPlan, agent_manifest
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.agent.settings_manifest import AgentManifestSettings
from isthmus.programs.apiserver_proxy.plan import CheckPlan, ProxyPlan, ThroughPlan
from isthmus.programs.apiserver_proxy.render_manifest import (
    CONFIG,
    ProxyManifestPlan,
    apiserver_proxy_manifest,
)
from isthmus.programs.apiserver_proxy.rules import Bounds
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings
from isthmus.programs.apiserver_proxy.settings_file import write
from isthmus.programs.apiserver_proxy.settings_manifest import ApiserverProxyManifestSettings
from isthmus.programs.server.plan_manifest import ServerPlan
from isthmus.programs.server.render_manifest import server_manifest
from isthmus.programs.server.settings import ServerSettings
from isthmus.programs.server.settings_manifest import (
    CONFIG_MAP,
    EGRESS,
    SERVICES,
    ServerManifestSettings,
    with_defaults,
)
from isthmus.programs.sni_router.render_manifest import RouterPlan, workload
from isthmus.programs.sni_router.rules import CLUSTER_ID_TLV
from isthmus.programs.sni_router.settings import SniRouterSettings
from isthmus.programs.sni_router.settings_manifest import SniRouterManifestSettings
from isthmus.settings.options import options_of
from isthmus.settings.parsing import load
from isthmus.text.go_yaml import to_yaml
from isthmus.values import HostPort
from isthmus.wire.proxy_protocol import Tlv

OBJECTS = "objects.yaml"
#: The program that provides a node's own address for kube-apiserver, and its configuration.
NODE_PROXY = "apiserver-proxy"
NODE_PROXY_FILE = f"{NODE_PROXY}.yaml"

Typed = Mapping[str, tuple[str, ...]]

#: The files of an agent on a node, and their objects in the guest cluster.
AGENT_SECRET, CA_CONFIG_MAP = "konnectivity-agent", "konnectivity-ca-bundle"
_AGENT_FILES: Typed = {
    "ca_cert": ("/etc/konnectivity/ca/ca.crt",),
    "agent_cert": ("/etc/konnectivity/agent/tls.crt",),
    "agent_key": ("/etc/konnectivity/agent/tls.key",),
}
# HyperShift's values that are not Isthmus' defaults.
_AGENT: Typed = {
    "agent_identifiers": ("default-route=true",),
    "health_server_host": ("127.0.0.1",),
    "health_server_port": ("2041",),
    "keepalive_time_s": ("30s",),
    "probe_interval_s": ("5s",),
    "sync_interval_s": ("5s",),
    "sync_interval_cap_s": ("30s",),
}

#: The CA file of kube-apiserver's certificate, beside the configuration.
CA = "/etc/kubernetes/apiserver-proxy-config/ca.crt"
#: The port of a shared ingress for nodes, which send the id of their cluster in a TLV.
SHARED_INGRESS_PORT = 6443
_IBM_PATH = "/livez?exclude=etcd&exclude=log"

PORT = 8443
ROUTES_CONFIG_MAP = "router-routes"
_CONFIG = "/etc/isthmus/router/routes.yaml"
_SERVICE = "Service/"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnParts:
    """``files`` by name; ``missing`` has a sentence for each that cannot be written yet."""

    files: dict[str, str]
    missing: tuple[str, ...] = ()


def own_parts(plan: PublishPlan, choices: PartChoices | None = None) -> OwnParts:
    """Write all files of a plan without errors.

    Raises:
        ConfigError: a choice is invalid.
    """
    choices = choices or PartChoices()
    files = {OBJECTS: to_yaml(plan.objects), **server_files(plan, choices)}
    missing: list[str] = []
    for service, write_files in _FOR_NODES.items():
        endpoint = way(plan, service, Viewpoint.GUEST_VPC)
        why = _why_not(plan, service, endpoint)
        if endpoint is None or why:
            missing.append(why)
        else:
            files |= write_files(plan, choices, endpoint)
    for shared in shared_addresses(plan):
        files[f"sni-routes.{shared.name}.yaml"] = routes_document(with_metrics(plan, shared))
    files |= router_files(plan, choices)
    files["names.yaml"] = to_yaml([names_document(plan)])
    return OwnParts(files=files, missing=tuple(missing))


def _why_not(
    plan: PublishPlan, service: ControlPlaneService, endpoint: PlannedEndpoint | None
) -> str:
    """Why the address of a service for nodes is unknown; empty if it is known."""
    if endpoint is None:
        return f"nodes cannot reach {service.value}"
    if endpoint.target is None:
        return (
            f"the address of {service.value} is not known until {endpoint.by} has it; then set"
            f" --address {endpoint.name}=HOST{'' if endpoint.port else ':PORT'}"
        )
    told_by_id = service is ControlPlaneService.API_SERVER and endpoint.through == SHARED_INGRESS
    if told_by_id and not plan.cluster.cluster_id:
        return "a shared ingress identifies clusters by spec.clusterID, which is not set"
    return ""


def _agents(plan: PublishPlan, choices: PartChoices, endpoint: PlannedEndpoint) -> dict[str, str]:
    return {"konnectivity-agent.yaml": agent_daemon_set(plan, choices, endpoint)}


def names_document(plan: PublishPlan) -> dict[str, Any]:
    """Names of certificates, and hosts that are reached without a proxy."""
    return {
        "certificates": [
            {
                "name": each.name,
                "shownBy": each.shown_by,
                "dnsNames": list(each.names),
                **({"ipAddresses": list(each.addresses)} if each.addresses else {}),
            }
            for each in certificates(plan)
        ],
        "noProxy": {
            "nodes": list(no_proxy(plan.cluster)),
            "components": {
                name: list(entries) for name, entries in components_no_proxy(plan.cluster).items()
            },
        },
    }


def command_lines(
    plan: PublishPlan, choices: PartChoices | None = None
) -> dict[str, tuple[str, ...]]:
    """The command lines of a server and an agent; no agent if it could not find its server."""
    found = {"server": server_command(choices or PartChoices())}
    endpoint = way(plan, ControlPlaneService.KONNECTIVITY, Viewpoint.GUEST_VPC)
    if endpoint is not None and endpoint.target is not None:
        found["agent"] = agent_command(endpoint)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PartChoices:
    """Choices outside the document: the image of Isthmus, and the number of kube-apiservers.

    HyperShift runs three in a highly available control plane, which is its default.
    """

    image: str = f"isthmus:{__version__}"
    replicas: int = 3


def server_flags(choices: PartChoices) -> Typed:
    """The flags of each server, by attribute; they do not depend on how it is published."""
    return with_defaults({"server_count": (str(choices.replicas),)})


def agent_flags(endpoint: PlannedEndpoint) -> Typed:
    """The flags of an agent of this endpoint, which must have an address."""
    found = {
        "proxy_server_host": (endpoint.address,),
        "proxy_server_port": (str(endpoint.port),),
        **_AGENT,
        **_AGENT_FILES,
    }
    if endpoint.sni and endpoint.sni != endpoint.address:
        found["proxy_server_name"] = (endpoint.sni,)
    return found


def command_line(program: str, settings: type[object], flags: Typed) -> tuple[str, ...]:
    return ("isthmus", program, *arguments(options_of(settings), flags))


def server_command(choices: PartChoices) -> tuple[str, ...]:
    return command_line("server", ServerSettings, server_flags(choices))


def agent_command(endpoint: PlannedEndpoint) -> tuple[str, ...]:
    return command_line("agent", AgentSettings, agent_flags(endpoint))


def server_files(plan: PublishPlan, choices: PartChoices) -> dict[str, str]:
    """The patch of kube-apiserver's Deployment, and the objects beside it.

    Raises:
        ConfigError: a choice is invalid.
    """
    return {
        "konnectivity-server.patch.yaml": _server(plan, choices, PATCH),
        "konnectivity-egress.yaml": _server(plan, choices, CONFIG_MAP),
        "konnectivity-local.yaml": _local(_server(plan, choices, SERVICES)),
    }


def egress_selector(plan: PublishPlan, choices: PartChoices) -> str:
    return _server(plan, choices, EGRESS)


def _local(text: str) -> str:
    """The Service for kube-apiserver and the sidecars; the one for agents is in the plan."""
    return text.split("---\n", 1)[0]


def _server(plan: PublishPlan, choices: PartChoices, part: str) -> str:
    manifest = ServerManifestSettings(
        part=part, namespace=plan.cluster.control_plane, image=choices.image
    )
    manifest.validate()
    flags = server_flags(choices)
    settings = load(ServerSettings, flags, {})
    settings.validate()
    return server_manifest(ServerPlan(manifest=manifest, settings=settings, given=flags))


def agent_daemon_set(plan: PublishPlan, choices: PartChoices, endpoint: PlannedEndpoint) -> str:
    """The agents of the guest cluster, one on each node.

    Raises:
        ConfigError: a choice is wrong.
    """
    cluster = plan.cluster
    manifest = AgentManifestSettings(
        form=DAEMON_SET,
        name="konnectivity-agent",
        image=choices.image,
        secret=AGENT_SECRET,
        ca_config_map=CA_CONFIG_MAP,
        dns_policy="Default",  # the cluster's own DNS may depend on the tunnel
        https_proxy=cluster.proxy_for_https,
        no_proxy=no_proxy(cluster) if cluster.proxy_for_https else (),
    )
    flags = agent_flags(endpoint)
    settings = load(AgentSettings, flags, {})
    settings.validate()
    return agent_manifest(AgentPlan(manifest=manifest, settings=settings, given=flags))


def proxy_plan(plan: PublishPlan, endpoint: PlannedEndpoint, *, ca: str = CA) -> ProxyPlan:
    """The plan of each node's proxy; the endpoint must have an address."""
    cluster = plan.cluster
    shared = endpoint.through == SHARED_INGRESS
    port = SHARED_INGRESS_PORT if shared else endpoint.port
    upstream = HostPort(endpoint.address, port)
    path = _IBM_PATH if cluster.platform is Platform.IBMCLOUD else CheckPlan().path
    return ProxyPlan(
        listen=((advertise_address(cluster), cluster.api_port),),
        upstreams=(upstream,),
        check=CheckPlan(path=path, ca=ca),
        proxy_protocol=(Tlv(CLUSTER_ID_TLV, cluster.cluster_id.encode()),) if shared else None,
        through=_through(cluster, endpoint),
    )


def _through(cluster: HostedCluster, endpoint: PlannedEndpoint) -> ThroughPlan | None:
    """The cluster's proxy, for nodes without a private endpoint of kube-apiserver.

    As in HyperShift, an address outside the internet does not count as private.
    """
    private = is_private(cluster) and Viewpoint.INTERNET not in endpoint.visible_from
    if not cluster.proxy_for_https or private:
        return None
    return ThroughPlan(
        proxy=ProxyAddress.parse(cluster.proxy_for_https, variable="httpsProxy"),
        no_proxy=cluster.no_proxy,
        networks=(*cluster.service_cidrs[:1], *cluster.cluster_cidrs[:1]),
    )


def lab_proxy(plan: PublishPlan, endpoint: PlannedEndpoint, *, ca: str) -> str:
    """The same in a lab, which checks more often and uses no other proxy."""
    found = proxy_plan(plan, endpoint, ca=ca)
    check = replace(found.check, interval_s=0.5, bounds=Bounds(fall=3, rise=1))
    return write(replace(found, check=check, through=None))


def node_files(
    plan: PublishPlan, choices: PartChoices, endpoint: PlannedEndpoint
) -> dict[str, str]:
    """The proxy's configuration, and the static pod that runs it.

    Raises:
        ConfigError: a choice is wrong.
    """
    manifest = ApiserverProxyManifestSettings(form=STATIC_POD, image=choices.image)
    manifest.validate()
    flags = {"config": (CONFIG,)}
    settings = load(ApiserverProxySettings, flags, {})
    settings.validate()
    pod = ProxyManifestPlan(manifest=manifest, settings=settings, given=flags)
    return {
        NODE_PROXY_FILE: write(proxy_plan(plan, endpoint)),
        "kube-apiserver-proxy.yaml": apiserver_proxy_manifest(pod),
    }


def router_routes(plan: PublishPlan) -> SharedAddress | None:
    """The names at all addresses of the router; None if there is no router."""
    shared = (with_metrics(plan, each) for each in shared_addresses(plan))
    found = [each for each in shared if each.through.startswith(_SERVICE)]
    if not found:
        return None
    merged: dict[ControlPlaneService | None, NamedRoute] = {}
    for route in (route for each in found for route in each.routes):
        before = merged.get(route.service)
        hosts = (*(before.hosts if before else ()), *route.hosts)
        merged[route.service] = replace(route, hosts=tuple(dict.fromkeys(hosts)))
    default = next((each.default for each in found if each.default), "")
    return SharedAddress(
        through=f"{_SERVICE}{PRIVATE_ROUTER}", routes=tuple(merged.values()), default=default
    )


def router_files(plan: PublishPlan, choices: PartChoices) -> dict[str, str]:
    """The router's ConfigMap and Deployment; nothing if there is no router."""
    shared = router_routes(plan)
    if shared is None:
        return {}
    space = plan.cluster.control_plane
    config: Manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": ROUTES_CONFIG_MAP, "namespace": space},
        "data": {"routes.yaml": routes_document(shared)},
    }
    return {"router.yaml": to_yaml([config, _deployment(space, choices)])}


def _deployment(namespace: str, choices: PartChoices) -> Manifest:
    flags = {"config": (_CONFIG,), "listen": (f":{PORT}",)}
    settings = load(SniRouterSettings, flags, {})
    settings.validate()
    manifest = SniRouterManifestSettings(
        name=PRIVATE_ROUTER,
        namespace=namespace,
        image=choices.image,
        replicas=min(choices.replicas, 2),
        config_map=ROUTES_CONFIG_MAP,
    )
    manifest.validate()
    plan = RouterPlan(manifest=manifest, settings=settings, given=flags)
    made = workload(plan, security=containers.unprivileged_anybody())
    labels: dict[str, Any] = made["spec"]["template"]["metadata"]["labels"]
    made["spec"]["template"]["metadata"]["labels"] = {**labels, "app": PRIVATE_ROUTER}
    return made


_FOR_NODES: dict[
    ControlPlaneService, Callable[[PublishPlan, PartChoices, PlannedEndpoint], dict[str, str]]
] = {
    ControlPlaneService.KONNECTIVITY: _agents,
    ControlPlaneService.API_SERVER: node_files,
}
