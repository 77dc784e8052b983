"""The server's part of the chart: its objects, as trees with holes; values are settings_chart.py.

Objects that neither Python nor Helm can place, such as a static pod on nodes or a patch of another
Deployment, are text in a ConfigMap.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

import yaml

from isthmus.dial.rules_connectivity import ClientTls, NetworkConnection, NetworkProtocol
from isthmus.manifests import around, containers, pods, volumes
from isthmus.manifests.around import SERVER_VERBS, WorkloadOwner
from isthmus.manifests.chart_parts import (
    BY_CERTIFICATE,
    BY_TOKEN,
    CLIENT_CA,
    HAS_AGENTS,
    HAS_SERVER,
    HOSTS,
    IMAGE,
    IN_CLUSTER,
    IS_DEPLOYMENT,
    IS_STATIC,
    KUBECONFIG,
    LEASES,
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
    image_of,
    joined,
    more_files,
    or_usual,
    pair_in,
    placed,
    placement,
    pod_metadata,
    references,
)
from isthmus.manifests.containers import PodContainer
from isthmus.manifests.pods import Manifest, Pod, deployment_patch
from isthmus.manifests.template import (
    ITEM,
    AsText,
    Chosen,
    Computed,
    Each,
    Node,
    Template,
    Tree,
    Verbatim,
    When,
    given,
    hole,
    is_word,
    more_than,
)
from isthmus.manifests.volumes import CA, FlagFile, Volume
from isthmus.programs.server.plan_manifest import LEAVE_S, egress_selector_of
from isthmus.programs.server.render_manifest import NAME as SIDECAR_NAME
from isthmus.programs.server.render_manifest import SIDECAR_RESOURCES
from isthmus.programs.server.render_manifest_forms import CONTAINER, resources, setup_socket
from isthmus.programs.server.settings import ServerSettings
from isthmus.programs.server.settings_chart import FORMS, SECTIONS, VALUES
from isthmus.programs.server.settings_manifest import (
    ServerManifestSettings,
)
from isthmus.settings.parsing import load
from isthmus.values import HostPort

PRE_STOP_S = 70
_HEALTH = HealthPort("server")
NEEDS_API = LEASES | BY_TOKEN
IS_SIDECAR = is_word("server.kind", "sidecar")
SOCKET_DIRECTORY = hole("socketDirectory")


def _half_of_selector(half: int) -> Computed:
    path = "server.sidecar.selector"
    return Computed(
        lambda chosen: chosen[path].partition("=")[2 * half],
        f'(splitn "=" 2 $.Values.{path})._{half}',
    )


_COMPUTED = {
    "advertised": Computed(
        lambda chosen: {"ipv6": "[$(POD_IP)]"}.get(chosen["server.leases.advertise"], "$(POD_IP)"),
        'ternary "[$(POD_IP)]" "$(POD_IP)" (eq $.Values.server.leases.advertise "ipv6")',
    ),
    "socketDirectory": Computed(
        lambda chosen: str(PurePosixPath(chosen["server.frontend.socket"]).parent),
        "dir $.Values.server.frontend.socket",
    ),
    "strategies": joined("server.strategies"),
    "selectorLabel": _half_of_selector(0),
    "selectorValue": _half_of_selector(1),
    "serverGrace": grace("server", 5),
    "deploymentGrace": grace("server", 5 + LEAVE_S),
    "sidecarGrace": grace("server", PRE_STOP_S),
}


def _by_kubeconfig(kind: str) -> Computed:
    """Whether a server uses the Kubernetes API with a kubeconfig instead of its pod's account."""
    return NEEDS_API if kind == "staticPod" else NEEDS_API & KUBECONFIG


def _trusts_ca(kind: str) -> Computed:
    return BY_CERTIFICATE | ~CLIENT_CA if kind == "deployment" else BY_CERTIFICATE


def _args(kind: str) -> list[Node]:
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
        _HEALTH.args,
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
        When(_by_kubeconfig(kind), "--kubeconfig=/etc/isthmus/kube/kubeconfig"),
        Each("server.extraArgs", hole(ITEM)),
    ]


