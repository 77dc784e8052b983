"""The settings of ``isthmus manifest server``: a server as a container beside kube-apiserver."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from isthmus import __version__
from isthmus.config.checks import check_choices, check_durations, check_host
from isthmus.config.manifest import (
    check_image,
    check_name,
    check_namespace,
    check_object,
    check_user,
)
from isthmus.config.manifest_sidecar import PATCH, POD_SPEC
from isthmus.config.options import OURS, option
from isthmus.errors import ConfigError

EGRESS, CONFIG_MAP, SERVICES = "egress-selector", "config-map", "services"
OUTPUTS = (PATCH, POD_SPEC, EGRESS, CONFIG_MAP, SERVICES)
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
class ServerManifestSettings:
    """How a server is put beside kube-apiserver; ``validate()`` says whether it makes sense."""

    output: str = option(
        PATCH,
        help="Write a strategic merge patch of kube-apiserver's Deployment, a part of a pod's "
        "spec, kube-apiserver's egress selector, the ConfigMap that has it, or the Services; -o "
        "is the same",
        choices=OUTPUTS,
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
    secret: str = option(
        "",
        help="Take other files that flags name from this Secret",
        metavar="NAME",
        group=_FILES,
        go=OURS,
    )

    def validate(self) -> None:
        """Look at each setting.

        Raises:
            ConfigError: one sentence that names the flag and says what to do.
        """
        check_choices(self)
        check_durations(self)
        for flag, text in (
            ("workload", self.workload),
            ("egress-config-map", self.egress_config_map),
            ("server-secret", self.server_secret),
            ("cluster-secret", self.cluster_secret),
            ("client-secret", self.client_secret),
            ("ca-config-map", self.ca_config_map),
        ):
            check_object(flag, text)
        if self.secret:
            check_object("secret", self.secret)
        check_name("container", self.container)
        if self.namespace:
            check_namespace(self.namespace)
        check_image(self.image)
        if self.run_as:
            check_user(self.run_as)
        check_host("egress-host", self.egress_host)
        if not _SELECTOR.fullmatch(self.selector):
            raise ConfigError(f"--selector takes LABEL=VALUE, not {self.selector!r}")


def with_defaults(given: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """What was typed for a server, and HyperShift's values for the rest.

    A UNIX socket alone needs no port and no certificates for kube-apiserver, and agents that prove
    themselves by tokens, or not at all, no authorities.
    """
    found = dict(DEFAULTS)
    if given.get("uds_name") and not given.get("server_port"):
        for attribute in ("server_port", "server_cert", "server_key", "server_ca_cert"):
            del found[attribute]
    if given.get("agent_namespace") or given.get("insecure_agents"):
        del found["cluster_ca_cert"]
    return found | {attribute: texts for attribute, texts in given.items() if texts}
