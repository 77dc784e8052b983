"""A server as a DaemonSet of the control plane, a Deployment, a static pod or a unit.

Pods of the first and the third share a directory of their node with kube-apiserver: its UNIX socket
needs no certificates. The directory is root's when the kubelet makes it, and a container before the
server gives it to the server's user, with the one capability that this takes. Deployments are for
an apiserver that is elsewhere: it comes by TCP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from isthmus.errors import ConfigError
from isthmus.manifests import containers, egress, objects, pods, server_volumes, volumes
from isthmus.manifests.arguments import for_pod, references
from isthmus.manifests.pods import Manifest, Pod
from isthmus.manifests.server_around import around_server
from isthmus.manifests.server_plan import LEAVE_S, ServerPlan
from isthmus.manifests.server_unit import server_socket, server_unit
from isthmus.manifests.settings import DAEMON_SET, DEPLOYMENT, EARLY_FORMS, STATIC_POD, SYSTEMD
from isthmus.manifests.settings_server import ALL, EGRESS, OBJECTS, READY, SOCKET, WORKLOAD
from isthmus.manifests.volumes import SERVICE_ACCOUNT, Volume
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.go_yaml_writing import to_yaml

_CONTAINER = "server"


def form_manifest(plan: ServerPlan) -> str:
    """Write what --output says of a server that is no sidecar.

    Raises:
        ConfigError: the server cannot run so; one sentence.
    """
    check_form(plan)
    return _WRITERS[plan.manifest.written](plan)


def check_form(plan: ServerPlan) -> None:
    """See that the server can run in its form.

    Raises:
        ConfigError: it cannot; one sentence that says why.
    """
    form, settings = plan.manifest.form, plan.settings
    what = "a static pod" if form == STATIC_POD else "a unit"
    if form in EARLY_FORMS and settings.needs_kube and not settings.kubeconfig:
        raise ConfigError(
            f"--kubeconfig is missing: {what} has no service account, and tokens and Leases are"
            " matters of the Kubernetes API"
        )
    for file in plan.files if form in EARLY_FORMS else ():
        if SERVICE_ACCOUNT in file.path.parents:
            raise ConfigError(
                f"{file.flag} {file.path}: {what} has no service account; name a file of the node"
            )
    if any(door.port == 0 for door in settings.doors):
        raise ConfigError("--server-port must not be 0 in a manifest: others have to find it")
    if form == DEPLOYMENT and not plan.frontend_ports:
        raise ConfigError(
            "a deployment needs --server-port: kube-apiserver is elsewhere, and no UNIX socket"
            " leads there"
        )
    if form == SYSTEMD and references(plan.given):
        raise ConfigError(f"$({references(plan.given)[0]}) means something in a pod only")
    if form != SYSTEMD:
        check_audit(plan)


def check_audit(plan: ServerPlan) -> None:
    """See that a pod has to write no file, for it has nowhere to.

    Raises:
        ConfigError: it would have to; one sentence that says what to do.
    """
    if (log := plan.audit_log) is not None:
        raise ConfigError(
            f"{log.flag} {log.path}: a pod has no place to write; say {log.flag}=-, standard"
            " output, which the kubelet keeps"
        )


def workload(plan: ServerPlan) -> Manifest:
    """The pods: a DaemonSet, a Deployment or a Pod.

    Raises:
        ConfigError: files cannot be mounted as they are named; one sentence.
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
        *server_volumes.node_sockets(plan),
        *server_volumes.scratch(plan),
    ]
    return _pod(plan, found, {})


def _cluster_pod(plan: ServerPlan) -> Pod:
    manifest = plan.manifest
    found = [
        *server_volumes.file_volumes(plan),
        *server_volumes.node_sockets(plan),
        *server_volumes.scratch(plan),
    ]
    extra = {
        "serviceAccountName": manifest.name,
        "automountServiceAccountToken": plan.uses_account,
        "securityContext": {"fsGroup": manifest.run_as},
    }
    return _pod(plan, found, extra)


def _pod(plan: ServerPlan, found: list[Volume], extra: Manifest) -> Pod:
    manifest, settings, extras = plan.manifest, plan.settings, plan.extras
    objects.check_apart([*found, *extras.volumes])
    server = containers.container(
        _CONTAINER,
        manifest.image,
        for_pod(plan.args),
        security=containers.unprivileged(manifest.run_as),
        references=references({**plan.given, "": extras.args}),
        # Every replica needs an id of its own, and the name of a pod is one.
        environment={} if settings.server_id else {"PROXY_SERVER_ID": "POD_NAME"},
        volumes=found,
        ports={
            **plan.frontend_ports,
            "agents": settings.agent_port,
            "health": settings.health_port,
        },
        probes=containers.probes(
            port=settings.health_port,
            host=settings.health_bind_address,
            readiness=manifest.readiness,
        ),
        resources=resources(),
    )
    if manifest.form == DEPLOYMENT:
        server["lifecycle"] = containers.going_on(LEAVE_S)
    setup = _setup(plan)
    pod = Pod(
        name=manifest.name,
        namespace=manifest.namespace,
        containers=[extras.to_container(server)],
        init_containers=[extras.to_init_container(setup)] if setup else [],
        volumes=found,
        grace_s=plan.grace_s,
        extra=extra,
    )
    return extras.to_pod(pod)