def _server(kind: str) -> list[Node]:
    """A server of this kind and its related objects, in the order of creation."""
    owner = WorkloadOwner(name=hole("server.name"), namespace=NAMESPACE)
    if kind == "sidecar":
        return _sidecar(owner)
    found: list[Node] = []
    if kind == "staticPod":
        subject, rights = around.user(hole("server.kubeconfig.user")), (LEASES, BY_TOKEN)
    else:
        found.append(around.service_account(owner))
        # A pod with a kubeconfig uses another cluster, where this installation has no rights.
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
    # NetworkPolicies do not apply to pods in the network of a node.
    policy = given("server.networkPolicy.enabled")
    if kind == "deployment":
        found.append(When(policy, _server_policy(owner, kind)))
    elif kind == "daemonset":
        found.append(When(policy & ~given("server.hostNetwork"), _server_policy(owner, kind)))
    return [*found, _server_workload(owner, kind)]


def _agents_service(owner: WorkloadOwner, selector: Mapping[str, str] | None = None) -> Manifest:
    # An agent makes a server ready, so it has to reach an unready one.
    ports = {"agents": hole("server.agentPort")}
    kind = hole("server.service.type")
    made = around.service(owner, ports, kind=kind, early=True, selector=selector)
    path = "server.service.annotations"
    made["metadata"]["annotations"] = When(given(path), Verbatim(path))
    return made


def _server_policy(owner: WorkloadOwner, kind: str) -> Manifest:
    """Allow agents and kube-apiserver from their networks, probes from anywhere."""
    networks = "server.networkPolicy.allowCidrs"
    others = {"podSelector": {"matchLabels": owner.selector}}
    agents = {
        "from": When(given(networks), [block(networks), others]),
        **around.to_ports(hole("server.agentPort")),
    }
    front = []
    if kind == "deployment":
        name, cidrs = (
            "server.networkPolicy.apiserverNamespace",
            "server.networkPolicy.apiserverCidrs",
        )
        peers = [
            block(cidrs),
            When(given(name), around.in_namespace(hole(name))),
            When(~given(name) & ~given(cidrs), around.in_namespace(NAMESPACE)),
        ]
        front.append({"from": peers, **around.to_ports(hole("server.frontend.port"))})
    health = around.to_ports(hole("server.healthPort"))
    return around.network_policy(owner, [agents, *front, health])


def _server_workload(owner: WorkloadOwner, kind: str) -> Manifest:
    if kind == "staticPod":
        text = AsText(pods.static_pod(_server_pod(owner, kind, {})))
        return around.config_map(owner, f"{owner.name}-manifest", {f"{owner.name}.yaml": text})
    extra = {
        "serviceAccountName": owner.name,
        "automountServiceAccountToken": When(NEEDS_API & ~KUBECONFIG, then=True, otherwise=False),
        "securityContext": {"fsGroup": hole("runAs")},
        **placement("server", kind),
    }
    pod = _server_pod(owner, kind, extra)
    if kind == "deployment":
        return placed(pods.deployment(pod, replicas=hole("server.replicas")), "server")
    return placed(pods.control_plane_set(pod), "server")


def _server_pod(owner: WorkloadOwner, kind: str, extra: Manifest) -> Pod:
    found = _server_volumes(kind)
    socket = [hole("server.frontend.socket")] if kind != "deployment" else []
    before = setup_socket(
        IMAGE, socket, user=hole("runAs"), volumes=[_socket_volume(kind)], pull=PULL
    )
    front = {"http-connect": hole("server.frontend.port")} if kind == "deployment" else {}
    server = _container(kind, CONTAINER, ports={**front, **_ports("health")})
    return Pod(
        name=owner.name,
        namespace=owner.namespace,
        containers=[server.to_spec()],
        init_containers=[before.to_spec()] if socket else [],
        volumes=found,
        grace_s=hole("deploymentGrace" if kind == "deployment" else "serverGrace"),
        extra=extra,
        **pod_metadata("server"),
    )


