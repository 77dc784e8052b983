"""The agents' part of the chart: its values, and its objects as trees with holes."""

from __future__ import annotations

from isthmus.manifests import around, containers, pods, volumes
from isthmus.manifests.around import AGENT_VERBS, WorkloadOwner
from isthmus.manifests.chart_parts import (
    BY_CERTIFICATE,
    BY_TOKEN,
    COUNTS_LEASES,
    HAS_AGENTS,
    HAS_SERVER,
    HOSTS,
    IMAGE,
    LEASES_IN,
    NAMESPACE,
    PULL,
    TLS_KEYS,
    ChartPart,
    HealthPort,
    NeededObject,
    authorities,
    block,
    check_flags,
    file_at,
    grace,
    health_value,
    image_of,
    joined,
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
    PLAIN,
    names_of,
    pod_values,
    text_value,
    texts_value,
    whole_value,
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
    When,
    given,
    hole,
    is_word,
    more_than,
)
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.agent.settings_manifest import AgentManifestSettings
from isthmus.settings.options import options_of
from isthmus.settings.parsing import load

KINDS = ("daemonset", "deployment")
_HEALTH = HealthPort("agent")
AGENT_NAME = "isthmus-agent"
# What Kubernetes reads as a field of the pod is written so, and a dollar means nothing else here.
_WITH_FIELDS = r"^[^$ ]*(\$\((NODE_NAME|NODE_IP|POD_NAME|POD_IP)\)[^$ ]*)*$"
_AGENT_SET = names_of(
    options_of(AgentSettings),
    *("proxy_server_host", "proxy_server_port", "proxy_server_name", "ca_cert", "agent_cert"),
    *("agent_key", "agent_id", "agent_identifiers", "service_account_token_path"),
    *("health_server_host", "health_server_port", "health_cert", "health_key"),
    "admin_server_port",
    *("graceful_shutdown_timeout_s", "count_server_leases", "lease_namespace"),
    *("lease_label_selector", "kubeconfig"),
)
#: For nodes that reach kube-apiserver through their agent: a static pod or a unit, never a pod
#: that the kubelet gets from kube-apiserver (KEP-2025, "Deployment Model").
_NODE_TRAFFIC = names_of(
    options_of(AgentSettings), "target", "bind_address", "bind_interface", "uplink_interface"
)
_VALUES = (
    yes_value("agent.enabled", True, "Whether there are agents"),
    text_value(
        "agent.kind",
        "daemonset",
        "daemonset: on every node. deployment: a few, for what every node of the cluster reaches",
        choices=KINDS,
    ),
    text_value("agent.name", AGENT_NAME, "Name of everything that is the agents'", pattern=NAME),
    whole_value("agent.replicas", 2, "How many pods of a deployment", 1, 1000),
    yes_value("agent.hostNetwork", True, "Whether a daemonset runs in the network of its nodes"),
    text_value(
        "agent.dnsPolicy",
        "",
        "How names are resolved; empty: as the cluster does",
        choices=("", "Default", "ClusterFirst", "ClusterFirstWithHostNet"),
    ),
    texts_value(
        "agent.servers.hosts",
        [],
        "Hosts of the servers; empty: the Service of this release's server",
        pattern="^[^$ ]+$",
    ),
    whole_value("agent.servers.port", 8091, "Their port", 1),
    text_value(
        "agent.servers.name", "", "Name in their certificate; empty: the host", pattern=PLAIN
    ),
    text_value(
        "agent.secret",
        AGENT_NAME,
        "Secret with tls.crt and tls.key, with auth.mode certificate",
        pattern=OBJECT,
    ),
    text_value(
        "agent.identifiers",
        "",
        "What each agent stands for, such as ipv4=$(NODE_IP)&host=$(NODE_NAME)",
        pattern=_WITH_FIELDS,
    ),
    yes_value(
        "agent.countServerLeases",
        False,
        "Whether agents count the servers' Leases themselves; our servers tell them",
    ),
    whole_value("agent.healthPort", 8093, "Port of probes and metrics", 1),
    health_value("agent"),
    whole_value("agent.adminPort", 8094, "Port for operators, on loopback", 1),
    whole_value(
        "agent.gracefulShutdownSeconds", 25, "How long open tunnels may take to end", 0, 3600
    ),
    text_value("agent.httpsProxy", "", "URL of a proxy to the servers", pattern=PLAIN),
    texts_value("agent.noProxy", [], "Hosts that are reached without it", pattern=PLAIN),
    yes_value("agent.podDisruptionBudget.enabled", True, "Whether a deployment has a budget"),
    yes_value(
        "agent.networkPolicy.enabled",
        True,
        "Whether pods with a network of their own have a NetworkPolicy",
    ),
    texts_value(
        "agent.networkPolicy.allowCidrs",
        [],
        "Networks that agents may dial, besides DNS and the servers' port; empty: everywhere",
        pattern=CIDR,
    ),
    *pod_values(
        "agent",
        "Further flags of the agents, --flag=value each; none with --target or --bind-address, "
        "because the kubelet gets these pods from kube-apiserver, which such a node reaches only "
        "through its agent (isthmus manifest agent --as=static-pod or --as=systemd)",
        (*_AGENT_SET, *_NODE_TRAFFIC),
    ),
)
_COMPUTED = {
    "noProxy": joined("agent.noProxy"),
    "agentGrace": grace("agent", 5),
}


