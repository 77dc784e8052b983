"""The objects of an installation, as trees with holes; the chart's templates are written from them.

Where neither Python nor Helm can place something, a static pod on nodes or a patch of somebody
else's Deployment, it is text in a ConfigMap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import yaml

from isthmus.dial.rules_connectivity import ClientTls, NetworkConnection, NetworkProtocol
from isthmus.manifests import around, containers, pods, volumes
from isthmus.manifests.alerts import rules
from isthmus.manifests.arguments import REFERENCES
from isthmus.manifests.around import AGENT_VERBS, SERVER_VERBS, WorkloadOwner
from isthmus.manifests.containers import PodContainer
from isthmus.manifests.installation_values import (
    BY_CERTIFICATE,
    BY_TOKEN,
    CLIENT_CA,
    COUNTS_LEASES,
    FORMS,
    HAS_AGENTS,
    HAS_SERVER,
    HOSTS,
    IMAGE,
    IS_DEPLOYMENT,
    IS_SIDECAR,
    IS_STATIC,
    KUBECONFIG,
    LEASES,
    LEASES_IN,
    NAMESPACE,
    NEEDS_API,
    PRE_STOP_S,
    RULES_FILE,
    SHARED_NAMESPACE,
    SOCKET_DIRECTORY,
    by_kubeconfig,
    trusts_ca,
)
from isthmus.manifests.pods import Manifest, Pod, deployment_patch
from isthmus.manifests.server import (
    CONTAINER,
    NAME,
    SIDECAR_RESOURCES,
    resources,
    setup_socket,
)
from isthmus.manifests.server_plan import LEAVE_S, egress_selector_of
from isthmus.manifests.settings_server import (
    ServerManifestSettings,
)
from isthmus.manifests.template import (
    ITEM,
    AsText,
    Computed,
    Each,
    FromFile,
    Node,
    Spread,
    Tree,
    Verbatim,
    When,
    given,
    hole,
    is_word,
    mentions,
    more_than,
)
from isthmus.manifests.volumes import CA, CERT, KEY, SECRET_MODE, FlagFile, Volume
from isthmus.values import HostPort

# The server.


def server_args(kind: str) -> list[Node]:
    """The server's command line, without the program."""
    node = kind == "staticPod"
    pair = "/etc/isthmus/server" if node else "/etc/isthmus/server/tls"
    ca = "/etc/isthmus/ca.crt" if node else "/etc/isthmus/ca/ca.crt"
    clients = f"--server-ca-cert={ca}"
    if kind == "deployment":
        frontend: list[Node] = [
            "--mode=http-connect",
            f"--server-port={hole('server.frontend.port')}",
            "--server-cert=/etc/isthmus/frontend/tls.crt",
            "--server-key=/etc/isthmus/frontend/tls.key",
            When(CLIENT_CA, "--server-ca-cert=/etc/isthmus/client-ca/ca.crt", otherwise=clients),
        ]
    else:
        frontend = ["--mode=grpc", f"--uds-name={hole('server.frontend.socket')}"]
    return [
        "server",
        *frontend,
        f"--agent-port={hole('server.agentPort')}",
        f"--cluster-cert={pair}.crt",
        f"--cluster-key={pair}.key",
        When(BY_CERTIFICATE, f"--cluster-ca-cert={ca}"),
        f"--proxy-strategies={hole('strategies')}",
        f"--health-port={hole('server.healthPort')}",
        f"--admin-port={hole('server.adminPort')}",
        f"--graceful-shutdown-timeout={hole('server.gracefulShutdownSeconds')}s",
        When(given("server.count"), f"--server-count={hole('server.count')}"),
        When(
            LEASES & given("server.leases.advertise"),
            f"--advertise-agent-address={hole('advertised')}:{hole('server.agentPort')}",
        ),
        When(
            LEASES,
            [
                "--enable-lease-controller=true",
                f"--lease-namespace={LEASES_IN}",
                f"--lease-label={hole('server.leases.label')}",
            ],
        ),
        When(
            BY_TOKEN,
            [
                f"--agent-namespace={hole('agentNamespace')}",
                f"--agent-service-account={hole('agent.name')}",
                f"--authentication-audience={hole('auth.audience')}",
            ],
        ),
        When(by_kubeconfig(kind), "--kubeconfig=/etc/isthmus/kube/kubeconfig"),
        Each("server.extraArgs", hole(ITEM)),
    ]


