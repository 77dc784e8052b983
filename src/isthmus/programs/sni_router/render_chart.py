"""The SNI router's part of the chart: its values, and its objects as trees with holes."""

from __future__ import annotations

from functools import reduce
from operator import or_

from isthmus.manifests import around, containers, pods, volumes
from isthmus.manifests.arguments import REFERENCES
from isthmus.manifests.around import WorkloadOwner
from isthmus.manifests.chart_parts import (
    IMAGE,
    NAMESPACE,
    PULL,
    ChartPart,
    HealthPort,
    NeededObject,
    check_flags,
    file_at,
    grace,
    health_value,
    image_of,
    more_files,
    or_usual,
    placed,
    placement,
    pod_metadata,
    references,
)
from isthmus.manifests.chart_values import (
    CIDR,
    NAME,
    OBJECT,
    names_of,
    pod_values,
    text_value,
    texts_value,
    whole_value,
    words_value,
    yes_value,
)
from isthmus.manifests.containers import PodContainer
from isthmus.manifests.pods import Manifest, Pod
from isthmus.manifests.template import (
    ITEM,
    Chosen,
    Each,
    Node,
    Template,
    Verbatim,
    When,
    given,
    hole,
    is_word,
    mentions,
    more_than,
)
from isthmus.programs.sni_router.render_manifest import (
    CONFIG,
    PORT_NAME,
    PROGRAM_NAME,
    PROXY_PORT_NAME,
    SPARE_S,
)
from isthmus.programs.sni_router.settings import SniRouterSettings
from isthmus.programs.sni_router.settings_manifest import (
    CLUSTER_IP,
    LOAD_BALANCER,
    SERVICE_TYPES,
    SniRouterManifestSettings,
)
from isthmus.settings.options import options_of
from isthmus.settings.parsing import load

WHO = "sniRouter"
_THERE = given(f"{WHO}.enabled")
_HEALTH = HealthPort(WHO)
_BY_TLV = given(f"{WHO}.proxied.enabled")
_SET = names_of(
    options_of(SniRouterSettings),
    *("config", "listen", "listen_proxy", "accept_proxy", "proxy_from", "health_port"),
    *("health_cert", "health_key", "admin_port", "graceful_shutdown_timeout_s"),
)
_VALUES = (
    yes_value(f"{WHO}.enabled", False, "Whether there is an SNI router"),
    text_value(
        f"{WHO}.name", "isthmus-sni-router", "Name of everything that is the router's", pattern=NAME
    ),
    whole_value(f"{WHO}.replicas", 2, "How many pods", 1, 1000),
    text_value(
        f"{WHO}.configMap",
        "isthmus-sni-router-routes",
        "ConfigMap with routes.yaml",
        pattern=OBJECT,
    ),
    whole_value(f"{WHO}.port", 8443, "Port of the pods for connections by name", 1024),
    yes_value(
        f"{WHO}.proxied.enabled",
        False,
        "Whether there is a port for connections that begin with a PROXY header, as those of "
        "proxies on nodes do: routes tell them by its TLV",
    ),
    whole_value(f"{WHO}.proxied.port", 6443, "That port, of pods and Service", 1024),
    yes_value(
        f"{WHO}.acceptProxy",
        False,
        "Whether connections by name come from a proxy, and begin with its PROXY header",
    ),
    texts_value(f"{WHO}.proxyFrom", [], "Networks whose PROXY headers are believed", pattern=CIDR),
    text_value(f"{WHO}.service.type", LOAD_BALANCER, "Type of the Service", choices=SERVICE_TYPES),
    whole_value(f"{WHO}.service.port", 443, "Port of the Service for connections by name", 1),
    words_value(f"{WHO}.service.annotations", "Annotations of the Service"),
    whole_value(f"{WHO}.healthPort", 8096, "Port of probes and metrics", 1),
    health_value(WHO),
    whole_value(f"{WHO}.adminPort", 8097, "Port for operators, on loopback", 1),
    whole_value(
        f"{WHO}.gracefulShutdownSeconds", 25, "How long open connections may take to end", 0, 3600
    ),
    yes_value(f"{WHO}.podDisruptionBudget.enabled", True, "Whether several pods have a budget"),
    yes_value(f"{WHO}.networkPolicy.enabled", True, "Whether the pods have a NetworkPolicy"),
    *pod_values(WHO, "Further flags of the router, --flag=value each", _SET),
)


def _args() -> list[Node]:
    """The router's arguments, beginning with the name of the program."""
    return [
        PROGRAM_NAME,
        f"--config={CONFIG}",
        f"--listen=:{hole(f'{WHO}.port')}",
        When(given(f"{WHO}.acceptProxy"), "--accept-proxy=true"),
        When(_BY_TLV, f"--listen-proxy=:{hole(f'{WHO}.proxied.port')}"),
        Each(f"{WHO}.proxyFrom", f"--proxy-from={hole(ITEM)}"),
        f"--graceful-shutdown-timeout={hole(f'{WHO}.gracefulShutdownSeconds')}s",
        f"--health-port={hole(f'{WHO}.healthPort')}",
        _HEALTH.args,
        f"--admin-port={hole(f'{WHO}.adminPort')}",
        Each(f"{WHO}.extraArgs", hole(ITEM)),
    ]