def _args() -> list[Node]:
    """The agents' command line, without the program."""
    return [
        "agent",
        When(
            HOSTS,
            [
                Each("agent.servers.hosts", f"--proxy-server-host={hole(ITEM)}"),
                f"--proxy-server-port={hole('agent.servers.port')}",
            ],
            otherwise=[
                f"--proxy-server-host={hole('server.name')}.{NAMESPACE}.svc",
                f"--proxy-server-port={hole('server.agentPort')}",
            ],
        ),
        When(given("agent.servers.name"), f"--proxy-server-name={hole('agent.servers.name')}"),
        "--ca-cert=/etc/isthmus/ca/ca.crt",
        When(
            BY_CERTIFICATE,
            [
                "--agent-cert=/etc/isthmus/agent/tls.crt",
                "--agent-key=/etc/isthmus/agent/tls.key",
            ],
        ),
        When(given("agent.identifiers"), f"--agent-identifiers={hole('agent.identifiers')}"),
        When(BY_TOKEN, "--service-account-token-path=/var/run/secrets/isthmus/token"),
        f"--health-server-port={hole('agent.healthPort')}",
        _HEALTH.args,
        f"--admin-server-port={hole('agent.adminPort')}",
        f"--graceful-shutdown-timeout={hole('agent.gracefulShutdownSeconds')}s",
        When(
            COUNTS_LEASES,
            [
                "--count-server-leases=true",
                f"--lease-namespace={LEASES_IN}",
                f"--lease-label-selector={hole('server.leases.label')}",
            ],
        ),
        Each("agent.extraArgs", hole(ITEM)),
    ]


def _agents(kind: str) -> list[Node]:
    """Agents of this kind and what is around them, in the order to make it."""
    owner = WorkloadOwner(name=hole("agent.name"), namespace=NAMESPACE)
    leases = around.lease_rights(owner, owner.account, namespace=LEASES_IN, verbs=AGENT_VERBS)
    found: list[Node] = [
        When(BY_TOKEN | COUNTS_LEASES, around.service_account(owner)),
        When(COUNTS_LEASES, leases),
    ]
    policy = given("agent.networkPolicy.enabled")
    if kind == "deployment":
        budget = given("agent.podDisruptionBudget.enabled") & more_than("agent.replicas", 1)
        found.append(When(budget, around.disruption_budget(owner)))
    else:
        policy &= ~given("agent.hostNetwork")
    return [*found, When(policy, _agent_policy(owner)), _agent_workload(owner, kind)]


def _agent_policy(owner: WorkloadOwner) -> Manifest:
    """Allow ingress to an agent only for health and metrics, as in render_manifest.py."""
    networks = "agent.networkPolicy.allowCidrs"
    narrow = given(networks)
    servers = hole("agent.servers.port"), hole("server.agentPort")
    egress = [
        around.to_dns(),
        When(HOSTS, around.to_ports(servers[0]), otherwise=around.to_ports(servers[1])),
        {"to": [block(networks)]},
    ]
    made = around.network_policy(owner, [around.to_ports(hole("agent.healthPort"))])
    spec = made["spec"]
    spec["policyTypes"] = ["Ingress", When(narrow, "Egress")]
    spec["egress"] = When(narrow, egress)
    return made


