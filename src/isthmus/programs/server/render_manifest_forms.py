"""A separate server as a DaemonSet, a Deployment, a static pod or a unit, and its related objects.

DaemonSet pods and static pods share a directory of their node with kube-apiserver: its UNIX socket
needs no certificates. The kubelet creates the directory as root, and an init container
gives it to the server's user, with the one capability that this needs. Deployments are for
an apiserver elsewhere, which connects by TCP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from isthmus.errors import ConfigError
from isthmus.manifests import around, containers, pods, volumes
from isthmus.manifests.arguments import for_pod, references
from isthmus.manifests.around import SERVER_VERBS, WorkloadOwner
from isthmus.manifests.containers import PodContainer
from isthmus.manifests.pods import Manifest, Pod
from isthmus.manifests.settings import (
    DAEMON_SET,
    DEPLOYMENT,
    EARLY_FORMS,
    STATIC_POD,
    SYSTEMD,
)
from isthmus.manifests.systemd import Lines, ServiceUnit, command_line, file_names, socket_unit
from isthmus.manifests.volumes import SERVICE_ACCOUNT, FlagFile, Volume
from isthmus.programs.server.plan_manifest import (
    LEAVE_S,
    ServerPlan,
    egress_selector,
    file_volumes,
    node_sockets,
    scratch,
)
from isthmus.programs.server.settings import ServerSettings
from isthmus.programs.server.settings_manifest import (
    ALL,
    EGRESS,
    OBJECTS,
    READY,
    SOCKET,
    WORKLOAD,
)
from isthmus.text.go_yaml import to_yaml
from isthmus.values import HostPort

CONTAINER = "server"


def form_manifest(plan: ServerPlan) -> str:
    """Write the --part of a server that is not a sidecar.

    Raises:
        ConfigError: the server cannot run in that form.
    """
    check_form(plan)
    return _WRITERS[plan.manifest.written](plan)


def check_form(plan: ServerPlan) -> None:
    """Check that the server can run in its form.

    Raises:
        ConfigError: it cannot; the message says why.
    """
    form, settings = plan.manifest.form, plan.settings
    what = "a static pod" if form == STATIC_POD else "a unit"
    if form in EARLY_FORMS and settings.needs_kube and not settings.kubeconfig:
        raise ConfigError(
            f"--kubeconfig is missing: {what} has no service account, and tokens and Leases"
            " need the Kubernetes API"
        )
    for file in plan.files if form in EARLY_FORMS else ():
        if SERVICE_ACCOUNT in file.path.parents:
            raise ConfigError(
                f"{file.flag} {file.path}: {what} has no service account; name a file of the node"
            )
    if any(door.port == 0 for door in settings.doors):
        raise ConfigError("--server-port must not be 0 in a manifest: clients need a fixed port")
    if form == DEPLOYMENT and not plan.frontend_ports:
        raise ConfigError(
            "a deployment needs --server-port: kube-apiserver is elsewhere and cannot reach a"
            " UNIX socket"
        )
    if form == SYSTEMD and references(plan.given):
        raise ConfigError(f"$({references(plan.given)[0]}) is only available in a pod")
    if form != SYSTEMD:
        check_audit(plan)


def check_audit(plan: ServerPlan) -> None:
    """Check that the server writes no file: its pod has a read-only file system.

    Raises:
        ConfigError: it would write one; the message says what to do.
    """
    if (log := plan.audit_log) is not None:
        raise ConfigError(
            f"{log.flag} {log.path}: a pod has no place to write; use {log.flag}=-, standard"
            " output, which the kubelet keeps"
        )


def workload(plan: ServerPlan) -> Manifest:
    """The pods: a DaemonSet, a Deployment or a Pod.

    Raises:
        ConfigError: the files cannot be mounted at their paths.
    """
    manifest = plan.manifest
    if manifest.form == STATIC_POD:
        return pods.static_pod(_static_pod(plan))
    pod = _cluster_pod(plan)
    if manifest.form == DEPLOYMENT:
        return pods.deployment(pod, replicas=manifest.replicas)
    return pods.control_plane_set(pod, host_network=manifest.host_network)


def _static_pod(plan: ServerPlan) -> Pod:
    found = [
        *volumes.host_directories(plan.files),
        *node_sockets(plan),
        *scratch(plan),
    ]
    return _pod(plan, found, {})


def _cluster_pod(plan: ServerPlan) -> Pod:
    manifest = plan.manifest
    found = [
        *file_volumes(plan),
        *node_sockets(plan),
        *scratch(plan),
    ]
    extra = {
        "serviceAccountName": manifest.name,
        "automountServiceAccountToken": plan.uses_account,
        "securityContext": {"fsGroup": manifest.run_as},
    }
    return _pod(plan, found, extra)


def _pod(plan: ServerPlan, found: list[Volume], extra: Manifest) -> Pod:
    manifest, settings = plan.manifest, plan.settings
    volumes.check_apart(found)
    server = PodContainer(
        name=CONTAINER,
        image=manifest.image,
        args=for_pod(plan.args),
        security=containers.unprivileged(manifest.run_as),
        env=env_of(plan),
        volumes=found,
        ports={
            **plan.frontend_ports,
            "agents": settings.agent_port,
            "health": settings.admin.health_port,
        },
        probes=containers.probes_of(
            settings.admin,
            readiness=manifest.readiness,
        ),
        resources=resources(),
        lifecycle=containers.going_on(LEAVE_S) if manifest.form == DEPLOYMENT else {},
    )
    return Pod(
        name=manifest.name,
        namespace=manifest.namespace,
        containers=[server.to_spec()],
        init_containers=[_setup(plan).to_spec()] if plan.sockets else [],
        volumes=found,
        grace_s=plan.grace_s,
        extra=extra,
    )


def env_of(plan: ServerPlan) -> list[Manifest]:
    """The environment of the container: fields of its pod."""
    # Every replica needs a unique id: the name of its pod.
    own_id = {} if plan.settings.server_id else {"PROXY_SERVER_ID": "POD_NAME"}
    return containers.fields(references(plan.given), **own_id)


def resources() -> Manifest:
    """The resource requests and limits of a server.

    40 % of the memory limit are for peers' data (--memory-budget): peers are slowed before that.
    """
    return {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "2Gi"}}


def _setup(plan: ServerPlan) -> PodContainer:
    manifest = plan.manifest
    paths = dict.fromkeys(str(each.path) for each in plan.sockets)
    return setup_socket(manifest.image, paths, user=manifest.run_as, volumes=node_sockets(plan))


def setup_socket(
    image: str,
    paths: Iterable[str],
    *,
    user: int | str,
    volumes: Sequence[Volume],
    pull: str = "IfNotPresent",
) -> PodContainer:
    """The init container that gives the directories of sockets to the server's user."""
    named = (f"--uds-name={path}" for path in paths)
    return PodContainer(
        name="setup-socket",
        image=image,
        args=for_pod(["server", "setup-socket", *named, f"--owner={user}"]),
        security=containers.with_capability("CHOWN"),
        resources=containers.resources(),
        volumes=volumes,
        pull_policy=pull,
    )