def _server(kind: str) -> list[Node]:
    """A server of this kind and what is around it, in the order to make it."""
    owner = WorkloadOwner(name=hole("server.name"), namespace=NAMESPACE)
    if kind == "sidecar":
        return _sidecar(owner)
    found: list[Node] = []
    if kind == "staticPod":
        subject, rights = around.user(hole("server.kubeconfig.user")), (LEASES, BY_TOKEN)
    else:
        found.append(around.service_account(owner))
        # A pod with a kubeconfig asks another cluster, where this installation has nothing to say.
        subject, rights = owner.account, (LEASES & ~KUBECONFIG, BY_TOKEN & ~KUBECONFIG)
    leases = around.lease_rights(owner, subject, namespace=LEASES_IN, verbs=SERVER_VERBS)
    found += [
        When(rights[0], leases),
        When(rights[1], around.token_rights(owner, subject)),
        _agents_service(owner),
    ]
    if kind == "deployment":
        front = {"http-connect": hole("server.frontend.port")}
        found += [
            around.service(owner, front, name=f"{owner.name}-frontend"),
            When(
                given("server.podDisruptionBudget.enabled") & more_than("server.replicas", 1),
                around.disruption_budget(owner),
            ),
        ]
    # Nobody enforces a policy for pods in the network of a node.
    policy = given("server.networkPolicy.enabled")
    if kind == "deployment":
        found.append(When(policy, _server_policy(owner, kind)))
    elif kind == "daemonset":
        found.append(When(policy & ~given("server.hostNetwork"), _server_policy(owner, kind)))
    return [*found, _server_workload(owner, kind)]


def _agents_service(owner: WorkloadOwner, selector: Mapping[str, str] | None = None) -> Manifest:
    # An agent makes a server ready, so it has to reach one that is not.
    ports = {"agents": hole("server.agentPort")}
    kind = hole("server.service.type")
    made = around.service(owner, ports, kind=kind, early=True, selector=selector)
    path = "server.service.annotations"
    made["metadata"]["annotations"] = When(given(path), Verbatim(path))
    return made


def _server_policy(owner: WorkloadOwner, kind: str) -> Manifest:
    """Agents and kube-apiserver from where they are, probes from anywhere, as in server.py."""
    networks = "server.networkPolicy.allowCidrs"
    others = {"podSelector": {"matchLabels": owner.selector}}
    agents = {
        "from": When(given(networks), [_block(networks), others]),
        **around.to_ports(hole("server.agentPort")),
    }
    front = []
    if kind == "deployment":
        name, cidrs = (
            "server.networkPolicy.apiserverNamespace",
            "server.networkPolicy.apiserverCidrs",
        )
        peers = [
            _block(cidrs),
            When(given(name), around.in_namespace(hole(name))),
            When(~given(name) & ~given(cidrs), around.in_namespace(NAMESPACE)),
        ]
        front.append({"from": peers, **around.to_ports(hole("server.frontend.port"))})
    health = around.to_ports(hole("server.healthPort"))
    return around.network_policy(owner, [agents, *front, health])


def _block(path: str) -> Each:
    return Each(path, {"ipBlock": {"cidr": hole(ITEM)}})


def _server_workload(owner: WorkloadOwner, kind: str) -> Manifest:
    if kind == "staticPod":
        text = AsText(pods.static_pod(_server_pod(owner, kind, {})))
        return around.config_map(owner, f"{owner.name}-manifest", {f"{owner.name}.yaml": text})
    extra = {
        "serviceAccountName": owner.name,
        "automountServiceAccountToken": When(NEEDS_API & ~KUBECONFIG, then=True, otherwise=False),
        "securityContext": {"fsGroup": hole("runAs")},
        **_placement("server", kind),
    }
    pod = _server_pod(owner, kind, extra)
    if kind == "deployment":
        return _placed(pods.deployment(pod, replicas=hole("server.replicas")), "server")
    return _placed(pods.control_plane_set(pod), "server")


def _server_pod(owner: WorkloadOwner, kind: str, extra: Manifest) -> Pod:
    found = _server_volumes(kind)
    socket = [hole("server.frontend.socket")] if kind != "deployment" else []
    before = setup_socket(
        IMAGE, socket, user=hole("runAs"), volumes=[_socket_volume(kind)], pull=_PULL
    )
    front = {"http-connect": hole("server.frontend.port")} if kind == "deployment" else {}
    server = server_container(kind, CONTAINER, ports={**front, **_ports("health")})
    return Pod(
        name=owner.name,
        namespace=owner.namespace,
        containers=[server.to_spec()],
        init_containers=[before.to_spec()] if socket else [],
        volumes=found,
        grace_s=hole("deploymentGrace" if kind == "deployment" else "serverGrace"),
        extra=extra,
        **_pod_metadata("server"),
    )


