"""The settings of ``isthmus https-proxy``: those of every sidecar, and the hosted cluster's proxy.

Name resolution is fixed, as in HyperShift's konnectivity-https-proxy: before each dial, by the DNS
of the guest cluster. The flags of programs/sidecar/settings.py for that do not exist here.
"""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.net.rules_proxies import ProxyAddress, ProxyRules
from isthmus.programs.https_proxy import PROGRAM
from isthmus.programs.sidecar.settings import SidecarSettings
from isthmus.programs.sidecar.settings_presets import HTTPS
from isthmus.settings.admin import AdminSettings
from isthmus.settings.options import OURS, block, option

_PROXY = "Proxy of the hosted cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpsProxySettings(SidecarSettings):
    """All settings of the HTTPS sidecar; ``validate()`` checks them."""

    KIND = HTTPS

    http_proxy: str = option(
        "",
        help="Proxy for plain HTTP requests, reached through the tunnel",
        group=_PROXY,
        metavar="URL",
    )
    https_proxy: str = option(
        "",
        help="Proxy for CONNECT requests, reached through the tunnel",
        group=_PROXY,
        metavar="URL",
    )
    no_proxy: str = option(
        "",
        help="Names, addresses, networks and ports to reach without a proxy; * is everything",
        group=_PROXY,
        metavar="LIST",
    )
    proxy_ca_path: tuple[str, ...] = option(
        (),
        help="CAs for the certificates of https:// proxies, in addition to the system's",
        repeat=True,
        group=_PROXY,
        metavar="FILE",
        go=OURS,
    )
    admin: AdminSettings = block(AdminSettings(health_port=8100, port=PROGRAM.admin_port), go=OURS)
    # Not flags: fixed for this kind of sidecar.
    resolve_from_guest_cluster_dns: bool = True
    resolve_from_management_cluster_dns: bool = False
    disable_resolver: bool = False
    resolve_before_dial: bool = True

    @property
    def plain_rules(self) -> ProxyRules:
        """The proxy for plain HTTP requests.

        Raises:
            ConfigError: --http-proxy cannot be read.
        """
        return _rules("--http-proxy", self.http_proxy, self.no_proxy)

    @property
    def connect_rules(self) -> ProxyRules:
        """The proxy for connections.

        Raises:
            ConfigError: --https-proxy cannot be read.
        """
        return _rules("--https-proxy", self.https_proxy, self.no_proxy)

    @property
    def never_cloud_hosts(self) -> tuple[str, ...]:
        """The hosts of the proxies, which are in the hosted cluster's network."""
        proxies = (self.plain_rules.proxy, self.connect_rules.proxy)
        return tuple(dict.fromkeys(proxy.at.host for proxy in proxies if proxy is not None))

    @property
    def has_https_proxy(self) -> bool:
        """Whether a proxy is dialed with TLS."""
        proxies = (self.plain_rules.proxy, self.connect_rules.proxy)
        return any(proxy is not None and proxy.scheme == "https" for proxy in proxies)

    @property
    def own_unread_files(self) -> tuple[str, ...]:
        """The flags for the CAs of proxies, if none is dialed with TLS."""
        return () if self.has_https_proxy else ("proxy_ca_path",)

    def validate(self) -> None:
        """Check the settings against each other.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        self.check_sidecar()
        _ = self.never_cloud_hosts  # raises if a URL is wrong


def _rules(flag: str, url: str, no_proxy: str) -> ProxyRules:
    if url:
        ProxyAddress.parse(url, variable=flag)  # for the sentence
    return ProxyRules.from_environment({"HTTPS_PROXY": url, "NO_PROXY": no_proxy})
