"""The forms in which a server can run, beside that of a container in kube-apiserver's pod.

What each form needs is filled in before anything is read, so that a manifest without any flag is
one that runs; whatever is typed counts instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from isthmus.errors import ConfigError
from isthmus.manifests.settings import (
    DAEMON_SET,
    DEPLOYMENT,
    STATIC_POD,
    SYSTEMD,
    check_executable,
    check_group,
    check_name,
    check_object,
)
from isthmus.manifests.settings_around import AroundSettings
from isthmus.settings.checks import check_at_least
from isthmus.settings.options import OURS, option
from isthmus.text.cidrs import cidr

SIDECAR = "sidecar"
SERVER_FORMS = (SIDECAR, DAEMON_SET, DEPLOYMENT, STATIC_POD, SYSTEMD)
SERVER_NAME = "isthmus-server"
SERVICE_TYPES = ("ClusterIP", "NodePort", "LoadBalancer")
#: As whom a server with a kubeconfig is known; what konnectivity's documents have.
KUBECONFIG_USER = "system:konnectivity-server"
SOCKET = "/run/isthmus/server.sock"
UNPRIVILEGED = 65532
#: For servers in a namespace that is not their own; see ``lease_namespace``.
LEASE_NAMESPACE = "isthmus-leases"

Texts = Mapping[str, tuple[str, ...]]

_PAIR: Texts = {
    "cluster_cert": ("/etc/isthmus/server/tls.crt",),
    "cluster_key": ("/etc/isthmus/server/tls.key",),
    "cluster_ca_cert": ("/etc/isthmus/ca/ca.crt",),
}
_BY_SOCKET: Texts = {"mode": ("grpc",), "uds_name": (SOCKET,)}
# The names that ``isthmus pki init`` gives.
_OF_THE_NODE: Texts = {
    "cluster_cert": ("/etc/isthmus/server.crt",),
    "cluster_key": ("/etc/isthmus/server.key",),
    "cluster_ca_cert": ("/etc/isthmus/ca.crt",),
}
#: The server's flags by form; a sidecar's are in manifest_server.py.
FLAGS: Mapping[str, Texts] = {
    DAEMON_SET: {**_BY_SOCKET, **_PAIR},
    DEPLOYMENT: {
        "mode": ("http-connect",),
        "server_port": ("8090",),
        "server_cert": ("/etc/isthmus/frontend/tls.crt",),
        "server_key": ("/etc/isthmus/frontend/tls.key",),
        "server_ca_cert": ("/etc/isthmus/ca/ca.crt",),
        **_PAIR,
    },
    STATIC_POD: {**_BY_SOCKET, **_OF_THE_NODE},
    SYSTEMD: {**_BY_SOCKET, **_OF_THE_NODE},
}
#: The settings of the manifest itself in every form but that of a sidecar.
_OWN: Texts = {
    "namespace": ("kube-system",),
    "run_as": (str(UNPRIVILEGED),),
    "server_secret": ("isthmus-frontend",),
    "cluster_secret": (SERVER_NAME,),
    "ca_config_map": ("isthmus-ca",),
}
_SIDECAR_ONLY = (
    "workload", "pre_stop_s", "selector", "container", "egress_config_map", "egress_client_cert",
    "egress_client_key", "client_secret",
)  # fmt: skip
_IN_CLUSTER = (DAEMON_SET, DEPLOYMENT)
_ONLY_FOR: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_SIDECAR_ONLY, (SIDECAR,)),
    "name": (DAEMON_SET, DEPLOYMENT, STATIC_POD),
    "host_network": (DAEMON_SET,),
    "network_policy": _IN_CLUSTER,
    "allow_cidr": _IN_CLUSTER,
    "apiserver_cidr": _IN_CLUSTER,
    "apiserver_namespace": _IN_CLUSTER,
    "disruption_budget": (DEPLOYMENT,),
    "replicas": (DEPLOYMENT,),
    "service_type": (DAEMON_SET, DEPLOYMENT, STATIC_POD),
    "kubeconfig_user": (STATIC_POD, SYSTEMD),
    "executable": (SYSTEMD,),
    "unit_group": (SYSTEMD,),
}

_GROUP = "Form"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFormSettings(AroundSettings):
    """In which form a server runs; ``check_form()`` says whether it makes sense."""

    form: str = option(
        SIDECAR,
        help="Write a manifest of this form: a container in kube-apiserver's pod, pods on the "
        "nodes of the control plane, pods anywhere, a pod that a node runs by itself, or a unit",
        flag="as",
        choices=SERVER_FORMS,
        metavar="|".join(SERVER_FORMS),
        group=_GROUP,
        go=OURS,
    )
    name: str = option(
        SERVER_NAME,
        help="Call it and what belongs to it so",
        metavar="NAME",
        group=_GROUP,
        go=OURS,
    )
    replicas: int = option(2, help="Run so many pods of a deployment", group=_GROUP, go=OURS)
    service_type: str = option(
        "ClusterIP",
        help="Let agents find the server by a Service of this type",
        choices=SERVICE_TYPES,
        metavar="|".join(SERVICE_TYPES),
        group=_GROUP,
        go=OURS,
    )
    apiserver_cidr: tuple[str, ...] = option(
        (),
        help="Let kube-apiserver reach the frontend from this network, by the NetworkPolicy",
        repeat=True,
        metavar="CIDR",
        group=_GROUP,
        go=OURS,
    )
    apiserver_namespace: str = option(
        "",
        help="Let kube-apiserver reach the frontend from the pods of this namespace, by the "
        "NetworkPolicy; those in the network of a node are none",
        shown_default="the server's, without --apiserver-cidr",
        metavar="NAME",
        group=_GROUP,
        go=OURS,
    )
    kubeconfig_user: str = option(
        KUBECONFIG_USER,
        help="Give the rights that a server needs to this user, as whom it is known by its "
        "--kubeconfig; a pod with a service account gets them itself",
        metavar="USER",
        group=_GROUP,
        go=OURS,
    )
    executable: str = option(
        "/usr/bin/isthmus", help="Start this file in a unit", metavar="PATH", group=_GROUP, go=OURS
    )
    unit_group: str = option(
        "isthmus",
        help="Run a unit as this group, who must be able to read the files, and may open the "
        "UNIX socket",
        metavar="NAME",
        group=_GROUP,
        go=OURS,
    )

    def check_form(self) -> None:
        """Look at these settings.

        Raises:
            ConfigError: one sentence that names the flag and says what to do.
        """
        check_name("name", self.name)
        check_at_least("replicas", self.replicas, 1)
        check_executable(self.executable)
        check_group(self.unit_group)
        if not self.kubeconfig_user or not self.kubeconfig_user.isprintable():
            raise ConfigError("--kubeconfig-user takes the name of a user")
        self.check_around()
        if self.apiserver_namespace:
            check_object("apiserver-namespace", self.apiserver_namespace)
        for text in self.apiserver_cidr:
            try:
                cidr(text)
            except ValueError as error:
                raise ConfigError(f"--apiserver-cidr {text} {error}") from None

    def form_warnings(self, given: Collection[str]) -> list[str]:
        """What was given, by attribute, and means nothing in this form; each a sentence."""
        return [
            f"--{attribute.removesuffix('_s').replace('_', '-')} has no effect with"
            f" --as={self.form}"
            for attribute, forms in _ONLY_FOR.items()
            if attribute in given and self.form not in forms
        ]


def own_defaults(typed: Texts) -> dict[str, tuple[str, ...]]:
    """What was typed for the manifest, and what its form has for the rest."""
    form = typed.get("form", (SIDECAR,))[-1]
    if form not in FLAGS:
        return dict(typed)
    found = {**_OWN, **typed}
    name = found.get("name", (SERVER_NAME,))[-1]
    found.setdefault("egress_host", (f"{name}-frontend.{found['namespace'][-1]}.svc",))
    return found


def lease_namespace(namespace: str) -> str:
    """Where servers of a namespace keep their Leases: there, if it is their own.

    Whoever may write Leases may write all of a namespace. Those of kube-system say who leads the
    control plane, and in default anybody's may be.
    """
    shared = namespace == "default" or namespace.startswith("kube-")
    return LEASE_NAMESPACE if shared else namespace


def flag_defaults(
    form: str, typed: Texts, namespace: str = "kube-system"
) -> dict[str, tuple[str, ...]]:
    """What was typed for a server in this form, and what the form has for the rest.

    A UNIX socket alone needs no port and no certificates for kube-apiserver, and agents that prove
    themselves by tokens, or not at all, no authorities.
    """
    given = {attribute: texts for attribute, texts in typed.items() if texts}
    if given.get("enable_lease_controller", ("false",))[-1] == "true":
        given.setdefault("lease_namespace", (lease_namespace(namespace),))
    return {**without_unneeded(FLAGS[form], given), **given}


def without_unneeded(defaults: Texts, given: Texts) -> dict[str, tuple[str, ...]]:
    """The defaults, but for those that what was given makes useless."""
    found = dict(defaults)
    if given.get("uds_name") and not given.get("server_port"):
        for attribute in ("server_port", "server_cert", "server_key", "server_ca_cert"):
            found.pop(attribute, None)
    if given.get("server_port") and not given.get("uds_name"):
        found.pop("uds_name", None)
    if given.get("agent_namespace") or given.get("insecure_agents"):
        del found["cluster_ca_cert"]
    return found
