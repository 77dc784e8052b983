"""The settings of ``isthmus manifest sidecar``: the workload, its sidecars and their options.

The sidecars' own flags are accepted too. Presets are in settings_presets.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import ClassVar

from isthmus.errors import ConfigError
from isthmus.frame.program import Program
from isthmus.manifests.settings import (
    CA_CONFIG_MAP,
    CLIENT_SECRET,
    HOSTED_NAMESPACE,
    IMAGE,
    PATCH,
    POD_SPEC,
    RUN_AS,
    check_image,
    check_name,
    check_namespace,
    check_object,
    check_user,
)
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.programs import programs
from isthmus.programs.sidecar.settings import SidecarSettings
from isthmus.programs.sidecar.settings_presets import (
    CATALOGS,
    ETCD,
    HTTPS,
    KUBE_APISERVER,
    MODES,
    NAMESPACE,
    PRESETS,
    VARIABLES,
    Preset,
)
from isthmus.settings.options import OURS, option
from isthmus.settings.parsing import check_host, check_values

PARTS = (PATCH, POD_SPEC)
#: The programs by kind, the HTTPS one first, as HyperShift has them.
SIDECARS: Mapping[str, Program] = {
    it.settings_class.KIND: it
    for it in sorted(programs(), key=lambda it: it.name)
    if issubclass(it.settings_class, SidecarSettings)
}
GUEST, MANAGEMENT = "guest", "management"

_GROUP = "Manifest"
_MAIN = "Main container"
_FILES = "Files"
_PROXY = "Proxy of the management cluster"
_MEMORY = re.compile(r"[1-9][0-9]{0,5}[KMG]i", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarManifestSettings:
    """How to add sidecars to a workload; ``validate()`` checks the settings."""

    GO: ClassVar = OURS

    mode: str = option(
        "",
        help="Sidecar to add, or one of each kind",
        choices=("", *MODES),
        metavar="|".join(MODES),
        group=_GROUP,
        common=True,
    )
    preset: str = option(
        "",
        help="Component whose mode, flags and variables in HyperShift are used",
        choices=("", *PRESETS),
        metavar="COMPONENT",
        group=_GROUP,
        common=True,
    )
    part: str = option(
        PATCH,
        help="Part to write: a strategic merge patch of the Deployment, or a part of a pod's spec",
        choices=PARTS,
        metavar="|".join(PARTS),
        group=_GROUP,
        common=True,
    )
    workload: str = option(
        "",
        help="Name of the Deployment to patch",
        metavar="NAME",
        shown_default="--preset",
        group=_GROUP,
        common=True,
    )
    namespace: str = HOSTED_NAMESPACE(group=_GROUP, common=True)
    image: str = IMAGE(group=_GROUP, common=True)
    memory: str = option(
        "30Mi", help="Memory request of each sidecar", metavar="QUANTITY", group=_GROUP
    )
    run_as: int = RUN_AS(
        0,
        help="User to run as, and group that can read the files; 0 leaves both to the image and "
        "the cluster, as OpenShift wants it",
        group=_GROUP,
    )
    service_cidr: tuple[str, ...] = option(
        (),
        help="Service network of the guest cluster; if all are IPv4, sidecars prefer IPv4",
        repeat=True,
        metavar="CIDR",
        group=_GROUP,
    )
    socks5_arg: str = option(
        "",
        help="Flag for the SOCKS5 sidecar alone",
        repeat=True,
        metavar="--FLAG=VALUE",
        group=_GROUP,
    )
    https_arg: str = option(
        "",
        help="Flag for the HTTPS sidecar alone",
        repeat=True,
        metavar="--FLAG=VALUE",
        group=_GROUP,
    )
    container: str = option(
        "",
        help="Container that gets the variables",
        metavar="NAME",
        shown_default="--workload",
        group=_MAIN,
    )
    variables: str = option(
        "",
        help="Variables to set: HTTP_PROXY and the like, GRPC_PROXY, the management cluster's as "
        "MGMT_…, or none",
        choices=("", *VARIABLES),
        metavar="|".join(VARIABLES),
        shown_default="--preset, or http",
        group=_MAIN,
    )
    main_no_proxy: tuple[str, ...] = option(
        (),
        help=f"Entries of NO_PROXY besides {KUBE_APISERVER}",
        repeat=True,
        metavar="LIST",
        group=_MAIN,
    )
    etcd_host: str = option(
        "etcd-client",
        help="Host of etcd to put into NO_PROXY of API servers",
        metavar="HOST",
        group=_MAIN,
    )
    olm_catalogs: str = option(
        MANAGEMENT,
        help="Cluster in which OLM's catalogs run; in the management cluster, their names go into "
        "NO_PROXY",
        choices=(MANAGEMENT, GUEST),
        metavar=f"{MANAGEMENT}|{GUEST}",
        group=_MAIN,
    )
    client_secret: str = CLIENT_SECRET(
        help="Secret with the client certificate and key", group=_FILES
    )
    ca_config_map: str = CA_CONFIG_MAP(
        help="ConfigMap with the CAs of the connectivity server", group=_FILES
    )
    kubeconfig_volume: str = option(
        "",
        help="Volume of the workload to mount for the guest cluster's kubeconfig",
        metavar="NAME",
        shown_default="--preset, or kubeconfig",
        group=_FILES,
    )
    kubeconfig_secret: str = option(
        "",
        help="Secret of that volume, which is added if the workload does not have it",
        metavar="NAME",
        group=_FILES,
    )
    trust_bundle: str = option(
        "",
        help="ConfigMap with further CAs for https:// proxies, as ca-bundle.crt",
        metavar="NAME",
        group=_FILES,
    )
    secret: str = option(
        "",
        help="Secret with other files that flags name, such as a password",
        metavar="NAME",
        group=_FILES,
    )
    management_http_proxy: str = option(
        "",
        help="Value of HTTP_PROXY for a sidecar that connects to cloud APIs directly",
        metavar="URL",
        group=_PROXY,
    )
    management_https_proxy: str = option(
        "",
        help="Value of HTTPS_PROXY for such a sidecar",
        metavar="URL",
        group=_PROXY,
    )
    management_no_proxy: tuple[str, ...] = option(
        (),
        help=f"Entries of NO_PROXY for such a sidecar, besides {KUBE_APISERVER}",
        repeat=True,
        metavar="LIST",
        group=_PROXY,
    )

    @property
    def chosen(self) -> Preset:
        """The preset, or an empty one with only the mode."""
        return PRESETS.get(self.preset) or Preset(mode=self.mode or HTTPS)

    @property
    def deployment(self) -> str:
        """The name of the workload."""
        return self.workload or self.preset

    @property
    def main(self) -> str:
        """The name of the main container."""
        return self.container or self.deployment

    @property
    def for_main(self) -> str:
        """The kind of variables for the main container."""
        return self.variables or self.chosen.variables

    @property
    def all_ipv4(self) -> bool:
        """Whether the service networks are known and all IPv4.

        Raises:
            ConfigError: one is not a network.
        """
        found = set()
        for text in self.service_cidr:
            try:
                found.add(ip_network(text).version)
            except ValueError as error:
                raise ConfigError(f"--service-cidr: {error}") from None
        return found == {4}

    @property
    def no_proxy(self) -> str:
        """NO_PROXY of the main container."""
        preset = self.chosen
        catalogs = CATALOGS if preset.uses_catalogs and self.olm_catalogs == MANAGEMENT else ()
        known = [
            text.replace(ETCD, self.etcd_host).replace(NAMESPACE, self.namespace)
            for text in preset.no_proxy
        ]
        return no_proxy_list([*known, *catalogs, *self.main_no_proxy])

    @property
    def management_proxy(self) -> dict[str, str]:
        """The variables of the management cluster's proxy; none without one."""
        named = {
            "HTTP_PROXY": self.management_http_proxy,
            "HTTPS_PROXY": self.management_https_proxy,
        }
        found = {name: url for name, url in named.items() if url}
        return {**found, "NO_PROXY": no_proxy_list(self.management_no_proxy)} if found else {}

    def validate(self) -> None:
        """Check each setting.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        check_values(self)
        if not (self.mode or self.preset):
            raise ConfigError(f"--mode is missing: {', '.join(MODES[:-1])} or {MODES[-1]}")
        if self.mode and self.mode != self.chosen.mode:
            raise ConfigError(
                f"--mode={self.mode} and --preset={self.preset}, which has {self.chosen.mode},"
                " exclude each other"
            )
        if not self.deployment:
            raise ConfigError("--workload is missing: the name of a Deployment; or use --preset")
        self._check_names()
        check_image(self.image)
        if self.run_as:
            check_user(self.run_as)
        if not _MEMORY.fullmatch(self.memory):
            raise ConfigError(f"--memory takes a quantity such as 64Mi, not {self.memory!r}")
        check_host("etcd-host", self.etcd_host)
        _ = self.all_ipv4
        self._check_proxy()

    def _check_names(self) -> None:
        if self.workload:
            check_object("workload", self.workload)
        if self.namespace:
            check_namespace(self.namespace)
        for flag, text in (
            ("container", self.container),
            ("kubeconfig-volume", self.kubeconfig_volume),
        ):
            if text:
                check_name(flag, text)
        for flag, text in (
            ("client-secret", self.client_secret),
            ("ca-config-map", self.ca_config_map),
        ):
            check_object(flag, text)
        for flag, text in (
            ("kubeconfig-secret", self.kubeconfig_secret),
            ("trust-bundle", self.trust_bundle),
            ("secret", self.secret),
        ):
            if text:
                check_object(flag, text)
        needed = any(NAMESPACE in text for text in self.chosen.no_proxy)
        if needed and not self.namespace:
            raise ConfigError(f"--namespace is missing: NO_PROXY of {self.preset} contains it")

    def _check_proxy(self) -> None:
        for flag, url in (
            ("--management-http-proxy", self.management_http_proxy),
            ("--management-https-proxy", self.management_https_proxy),
        ):
            if url:
                ProxyAddress.parse(url, variable=flag)
        if self.management_no_proxy and not self.management_proxy:
            raise ConfigError(
                "--management-no-proxy needs --management-http-proxy or --management-https-proxy"
            )


def no_proxy_list(texts: list[str] | tuple[str, ...]) -> str:
    """NO_PROXY as HyperShift writes it: with kube-apiserver, sorted, without duplicates."""
    return ",".join(sorted({KUBE_APISERVER, *texts}))
