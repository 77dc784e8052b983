"""The settings of ``isthmus manifest server``: above all a container beside kube-apiserver.

The other forms are manifest_server_forms.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from isthmus import __version__
from isthmus.errors import ConfigError
from isthmus.manifests.settings import (
    EARLY_FORMS,
    check_image,
    check_name,
    check_namespace,
    check_object,
    check_user,
)
from isthmus.manifests.settings_server_forms import (
    SIDECAR,
    ServerFormSettings,
    flag_defaults,
    without_unneeded,
)
from isthmus.manifests.settings_sidecar import PATCH, POD_SPEC
from isthmus.settings.checks import check_choices, check_durations, check_host
from isthmus.settings.options import OURS, option

EGRESS, CONFIG_MAP, SERVICES = "egress-selector", "config-map", "services"
SIDECAR_OUTPUTS = (PATCH, POD_SPEC, EGRESS, CONFIG_MAP, SERVICES)
ALL, WORKLOAD, OBJECTS, SOCKET = "all", "workload", "objects", "socket"
#: All that there is to apply, the pods alone, or what is around them; kube-apiserver's file, and a
#: unit that listens for the unit.
FORM_OUTPUTS = (ALL, WORKLOAD, OBJECTS, EGRESS, SOCKET)
OUTPUTS = (*SIDECAR_OUTPUTS, ALL, WORKLOAD, OBJECTS, SOCKET)
READY, HEALTHY = "/readyz", "/healthz"

#: What HyperShift gives its server, by attribute; whatever is typed counts instead.
DEFAULTS: Mapping[str, tuple[str, ...]] = {
    "mode": ("http-connect",),
    "server_port": ("8090",),
    "server_cert": ("/etc/konnectivity/server/tls.crt",),
    "server_key": ("/etc/konnectivity/server/tls.key",),
    "server_ca_cert": ("/etc/konnectivity/ca/ca.crt",),
    "agent_port": ("8091",),
    "cluster_cert": ("/etc/konnectivity/cluster/tls.crt",),
    "cluster_key": ("/etc/konnectivity/cluster/tls.key",),
    # Without it, anybody could register as an agent (CVE-2026-16242).
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
    """How a server is run; ``validate()`` says whether it makes sense."""

    output: str = option(
        "",
        help="Write a strategic merge patch of kube-apiserver's Deployment, a part of a pod's "
        "spec, kube-apiserver's egress selector, the ConfigMap that has it, or the Services; in "
        "other forms than a sidecar all of it, the workload, or the objects around it, and of "
        "systemd the socket unit; -o is the same",
        choices=("", *OUTPUTS),
        shown_default="patch of a sidecar, workload of a static-pod or systemd, else all",
        metavar="|".join(OUTPUTS),
        group=_GROUP,
        go=OURS,
    )
    workload: str = option(
        "kube-apiserver", help="Patch this Deployment", metavar="NAME", group=_GROUP, go=OURS
    )
    namespace: str = option(
        "",
        help="Say this namespace, that of the hosted control plane",
        metavar="NAME",
        group=_GROUP,
        go=OURS,
    )
    image: str = option(
        f"isthmus:{__version__}",
        help="Run this image, which has isthmus in its PATH",
        metavar="IMAGE",
        group=_GROUP,
        go=OURS,
    )
    run_as: int = option(
        0,
        help="Run as this user, and let this group read the files; 0 leaves both to the image and "
        "the cluster",
        metavar="ID",
        group=_GROUP,
        go=OURS,
    )
    pre_stop_s: float = option(
        70.0,
        help="Go on for this long when the pod is to end, because kube-apiserver does",
        unit="seconds",
        group=_GROUP,
        go=OURS,
    )
    readiness: str = option(
        READY,
        help="Ask this for readiness; /readyz is ready when there is an agent, /healthz always",
        choices=(READY, HEALTHY),
        metavar=f"{READY}|{HEALTHY}",
        group=_GROUP,
        go=OURS,
    )
    selector: str = option(
        "app=kube-apiserver",
        help="Find kube-apiserver's pods by this label, in the Services",
        metavar="LABEL=VALUE",
        group=_GROUP,
        go=OURS,
    )
    container: str = option(
        "kube-apiserver",
        help="Mount the egress selector and its certificates in this container",
        metavar="NAME",
        group=_APISERVER,
        go=OURS,
    )
    egress_host: str = option(
        "konnectivity-server-local",
        help="Let kube-apiserver reach the server by this name, which its certificate has",
        metavar="HOST",
        group=_APISERVER,
        go=OURS,
    )
    egress_config_map: str = option(
        "kas-egress-selector-config",
        help="Keep the egress selector in this ConfigMap",
        metavar="NAME",
        group=_APISERVER,
        go=OURS,
    )
    egress_config_path: str = option(
        "/etc/kubernetes/egress-selector/config.yaml",
        help="Let kube-apiserver find the egress selector there",
        metavar="PATH",
        group=_APISERVER,
        go=OURS,
    )
    egress_ca_bundle: str = option(
        "/etc/kubernetes/certs/konnectivity-ca/ca.crt",
        help="Let kube-apiserver find the server's authorities there",
        metavar="PATH",
        group=_APISERVER,
        go=OURS,
    )
    egress_client_cert: str = option(
        "/etc/kubernetes/certs/konnectivity-client/tls.crt",
        help="Let kube-apiserver find its client certificate there",
        metavar="PATH",
        group=_APISERVER,
        go=OURS,
    )
    egress_client_key: str = option(
        "/etc/kubernetes/certs/konnectivity-client/tls.key",
        help="Let kube-apiserver find the key of its client certificate there",
        metavar="PATH",
        group=_APISERVER,
        go=OURS,
    )
    server_secret: str = option(
        "konnectivity-server",
        help="Take --server-cert and --server-key from this Secret",
        metavar="NAME",
        group=_FILES,
        go=OURS,
    )
    cluster_secret: str = option(
        "konnectivity-cluster",
        help="Take --cluster-cert and --cluster-key from this Secret",
        metavar="NAME",
        group=_FILES,
        go=OURS,
    )
    client_secret: str = option(
        "konnectivity-client",
        help="Take kube-apiserver's client certificate from this Secret",
        metavar="NAME",
        group=_FILES,
        go=OURS,
    )
    ca_config_map: str = option(
        "konnectivity-ca-bundle",
        help="Take the authorities of all of them from this ConfigMap",
        metavar="NAME",
        group=_FILES,
        go=OURS,
    )
    client_ca_config_map: str = option(
        "",
        help="Take the authorities of clients (--server-ca-cert) from this ConfigMap, so that no "
        "agent's certificate is one of them",
        shown_default="--ca-config-map",
        metavar="NAME",
        group=_FILES,
        go=OURS,
    )
    secret: str = option(
        "",
        help="Take other files that flags name from this Secret",
        metavar="NAME",
        group=_FILES,
        go=OURS,
    )

    @property
    def written(self) -> str:
        """What to write.

        Raises:
            ConfigError: the form has no such output.
        """
        known = SIDECAR_OUTPUTS if self.form == SIDECAR else FORM_OUTPUTS
        if self.output and self.output not in known:
            raise ConfigError(
                f"--output={self.output} is none of --as={self.form}, which has {', '.join(known)}"
            )
        if self.output or self.form == SIDECAR:
            return self.output or PATCH
        # What a node has in a file is one pod or unit and nothing else.
        return WORKLOAD if self.form in EARLY_FORMS else ALL

    def validate(self) -> None:
        """Look at each setting.

        Raises:
            ConfigError: one sentence that names the flag and says what to do.
        """
        check_choices(self)
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
    """What was typed for a server, and what its form has for the rest: a sidecar HyperShift's.

    ``client_ca``: the authorities of clients are a ConfigMap, and so a directory, of their own.
    """
    typed = {attribute: texts for attribute, texts in given.items() if texts}
    if form != SIDECAR:
        found = flag_defaults(form, given, namespace)
    else:
        found = {**without_unneeded(DEFAULTS, typed), **typed}
    if client_ca and "server_ca_cert" in found and "server_ca_cert" not in typed:
        # In the directory beside that of the others' authorities.
        found["server_ca_cert"] = (found["server_ca_cert"][-1].replace("/ca/", "/client-ca/"),)
    return found
