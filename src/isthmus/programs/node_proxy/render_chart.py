"""The node proxy's part of the Helm chart: its values, and templates of its objects.

The chart does not offer ipvs mode, whose pods are privileged (use ``isthmus manifest node-proxy``).
"""

from __future__ import annotations

from isthmus.manifests import around, containers, pods
from isthmus.manifests.around import WorkloadOwner
from isthmus.manifests.chart_parts import (
    IMAGE,
    NAMESPACE,
    PULL,
    ChartPart,
    check_flags,
    grace,
    image_of,
    joined,
    more_files,
    or_usual,
    placed,
    placement,
    pod_metadata,
)
from isthmus.manifests.chart_values import (
    CIDR,
    NAME,
    PLAIN,
    names_of,
    pod_values,
    text_value,
    texts_value,
    whole_value,
    yes_value,
)
from isthmus.manifests.containers import NET_ADMIN, NET_RAW, SYS_RESOURCE, PodContainer
from isthmus.manifests.pods import Manifest, Pod
from isthmus.manifests.template import (
    ITEM,
    Chosen,
    Computed,
    Each,
    Node,
    Template,
    When,
    given,
    hole,
    is_word,
)
from isthmus.programs.node_proxy.render_manifest import (
    api_variables,
    kernel_volumes,
    prepares,
    resources,
)
from isthmus.programs.node_proxy.rules.detectors import MODES
from isthmus.programs.node_proxy.settings import IPTABLES, NFTABLES, NodeProxySettings
from isthmus.programs.node_proxy.settings_local import KUBE_MODES
from isthmus.programs.node_proxy.settings_manifest import NodeProxyManifestSettings
from isthmus.settings.options import options_of
from isthmus.settings.parsing import load

#: What kube-proxy calls otherwise is there by its own name.
_DETECTORS = tuple(mode for mode in MODES if mode not in KUBE_MODES)
_SET = names_of(
    options_of(NodeProxySettings),
    *("config", "kubeconfig", "master", "manifests", "hostname_override", "proxy_mode"),
    *("detect_local", "cluster_cidr", "take_over", "healthz_bind_address", "healthz_port"),
    *("nftables_localhost_nodeports", "graceful_shutdown_timeout_s"),
    # These would stop the chart's probes from working.
    *("health_cert", "health_key"),
    *("cleanup", "init_only", "write_config_to"),
)
_VALUES = (
    yes_value("nodeProxy.enabled", False, "Run a node proxy on every node in place of kube-proxy"),
    text_value(
        "nodeProxy.name",
        "isthmus-node-proxy",
        "Name of all node proxy objects",
        pattern=NAME,
    ),
    text_value(
        "nodeProxy.apiServer.host",
        "",
        "Host of kube-apiserver, as in its certificate; not a Service",
        pattern=PLAIN,
    ),
    whole_value("nodeProxy.apiServer.port", 6443, "Port of kube-apiserver", 1),
    text_value(
        "nodeProxy.mode",
        NFTABLES,
        "Proxy mode; iptables needs NET_RAW as well",
        choices=(NFTABLES, IPTABLES),
    ),
    text_value(
        "nodeProxy.detectLocal",
        "node-cidr",
        "How to recognise traffic from a node's own pods",
        choices=_DETECTORS,
    ),
    texts_value(
        "nodeProxy.clusterCidrs", [], "Pod networks of the cluster, for cluster-cidr", pattern=CIDR
    ),
    yes_value("nodeProxy.takeOver", True, "Start beside a running kube-proxy and replace it"),
    yes_value(
        "nodeProxy.localhostNodePorts",
        False,
        "Open TCP node ports on 127.0.0.1 and ::1, with mode nftables",
    ),
    whole_value("nodeProxy.healthPort", 10256, "Port of /healthz, /livez and /readyz", 1),
    whole_value(
        "nodeProxy.gracefulShutdownSeconds",
        25,
        "Time for connections to node ports on localhost to end at shutdown",
        0,
        3600,
    ),
    *pod_values("nodeProxy", "Further flags of the node proxy, --flag=value each", _SET),
)
_HAS = given("nodeProxy.enabled")
_RUNS_IPTABLES = is_word("nodeProxy.mode", IPTABLES)
_ON_LOCALHOST = given("nodeProxy.localhostNodePorts")
_COMPUTED = {
    "nodeProxyCidrs": joined("nodeProxy.clusterCidrs"),
    "nodeProxyGrace": grace("nodeProxy", 10),
    # Environment variables are strings.
    "nodeProxyApiPort": Computed(
        lambda chosen: str(chosen["nodeProxy.apiServer.port"]),
        "toString (int64 $.Values.nodeProxy.apiServer.port)",
    ),
}