def _ports(health: str) -> dict[str, str]:
    return {"agents": hole("server.agentPort"), health: hole("server.healthPort")}


def _container(kind: str, name: str, ports: Mapping[str, str]) -> PodContainer:
    sidecar = kind == "sidecar"
    lifecycle = {"sidecar": PRE_STOP_S, "deployment": LEAVE_S}.get(kind)
    pod_ip = LEASES & given("server.leases.advertise")
    return PodContainer(
        name=name,
        image=IMAGE,
        args=_args(kind),
        security=containers.unprivileged(hole("runAs")),
        env=references("server", {"POD_IP": pod_ip}, own_id="PROXY_SERVER_ID"),
        volumes=_server_volumes(kind),
        ports=ports,
        probes=containers.probes(
            port=hole("server.healthPort"),
            scheme=_HEALTH.scheme,
            readiness=hole("server.readiness"),
            liveness="/healthz" if sidecar else "/livez",
        ),
        resources=or_usual("server.resources", SIDECAR_RESOURCES if sidecar else resources()),
        lifecycle=containers.going_on(lifecycle) if lifecycle else {},
        pull_policy=PULL,
    )


def _server_volumes(kind: str) -> list[Node]:
    """The sources of the server's files, as in plan_manifest.py."""
    if kind == "staticPod":
        found: list[Node] = volumes.host_directories([file_at("/etc/isthmus/server.crt")])
    else:
        front = pair_in("server-certs", hole("server.frontend.secret"), "/etc/isthmus/frontend")
        clients = volumes.config_map(
            "konnectivity-client-ca",
            hole("certificates.clientCaConfigMap"),
            {CA: file_at("/etc/isthmus/client-ca/ca.crt")},
        )
        of_deployment = kind == "deployment"
        files = volumes.secret_directory(
            [file_at("/etc/isthmus/kube/kubeconfig")], secret=hole("server.kubeconfig.secret")
        )
        found = [
            *([front] if of_deployment else []),
            pair_in("cluster-certs", hole("server.secret"), "/etc/isthmus/server"),
            *([When(CLIENT_CA, clients)] if of_deployment else []),
            When(_trusts_ca(kind), authorities("konnectivity-ca")),
            When(_by_kubeconfig(kind), volumes.renamed(files[0], "konnectivity-files")),
        ]
    if kind != "deployment":
        found.append(_socket_volume(kind))
    scratch = volumes.renamed(volumes.scratch(), "konnectivity-tmp")
    if kind != "staticPod":
        found.append(_HEALTH.volume("konnectivity-health"))
    return [*found, When(_by_kubeconfig(kind), scratch), more_files("server")]


def _socket_volume(kind: str) -> Volume:
    source: Tree = {"hostPath": {"path": SOCKET_DIRECTORY, "type": "DirectoryOrCreate"}}
    if kind == "sidecar":
        source = {"emptyDir": {"medium": "Memory"}}
    name = "konnectivity-uds-1"
    return Volume(name=name, mount=SOCKET_DIRECTORY, source=source, read_only=False)


def _sidecar(owner: WorkloadOwner) -> list[Node]:
    """The objects of a server in kube-apiserver's pod, and the patch of that pod as text."""
    config = file_at("/etc/kubernetes/egress-selector/config.yaml")
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
            _container("sidecar", SIDECAR_NAME, ports=_ports("konn-health")).to_spec(),
        ],
        "volumes": pods.volume_specs([*found, selector]),
    }
    patch = deployment_patch(hole("server.sidecar.workload"), owner.namespace, spec)
    agents = _agents_service(owner, {hole("selectorLabel"): hole("selectorValue")})
    texts = {"config.yaml": AsText(_egress_document())}
    return [
        agents,
        around.config_map(owner, f"{owner.name}-egress", texts),
        around.config_map(owner, f"{owner.name}-patch", {"patch.yaml": AsText(patch)}),
    ]


def _egress_document() -> Tree:
    """kube-apiserver's file: the server by a UNIX socket, or a deployment's by TCP."""
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


