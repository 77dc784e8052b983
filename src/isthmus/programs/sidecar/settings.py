"""The settings that ``isthmus socks5-proxy`` and ``isthmus https-proxy`` share.

Names and defaults are those of HyperShift's konnectivity-socks5-proxy and konnectivity-https-proxy.
The settings of only one are in programs/socks5_proxy and programs/https_proxy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from isthmus.errors import ConfigError
from isthmus.net.rules_metadata import METADATA, is_metadata
from isthmus.settings.admin import AdminSettings
from isthmus.settings.options import OURS, block, option, port
from isthmus.settings.parsing import (
    check_at_least,
    check_durations,
    check_host,
    check_values,
)
from isthmus.settings.program import (
    GRACEFUL_SHUTDOWN,
    KUBECONFIG,
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_SOURCE,
    WORKERS,
    CarrierSettings,
    check_workers,
)
from isthmus.text.addresses import IpNetwork, cidr, is_loopback
from isthmus.values import HostPort

HTTP_CONNECT, GRPC = "http-connect", "grpc"

_SERVER = "Connectivity server"
_CLIENTS = "Clients"
_NAMES = "Names"
_CLOUD = "Cloud APIs"
_LIMITS = "Limits"

_MAX_UDS_BYTES = 107
# RFC 1929 §2: the lengths of both have one byte.
_MAX_USERNAME_BYTES = 255
# RFC 1123 §2.1, as in Kubernetes for names of Services and namespaces.
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_SERVICE = re.compile(rf"{_LABEL}/{_LABEL}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSettings(CarrierSettings):
    """The settings of both sidecars; ``check_sidecar()`` checks them."""

    #: The kind of sidecar, as presets and manifests call it.
    KIND: ClassVar[str] = ""

    konnectivity_hostname: str = option(
        "konnectivity-server-local",
        help="Host name of the connectivity server",
        group=_SERVER,
        metavar="HOST",
        common=True,
    )
    konnectivity_port: int = port(
        8090,
        help="Port of the connectivity server",
        least=1,
        group=_SERVER,
        common=True,
    )
    konnectivity_uds: str = option(
        "",
        help="UNIX socket of the connectivity server, instead of its host name and port",
        group=_SERVER,
        metavar="PATH",
        go=OURS,
    )
    konnectivity_protocol: str = option(
        HTTP_CONNECT,
        help="Protocol to the connectivity server: HTTP CONNECT or konnectivity's gRPC",
        choices=(HTTP_CONNECT, GRPC),
        metavar=f"{HTTP_CONNECT}|{GRPC}",
        group=_SERVER,
        go=OURS,
    )
    ca_cert_path: str = option(
        "/etc/konnectivity/proxy-ca/ca.crt",
        help="CAs that certificates of connectivity servers must come from",
        group=_SERVER,
        metavar="FILE",
        common=True,
    )
    tls_cert_path: str = option(
        "/etc/konnectivity/proxy-client/tls.crt",
        help="TLS certificate shown to the connectivity server",
        group=_SERVER,
        metavar="FILE",
        common=True,
    )
    tls_key_path: str = option(
        "/etc/konnectivity/proxy-client/tls.key",
        help="Private key of --tls-cert-path",
        group=_SERVER,
        metavar="FILE",
        common=True,
    )
    dial_timeout_s: float = option(
        60.0,
        help="Timeout of a dial, name resolution included",
        unit="seconds",
        group=_SERVER,
        go=OURS,
    )
    serving_address: str = option(
        "127.0.0.1",
        help="Address to listen on; any but loopback needs --username and --password-file, or "
        "--allow-unauthenticated; empty means all addresses",
        group=_CLIENTS,
        metavar="ADDRESS",
        go="every address, always",
        common=True,
    )
    serving_port: int = port(8090, help="Port to listen on", group=_CLIENTS, common=True)
    username: str = option(
        "",
        help="User name that clients must give, with the password of --password-file",
        group=_CLIENTS,
        metavar="NAME",
        go=OURS,
    )
    password_file: str = option(
        "",
        help="File with the password of clients, read again when it changes",
        group=_CLIENTS,
        metavar="FILE",
        go=OURS,
    )
    allow_unauthenticated: bool = option(
        False,
        help="Serve everyone who reaches a --serving-address that is not loopback",
        group=_CLIENTS,
        go=OURS,
    )
    resolve_from_guest_cluster_dns: bool = option(
        False,
        help="Resolve names with the DNS of the guest cluster, through the tunnel",
        group=_NAMES,
        common=True,
    )
    resolve_from_management_cluster_dns: bool = option(
        False,
        help="Resolve names with the DNS of this pod while the guest cluster's cannot be reached",
        group=_NAMES,
    )
    disable_resolver: bool = option(
        False,
        help="Resolve no names here, whatever other flags say; the agent resolves them",
        group=_NAMES,
    )
    prefer_ipv4: bool = option(
        False, help="Prefer IPv4 for names with addresses of both families", group=_NAMES
    )
    guest_dns_service: str = option(
        "openshift-dns/dns-default",
        help="Service of the guest cluster's DNS; without it kube-system/kube-dns is tried",
        group=_NAMES,
        metavar="NAMESPACE/NAME",
        go="openshift-dns/dns-default, always",
    )
    cluster_domain: str = option(
        "cluster.local",
        help="DNS domain of the guest cluster, below which its Services are",
        group=_NAMES,
        metavar="DOMAIN",
        go=OURS,
    )
    kubeconfig: str = KUBECONFIG(
        help="Kubeconfig for the API of the guest cluster; empty means in-cluster",
        env="KUBECONFIG",
        group=_NAMES,
        go="the environment variable alone",
        common=True,
    )
    connect_directly_to_cloud_apis: bool = option(
        False,
        help="Connect to the APIs of cloud providers from here, by the proxy that HTTPS_PROXY and "
        "NO_PROXY name, instead of through the tunnel",
        group=_CLOUD,
        common=True,
    )
    cloud_api_suffix: tuple[str, ...] = option(
        (),
        help="Suffix of further names to treat as cloud APIs",
        repeat=True,
        group=_CLOUD,
        metavar=".SUFFIX",
        go=OURS,
    )
    workers: int = WORKERS()
    max_connections: int = MAX_CONNECTIONS(
        4096,
        help="Maximum number of connections, of two file descriptors each; more are refused: 503 "
        "by HTTP, a reset by SOCKS5",
        group=_LIMITS,
    )
    max_connections_per_source: int = MAX_CONNECTIONS_PER_SOURCE(group=_LIMITS)
    max_handshakes: int = option(
        512,
        help="Maximum number of clients that have not sent a request yet; at one more, the oldest "
        "of the source with the most is reset",
        group=_LIMITS,
        go=OURS,
    )
    handshake_timeout_s: float = option(
        10.0,
        help="Close connections that have not sent a request within this time",
        unit="seconds",
        group=_LIMITS,
        go=OURS,
    )
    wait_for_files_s: float = option(
        120.0,
        help="How long to wait at the start for missing certificates, keys and a kubeconfig, "
        "alive but not ready; 0 exits at once",
        flag="wait-for-files",
        unit="seconds",
        group=_LIMITS,
        go="0, ends at once",
    )
    graceful_shutdown_timeout_s: float = GRACEFUL_SHUTDOWN(group=_LIMITS, go="0, ends them at once")
    admin: AdminSettings = block(AdminSettings(), go=OURS)
    allow_metadata_address: tuple[str, ...] = option(
        (),
        help="Metadata or link-local address of a cloud, which hands out credentials of machines, "
        "that clients may reach; without it none is dialed",
        repeat=True,
        group=_CLIENTS,
        metavar="CIDR",
        go=OURS,
    )
    #: Not a flag. Whether names are resolved here even if the agent could do it (https-proxy).
    resolve_before_dial: bool = False

    @property
    def server_at(self) -> HostPort | None:
        """The TCP port of the connectivity server; None if it is at a UNIX socket."""
        if self.konnectivity_uds:
            return None
        return HostPort(self.konnectivity_hostname, self.konnectivity_port)

    @property
    def metadata_allowed(self) -> tuple[IpNetwork, ...]:
        """The addresses of --allow-metadata-address.

        Raises:
            ConfigError: an entry is not such an address.
        """
        found = []
        for text in self.allow_metadata_address:
            try:
                network = cidr(text)
            except ValueError as error:
                raise ConfigError(f"--allow-metadata-address {text[:100]}: {error}") from error
            if not is_metadata(network):
                raise ConfigError(
                    f"--allow-metadata-address {text}: is not in {', '.join(METADATA)}, so it is"
                    " not denied"
                )
            found.append(network)
        return tuple(found)

    @property
    def never_cloud_hosts(self) -> tuple[str, ...]:
        """Hosts that are not cloud APIs, whatever their suffix."""
        return ()

    @property
    def needs_kube(self) -> bool:
        """Whether the guest cluster's API is needed."""
        return not self.disable_resolver

    @property
    def unread_files(self) -> frozenset[str]:
        """The file settings that are not used with these settings, by attribute."""
        tls = ("ca_cert_path", "tls_cert_path", "tls_key_path") if self.konnectivity_uds else ()
        kube = () if self.needs_kube else ("kubeconfig",)
        return frozenset((*tls, *kube, *self.own_unread_files))

    @property
    def own_unread_files(self) -> tuple[str, ...]:
        """Those of them that exist in only one kind of sidecar."""
        return ()

    def check_sidecar(self) -> None:
        """Check the shared settings against each other.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        check_values(self)
        check_durations(self)
        self._check_server()
        self._check_clients()
        self._check_names()
        _ = self.metadata_allowed  # raises if it is invalid
        for flag, seconds in (
            ("handshake-timeout", self.handshake_timeout_s),
            ("dial-timeout", self.dial_timeout_s),
        ):
            if not seconds:
                raise ConfigError(f"--{flag} must be more than 0")
        check_workers(self.workers)
        check_at_least("max-connections", self.max_connections, 1)
        check_at_least("max-connections-per-source", self.max_connections_per_source, 0)
        check_at_least("max-handshakes", self.max_handshakes, 1)
        self.admin.check_ports()
        self.check_carrier()

    def _check_server(self) -> None:
        if len(self.konnectivity_uds.encode()) > _MAX_UDS_BYTES:
            raise ConfigError(
                f"--konnectivity-uds is longer than the {_MAX_UDS_BYTES} bytes allowed"
            )
        if self.konnectivity_uds:
            return
        check_host("konnectivity-hostname", self.konnectivity_hostname)
        for flag, path in (
            ("ca-cert-path", self.ca_cert_path),
            ("tls-cert-path", self.tls_cert_path),
            ("tls-key-path", self.tls_key_path),
        ):
            if not path:
                raise ConfigError(
                    f"--{flag} is empty: a TCP port of a connectivity server needs --ca-cert-path,"
                    " --tls-cert-path and --tls-key-path, or use --konnectivity-uds"
                )

    def _check_clients(self) -> None:
        host = self.serving_address
        if host:
            check_host("serving-address", host)
        if bool(self.username) != bool(self.password_file):
            there, missing = ("username", "password-file")[:: 1 if self.username else -1]
            raise ConfigError(f"--{there} needs --{missing} as well")
        if len(self.username.encode(errors="surrogateescape")) > _MAX_USERNAME_BYTES:
            raise ConfigError(
                f"--username is longer than the {_MAX_USERNAME_BYTES} bytes allowed (RFC 1929)"
            )
        if ":" in self.username:
            raise ConfigError("--username must have no colon (RFC 7617)")
        self.check_serves_at(host)

    def check_serves_at(self, host: str) -> None:
        """Refuse an address on which every host would be served, no matter which flag sets it.

        Raises:
            ConfigError: every host would be served.
        """
        if not (is_loopback(host) or self.username or self.allow_unauthenticated):
            raise ConfigError(
                f"--serving-address {host or 'empty'} would open the guest cluster to every host"
                " that reaches this pod, which needs --username and --password-file, or"
                " --allow-unauthenticated; or use a loopback address"
            )

    def _check_names(self) -> None:
        if not _SERVICE.fullmatch(self.guest_dns_service):
            raise ConfigError(
                "--guest-dns-service takes NAMESPACE/NAME such as kube-system/kube-dns, not"
                f" {self.guest_dns_service!r}"
            )
        check_host("cluster-domain", self.cluster_domain)
        for suffix in self.cloud_api_suffix:
            if not suffix.startswith("."):
                raise ConfigError(
                    f"--cloud-api-suffix {suffix} needs a leading dot, otherwise it would match"
                    f" other names too: .{suffix}"
                )
            check_host("cloud-api-suffix", suffix[1:])