def _args() -> list[Node]:
    """The node proxy's arguments, without the program's name."""
    return [
        "node-proxy",
        "--hostname-override=$(NODE_NAME)",
        f"--proxy-mode={hole('nodeProxy.mode')}",
        f"--detect-local={hole('nodeProxy.detectLocal')}",
        When(given("nodeProxy.clusterCidrs"), f"--cluster-cidr={hole('nodeProxyCidrs')}"),
        When(given("nodeProxy.takeOver"), "--take-over=true"),
        When(_ON_LOCALHOST, "--nftables-localhost-nodeports=true"),
        f"--healthz-bind-address=0.0.0.0:{hole('nodeProxy.healthPort')}",
        f"--graceful-shutdown-timeout={hole('nodeProxy.gracefulShutdownSeconds')}s",
        Each("nodeProxy.extraArgs", hole(ITEM)),
    ]


def _objects() -> list[Node]:
    """The DaemonSet of node proxies and the objects it needs, in order of creation."""
    owner = WorkloadOwner(name=hole("nodeProxy.name"), namespace=NAMESPACE)
    ranges = is_word("nodeProxy.mode", NFTABLES)
    return [
        around.service_account(owner),
        *around.service_rights(owner, owner.account, service_cidrs=ranges),
        _daemon_set(owner),
    ]


def _daemon_set(owner: WorkloadOwner) -> Manifest:
    shared = [When(_RUNS_IPTABLES, each) for each in kernel_volumes(iptables=True)]
    found: list[Node] = [more_files("nodeProxy"), *shared]
    security = containers.with_capability(NET_ADMIN, SYS_RESOURCE)
    security["capabilities"]["add"].append(When(_RUNS_IPTABLES, NET_RAW))
    api = hole("nodeProxy.apiServer.host"), hole("nodeProxyApiPort")
    stays = PodContainer(
        name="node-proxy",
        image=IMAGE,
        args=_args(),
        security=security,
        env=[*containers.fields(["NODE_NAME"]), *api_variables(*api)],
        volumes=found,
        probes=containers.probes(port=hole("nodeProxy.healthPort")),
        resources=or_usual("nodeProxy.resources", resources()),
        pull_policy=PULL,
    )
    pod = Pod(
        name=owner.name,
        namespace=owner.namespace,
        init_containers=[prepares(stays, [*_args(), "--init-only=true"]).to_spec()],
        containers=[stays.to_spec()],
        volumes=found,
        grace_s=hole("nodeProxyGrace"),
        extra={
            "serviceAccountName": owner.name,
            "automountServiceAccountToken": True,
            **placement("nodeProxy", "daemonset"),
        },
        **pod_metadata("nodeProxy"),
    )
    made = placed(pods.daemon_set(pod, host_network=False), "nodeProxy")
    # The cluster's DNS is a Service, which does not work before a node proxy runs.
    spec = made["spec"]["template"]["spec"]
    has_files = given("nodeProxy.extraSecret.name") | _RUNS_IPTABLES
    spec["volumes"] = When(has_files, spec["volumes"])
    for container in (*spec["initContainers"], *spec["containers"]):
        container["volumeMounts"] = When(has_files, container["volumeMounts"])
    made["spec"]["template"]["spec"] = {"hostNetwork": True, "dnsPolicy": "Default", **spec}
    return made


def _check(chosen: Chosen, template: Template) -> None:
    values = chosen.values
    proxy = values["nodeProxy"]
    texts = {
        "form": ("daemonset",),
        "name": (proxy["name"],),
        "namespace": (chosen.namespace,),
        "image": (image_of(values["image"]),),
    }
    manifest = load(NodeProxyManifestSettings, texts, {})
    check_flags(NodeProxySettings, template.fill(_args(), chosen)[1:], where="nodeProxy.extraArgs")
    manifest.validate()


CHART = ChartPart(
    name="nodeProxy",
    title="Node proxies",
    values=_VALUES,
    sections={
        "nodeProxy": "The node proxy, which replaces kube-proxy",
        "nodeProxy.apiServer": "Address of kube-apiserver for node proxies",
    },
    files={"nodeProxy-daemonset.yaml": [When(_HAS, _objects())]},
    there=_HAS,
    check=_check,
    computed=_COMPUTED,
    refused=(
        (
            _HAS & ~given("nodeProxy.apiServer.host"),
            "nodeProxy.apiServer.host is empty: set it, because a node proxy cannot reach"
            " kube-apiserver through the Service that it implements",
        ),
        (
            _HAS & _ON_LOCALHOST & _RUNS_IPTABLES,
            "nodeProxy.localhostNodePorts requires mode nftables; iptables mode always has them",
        ),
    ),
)
