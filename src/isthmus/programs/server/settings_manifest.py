"""The settings of ``isthmus manifest server``: by default a container next to kube-apiserver.

The defaults of each form are filled in before validation, so that a manifest without any flag
runs; typed flags override them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from isthmus.errors import ConfigError
from isthmus.manifests.settings import (
    CA_CONFIG_MAP,
    CLIENT_SECRET,
    DAEMON_SET,
    DEPLOYMENT,
    EARLY_FORMS,
    EXECUTABLE,
    FORM,
    HOSTED_NAMESPACE,
    IMAGE,
    PATCH,
    POD_SPEC,
    REPLICAS,
    RUN_AS,
    STATIC_POD,
    SYSTEMD,
    UNIT_GROUP,
    UNPRIVILEGED,
    AroundSettings,
    check_executable,
    check_group,
    check_image,
    check_name,
    check_namespace,
    check_object,
    check_user,
    lease_namespace,
)
from isthmus.settings.options import OURS, option
from isthmus.settings.parsing import check_at_least, check_durations, check_host, check_values
from isthmus.text.addresses import cidr

SIDECAR = "sidecar"
SERVER_FORMS = (SIDECAR, DAEMON_SET, DEPLOYMENT, STATIC_POD, SYSTEMD)
SERVER_NAME = "isthmus-server"
SERVICE_TYPES = ("ClusterIP", "NodePort", "LoadBalancer")
#: The user of a server with a kubeconfig, as in konnectivity's documents.
KUBECONFIG_USER = "system:konnectivity-server"
SOCKET_PATH = "/run/isthmus/server.sock"

Texts = Mapping[str, tuple[str, ...]]

_PAIR: Texts = {
    "cluster_cert": ("/etc/isthmus/server/tls.crt",),
    "cluster_key": ("/etc/isthmus/server/tls.key",),
    "cluster_ca_cert": ("/etc/isthmus/ca/ca.crt",),
}
_BY_SOCKET: Texts = {"mode": ("grpc",), "uds_name": (SOCKET_PATH,)}
# The file names of ``isthmus pki init``.
_OF_THE_NODE: Texts = {
    "cluster_cert": ("/etc/isthmus/server.crt",),
    "cluster_key": ("/etc/isthmus/server.key",),
    "cluster_ca_cert": ("/etc/isthmus/ca.crt",),
}
#: The server's flags by form; a sidecar's are DEFAULTS.
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

_FORM = "Form"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFormSettings(AroundSettings):
    """The form that a server runs in; ``check_form()`` checks it."""

    GO: ClassVar = OURS

    form: str = FORM(
        SIDECAR,
        help="Form of the manifest: a container in kube-apiserver's pod, pods on the nodes of the "
        "control plane, pods anywhere, a pod that a node runs by itself, or a unit",
        choices=SERVER_FORMS,
        metavar="|".join(SERVER_FORMS),
        group=_FORM,
        common=True,
    )
    name: str = option(
        SERVER_NAME,
        help="Name of the server's objects",
        metavar="NAME",
        group=_FORM,
    )
    replicas: int = REPLICAS(group=_FORM)
    service_type: str = option(
        "ClusterIP",
        help="Type of the Service through which agents find the server",
        choices=SERVICE_TYPES,
        metavar="|".join(SERVICE_TYPES),
        group=_FORM,
    )
    apiserver_cidr: tuple[str, ...] = option(
        (),
        help="Network from which the NetworkPolicy lets kube-apiserver reach the frontend",
        repeat=True,
        metavar="CIDR",
        group=_FORM,
    )
    apiserver_namespace: str = option(
        "",
        help="Namespace from whose pods the NetworkPolicy lets kube-apiserver reach the frontend; "
        "it does not cover pods in the host network",
        shown_default="the server's, without --apiserver-cidr",
        metavar="NAME",
        group=_FORM,
    )
    kubeconfig_user: str = option(
        KUBECONFIG_USER,
        help="User of the server's --kubeconfig, to give the server's rights to; a pod with a "
        "service account gets them itself",
        metavar="USER",
        group=_FORM,
    )
    executable: str = EXECUTABLE(group=_FORM)
    unit_group: str = UNIT_GROUP(
        help="Group of a unit, which must be able to read the files and may open the UNIX socket",
        group=_FORM,
    )

    def check_form(self) -> None:
        """Check these settings.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        check_name("name", self.name)
        check_at_least("replicas", self.replicas, 1)
        check_executable(self.executable)
        check_group(self.unit_group)
        if not self.kubeconfig_user or not self.kubeconfig_user.isprintable():
            raise ConfigError("--kubeconfig-user requires a user name")
        self.check_around()
        if self.apiserver_namespace:
            check_object("apiserver-namespace", self.apiserver_namespace)
        for text in self.apiserver_cidr:
            try:
                cidr(text)
            except ValueError as error:
                raise ConfigError(f"--apiserver-cidr {text} {error}") from None

    def form_warnings(self, given: Collection[str]) -> list[str]:
        """Warnings about given settings, by attribute, without effect in this form."""
        return [
            f"--{attribute.removesuffix('_s').replace('_', '-')} has no effect with"
            f" --as={self.form}"
            for attribute, forms in _ONLY_FOR.items()
            if attribute in given and self.form not in forms
        ]