_PULL = hole("image.pullPolicy")


def _ports(health: str) -> dict[str, str]:
    return {"agents": hole("server.agentPort"), health: hole("server.healthPort")}


def server_container(kind: str, name: str, ports: Mapping[str, str]) -> PodContainer:
    sidecar = kind == "sidecar"
    lifecycle = {"sidecar": PRE_STOP_S, "deployment": LEAVE_S}.get(kind)
    pod_ip = LEASES & given("server.leases.advertise")
    return PodContainer(
        name=name,
        image=IMAGE,
        args=server_args(kind),
        security=containers.unprivileged(hole("runAs")),
        env=_references("server", {"POD_IP": pod_ip}, own_id="PROXY_SERVER_ID"),
        volumes=_server_volumes(kind),
        ports=ports,
        probes=containers.probes(
            port=hole("server.healthPort"),
            readiness=hole("server.readiness"),
            liveness="/healthz" if sidecar else "/livez",
        ),
        resources=_or_usual("server.resources", SIDECAR_RESOURCES if sidecar else resources()),
        lifecycle=containers.going_on(lifecycle) if lifecycle else {},
        pull_policy=_PULL,
    )


def _references(
    who: str, known: Mapping[str, Computed], *, own_id: str, paths: Sequence[str] = ()
) -> list[Node]:
    """Variables for the fields of the pod that arguments refer to, and one that has its name."""
    found: list[Node] = []
    for name in REFERENCES:
        said = mentions(f"{who}.extraArgs", f"$({name})")
        for path in paths:
            said |= mentions(path, f"$({name})")
        found += [
            When(said | known[name] if name in known else said, each)
            for each in containers.fields([name])
        ]
    # Every pod needs an id of its own, and its name is one.
    return [*found, *containers.fields([], **{own_id: "POD_NAME"})]


def _or_usual(path: str, usual: Node) -> When:
    return When(given(path), Verbatim(path), otherwise=usual)


def _server_volumes(kind: str) -> list[Node]:
    """Where the files of the server come from, as in server_plan.py."""
    if kind == "staticPod":
        found: list[Node] = volumes.host_directories([_file("/etc/isthmus/server.crt")])
    else:
        front = _pair("server-certs", hole("server.frontend.secret"), "/etc/isthmus/frontend")
        clients = volumes.config_map(
            "konnectivity-client-ca",
            hole("certificates.clientCaConfigMap"),
            {CA: _file("/etc/isthmus/client-ca/ca.crt")},
        )
        of_deployment = kind == "deployment"
        files = volumes.secret_directory(
            [_file("/etc/isthmus/kube/kubeconfig")], secret=hole("server.kubeconfig.secret")
        )
        found = [
            *([front] if of_deployment else []),
            _pair("cluster-certs", hole("server.secret"), "/etc/isthmus/server"),
            *([When(CLIENT_CA, clients)] if of_deployment else []),
            When(trusts_ca(kind), _authorities("konnectivity-ca")),
            When(by_kubeconfig(kind), volumes.renamed(files[0], "konnectivity-files")),
        ]
    if kind != "deployment":
        found.append(_socket_volume(kind))
    scratch = volumes.renamed(volumes.scratch(), "konnectivity-tmp")
    return [*found, When(by_kubeconfig(kind), scratch), _more_files("server")]


def _file(path: str) -> FlagFile:
    return FlagFile("", PurePosixPath(path))


def _pair(name: str, secret: str, directory: str) -> Volume:
    files = {CERT: _file(f"{directory}/tls.crt"), KEY: _file(f"{directory}/tls.key")}
    return volumes.secret(name, secret, files)


def _authorities(name: str) -> Volume:
    source = hole("certificates.caConfigMap")
    return volumes.config_map(name, source, {CA: _file("/etc/isthmus/ca/ca.crt")})


def _socket_volume(kind: str) -> Volume:
    source: Tree = {"hostPath": {"path": SOCKET_DIRECTORY, "type": "DirectoryOrCreate"}}
    if kind == "sidecar":
        source = {"emptyDir": {"medium": "Memory"}}
    name = "konnectivity-uds-1"
    return Volume(name=name, mount=SOCKET_DIRECTORY, source=source, read_only=False)


