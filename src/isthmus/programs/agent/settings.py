"""The settings of ``isthmus agent``: konnectivity's proxy-agent flags, and a few of our own."""

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
from isthmus.settings.options import OURS, block, option
from isthmus.settings.parsing import (
    KONNECTIVITY,
    check_at_least,
    check_choices,
    check_durations,
    check_host,
    check_id,
    check_pair,
    check_port,
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
    """Everything that an agent can be told; ``validate()`` says whether it makes sense."""

    proxy_server_host: tuple[str, ...] = option(
        ("127.0.0.1",),
        help="Connect to the servers at every address of this name, or to those "
        "that an SRV name such as _agents._tcp.example.com lists",
        repeat=True,
        group=_SERVER,
        metavar="HOST",
        go="127.0.0.1, one host",
    )
    proxy_server_port: int = option(
        8091,
        help="Connect to this port; an SRV name brings its own",
        group=_SERVER,
        metavar="PORT",
    )
    proxy_server_name: str = option(
        "",
        help="Ask for this name in the TLS handshake and expect it in the server's certificate, "
        "whatever the host is called, for routers that choose by name; empty means the host",
        group=_SERVER,
        metavar="NAME",
        go=OURS,
    )
    ca_cert: str = option(
        "",
        help="Trust servers with a certificate from these authorities",
        group=_SERVER,
        metavar="FILE",
    )
    agent_cert: str = option(
        "", help="Show this certificate to the server", group=_SERVER, metavar="FILE"
    )
    agent_key: str = option(
        "", help="Use this private key with --agent-cert", group=_SERVER, metavar="FILE"
    )
    alpn_proto: tuple[str, ...] = option(
        (),
        help="Offer this ALPN protocol as well, after our own and before h2",
        repeat=True,
        group=_SERVER,
        metavar="NAME",
    )
    link: str = LINK(
        help="Speak this protocol to the server: mux is our own, grpc konnectivity's; auto takes "
        "the first that the server knows",
        group=_SERVER,
    )
    crl_file: str = option(
        "",
        once=True,
        help="Refuse servers whose certificate is in a list of this file, and leave those that "
        "are linked; it is read again when it changes",
        group=_SERVER,
        metavar="FILE",
        filled=True,
        go=OURS,
    )
    host_alias: tuple[str, ...] = option(
        (),
        help="Resolve this name to this address, before DNS; with a port, dial it for any port",
        repeat=True,
        group=_TARGETS,
        metavar="NAME=ADDRESS[:PORT]",
        go=OURS,
    )
    dial_timeout_s: float = option(
        5.0,
        help="Give up on a target after this long",
        unit="seconds",
        group=_TARGETS,
        go="always 5s, no flag",
    )
    agent_id: str = option(
        "",
        help="Call this agent so; empty makes a random id",
        env="PROXY_AGENT_ID",
        group=_IDENTITY,
        metavar="ID",
    )
    agent_identifiers: str = option(
        "",
        help="Tell the server what this agent stands for, such as host=node1&cidr=10.0.0.0/16",
        group=_IDENTITY,
        metavar="QUERY",
    )
    agent_network: str = option(
        "",
        help="Tell the server that this agent is in this network; empty means cluster",
        group=_IDENTITY,
        metavar="NAME",
        go=OURS,
    )
    zone: str = option(
        "",
        help="Tell the server that this agent is in this zone, as its node's "
        "topology.kubernetes.io/zone label says",
        env="NODE_ZONE",
        group=_IDENTITY,
        metavar="ZONE",
        go=OURS,
    )
    service_account_token_path: str = option(
        "",
        help="Prove who this agent is with the token in this file",
        group=_IDENTITY,
        metavar="FILE",
    )
    admin: AdminSettings = block(
        AdminSettings(health_port=8093, port=PROGRAM.admin_port),
        health_bind_address={"flag": "health-server-host"},
        health_port={"flag": "health-server-port"},
        port={"flag": "admin-server-port", "help": "Serve health and the snapshot on this port"},
    )
    sync_interval_s: float = option(
        1.0,
        help="Wait this long before connecting again, at first",
        unit="seconds",
        group=_LIMITS,
    )
    sync_interval_cap_s: float = option(
        10.0, help="Wait at most this long before connecting again", unit="seconds", group=_LIMITS
    )
    probe_interval_s: float = option(
        1.0, help="Look after the links this often", unit="seconds", group=_LIMITS, ignored=True
    )
    keepalive_time_s: float = KEEPALIVE_TIME(
        help="Ping a server after this much silence; a mux link is pinged after "
        "10s at the latest, a gRPC link every 31s, as Go's server allows no more",
        group=_LIMITS,
    )
    graceful_shutdown_timeout_s: float = GRACEFUL_SHUTDOWN(
        help="Let open tunnels finish for this long after SIGTERM; 0 ends them at once",
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
    lease_namespace: str = LEASE_NAMESPACE(help="Look for Leases in this namespace", group=_LEASES)
    lease_label_selector: str = option(
        "k8s-app=konnectivity-server",
        help="Count Leases with this label",
        group=_LEASES,
        aliases=("lease-label",),
    )
    server_count_source: str = option(
        "default",
        help="Believe the Leases, or the larger of Leases and server",
        choices=("default", "max", ""),
        metavar="default|max",
        group=_LEASES,
    )
    kubeconfig: str = KUBECONFIG(group=_LEASES)
    kube_api_content_type: str = KUBE_API_CONTENT_TYPE(group=_LEASES)
    compat: str = COMPAT(help="Keep to konnectivity's rules where they are narrower", group=_COMPAT)
    xfr_channel_size: int = XFR_CHANNEL_SIZE(150, group=_COMPAT)
    warn_on_channel_limit: bool = WARN_ON_CHANNEL_LIMIT(group=_COMPAT)

    endpoints: EndpointSettings = block(EndpointSettings())
    node_traffic: TargetSettings = block(TargetSettings())
    bind: BindSettings = block(BindSettings())
    gates: GateSettings = block(GateSettings())

    workers: int = 1  # without a flag: an agent is one process

    @property
    def takes_node_traffic(self) -> bool:
        """Everything is there that local connections need: gate, address and target."""
        gate = self.gates.enabled(CLUSTER_TO_MASTER)
        return bool(self.node_traffic.target and self.bind.address and gate)

    @property
    def alpn(self) -> tuple[str, ...]:
        """What to offer, in order."""
        ours = () if self.link == "grpc" else (MUX_ALPN,)
        theirs = () if self.link == "mux" else ("h2",)
        return (*ours, *self.alpn_proto, *theirs)

    @property
    def identifiers(self) -> Identifiers:
        """What this agent stands for.

        Raises:
            ConfigError: the text cannot be read.
        """
        try:
            return Identifiers.parse(self.sent_identifiers)
        except ValueError as error:
            raise ConfigError(f"--agent-identifiers: {error}") from error

    @property
    def sent_identifiers(self) -> str:
        """The identifiers as servers hear them: as typed, without empty values."""
        return Identifiers.without_empty(self.agent_identifiers)[0]

    @property
    def aliases(self) -> Mapping[str, tuple[str, ...]]:
        """The names that the agent's own resolver knows, in lower case, and their addresses.

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
        """Hold the settings against each other, before anything is opened.

        Raises:
            ConfigError: one sentence that names the flag and says what to do.
        """
        check_choices(self)
        check_durations(self)
        self._check_server()
        self._check_waits()
        check_port("health-server-port", self.admin.health_port, compat="")
        check_port("admin-server-port", self.admin.port, compat="")
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
        )  # each raises if its text is wrong
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
        """What is not wrong and may still not be meant, each a sentence; after ``validate()``."""
        empty = Identifiers.without_empty(self.agent_identifiers)[1]
        return [
            *(
                f"--agent-identifiers: {key}= has no value and is left out"
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
            # The other ports are bound to one address, and the bind itself tells.
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
        if not 0 < self.proxy_server_port < 65536:
            raise ConfigError(
                f"--proxy-server-port must be from 1 to 65535, not {self.proxy_server_port}"
            )
        if self.proxy_server_name:
            check_host("proxy-server-name", self.proxy_server_name)
        if not self.ca_cert:
            raise ConfigError(
                "--ca-cert is missing: the agent must know which servers to trust; certificates are"
                ' made with "isthmus pki init"'
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