def own_defaults(typed: Texts) -> dict[str, tuple[str, ...]]:
    """The typed manifest flags, and the form's defaults for the rest."""
    form = typed.get("form", (SIDECAR,))[-1]
    if form not in FLAGS:
        return dict(typed)
    found = {**_OWN, **typed}
    name = found.get("name", (SERVER_NAME,))[-1]
    found.setdefault("egress_host", (f"{name}-frontend.{found['namespace'][-1]}.svc",))
    return found


def flag_defaults(
    form: str, typed: Texts, namespace: str = "kube-system"
) -> dict[str, tuple[str, ...]]:
    """The typed server flags, and the form's defaults for the rest.

    A UNIX socket alone needs neither port nor certificates for kube-apiserver, and agents that
    authenticate with tokens, or not at all, need no authorities.
    """
    given = {attribute: texts for attribute, texts in typed.items() if texts}
    if given.get("enable_lease_controller", ("false",))[-1] == "true":
        given.setdefault("lease_namespace", (lease_namespace(namespace),))
    return {**without_unneeded(FLAGS[form], given), **given}


def without_unneeded(defaults: Texts, given: Texts) -> dict[str, tuple[str, ...]]:
    """The defaults, except those that the given flags make useless."""
    found = dict(defaults)
    if given.get("uds_name") and not given.get("server_port"):
        for attribute in ("server_port", "server_cert", "server_key", "server_ca_cert"):
            found.pop(attribute, None)
    if given.get("server_port") and not given.get("uds_name"):
        found.pop("uds_name", None)
    if given.get("agent_namespace") or given.get("insecure_agents"):
        del found["cluster_ca_cert"]
    return found


EGRESS, CONFIG_MAP, SERVICES = "egress-selector", "config-map", "services"
SIDECAR_PARTS = (PATCH, POD_SPEC, EGRESS, CONFIG_MAP, SERVICES)
ALL, WORKLOAD, OBJECTS, SOCKET = "all", "workload", "objects", "socket"
#: Everything to apply, only the pods, or only the related objects; kube-apiserver's file, and a
#: socket unit.
FORM_PARTS = (ALL, WORKLOAD, OBJECTS, EGRESS, SOCKET)
PARTS = (*SIDECAR_PARTS, ALL, WORKLOAD, OBJECTS, SOCKET)
READY, HEALTHY = "/readyz", "/healthz"

