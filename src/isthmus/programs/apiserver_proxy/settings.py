"""The settings of ``isthmus apiserver-proxy``: flags, which a file can replace.

``plan()`` returns the flags as one value; settings_file.py reads the same value from a file. The
flags of HyperShift's kubernetes-default-proxy are aliases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from isthmus.errors import ConfigError
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.net.settings_bind import UPLINK_INTERFACE
from isthmus.programs.apiserver_proxy import PROGRAM
from isthmus.programs.apiserver_proxy.plan import (
    ADVERTISED,
    MAX_RETRIES,
    MOST_CONNECTIONS,
    PORT,
    CheckPlan,
    Checks,
    ProxyPlan,
    ThroughPlan,
    check_plan,
    check_tlvs,
    read_listen,
    read_path,
    read_status,
    read_tlv_type,
    read_upstream,
)
from isthmus.programs.apiserver_proxy.rules import Bounds
from isthmus.settings.admin import PORTS, AdminSettings
from isthmus.settings.options import OURS, block, option, options_of
from isthmus.settings.parsing import (
    check_at_least,
    check_durations,
    check_host,
    check_pair,
    check_values,
)
from isthmus.settings.program import (
    CONFIG,
    GRACEFUL_SHUTDOWN,
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_SOURCE,
    WORKERS,
    CarrierSettings,
    check_workers,
)
from isthmus.wire.proxy_protocol import Tlv

T = TypeVar("T")
_LISTEN = "Listening"
_UPSTREAMS = "Upstreams"
_CHECKS = "Health of the upstreams"
_PROXIES = "PROXY protocol and HTTP proxy"
_LIMITS = "Limits"
#: Groups of flags that --config replaces.
IN_THE_FILE = (_LISTEN, _UPSTREAMS, _CHECKS, _PROXIES, _LIMITS)
_SIXTEEN_BITS = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiserverProxySettings(CarrierSettings):
    """All settings of the proxy; ``validate()`` checks them."""

    GO: ClassVar = OURS

    config: str = CONFIG(
        help="Configuration file instead of flags, read again when it changes or at SIGHUP",
        group="Configuration",
        common=True,
    )
    listen: tuple[str, ...] = option(
        (f"{ADVERTISED}:{PORT}",),
        help="Address to listen on, the endpoint of the kubernetes Service; [fd00::1]:6443 is "
        "usual in IPv6 clusters",
        repeat=True,
        group=_LISTEN,
        metavar="HOST:PORT",
        aliases=("listen-addr",),
        common=True,
    )
    manage_address: bool = option(
        True,
        help="Put the address on lo, for this host alone, and remove it at the end",
        group=_LISTEN,
        common=True,
    )
    uplink_interface: tuple[str, ...] = UPLINK_INTERFACE(group=_LISTEN)
    upstream: tuple[str, ...] = option(
        (),
        help="Upstream apiserver; of several, the one with the fewest connections gets the next",
        repeat=True,
        group=_UPSTREAMS,
        metavar="HOST:PORT",
        aliases=("apiserver-addr",),
        common=True,
    )
    connect_timeout_s: float = option(
        10.0,
        help="Timeout of connecting, over all upstreams",
        unit="seconds",
        group=_UPSTREAMS,
    )
    retries: int = option(
        3, help="Number of other upstreams to try when one cannot be reached", group=_UPSTREAMS
    )
    resolve_interval_s: float = option(
        30.0,
        help="How often to resolve names of upstreams again, which also happens when one cannot "
        "be reached",
        unit="seconds",
        group=_UPSTREAMS,
    )
    health_check: str = option(
        Checks.HTTPS.value,
        help="Health check of upstreams: a request over TLS, a connection, or none",
        choices=tuple(each.value for each in Checks),
        metavar="https|tcp|none",
        group=_CHECKS,
        common=True,
    )
    health_check_path: str = option(
        "/version", help="Path that the health check asks for", group=_CHECKS, metavar="PATH"
    )
    ca_cert: str = option(
        "",
        help="CAs of the cluster, which certificates of upstreams must come from; empty means the "
        "system's",
        group=_CHECKS,
        metavar="FILE",
        common=True,
    )
    client_cert: str = option(
        "",
        help="TLS certificate shown to upstreams",
        group=_CHECKS,
        metavar="FILE",
        common=True,
    )
    client_key: str = option(
        "",
        help="Private key of --client-cert",
        group=_CHECKS,
        metavar="FILE",
        common=True,
    )
    health_check_server_name: str = option(
        "",
        help="Name expected in certificates of upstreams, such as kubernetes.default.svc; empty "
        "means the upstream's host",
        group=_CHECKS,
        metavar="NAME",
    )
    health_check_interval_s: float = option(
        10.0, help="How often to check each upstream", unit="seconds", group=_CHECKS
    )
    health_check_timeout_s: float = option(
        0.0,
        help="Timeout of a health check",
        unit="seconds",
        shown_default="--health-check-interval",
        group=_CHECKS,
    )
    health_check_fall: int = option(
        3, help="Number of failed checks in a row that make an upstream down", group=_CHECKS
    )
    health_check_rise: int = option(
        3, help="Number of successful checks in a row that make an upstream up again", group=_CHECKS
    )
    health_check_statuses: tuple[str, ...] = option(
        ("401", "403"),
        help="HTTP statuses that count as healthy besides 2xx and 3xx; an apiserver answers "
        "clients without a certificate with these",
        group=_CHECKS,
        metavar="LIST",
    )
    send_proxy_v2: bool = option(
        False,
        help="Begin each connection to an upstream with a PROXY header, version 2",
        group=_PROXIES,
    )
    proxy_v2_tlv: tuple[str, ...] = option(
        (),
        help="TLV for the PROXY header, such as 0x20=CLUSTER-ID for a shared ingress",
        repeat=True,
        group=_PROXIES,
        metavar="TYPE=TEXT",
    )
    http_proxy: str = option(
        "",
        help="HTTP proxy to reach upstreams through, by CONNECT; a password is better kept in the "
        "file of --config",
        group=_PROXIES,
        metavar="URL",
        aliases=("proxy-addr",),
        common=True,
    )
    http_proxy_ca_cert: str = option(
        "",
        help="CAs that the certificate of an https:// proxy must come from",
        group=_PROXIES,
        metavar="FILE",
    )
    no_proxy: tuple[str, ...] = option(
        (),
        help="Upstreams to reach without the proxy: names, addresses, networks, or *",
        repeat=True,
        env="NO_PROXY",
        group=_PROXIES,
        metavar="LIST",
        common=True,
    )
    cluster_network: tuple[str, ...] = option(
        (),
        help="Service and pod networks of the cluster; a --no-proxy entry that is one of them "
        "also exempts the apiserver",
        repeat=True,
        group=_PROXIES,
        metavar="CIDR",
    )
    idle_timeout_s: float = option(
        600.0,
        help="Reset connections without a byte in either direction for this long; 0 never does",
        unit="seconds",
        group=_LIMITS,
    )
    workers: int = WORKERS()
    max_connections: int = MAX_CONNECTIONS(7000, group=_LIMITS)
    max_connections_per_source: int = MAX_CONNECTIONS_PER_SOURCE(group=_LIMITS)
    graceful_shutdown_timeout_s: float = GRACEFUL_SHUTDOWN(group=PORTS)
    admin: AdminSettings = block(
        AdminSettings(health_bind_address="127.0.0.1", health_port=8102, port=PROGRAM.admin_port),
        go=OURS,
        health_bind_address={
            "help": "Address to bind the health port to; empty means all addresses"
        },
    )

    def validate(self) -> None:
        """Check the settings against each other.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        check_values(self)
        check_durations(self)
        check_workers(self.workers)
        self.admin.check_ports()
        self.check_carrier()
        if not self.config:
            self.plan()
            return
        for declared in options_of(type(self)):
            given = declared.value_in(self) != declared.default
            # NO_PROXY may be set in any environment, and does not conflict with a file.
            if given and declared.group in IN_THE_FILE and not declared.env:
                raise ConfigError(f"--{declared.flag} conflicts with --config; set it in the file")

    def plan(self) -> ProxyPlan:
        """The plan that the flags describe.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        self._check_plan()
        made = ProxyPlan(
            listen=_each("listen", self.listen, read_listen),
            manage_address=self.manage_address,
            uplinks=self.uplink_interface,
            upstreams=_each("upstream", self.upstream, read_upstream),
            check=self._check(),
            connect_timeout_s=self.connect_timeout_s,
            idle_timeout_s=self.idle_timeout_s,
            retries=self.retries,
            max_connections=self.max_connections,
            max_connections_per_source=self.max_connections_per_source,
            resolve_every_s=self.resolve_interval_s,
            proxy_protocol=self._tlvs() if self.send_proxy_v2 else None,
            through=self._through(),
        )
        check_plan(made)
        return made

    def _check_plan(self) -> None:
        if not self.upstream:
            raise ConfigError("--upstream is missing: the apiserver's HOST:PORT; or give --config")
        if not self.listen:
            raise ConfigError(f"--listen is empty; set an address such as {ADVERTISED}:{PORT}")
        check_pair("client-cert", self.client_cert, "client-key", self.client_key)
        for flag, seconds in (
            ("connect-timeout", self.connect_timeout_s),
            ("resolve-interval", self.resolve_interval_s),
            ("health-check-interval", self.health_check_interval_s),
        ):
            if not seconds:
                raise ConfigError(f"--{flag} must be more than 0")
        for flag, count, most in (
            ("health-check-fall", self.health_check_fall, 100),
            ("health-check-rise", self.health_check_rise, 100),
            ("max-connections", self.max_connections, MOST_CONNECTIONS),
        ):
            check_at_least(flag, count, 1)
            _check_at_most(flag, count, most)
        for flag, count, most in (
            ("max-connections-per-source", self.max_connections_per_source, MOST_CONNECTIONS),
            ("retries", self.retries, MAX_RETRIES),
        ):
            check_at_least(flag, count, 0)
            _check_at_most(flag, count, most)
        if self.proxy_v2_tlv and not self.send_proxy_v2:
            raise ConfigError("--proxy-v2-tlv needs --send-proxy-v2 as well")
        if self.http_proxy_ca_cert and not self.http_proxy:
            raise ConfigError("--http-proxy-ca-cert needs --http-proxy as well")

    def _check(self) -> CheckPlan:
        (path,) = _each("health-check-path", (self.health_check_path,), read_path)
        if self.health_check_server_name:
            check_host("health-check-server-name", self.health_check_server_name)
        return CheckPlan(
            kind=Checks(self.health_check),
            path=path,
            ca=self.ca_cert,
            cert=self.client_cert,
            key=self.client_key,
            server_name=self.health_check_server_name,
            interval_s=self.health_check_interval_s,
            timeout_s=self.health_check_timeout_s,
            bounds=Bounds(fall=self.health_check_fall, rise=self.health_check_rise),
            accepted=_each("health-check-statuses", self.health_check_statuses, read_status),
        )

    def _tlvs(self) -> tuple[Tlv, ...]:
        found = _each("proxy-v2-tlv", self.proxy_v2_tlv, _tlv)
        wrong = check_tlvs(found)
        if wrong:
            raise ConfigError(f"--proxy-v2-tlv: these {wrong}")
        return found

    def _through(self) -> ThroughPlan | None:
        if not self.http_proxy:
            return None
        return ThroughPlan(
            proxy=ProxyAddress.parse(self.http_proxy, variable="--http-proxy"),
            ca=self.http_proxy_ca_cert,
            no_proxy=self.no_proxy,
            networks=self.cluster_network,
        )


def _each(flag: str, texts: Sequence[str], read: Callable[[str], T]) -> tuple[T, ...]:
    found = []
    for text in texts:
        try:
            found.append(read(text))
        except ValueError as error:
            raise ConfigError(f"--{flag}: {text!r} {error}") from None
    return tuple(found)


def _tlv(text: str) -> Tlv:
    kind, equals, value = text.partition("=")
    if not equals:
        raise ValueError("is not TYPE=TEXT such as 0x20=my-cluster")
    return Tlv(read_tlv_type(kind), value.encode("utf-8", "surrogateescape"))


def _check_at_most(flag: str, value: int, most: int) -> None:
    if value > most:
        raise ConfigError(f"--{flag} must be at most {most}, not {value}")