_RUN = PurePosixPath("/run")
_LOGS = PurePosixPath("/var/log")
_UNIT_COMMENTS = (
    "An Isthmus server, next to kube-apiserver.",
    "",
    "    useradd --system --user-group --no-create-home --shell=/usr/sbin/nologin {group}",
    "    chgrp {group} FILES && chmod 0640 FILES      # {names}",
    "    systemctl enable --now UNIT",
    "",
    "The server reads its files again when they change, so it needs no restart. Root and members",
    "of the group may open its socket.",
)
_SOCKET_COMMENTS = (
    "Listens for an Isthmus server, also during its restart: clients that connect then wait.",
    "It has the name of the service, with the same addresses as the service's flags.",
    "",
    "    systemctl enable --now isthmus-server.socket isthmus-server.service",
)


def _unit(plan: ServerPlan) -> str:
    group, names, log = plan.manifest.unit_group, file_names(plan.files), plan.audit_log
    unit = ServiceUnit(
        description="Isthmus server",
        comments=[line.format(group=group, names=names) for line in _UNIT_COMMENTS],
        commands=[("ExecStart", command_line([plan.manifest.executable, *plan.args]))],
        files=plan.files,
        seen=[log] if log else [],
        # No dynamic user: a persistent directory would be below /run/private, which only root
        # can access. Its own group and not only one more: it is the socket's as well.
        user=[
            ("User", group),
            ("Group", group),
            *_socket_directories(plan.socket_directories),
            *_log_directory(log),
        ],
        capabilities=[containers.NET_BIND_SERVICE] if plan.low_ports else [],
        grace_s=plan.grace_s,
        max_files=1048576,
        max_memory="2G",
    )
    return unit.to_text()