#: HyperShift's server flags, by attribute; typed flags override them.
DEFAULTS: Mapping[str, tuple[str, ...]] = {
    "mode": ("http-connect",),
    "server_port": ("8090",),
    "server_cert": ("/etc/konnectivity/server/tls.crt",),
    "server_key": ("/etc/konnectivity/server/tls.key",),
    "server_ca_cert": ("/etc/konnectivity/ca/ca.crt",),
    "agent_port": ("8091",),
    "cluster_cert": ("/etc/konnectivity/cluster/tls.crt",),
    "cluster_key": ("/etc/konnectivity/cluster/tls.key",),
    # Without it, anyone could register as an agent (CVE-2026-16242).
    "cluster_ca_cert": ("/etc/konnectivity/ca/ca.crt",),
    "proxy_strategies": ("destHost,defaultRoute",),
    "health_port": ("2041",),
    "admin_port": ("8093",),
    "keepalive_time_s": ("30s",),
    "frontend_keepalive_time_s": ("30s",),
}
_GROUP = "Manifest"
_APISERVER = "kube-apiserver"
_FILES = "Files"
_SELECTOR = re.compile(r"[A-Za-z0-9./_-]{1,253}=[A-Za-z0-9._-]{1,63}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerManifestSettings(ServerFormSettings):
    """How a server is run; ``validate()`` checks it."""

    GO: ClassVar = OURS

    part: str = option(
        "",
        help="Part to write. In kube-apiserver's pod: a strategic merge patch of its Deployment, "
        "a part of a pod's spec, the egress selector, the ConfigMap that has it, or the Services. "
        "In other forms: everything, the workload or the objects around it; of systemd also the "
        "socket unit",
        choices=("", *PARTS),
        shown_default="patch of a sidecar, workload of a static-pod or systemd, else all",
        metavar="|".join(PARTS),
        group=_GROUP,
        common=True,
    )
    workload: str = option(
        "kube-apiserver", help="Deployment to patch", metavar="NAME", group=_GROUP
    )
    namespace: str = HOSTED_NAMESPACE(group=_GROUP, common=True)
    image: str = IMAGE(group=_GROUP, common=True)
    run_as: int = RUN_AS(
        0,
        help="User to run as, and group that can read the files; 0 leaves both to the image and "
        "the cluster",
        group=_GROUP,
    )
    pre_stop_s: float = option(
        70.0,
        help="Time to keep running when the pod ends, because kube-apiserver does",
        unit="seconds",
        group=_GROUP,
    )
    readiness: str = option(
        READY,
        help="Path of the readiness probe; /readyz is ready when an agent is linked, /healthz "
        "always",
        choices=(READY, HEALTHY),
        metavar=f"{READY}|{HEALTHY}",
        group=_GROUP,
    )
    selector: str = option(
        "app=kube-apiserver",
        help="Label of kube-apiserver's pods, for the Services",
        metavar="LABEL=VALUE",
        group=_GROUP,
    )
    container: str = option(
        "kube-apiserver",
        help="Container to mount the egress selector and its certificates in",
        metavar="NAME",
        group=_APISERVER,
    )
    egress_host: str = option(
        "konnectivity-server-local",
        help="Name by which kube-apiserver reaches the server; its certificate must have it",
        metavar="HOST",
        group=_APISERVER,
    )
    egress_config_map: str = option(
        "kas-egress-selector-config",
        help="ConfigMap to keep the egress selector in",
        metavar="NAME",
        group=_APISERVER,
    )
    egress_config_path: str = option(
        "/etc/kubernetes/egress-selector/config.yaml",
        help="Path of the egress selector for kube-apiserver",
        metavar="PATH",
        group=_APISERVER,
    )
    egress_ca_bundle: str = option(
        "/etc/kubernetes/certs/konnectivity-ca/ca.crt",
        help="Path of the server's CAs for kube-apiserver",
        metavar="PATH",
        group=_APISERVER,
    )
    egress_client_cert: str = option(
        "/etc/kubernetes/certs/konnectivity-client/tls.crt",
        help="Path of kube-apiserver's client certificate",
        metavar="PATH",
        group=_APISERVER,
    )
    egress_client_key: str = option(
        "/etc/kubernetes/certs/konnectivity-client/tls.key",
        help="Path of the private key of kube-apiserver's client certificate",
        metavar="PATH",
        group=_APISERVER,
    )
    server_secret: str = option(
        "konnectivity-server",
        help="Secret with --server-cert and --server-key",
        metavar="NAME",
        group=_FILES,
    )
    cluster_secret: str = option(
        "konnectivity-cluster",
        help="Secret with --cluster-cert and --cluster-key",
        metavar="NAME",
        group=_FILES,
    )
    client_secret: str = CLIENT_SECRET(
        help="Secret with kube-apiserver's client certificate", group=_FILES
    )
    ca_config_map: str = CA_CONFIG_MAP(help="ConfigMap with the CAs of all of them", group=_FILES)
    client_ca_config_map: str = option(
        "",
        help="ConfigMap with the CAs of clients (--server-ca-cert), so that no agent's "
        "certificate is accepted as a client's",
        shown_default="--ca-config-map",
        metavar="NAME",
        group=_FILES,
    )
    secret: str = option(
        "",
        help="Secret with other files that flags name",
        metavar="NAME",
        group=_FILES,
    )

    @property
    def written(self) -> str:
        """The selected part.

        Raises:
            ConfigError: the form has no such part.
        """
        known = SIDECAR_PARTS if self.form == SIDECAR else FORM_PARTS
        if self.part and self.part not in known:
            raise ConfigError(
                f"--part={self.part} is not available with --as={self.form}; use {', '.join(known)}"
            )
        if self.part or self.form == SIDECAR:
            return self.part or PATCH
        # A node's file contains exactly one pod or unit.
        return WORKLOAD if self.form in EARLY_FORMS else ALL

    def validate(self) -> None:
        """Check each setting.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        check_values(self)
        self.check_form()
        _ = self.written
        check_durations(self)
        for flag, text in (
            ("workload", self.workload),
            ("egress-config-map", self.egress_config_map),
            ("server-secret", self.server_secret),
            ("cluster-secret", self.cluster_secret),
            ("client-secret", self.client_secret),
            ("ca-config-map", self.ca_config_map),
            ("client-ca-config-map", self.client_ca_config_map or self.ca_config_map),
        ):
            check_object(flag, text)
        if self.secret:
            check_object("secret", self.secret)
        check_name("container", self.container)
        if self.namespace:
            check_namespace(self.namespace)
        check_image(self.image)
        if self.run_as or self.form != SIDECAR:
            check_user(self.run_as)
        check_host("egress-host", self.egress_host)
        if not _SELECTOR.fullmatch(self.selector):
            raise ConfigError(f"--selector takes LABEL=VALUE, not {self.selector!r}")


def with_defaults(
    given: Mapping[str, tuple[str, ...]],
    form: str = SIDECAR,
    *,
    client_ca: bool = False,
    namespace: str = "kube-system",
) -> dict[str, tuple[str, ...]]:
    """The typed server flags, and the form's defaults for the rest: a sidecar has HyperShift's.

    ``client_ca``: the authorities of clients are in a separate ConfigMap and directory.
    """
    typed = {attribute: texts for attribute, texts in given.items() if texts}
    if form != SIDECAR:
        found = flag_defaults(form, given, namespace)
    else:
        found = {**without_unneeded(DEFAULTS, typed), **typed}
    if client_ca and "server_ca_cert" in found and "server_ca_cert" not in typed:
        # In a directory next to that of the other authorities.
        found["server_ca_cert"] = (found["server_ca_cert"][-1].replace("/ca/", "/client-ca/"),)
    return found