def _more_files(who: str) -> When:
    name = f"{who}.extraSecret.name"
    source = {"secret": {"secretName": hole(name), "defaultMode": SECRET_MODE}}
    mount = hole(f"{who}.extraSecret.mountPath")
    return When(given(name), Volume(name="extra-files", mount=mount, source=source))


def _placement(who: str, kind: str) -> Manifest:
    """Where pods run, as far as it is not in every workload."""
    tolerations = {"tolerations": When(given(f"{who}.tolerations"), Verbatim(f"{who}.tolerations"))}
    pulled = [Each("imagePullSecrets", {"name": hole(ITEM)})]
    return {
        **(tolerations if kind == "deployment" else {}),
        "affinity": When(given(f"{who}.affinity"), Verbatim(f"{who}.affinity")),
        "imagePullSecrets": When(given("imagePullSecrets"), pulled),
    }


def _placed(workload: Manifest, who: str) -> Manifest:
    """A workload with what values say in place of what is usual."""
    spec = workload["spec"]["template"]["spec"]
    for key in ("tolerations", "nodeSelector"):
        if key in spec and not isinstance(spec[key], When):
            spec[key] = _or_usual(f"{who}.{key}", spec[key])
    priority = f"{who}.priorityClassName"
    spec["priorityClassName"] = When(
        given(priority), hole(priority), otherwise=spec["priorityClassName"]
    )
    if "hostNetwork" in spec:
        host = given(f"{who}.hostNetwork")
        spec["hostNetwork"] = When(host, then=True)
        spec["dnsPolicy"] = When(host, spec["dnsPolicy"])
    return workload


def _pod_metadata(who: str) -> dict[str, Any]:
    annotations = f"{who}.podAnnotations"
    return {
        "more_labels": {Spread(f"{who}.podLabels"): None},
        "annotations": When(given(annotations), Verbatim(annotations)),
    }


def _sidecar(owner: WorkloadOwner) -> list[Node]:
    """What a server in kube-apiserver's pod needs, and the patch of that pod as a text."""
    config = _file("/etc/kubernetes/egress-selector/config.yaml")
    selector = volumes.config_map(
        "egress-selector-config", f"{owner.name}-egress", {config.path.name: config}
    )
    found = _server_volumes("sidecar")
    theirs = [selector, _socket_volume("sidecar")]
    spec = {
        "terminationGracePeriodSeconds": hole("sidecarGrace"),
        "securityContext": {"fsGroup": hole("runAs")},
        "containers": [
            {
                "name": hole("server.sidecar.container"),
                "volumeMounts": [volume.to_mount() for volume in theirs],
            },
            server_container("sidecar", NAME, ports=_ports("konn-health")).to_spec(),
        ],
        "volumes": pods.volume_specs([*found, selector]),
    }
    patch = deployment_patch(hole("server.sidecar.workload"), owner.namespace, spec)
    agents = _agents_service(owner, {hole("selectorLabel"): hole("selectorValue")})
    texts = {"config.yaml": AsText(egress_document())}
    return [
        agents,
        around.config_map(owner, f"{owner.name}-egress", texts),
        around.config_map(owner, f"{owner.name}-patch", {"patch.yaml": AsText(patch)}),
    ]


def egress_document() -> Tree:
    """kube-apiserver's file: to the server by a UNIX socket, or to that of a deployment by TCP."""
    socket = NetworkConnection(protocol=NetworkProtocol.PACKET, uds=hole("server.frontend.socket"))
    manifest = ServerManifestSettings()
    tls = ClientTls(
        ca_bundle=manifest.egress_ca_bundle,
        client_cert=manifest.egress_client_cert,
        client_key=manifest.egress_client_key,
    )
    tcp = NetworkConnection(
        protocol=NetworkProtocol.HTTP_CONNECT, tcp=HostPort("frontend", 1), tls=tls
    )
    found, other = (yaml.safe_load(egress_selector_of(each)) for each in (socket, tcp))
    cluster, by_tcp = found["egressSelections"][-1], other["egressSelections"][-1]["connection"]
    front = f"{hole('server.name')}-frontend.{NAMESPACE}.svc:{hole('server.frontend.port')}"
    by_tcp["transport"]["tcp"]["url"] = f"https://{front}"
    cluster["connection"] = When(IS_DEPLOYMENT, by_tcp, otherwise=cluster["connection"])
    return dict(found)


# The agents.