def _agent_workload(owner: WorkloadOwner, kind: str) -> Manifest:
    dns = "agent.dnsPolicy"
    extra = {
        "serviceAccountName": When(BY_TOKEN | COUNTS_LEASES, owner.name),
        "dnsPolicy": When(given(dns), hole(dns)),
        "automountServiceAccountToken": When(COUNTS_LEASES, then=True, otherwise=False),
        "securityContext": {"fsGroup": hole("runAs")},
        **placement("agent", kind),
    }
    files = [file_at("/etc/isthmus/agent/tls.crt"), file_at("/etc/isthmus/agent/tls.key")]
    token = volumes.projected_token(
        file_at("/var/run/secrets/isthmus/token"), audience=hole("auth.audience")
    )
    found: list[Node] = [
        authorities("ca"),
        When(BY_TOKEN, token),
        When(BY_CERTIFICATE, volumes.secret_directory(files, secret=hole("agent.secret"))[0]),
        _HEALTH.volume(),
        more_files("agent"),
    ]
    proxies = {"HTTPS_PROXY": "agent.httpsProxy", "NO_PROXY": "noProxy"}
    env = references("agent", {}, own_id="PROXY_AGENT_ID", paths=["agent.identifiers"])
    for variable, name in proxies.items():
        set_ = given("agent.httpsProxy" if variable == "HTTPS_PROXY" else "agent.noProxy")
        env.append(When(set_, containers.variables({variable: hole(name)})))
    agent = PodContainer(
        name="agent",
        image=IMAGE,
        args=_args(),
        security=containers.unprivileged(hole("runAs")),
        env=env,
        volumes=found,
        ports={"health": hole("agent.healthPort")},
        probes=containers.probes(port=hole("agent.healthPort"), scheme=_HEALTH.scheme),
        resources=or_usual("agent.resources", containers.resources()),
        pull_policy=PULL,
    )
    pod = Pod(
        name=owner.name,
        namespace=owner.namespace,
        containers=[agent.to_spec()],
        volumes=found,
        grace_s=hole("agentGrace"),
        extra=extra,
        **pod_metadata("agent"),
    )
    if kind == "deployment":
        return placed(pods.deployment(pod, replicas=hole("agent.replicas")), "agent")
    made = placed(pods.daemon_set(pod), "agent")
    spec = made["spec"]["template"]["spec"]
    host = When(given("agent.hostNetwork"), "ClusterFirstWithHostNet")
    spec["dnsPolicy"] = When(given(dns), hole(dns), otherwise=host)
    return made


def _check(chosen: Chosen, template: Template) -> None:
    values = chosen.values
    agent = values["agent"]
    texts = {
        "form": (agent["kind"],),
        "name": (agent["name"],),
        "namespace": (chosen.namespace,),
        "image": (image_of(values["image"]),),
        "run_as": (str(values["runAs"]),),
        "secret": (agent["secret"],),
        "ca_config_map": (values["certificates"]["caConfigMap"],),
        "token_audience": (values["auth"]["audience"],),
        "allow_cidr": tuple(agent["networkPolicy"]["allowCidrs"]),
        "https_proxy": (agent["httpsProxy"],),
        "no_proxy": tuple(agent["noProxy"]),
    }
    manifest = load(AgentManifestSettings, texts, {})
    check_flags(AgentSettings, template.fill(_args(), chosen)[1:], where="agent.extraArgs")
    manifest.validate()


_REFUSED = (
    (
        HAS_AGENTS & given("agent.noProxy") & ~given("agent.httpsProxy"),
        "agent.noProxy needs agent.httpsProxy as well",
    ),
    (
        HAS_AGENTS & ~HOSTS & ~HAS_SERVER,
        "agent.servers.hosts is empty, and there is no server here that agents could connect to",
    ),
)
_NEEDED = (
    NeededObject(
        holds=HAS_AGENTS & BY_CERTIFICATE, kind="Secret", name=hole("agent.secret"), keys=TLS_KEYS
    ),
    *_HEALTH.needed(HAS_AGENTS),
)
CHART = ChartPart(
    name="agent",
    title="Agents",
    values=_VALUES,
    sections={
        "agent": "The agents, in the network that the server cannot reach",
        "agent.servers": "Whom agents connect to",
    },
    files={
        f"agent-{kind}.yaml": [When(HAS_AGENTS & is_word("agent.kind", kind), _agents(kind))]
        for kind in KINDS
    },
    there=HAS_AGENTS,
    watched=HAS_AGENTS,
    check=_check,
    computed=_COMPUTED,
    refused=_REFUSED,
    needed=_NEEDED,
)