def _objects() -> list[Node]:
    owner = WorkloadOwner(name=hole(f"{WHO}.name"), namespace=NAMESPACE)
    budget = given(f"{WHO}.podDisruptionBudget.enabled") & more_than(f"{WHO}.replicas", 1)
    return [
        When(budget, around.disruption_budget(owner)),
        When(given(f"{WHO}.networkPolicy.enabled"), _policy(owner)),
        _service(owner),
        _workload(owner),
    ]


def _policy(owner: WorkloadOwner) -> Manifest:
    proxied = around.to_ports(hole(f"{WHO}.proxied.port"))
    ports = around.to_ports(hole(f"{WHO}.port"), hole(f"{WHO}.healthPort"))
    made = around.network_policy(owner, [ports])
    made["spec"]["ingress"].append(When(_BY_TLV, proxied))
    return made


def _service(owner: WorkloadOwner) -> Manifest:
    made = around.service(
        owner, {PORT_NAME: hole(f"{WHO}.service.port")}, kind=hole(f"{WHO}.service.type")
    )
    proxied = around.service(owner, {PROXY_PORT_NAME: hole(f"{WHO}.proxied.port")})
    made["spec"]["ports"].append(When(_BY_TLV, proxied["spec"]["ports"][0]))
    # Otherwise another node could become the source of every connection.
    inside = is_word(f"{WHO}.service.type", CLUSTER_IP)
    made["spec"]["externalTrafficPolicy"] = When(~inside, "Local")
    annotations = f"{WHO}.service.annotations"
    made["metadata"]["annotations"] = When(given(annotations), Verbatim(annotations))
    return made


def _workload(owner: WorkloadOwner) -> Manifest:
    config = file_at(CONFIG)
    routes = volumes.config_map("routes", hole(f"{WHO}.configMap"), {config.path.name: config})
    found: list[Node] = [routes, _HEALTH.volume(), more_files(WHO)]
    health = hole(f"{WHO}.healthPort")
    container = PodContainer(
        name=PROGRAM_NAME,
        image=IMAGE,
        args=_args(),
        security=containers.unprivileged(hole("runAs")),
        volumes=found,
        ports={PORT_NAME: hole(f"{WHO}.port"), "health": health},
        probes=containers.probes(port=health, scheme=_HEALTH.scheme),
        resources=or_usual(f"{WHO}.resources", containers.resources()),
        pull_policy=PULL,
    ).to_spec()
    proxied = {"name": PROXY_PORT_NAME, "containerPort": hole(f"{WHO}.proxied.port")}
    container["ports"].append(When(_BY_TLV, proxied))
    # Omit the list if it would be empty.
    named = reduce(or_, (mentions(f"{WHO}.extraArgs", f"$({name})") for name in REFERENCES))
    container["env"] = When(named, references(WHO, {}))
    pod = Pod(
        name=owner.name,
        namespace=owner.namespace,
        containers=[container],
        volumes=found,
        grace_s=hole("sniRouterGrace"),
        extra={
            "automountServiceAccountToken": False,
            "securityContext": {"fsGroup": hole("runAs")},
            **placement(WHO, "deployment"),
        },
        **pod_metadata(WHO),
    )
    return placed(pods.deployment(pod, replicas=hole(f"{WHO}.replicas")), WHO)


def _check(chosen: Chosen, template: Template) -> None:
    values = chosen.values
    router = values[WHO]
    texts = {
        "name": (router["name"],),
        "namespace": (chosen.namespace,),
        "image": (image_of(values["image"]),),
        "run_as": (str(values["runAs"]),),
        "replicas": (str(router["replicas"]),),
        "config_map": (router["configMap"],),
        "service_type": (router["service"]["type"],),
        "service_port": (str(router["service"]["port"]),),
    }
    load(SniRouterManifestSettings, texts, {}).validate()
    check_flags(SniRouterSettings, template.fill(_args(), chosen)[1:], where=f"{WHO}.extraArgs")


CHART = ChartPart(
    name=WHO,
    title="SNI router",
    values=_VALUES,
    sections={
        WHO: "One address for many control planes, told apart by TLS server name",
        f"{WHO}.proxied": "Connections of nodes, told apart by the id of their cluster",
        f"{WHO}.service": "The address that is shared",
    },
    files={"sni-router.yaml": [When(_THERE, _objects())]},
    there=_THERE,
    watched=_THERE,
    check=_check,
    computed={"sniRouterGrace": grace(WHO, SPARE_S)},
    refused=(
        (
            _THERE & given(f"{WHO}.acceptProxy") & ~given(f"{WHO}.proxyFrom"),
            f"{WHO}.acceptProxy needs {WHO}.proxyFrom with the networks of the proxies",
        ),
        (
            _THERE & given(f"{WHO}.proxyFrom") & ~given(f"{WHO}.acceptProxy") & ~_BY_TLV,
            f"{WHO}.proxyFrom needs {WHO}.acceptProxy or {WHO}.proxied.enabled",
        ),
    ),
    needed=(
        NeededObject(
            holds=_THERE,
            kind="ConfigMap",
            name=hole(f"{WHO}.configMap"),
            keys=(file_at(CONFIG).path.name,),
        ),
        *_HEALTH.needed(_THERE),
    ),
)