def _log_directory(file: FlagFile | None) -> Lines:
    """The directory must be writable, too: the log is rotated there."""
    if file is None:
        return []
    if _LOGS in file.directory.parents:
        # systemd creates it for the unit's user.
        name = str(file.directory.relative_to(_LOGS))
        return [("LogsDirectory", name), ("LogsDirectoryMode", "0750")]
    return [("ReadWritePaths", str(file.directory))]


def _socket_directories(directories: Sequence[PurePosixPath]) -> Lines:
    below = [each for each in directories if _RUN in each.parents]
    # The administrator creates these, and gives them to the group.
    others = [("ReadWritePaths", str(each)) for each in directories if each not in below]
    if not below:
        return others
    names = " ".join(str(each.relative_to(_RUN)) for each in below)
    return [
        ("RuntimeDirectory", names),
        ("RuntimeDirectoryMode", "0750"),
        # Kept when the unit is restarted: a kube-apiserver in a container that has mounted it
        # would otherwise see the deleted one.
        ("RuntimeDirectoryPreserve", "yes"),
        *others,
    ]


def _workload(plan: ServerPlan) -> str:
    return _unit(plan) if plan.manifest.form == SYSTEMD else to_yaml([workload(plan)])


def _all(plan: ServerPlan) -> str:
    if plan.manifest.form in EARLY_FORMS:
        raise ConfigError(
            f"--part=all is not available with --as={plan.manifest.form}: a node needs the"
            " workload in a separate file, and objects belong in the cluster"
        )
    return to_yaml([*around_server(plan), workload(plan)])


def _objects(plan: ServerPlan) -> str:
    return to_yaml(around_server(plan))


def _socket(plan: ServerPlan) -> str:
    """A unit that listens for clients and agents, also while the server is down."""
    settings, group = plan.settings, plan.manifest.unit_group
    if plan.manifest.form != SYSTEMD:
        raise ConfigError(f"--part={SOCKET} is for --as={SYSTEMD}: only units have sockets")
    found = [door.uds for door in settings.doors if door.uds]
    for door in settings.doors:
        if door.port is not None:
            found.append(_listen(settings.server_bind_address, door.port))
    found.append(_listen(settings.agent_bind_address, settings.agent_port))
    return socket_unit("Isthmus server's sockets", found, group=group, comments=_SOCKET_COMMENTS)


def _listen(host: str, port: int) -> str:
    return str(HostPort(host, port)) if host else str(port)


_WRITERS: Mapping[str, Callable[[ServerPlan], str]] = {
    ALL: _all,
    WORKLOAD: _workload,
    OBJECTS: _objects,
    SOCKET: _socket,
    EGRESS: lambda plan: egress_selector(plan.manifest, plan.settings),
}


def form_warnings(plan: ServerPlan) -> list[str]:
    """Warnings about valid but probably unintended settings."""
    manifest, settings = plan.manifest, plan.settings
    found = count_warnings(settings)
    if manifest.written in (ALL, WORKLOAD) and plan.socket_directories:
        directory = plan.socket_directories[0]
        found.append(
            f"kube-apiserver needs {directory} of its node, --egress-selector-config-file with the"
            " output of --part=egress-selector, and to be root or in the server's group"
        )
    if manifest.form in EARLY_FORMS and settings.needs_kube and manifest.written == WORKLOAD:
        found.append(
            f"the user {manifest.kubeconfig_user} of --kubeconfig needs the rights that"
            " --part=objects prints"
        )
    if settings.kubeconfig and manifest.form not in EARLY_FORMS and settings.needs_kube:
        found.append(
            "the user of --kubeconfig needs rights in that cluster: for Leases, and to create"
            " tokenreviews"
        )
    of_node = manifest.form == STATIC_POD or (manifest.form == DAEMON_SET and manifest.host_network)
    if of_node and plan.low_ports:
        found.append(
            f"port {plan.low_ports[0]} is below 1024: in a node's network the server may not"
            " open it, unless the node's net.ipv4.ip_unprivileged_port_start allows it"
        )
    if manifest.form in (DAEMON_SET, DEPLOYMENT) and manifest.readiness == READY:
        found.append("a server is ready only with an agent")
    return found