def resources() -> Manifest:
    """What a server asks for, and where it ends.

    Of the limit 40 % are for what peers make it keep (--memory-budget): they are slowed before.
    """
    return {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "2Gi"}}


def _setup(plan: ServerPlan) -> Manifest:
    """What gives the directories of sockets to the server's user; empty without a socket."""
    sockets = plan.sockets
    if not sockets:
        return {}
    named = dict.fromkeys(f"--uds-name={each.path}" for each in sockets)
    owner = f"--owner={plan.manifest.run_as}"
    return containers.container(
        "setup-socket",
        plan.manifest.image,
        for_pod(["server", "setup-socket", *named, owner]),
        security=containers.with_capability("CHOWN"),
        resources=containers.resources(),
        volumes=server_volumes.node_sockets(plan),
    )


def _unit(plan: ServerPlan) -> str:
    return server_unit(
        executable=plan.manifest.executable,
        group=plan.manifest.unit_group,
        args=plan.args,
        files=plan.files,
        sockets=plan.socket_directories,
        audit_log=plan.audit_log,
        capabilities=[containers.NET_BIND_SERVICE] if plan.low_ports else [],
        grace_s=plan.grace_s,
    )


def _workload(plan: ServerPlan) -> str:
    return _unit(plan) if plan.manifest.form == SYSTEMD else to_yaml([workload(plan)])


def _all(plan: ServerPlan) -> str:
    if plan.manifest.form in EARLY_FORMS:
        raise ConfigError(
            f"--output=all is none of --as={plan.manifest.form}: a node has the workload in a file"
            " of its own, and objects belong into the cluster"
        )
    return to_yaml([*around_server(plan), workload(plan)])


def _objects(plan: ServerPlan) -> str:
    return to_yaml(around_server(plan))


def _socket(plan: ServerPlan) -> str:
    if plan.manifest.form != SYSTEMD:
        raise ConfigError(f"--output={SOCKET} is for --as={SYSTEMD}: only units have sockets")
    return server_socket(plan.settings, group=plan.manifest.unit_group)


_WRITERS: Mapping[str, Callable[[ServerPlan], str]] = {
    ALL: _all,
    WORKLOAD: _workload,
    OBJECTS: _objects,
    SOCKET: _socket,
    EGRESS: lambda plan: egress.egress_selector(plan.manifest, plan.settings),
}


def form_warnings(plan: ServerPlan) -> list[str]:
    """What is not wrong and may still not be meant, each a sentence."""
    manifest, settings = plan.manifest, plan.settings
    found = count_warnings(settings)
    if manifest.written in (ALL, WORKLOAD) and plan.socket_directories:
        directory = plan.socket_directories[0]
        found.append(
            f"kube-apiserver needs {directory} of its node, --egress-selector-config-file with what"
            " -o=egress-selector prints, and to be root or in the server's group"
        )
    if manifest.form in EARLY_FORMS and settings.needs_kube and manifest.written == WORKLOAD:
        found.append(
            f"the user {manifest.kubeconfig_user} of --kubeconfig needs the rights that"
            " -o=objects prints"
        )
    if settings.kubeconfig and manifest.form not in EARLY_FORMS and settings.needs_kube:
        found.append(
            "the user of --kubeconfig needs rights in that cluster: for Leases, and to create"
            " tokenreviews"
        )
    of_node = manifest.form == STATIC_POD or (manifest.form == DAEMON_SET and manifest.host_network)
    if of_node and plan.low_ports:
        found.append(
            f"port {plan.low_ports[0]} is below 1024: in the network of a node the server may not"
            " open it, unless net.ipv4.ip_unprivileged_port_start of the node says so"
        )
    if manifest.form in (DAEMON_SET, DEPLOYMENT) and manifest.readiness == READY:
        found.append("a server is ready when an agent is there, and not before")
    return found


def count_warnings(settings: ServerSettings) -> list[str]:
    """What to know about how servers are counted."""
    counted = settings.server_count is not None or settings.peer_server
    if counted or settings.enable_lease_controller:
        return []
    return ["without --server-count, agents take this server for the only one"]
