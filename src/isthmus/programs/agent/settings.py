"""The settings of ``isthmus agent``: konnectivity's proxy-agent flags, and additional ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from isthmus.dial.settings_endpoint_lists import EndpointSettings
from isthmus.dial.settings_near import check_zone
from isthmus.dial.settings_targets import TargetSettings
from isthmus.errors import ConfigError
from isthmus.kube.rules_leases import check_selector
from isthmus.net.settings_bind import BindSettings
from isthmus.programs.agent import PROGRAM
from isthmus.settings.admin import AdminSettings
from isthmus.settings.gates import CLUSTER_TO_MASTER, GateSettings
from isthmus.settings.identifiers import Identifiers
from isthmus.settings.options import OURS, block, option, port
from isthmus.settings.parsing import (
    KONNECTIVITY,
    check_at_least,
    check_durations,
    check_host,
    check_id,
    check_pair,
    check_values,
)
from isthmus.settings.program import (
    COMPAT,
    GRACEFUL_SHUTDOWN,
    KEEPALIVE_TIME,
    KUBE_API_CONTENT_TYPE,
    KUBECONFIG,
    LEASE_NAMESPACE,
    LINK,
    WARN_ON_CHANNEL_LIMIT,
    XFR_CHANNEL_SIZE,
    CarrierSettings,
)
from isthmus.values import HostPort, is_address
from isthmus.wire.alpn import ALPN as MUX_ALPN

_SERVER = "Server to connect to"
_TARGETS = "Targets"
_IDENTITY = "Identity"
_LIMITS = "Time limits"
_LEASES = "Counting servers by Leases"
_COMPAT = "Compatibility"

# RFC 2782: _service._proto.name; a link runs over TCP.
_SRV = re.compile(r"_[A-Za-z0-9-]+\._tcp\..+", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings(CarrierSettings):
    """The settings of an agent; ``validate()`` checks them."""

    proxy_server_host: tuple[str, ...] = option(
        ("127.0.0.1",),
        help="Server name or address; the agent connects to every address of a name, or to every "
        "server that an SRV name such as _agents._tcp.example.com lists",
        repeat=True,
        group=_SERVER,
        metavar="HOST",
        go="127.0.0.1, one host",
        common=True,
    )
    proxy_server_port: int = port(
        8091,
        help="Port of the server; an SRV name brings its own",
        least=1,
        group=_SERVER,
        common=True,
    )
    proxy_server_name: str = option(
        "",
        help="Name to ask for in the TLS handshake and to expect in the server's certificate, for "
        "routers that choose by name; empty means the host",
        group=_SERVER,
        metavar="NAME",
        go=OURS,
    )
    ca_cert: str = option(
        "",
        help="CAs that certificates of servers must come from",
        group=_SERVER,
        metavar="FILE",
        common=True,
    )
    agent_cert: str = option(
        "",
        help="TLS certificate shown to the server",
        group=_SERVER,
        metavar="FILE",
        common=True,
    )
    agent_key: str = option(
        "", help="Private key of --agent-cert", group=_SERVER, metavar="FILE", common=True
    )
    alpn_proto: tuple[str, ...] = option(
        (),
        help="Additional ALPN protocol to offer, after Isthmus's own and before h2",
        repeat=True,
        group=_SERVER,
        metavar="NAME",
    )
    link: str = LINK(
        help="Protocol to the server: mux is Isthmus's own, grpc is konnectivity's, auto takes "
        "the first that the server supports",
        group=_SERVER,
    )
    crl_file: str = option(
        "",
        once=True,
        help="Certificate revocation lists for servers: those revoked are refused and their links "
        "closed; read again when the file changes",
        group=_SERVER,
        metavar="FILE",
        filled=True,
        go=OURS,
    )
    host_alias: tuple[str, ...] = option(
        (),
        help="Address to use for a name, before DNS; an address with a port is dialed whatever "
        "port was asked for",
        repeat=True,
        group=_TARGETS,
        metavar="NAME=ADDRESS[:PORT]",
        go=OURS,
    )
    dial_timeout_s: float = option(
        5.0,
        help="Timeout of a dial to a target",
        unit="seconds",
        group=_TARGETS,
        go="always 5s, no flag",
    )
    agent_id: str = option(
        "",
        help="Agent ID; empty makes a random one",
        env="PROXY_AGENT_ID",
        group=_IDENTITY,
        metavar="ID",
        common=True,
    )
    agent_identifiers: str = option(
        "",
        help="Addresses, networks and hosts that this agent stands for, such as "
        "host=node1&cidr=10.0.0.0/16",
        group=_IDENTITY,
        metavar="QUERY",
        common=True,
    )
    agent_network: str = option(
        "",
        help="Network that this agent is in; empty means cluster",
        group=_IDENTITY,
        metavar="NAME",
        go=OURS,
    )
    zone: str = option(
        "",
        help="Zone of this agent, as in the topology.kubernetes.io/zone label of its node",
        env="NODE_ZONE",
        group=_IDENTITY,
        metavar="ZONE",
        go=OURS,
    )
    service_account_token_path: str = option(
        "",
        help="File with the token that authenticates this agent",
        group=_IDENTITY,
        metavar="FILE",
        common=True,
    )
    admin: AdminSettings = block(
        AdminSettings(health_port=8093, port=PROGRAM.admin_port),
        health_bind_address={"flag": "health-server-host"},
        health_port={"flag": "health-server-port"},
        port={"flag": "admin-server-port", "help": "Port for health and the snapshot"},
    )
    sync_interval_s: float = option(
        1.0,
        help="Initial wait before connecting again",
        unit="seconds",
        group=_LIMITS,
    )
    sync_interval_cap_s: float = option(
        10.0, help="Maximum wait before connecting again", unit="seconds", group=_LIMITS
    )
    probe_interval_s: float = option(
        1.0, help="How often to check the links", unit="seconds", group=_LIMITS, ignored=True
    )
    keepalive_time_s: float = KEEPALIVE_TIME(
        help="Ping a server after it was silent for this long; a mux link is pinged after 10s at "
        "the latest, a gRPC link every 31s, because konnectivity's server allows no more",
        group=_LIMITS,
    )
    graceful_shutdown_timeout_s: float = GRACEFUL_SHUTDOWN(
        help="Time for open tunnels to finish after SIGTERM; 0 ends them at once",
        group=_LIMITS,
        go="until a second signal, no flag",
    )
    sync_forever: bool = option(
        False,
        help="Look for more servers even when all are connected",
        group=_LIMITS,
        ignored=True,
    )
    count_server_leases: bool = option(False, help="Count servers by their Leases", group=_LEASES)
    lease_namespace: str = LEASE_NAMESPACE(help="Namespace to look for Leases in", group=_LEASES)
    lease_label_selector: str = option(
        "k8s-app=konnectivity-server",
        help="Label of the Leases to count",
        group=_LEASES,
        aliases=("lease-label",),
    )
    server_count_source: str = option(
        "default",
        help="Number of servers to believe: default is that of the Leases, max the larger of the "
        "Leases' and the server's",
        choices=("default", "max", ""),
        metavar="default|max",
        group=_LEASES,
    )
    kubeconfig: str = KUBECONFIG(group=_LEASES)
    kube_api_content_type: str = KUBE_API_CONTENT_TYPE(group=_LEASES)
    compat: str = COMPAT(help="Follow konnectivity's rules where they are stricter", group=_COMPAT)
    xfr_channel_size: int = XFR_CHANNEL_SIZE(150, group=_COMPAT)
    warn_on_channel_limit: bool = WARN_ON_CHANNEL_LIMIT(group=_COMPAT)

    endpoints: EndpointSettings = block(EndpointSettings())
    node_traffic: TargetSettings = block(TargetSettings())
    bind: BindSettings = block(BindSettings())
    gates: GateSettings = block(GateSettings())

    workers: int = 1  # without a flag: an agent is one process

    @property
    def takes_node_traffic(self) -> bool:
        """Whether gate, address and target for local connections are set."""
        gate = self.gates.enabled(CLUSTER_TO_MASTER)
        return bool(self.node_traffic.target and self.bind.address and gate)

    @property
    def alpn(self) -> tuple[str, ...]:
        """The ALPN names to offer, in order."""
        ours = () if self.link == "grpc" else (MUX_ALPN,)
        theirs = () if self.link == "mux" else ("h2",)
        return (*ours, *self.alpn_proto, *theirs)

    @property
    def identifiers(self) -> Identifiers:
        """The hosts and networks that this agent serves.

        Raises:
            ConfigError: the text is invalid.
        """
        try:
            return Identifiers.parse(self.sent_identifiers)
        except ValueError as error:
            raise ConfigError(f"--agent-identifiers: {error}") from error

    @property
    def sent_identifiers(self) -> str:
        """The identifiers as sent to servers: as typed, without empty values."""
        return Identifiers.without_empty(self.agent_identifiers)[0]

    @property
    def aliases(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the agent's own resolver, in lower case, and their addresses.

        Raises:
            ConfigError: an alias is not NAME=ADDRESS or NAME=ADDRESS:PORT.
        """
        found: dict[str, tuple[str, ...]] = {}
        for text in self.host_alias:
            name, _, address = text.partition("=")
            if not _is_name(name) or not _is_alias(address):
                raise ConfigError(
                    "--host-alias takes NAME=ADDRESS[:PORT], such as db.internal=10.0.0.5 or"
                    f" web.internal=[fd00::5]:8080, not {text!r}"
                )
            key = name.lower().removesuffix(".")
            found[key] = (*found.get(key, ()), address)
        return found

    def validate(self) -> None:
        """Check the settings before anything is opened.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        check_values(self)
        check_durations(self)
        self._check_server()
        self._check_waits()
        if self.compat == KONNECTIVITY:
            check_at_least("health-server-port", self.admin.health_port, 1)
            check_at_least("admin-server-port", self.admin.port, 1)
        if self.admin.health_bind_address:
            check_host("health-server-host", self.admin.health_bind_address)
        check_id("agent-id", self.agent_id)
        check_id("agent-network", self.agent_network)
        check_zone("--zone", self.zone, empty=True)
        _ = (
            self.identifiers,
            self.aliases,
            self.endpoints.endpoint_lists,
        )  # each raises if its text is invalid
        check_at_least("xfr-channel-size", self.xfr_channel_size, 1)
        if self.count_server_leases:
            try:
                check_selector(self.lease_label_selector)
            except ValueError as error:
                raise ConfigError(f"--lease-label-selector: {error}") from error
        self.check_carrier()
        self.gates.check()
        self._check_node_traffic()
        self._check_local_ports()

    def warnings(self) -> list[str]:
        """Warnings about valid but probably unintended settings; after ``validate()``."""
        empty = Identifiers.without_empty(self.agent_identifiers)[1]
        return [
            *(
                f"--agent-identifiers: {key}= has no value and is ignored"
                for key in dict.fromkeys(empty)
            ),
            *self._check_node_traffic(),
        ]

    def _check_node_traffic(self) -> list[str]:
        warnings = self.bind.check()
        return warnings + self.node_traffic.check(
            bind_address=self.bind.address, on=self.gates.enabled(CLUSTER_TO_MASTER)
        )

    def _check_local_ports(self) -> None:
        if not self.takes_node_traffic:
            return
        for target in self.node_traffic.targets:
            # The other ports are bound to one address, so binding detects a conflict.
            if target.local_port == self.admin.health_port and not self.admin.health_bind_address:
                raise ConfigError(
                    f"--target {target}: local port {target.local_port} is the health port's, at"
                    " every address; change --health-server-port, or set --health-server-host"
                )

    def _check_server(self) -> None:
        if not self.proxy_server_host:
            raise ConfigError("--proxy-server-host needs at least one host")
        for host in self.proxy_server_host:
            check_host("proxy-server-host", host)
        if self.proxy_server_name:
            check_host("proxy-server-name", self.proxy_server_name)
        if not self.ca_cert:
            proof = self.agent_cert or self.agent_key or self.service_account_token_path
            missing = "--ca-cert is" if proof else "--ca-cert, --agent-cert and --agent-key are"
            raise ConfigError(
                f"{missing} missing: create the certificates"
                ' with "isthmus pki init", see isthmus pki init -h'
            )
        check_pair("agent-cert", self.agent_cert, "agent-key", self.agent_key)
        for name in self.alpn_proto:
            # RFC 7301 §3.1: a protocol name is 1 to 255 bytes.
            if len(name.encode()) > 255 or not name.isascii():
                raise ConfigError("--alpn-proto must be at most 255 ASCII characters")

    def _check_waits(self) -> None:
        for flag, value in (
            ("dial-timeout", self.dial_timeout_s),
            ("sync-interval", self.sync_interval_s),
            ("probe-interval", self.probe_interval_s),
        ):
            if value <= 0:
                raise ConfigError(f"--{flag} must be longer than 0")
        if self.sync_interval_s > self.sync_interval_cap_s:
            raise ConfigError("--sync-interval must not be longer than --sync-interval-cap")


def is_srv_name(host: str) -> bool:
    """Tell whether a host is an SRV name, ``_service._tcp.name`` (RFC 2782)."""
    return _SRV.fullmatch(host) is not None


def _is_alias(text: str) -> bool:
    try:
        return is_address(text) or is_address(HostPort.parse(text).host)
    except ValueError:
        return False


def _is_name(text: str) -> bool:
    try:
        return not is_address(HostPort(text, 1).host)
    except ValueError:
        return False