def count_warnings(settings: ServerSettings) -> list[str]:
    """Warnings about how servers are counted."""
    counted = settings.server_count is not None or settings.peer_server
    if counted or settings.enable_lease_controller:
        return []
    return ["without --server-count, agents assume that this is the only server"]


def around_server(plan: ServerPlan) -> list[Manifest]:
    """The objects besides the pods, in the order of creation."""
    manifest = plan.manifest
    owner = WorkloadOwner(name=manifest.name, namespace=manifest.namespace)
    found = [] if manifest.form in EARLY_FORMS else [around.service_account(owner)]
    found += _rights(plan, owner)
    if manifest.form != SYSTEMD:
        found += _services(plan, owner)
    if manifest.form == DEPLOYMENT and manifest.disruption_budget and manifest.replicas > 1:
        found.append(around.disruption_budget(owner))
    if has_policy(plan):
        found.append(_policy(plan, owner))
    return found


def has_policy(plan: ServerPlan) -> bool:
    """Whether a NetworkPolicy applies: only for pods with their own network."""
    manifest = plan.manifest
    own = manifest.form == DEPLOYMENT or (manifest.form == DAEMON_SET and not manifest.host_network)
    return own and manifest.network_policy


def _rights(plan: ServerPlan, owner: WorkloadOwner) -> list[Manifest]:
    """Rights for the pods' own account, or for the user in a node's kubeconfig.

    A pod with a kubeconfig uses another cluster, where this manifest has no rights.
    """
    manifest, settings = plan.manifest, plan.settings
    if plan.uses_account:
        subject = owner.account
    elif manifest.form in EARLY_FORMS:
        subject = around.user(manifest.kubeconfig_user)
    else:
        return []
    found = []
    if settings.enable_lease_controller:
        if plan.makes_lease_namespace:
            found.append(around.namespace(owner, settings.lease_namespace))
        found += around.lease_rights(
            owner, subject, namespace=settings.lease_namespace, verbs=SERVER_VERBS
        )
    if settings.wants_tokens:
        found += around.token_rights(owner, subject)
    return found


def _services(plan: ServerPlan, owner: WorkloadOwner) -> list[Manifest]:
    # An agent makes a server ready, so it has to reach an unready one.
    agents = around.service(
        owner,
        {"agents": plan.settings.agent_port},
        kind=plan.manifest.service_type,
        early=True,
    )
    ports = plan.frontend_ports
    front = [around.service(owner, ports, name=f"{owner.name}-frontend")] if ports else []
    return [agents, *front]


def _policy(plan: ServerPlan, owner: WorkloadOwner) -> Manifest:
    """Allow agents and kube-apiserver from their networks, probes from anywhere.

    Servers hand agents on to each other, at the same port, so other server pods are allowed, too.
    Egress is open: to the Kubernetes API, other servers, and the destinations of ``via=direct`` and
    --allowed-destination.
    """
    settings = plan.settings
    agents = around.from_networks(plan.manifest.allow_cidr, settings.agent_port)
    if "from" in agents:
        agents["from"].append({"podSelector": {"matchLabels": owner.selector}})
    ports = plan.frontend_ports.values()
    front = [{"from": _apiserver(plan), **around.to_ports(*ports)}] if ports else []
    return around.network_policy(
        owner, [agents, *front, around.to_ports(settings.admin.health_port)]
    )


def _apiserver(plan: ServerPlan) -> list[Manifest]:
    """The sources of kube-apiserver: addresses, a namespace, or both; default its own."""
    manifest = plan.manifest
    found: list[Manifest] = [*around.blocks(manifest.apiserver_cidr)]
    name = manifest.apiserver_namespace or ("" if found else manifest.namespace)
    return [*found, *([around.in_namespace(name)] if name else [])]