def _check(chosen: Chosen, template: Template) -> None:
    values = chosen.values
    server = values["server"]
    texts = {
        "form": (FORMS[server["kind"]],),
        "name": (server["name"],),
        "namespace": (chosen.namespace,),
        "image": (image_of(values["image"]),),
        "run_as": (str(values["runAs"]),),
        "server_secret": (server["frontend"]["secret"],),
        "cluster_secret": (server["secret"],),
        "ca_config_map": (values["certificates"]["caConfigMap"],),
        "client_ca_config_map": (values["certificates"]["clientCaConfigMap"],),
        "secret": (server["kubeconfig"]["secret"],),
        "kubeconfig_user": (server["kubeconfig"]["user"] or "",),
        "allow_cidr": tuple(server["networkPolicy"]["allowCidrs"]),
        "apiserver_cidr": tuple(server["networkPolicy"]["apiserverCidrs"]),
        "apiserver_namespace": (server["networkPolicy"]["apiserverNamespace"],),
        "workload": (server["sidecar"]["workload"],),
        "container": (server["sidecar"]["container"],),
        "selector": (server["sidecar"]["selector"],),
    }
    load(ServerManifestSettings, texts, {}).validate()
    kind = server["kind"]
    check_flags(ServerSettings, template.fill(_args(kind), chosen)[1:], where="server.extraArgs")
    if kind != "deployment":
        volumes.check_mountable([FlagFile.named("--uds-name", server["frontend"]["socket"])])
    mounts = template.fill(_container(kind, CONTAINER, ports={}).to_spec(), chosen)
    volumes.check_apart(
        Volume(name=each["name"], mount=each["mountPath"], source={})
        for each in mounts["volumeMounts"]
    )


_REFUSED = (
    (
        HAS_SERVER & IS_SIDECAR & NEEDS_API & ~KUBECONFIG,
        "server.kind sidecar has no account of its own in kube-apiserver's pod: set"
        " server.kubeconfig.secret, or auth.mode certificate and server.leases.enabled false",
    ),
    (
        HAS_SERVER & IS_STATIC & _HEALTH.by_tls,
        "server.healthSecret is not for server.kind staticPod, which can have no Secret: write its"
        " manifest with isthmus manifest server --as=static-pod --health-cert=FILE",
    ),
    (
        HAS_SERVER & IS_STATIC & KUBECONFIG,
        "server.kubeconfig.secret is not for server.kind staticPod, which has its kubeconfig"
        " from its node, /etc/isthmus/kube/kubeconfig",
    ),
    (
        HAS_SERVER & IS_STATIC & given("server.extraSecret.name"),
        "server.extraSecret.name is not for server.kind staticPod, which has its files from its"
        " node, in /etc/isthmus",
    ),
)
_NEEDED = (
    NeededObject(
        holds=IN_CLUSTER,
        kind="Secret",
        name=hole("server.secret"),
        keys=TLS_KEYS,
        remark=When(
            HAS_AGENTS & ~HOSTS,
            f": the certificate has the name {hole('server.name')}.{NAMESPACE}.svc",
        ),
    ),
    NeededObject(
        holds=IN_CLUSTER & IS_DEPLOYMENT,
        kind="Secret",
        name=hole("server.frontend.secret"),
        keys=TLS_KEYS,
    ),
    NeededObject(
        holds=IN_CLUSTER & KUBECONFIG,
        kind="Secret",
        name=hole("server.kubeconfig.secret"),
        keys=("kubeconfig",),
    ),
    *_HEALTH.needed(IN_CLUSTER),
)
CHART = ChartPart(
    name="server",
    title="Server",
    values=VALUES,
    sections=SECTIONS,
    files={
        f"server-{kind.lower()}.yaml": [
            When(HAS_SERVER & is_word("server.kind", kind), _server(kind))
        ]
        for kind in FORMS
    },
    there=HAS_SERVER,
    # Our labels do not select pods of kube-apiserver.
    watched=HAS_SERVER & ~IS_SIDECAR,
    check=_check,
    computed=_COMPUTED,
    refused=_REFUSED,
    needed=_NEEDED,
    notes={"egressSelector": _egress_document()},
)