def agent_args() -> list[Node]:
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
    """Nobody connects to an agent but for its health and metrics, as in agent.py."""
    networks = "agent.networkPolicy.allowCidrs"
    narrow = given(networks)
    servers = hole("agent.servers.port"), hole("server.agentPort")
    egress = [
        around.to_dns(),
        When(HOSTS, around.to_ports(servers[0]), otherwise=around.to_ports(servers[1])),
        {"to": [_block(networks)]},
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
        **_placement("agent", kind),
    }
    files = [_file("/etc/isthmus/agent/tls.crt"), _file("/etc/isthmus/agent/tls.key")]
    token = volumes.projected_token(
        _file("/var/run/secrets/isthmus/token"), audience=hole("auth.audience")
    )
    found: list[Node] = [
        _authorities("ca"),
        When(BY_TOKEN, token),
        When(BY_CERTIFICATE, volumes.secret_directory(files, secret=hole("agent.secret"))[0]),
        _more_files("agent"),
    ]
    proxies = {"HTTPS_PROXY": "agent.httpsProxy", "NO_PROXY": "noProxy"}
    env = _references("agent", {}, own_id="PROXY_AGENT_ID", paths=["agent.identifiers"])
    for variable, name in proxies.items():
        set_ = given("agent.httpsProxy" if variable == "HTTPS_PROXY" else "agent.noProxy")
        env.append(When(set_, containers.variables({variable: hole(name)})))
    agent = PodContainer(
        name="agent",
        image=IMAGE,
        args=agent_args(),
        security=containers.unprivileged(hole("runAs")),
        env=env,
        volumes=found,
        ports={"health": hole("agent.healthPort")},
        probes=containers.probes(port=hole("agent.healthPort")),
        resources=_or_usual("agent.resources", containers.resources()),
        pull_policy=_PULL,
    )
    pod = Pod(
        name=owner.name,
        namespace=owner.namespace,
        containers=[agent.to_spec()],
        volumes=found,
        grace_s=hole("agentGrace"),
        extra=extra,
        **_pod_metadata("agent"),
    )
    if kind == "deployment":
        return _placed(pods.deployment(pod, replicas=hole("agent.replicas")), "agent")
    made = _placed(pods.daemon_set(pod), "agent")
    spec = made["spec"]["template"]["spec"]
    host = When(given("agent.hostNetwork"), "ClusterFirstWithHostNet")
    spec["dnsPolicy"] = When(given(dns), hole(dns), otherwise=host)
    return made


# Around both.


def _lease_namespace() -> Node:
    """The namespace of the Leases, where one is made and anybody here gets rights in it."""
    # Whoever may write Leases may write all of a namespace: those of servers have one of their own.
    kept = HAS_SERVER & LEASES & (IS_STATIC | ~KUBECONFIG)
    owner = WorkloadOwner(name=hole("server.name"), namespace=NAMESPACE)
    wanted = (
        ~given("server.leases.namespace") & SHARED_NAMESPACE & (kept | (HAS_AGENTS & COUNTS_LEASES))
    )
    return When(wanted, around.namespace(owner, LEASES_IN))


def _monitoring() -> list[Node]:
    # Pods of kube-apiserver are not found by labels of ours.
    watched = {"server": HAS_SERVER & ~IS_SIDECAR, "agent": HAS_AGENTS}
    interval = hole("monitoring.podMonitor.interval")
    found: list[Node] = [
        When(
            given("monitoring.podMonitor.enabled") & there,
            around.pod_monitor(
                WorkloadOwner(name=hole(f"{who}.name"), namespace=NAMESPACE),
                interval=interval,
                labels={Spread("monitoring.podMonitor.labels"): None},
            ),
        )
        for who, there in watched.items()
    ]
    metadata = WorkloadOwner(name="isthmus", namespace=NAMESPACE).metadata()
    more = {Spread("monitoring.prometheusRule.labels"): None}
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {**metadata, "labels": {**more, **metadata["labels"]}},
        "spec": FromFile(RULES_FILE, rules()),
    }
    return [*found, When(given("monitoring.prometheusRule.enabled"), rule)]


#: Everything, by the chart's template that it is in, in the order to make it.
FILES: Mapping[str, Sequence[Node]] = {
    "lease-namespace.yaml": [_lease_namespace()],
    **{
        f"server-{kind.lower()}.yaml": [
            When(HAS_SERVER & is_word("server.kind", kind), _server(kind))
        ]
        for kind in FORMS
    },
    **{
        f"agent-{kind}.yaml": [When(HAS_AGENTS & is_word("agent.kind", kind), _agents(kind))]
        for kind in ("daemonset", "deployment")
    },
    "monitoring.yaml": _monitoring(),
}
