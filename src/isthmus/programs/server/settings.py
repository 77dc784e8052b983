"""The settings of ``isthmus server``: konnectivity's proxy-server flags, and additional ones.

Flags of konnectivity without a meaning here are accepted and marked inert.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from isthmus.dial.settings_destinations import DestinationSettings
from isthmus.dial.settings_near import NearSettings
from isthmus.dial.settings_networks import NetworkSettings
from isthmus.dial.settings_relay import RelaySettings, parse_address, parse_peers
from isthmus.dial.settings_shares import ShareSettings
from isthmus.dial.settings_trust import RevocationSettings, RoleSettings
from isthmus.errors import ConfigError
from isthmus.kube.rules_leases import lease_name, parse_labels
from isthmus.net.settings_ciphers import TLS12, TLS13, check_tls
from isthmus.programs.server import PROGRAM
from isthmus.settings.admin import AdminSettings
from isthmus.settings.audit import AuditSettings
from isthmus.settings.gates import CLUSTER_TO_MASTER, GateSettings
from isthmus.settings.options import OURS, block, option, port
from isthmus.settings.parsing import (
    KONNECTIVITY,
    check_at_least,
    check_durations,
    check_go_port,
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
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_SOURCE,
    WARN_ON_CHANNEL_LIMIT,
    WORKERS,
    XFR_CHANNEL_SIZE,
    CarrierSettings,
    check_workers,
)
from isthmus.values import HostPort, ServerId
from isthmus.wire.alpn import ALPN as MUX_ALPN

#: The value of --agent-identity-binding that is not a file.
BY_NAME_WORD = "name"
GRPC = "grpc"
HTTP_CONNECT = "http-connect"
DEFAULT_SERVER_PORT = 8090
# kube-apiserver's konnectivity client gives up after 30 s; no client waits longer.
DIAL_CEILING_S = 30.0
# struct sockaddr_un has 108 bytes for the path, one of them for the final NUL (unix(7)).
_MAX_UDS_BYTES = 107

_FRONTEND = "Frontend, where kube-apiserver connects"
_AGENTS = "Agents"
_TLS = "TLS"
_LIMITS = "Time limits"
_BOUNDS = "Bounds"
_REPLICAS = "Identity and replicas"
_TOKENS = "Agent tokens and the Kubernetes API"
_COMPAT = "Compatibility"


class Door(NamedTuple):
    """The listeners of one protocol, and their flags."""

    mode: str
    port: int | None
    port_flag: str
    uds: str
    uds_flag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings(CarrierSettings):
    """The settings of a server; ``validate()`` checks them."""

    mode: tuple[str, ...] = option(
        (GRPC,),
        help="Protocol of the frontend; grpc,http-connect serves both, the second on "
        "--http-connect-uds-name or --http-connect-port",
        go="grpc, one of the two only",
        group=_FRONTEND,
        choices=(GRPC, HTTP_CONNECT),
        metavar="grpc|http-connect|grpc,http-connect",
        common=True,
    )
    uds_name: str = option(
        "",
        help="UNIX socket to listen on; no TCP port is opened unless --server-port is given",
        group=_FRONTEND,
        metavar="PATH",
        common=True,
    )
    delete_existing_uds_file: bool = option(
        True, help="Remove the socket file that a previous server left behind", group=_FRONTEND
    )
    server_port: int | None = port(
        None,
        help="TCP port to listen on with mutual TLS; 0 takes a free port, or none at all with "
        "--uds-name and without --server-cert",
        shown_default="8090, none with --uds-name",
        go="8090",
        group=_FRONTEND,
        common=True,
    )
    server_bind_address: str = option(
        "",
        help="Address to bind the frontend to; empty means all addresses",
        group=_FRONTEND,
        metavar="ADDRESS",
    )
    server_cert: str = option(
        "",
        help="TLS certificate shown to kube-apiserver",
        group=_FRONTEND,
        metavar="FILE",
        common=True,
    )
    server_key: str = option(
        "",
        help="Private key of --server-cert",
        group=_FRONTEND,
        metavar="FILE",
        common=True,
    )
    server_ca_cert: str = option(
        "",
        help="CAs that certificates of clients must come from",
        group=_FRONTEND,
        metavar="FILE",
        common=True,
    )
    http_connect_uds_name: str = option(
        "",
        help="UNIX socket for http-connect if --mode has both protocols",
        group=_FRONTEND,
        metavar="PATH",
        go=OURS,
    )
    http_connect_port: int | None = port(
        None,
        help="TCP port for http-connect if --mode has both protocols; it uses the certificates of "
        "--server-port",
        group=_FRONTEND,
        go=OURS,
    )
    agent_port: int = port(
        8091,
        help="Port to listen on for agents; 0 takes a free port",
        group=_AGENTS,
        common=True,
    )
    agent_bind_address: str = option(
        "",
        help="Address to bind the agent port to; empty means all addresses",
        group=_AGENTS,
        metavar="ADDRESS",
    )
    cluster_cert: str = option(
        "",
        help="TLS certificate shown to agents",
        group=_AGENTS,
        metavar="FILE",
        common=True,
    )
    cluster_key: str = option(
        "",
        help="Private key of --cluster-cert",
        group=_AGENTS,
        metavar="FILE",
        common=True,
    )
    cluster_ca_cert: str = option(
        "",
        help="CAs that certificates of agents must come from",
        group=_AGENTS,
        metavar="FILE",
        go="optional, agents then need no certificate",
        common=True,
    )
    insecure_agents: bool = option(
        False,
        help="Accept every agent without authentication; anyone who reaches the agent port can "
        "then receive traffic",
        group=_AGENTS,
        go=OURS,
    )
    agent_identity_binding: str = option(
        "",
        help="Limit what agents may claim: name allows their own name as ID and host, anything "
        "else is a file of rules, and empty believes every claim",
        group=_AGENTS,
        metavar="name|FILE",
        go=OURS,
    )
    link: str = LINK(
        help="Protocol to agents: mux is Isthmus's own, grpc is konnectivity's, auto takes the "
        "first that the agent supports",
        group=_AGENTS,
    )
    proxy_strategies: tuple[str, ...] = option(
        ("default",),
        help="Strategies for choosing an agent; the first that finds one wins: default, destHost, "
        "defaultRoute",
        choices=("default", "destHost", "defaultRoute"),
        group=_AGENTS,
    )
    admin: AdminSettings = block(AdminSettings(health_port=8092, port=PROGRAM.admin_port))
    tls_min_version: str = option(
        "",
        help="Minimum TLS version",
        choices=("", TLS12, TLS13),
        group=_TLS,
        metavar=f"{TLS12}|{TLS13}",
        shown_default=TLS12,
        go=f"{TLS12}, also 10 and 11",
    )
    cipher_suites: tuple[str, ...] = option(
        (),
        help="TLS 1.2 cipher suites to allow, by their IANA names",
        repeat=True,
        group=_TLS,
    )
    backend_dial_timeout_s: float = option(
        10.0,
        help="Timeout of a dial; 0 means 30s, the longest that kube-apiserver waits",
        unit="seconds",
        group=_LIMITS,
        go="0, no limit",
    )
    graceful_shutdown_timeout_s: float = GRACEFUL_SHUTDOWN(
        help="Time for open tunnels to finish after SIGTERM; 0 ends them at once",
        group=_LIMITS,
        go="0",
    )
    keepalive_time_s: float = KEEPALIVE_TIME(
        help="Ping an agent after it was silent for this long; links are pinged after 10s at the "
        "latest",
        group=_LIMITS,
    )
    link_resume_timeout_s: float = option(
        60.0,
        help="How long to keep the tunnels of an agent that lost its connection; 0 resets them at "
        "once",
        unit="seconds",
        group=_LIMITS,
        go=OURS,
    )
    frontend_keepalive_time_s: float = option(
        3600.0,
        help="Ping a gRPC client after it was silent for this long",
        unit="seconds",
        group=_LIMITS,
    )
    max_connections: int = MAX_CONNECTIONS(
        help="Maximum number of client connections, and of agent connections; 0 derives it from "
        "the limit of file descriptors",
        group=_BOUNDS,
        metavar="N",
        shown_default="half of the descriptors for clients, a quarter for agents",
    )
    max_connections_per_source: int = MAX_CONNECTIONS_PER_SOURCE(
        help="Maximum number of connections from one address, IPv6 /64 or user of a UNIX socket",
        group=_BOUNDS,
    )
    server_id: str = option(
        "",
        help="Server ID; empty makes a random one",
        env="PROXY_SERVER_ID",
        group=_REPLICAS,
        metavar="ID",
    )
    server_count: int | None = option(
        None,
        help="Number of servers to tell agents; without it, the number of servers in "
        "--peer-server, and this one",
        shown_default="1",
        group=_REPLICAS,
    )
    peer_server: tuple[str, ...] = option(
        (),
        help="ID of another server and the address of its agent port: agents that ask for the ID "
        "are handed on to it, and --peer-relay asks it for dials; this server's own ID is ignored",
        repeat=True,
        aliases=("peer-servers",),
        group=_REPLICAS,
        metavar="ID=HOST:PORT",
        go=OURS,
    )
    advertise_agent_address: str = option(
        "",
        help="Address of the agent port to put on the Lease, so that other servers hand agents on "
        "to it",
        group=_REPLICAS,
        metavar="HOST:PORT",
        go=OURS,
    )
    enable_lease_controller: bool = option(
        False, help="Publish a Lease, by which agents count the servers", group=_REPLICAS
    )
    lease_namespace: str = LEASE_NAMESPACE(help="Namespace of the Leases", group=_REPLICAS)
    lease_label: str = option(
        "k8s-app=konnectivity-server",
        help="Label of the Leases",
        group=_REPLICAS,
    )
    workers: int = WORKERS()
    agent_namespace: str = option(
        "", help="Namespace that tokens of agents must belong to", group=_TOKENS
    )
    agent_service_account: str = option(
        "", help="Service account that tokens of agents must belong to", group=_TOKENS
    )
    authentication_audience: str = option(
        "", help="Audience that tokens of agents must have", group=_TOKENS
    )
    kubeconfig: str = KUBECONFIG(group=_TOKENS)
    kubeconfig_qps: float = option(
        0.0, help="Maximum number of Kubernetes API requests per second", group=_TOKENS
    )
    kubeconfig_burst: int = option(0, help="Kubernetes API request burst", group=_TOKENS)
    kube_api_content_type: str = KUBE_API_CONTENT_TYPE(group=_TOKENS)
    compat: str = COMPAT(
        help="Answer with konnectivity's statuses and follow its port rules", group=_COMPAT
    )
    frontend_write_channel_size: int = option(
        10, help="Number of packets to queue per client", group=_COMPAT, inert=True
    )
    xfr_channel_size: int = XFR_CHANNEL_SIZE(10, group=_COMPAT)
    warn_on_channel_limit: bool = WARN_ON_CHANNEL_LIMIT(True, group=_COMPAT)

    revocation: RevocationSettings = block(RevocationSettings())
    roles: RoleSettings = block(RoleSettings())
    relay: RelaySettings = block(RelaySettings())
    near: NearSettings = block(NearSettings())
    shares: ShareSettings = block(ShareSettings())
    node_traffic: DestinationSettings = block(DestinationSettings())
    network: NetworkSettings = block(NetworkSettings())
    audit: AuditSettings = block(AuditSettings())
    gates: GateSettings = block(GateSettings())

    @property
    def frontend_port(self) -> int | None:
        """The TCP port of the frontend, 0 for any free one, or None when only the socket listens.

        Manifests for Go use ``--uds-name=… --server-port=0``, possibly without certificates:
        this is the only case in which 0 does not mean any free port.
        """
        if not self.uds_name:
            return DEFAULT_SERVER_PORT if self.server_port is None else self.server_port
        return None if self.server_port == 0 and not self.server_cert else self.server_port

    @property
    def agent_alpn(self) -> tuple[str, ...]:
        """The ALPN names for agents, in order of preference."""
        return {"mux": (MUX_ALPN,), "grpc": ("h2",)}.get(self.link, (MUX_ALPN, "h2"))

    @property
    def peers(self) -> Mapping[ServerId, HostPort]:
        """The other servers from flags, with the addresses of their agent ports.

        Raises:
            ConfigError: an entry is invalid.
        """
        return parse_peers(self.peer_server, own=self.server_id)

    @property
    def announced_count(self) -> int:
        """The number of servers according to flags."""
        return 1 + len(self.peers) if self.server_count is None else self.server_count

    @property
    def modes(self) -> tuple[str, ...]:
        """The protocols for clients."""
        return self.mode

    @property
    def doors(self) -> tuple[Door, ...]:
        """The listeners of each protocol."""
        first = Door(self.mode[0], self.frontend_port, "server-port", self.uds_name, "uds-name")
        if len(self.mode) == 1:
            return (first,)
        # Both: the general flags are grpc's, as it is the default of both.
        first = first._replace(mode=GRPC)
        return (
            first,
            Door(
                HTTP_CONNECT,
                self.http_connect_port,
                "http-connect-port",
                self.http_connect_uds_name,
                "http-connect-uds-name",
            ),
        )

    @property
    def dial_limit_s(self) -> float:
        """The total time limit of a dial."""
        return self.backend_dial_timeout_s or DIAL_CEILING_S

    def validate(self) -> None:
        """Check the settings before anything is opened.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        check_tls(self.tls_min_version, self.cipher_suites)
        check_values(self)
        check_durations(self)
        self.gates.check()
        self._check_frontend()
        self._check_agents()
        self._check_ports()
        check_id("server-id", self.server_id)
        _ = self.peers, self.shares.of_flags  # each raises if its text is invalid
        check_at_least("server-count", self.announced_count, 1)
        check_workers(self.workers)
        check_at_least("xfr-channel-size", self.xfr_channel_size, 1)
        check_at_least("max-connections", self.max_connections, 0)
        check_at_least("max-connections-per-source", self.max_connections_per_source, 0)
        check_at_least("kubeconfig-burst", self.kubeconfig_burst, 0)
        self._check_leases()
        self.check_carrier()
        self.audit.check()
        self.network.check()
        self._check_node_traffic()
        self.revocation.check(cluster_ca=self.cluster_ca_cert, server_ca=self.server_ca_cert)
        self.near.check()
        self.roles.check(agents_ca=self.cluster_ca_cert, clients_ca=self.server_ca_cert)
        self.relay.check(
            others=bool(self.peers) or self.enable_lease_controller,
            agents_ca=self.cluster_ca_cert,
            link=self.link,
        )

    def warnings(self) -> list[str]:
        """Warnings about valid but probably unintended settings, logged once at startup."""
        found = self._check_node_traffic()
        if any(door.port is not None for door in self.doors):
            found += self.roles.warnings()
        if self.insecure_agents and self.gates.enabled(CLUSTER_TO_MASTER):
            found.append(
                f"--insecure-agents and {CLUSTER_TO_MASTER}: anyone who reaches the agent port"
                " reaches every --allowed-destination"
            )
        return found

    def _check_node_traffic(self) -> list[str]:
        return self.node_traffic.check(on=self.gates.enabled(CLUSTER_TO_MASTER))

    def _check_modes(self) -> None:
        if not self.mode or len(set(self.mode)) < len(self.mode):
            raise ConfigError("--mode must be grpc, http-connect or grpc,http-connect")
        own = {
            "http-connect-uds-name": bool(self.http_connect_uds_name),
            "http-connect-port": self.http_connect_port is not None,
        }
        if len(self.mode) == 1:
            for flag, given in own.items():
                if given:
                    raise ConfigError(
                        f"--{flag} is for --mode=grpc,http-connect; one mode alone listens on"
                        " --uds-name and --server-port"
                    )
        elif not any(own.values()):
            raise ConfigError(
                "--http-connect-uds-name or --http-connect-port is missing: with both modes"
                " http-connect needs its own listener"
            )
        elif self.uds_name and self.uds_name == self.http_connect_uds_name:
            raise ConfigError("--http-connect-uds-name and --uds-name must differ")
        elif self.frontend_port and self.frontend_port == self.http_connect_port:
            raise ConfigError("--http-connect-port and --server-port must differ")

    def _check_files(self) -> None:
        """Report all missing flags at once; if it is one flag, later checks say why."""
        files = {"cluster-cert": self.cluster_cert, "cluster-key": self.cluster_key}
        if not (self.agent_namespace or self.insecure_agents):
            files["cluster-ca-cert"] = self.cluster_ca_cert
        if any(door.port is not None for door in self.doors):
            files |= {"server-cert": self.server_cert, "server-key": self.server_key}
            if self.roles.proves_clients:
                files["server-ca-cert"] = self.server_ca_cert
        missing = [f"--{flag}" for flag, file in files.items() if not file]
        if len(missing) > 1:
            *most, last = missing
            tcp_only = all(flag.startswith("--server-") for flag in missing)
            raise ConfigError(
                f"{', '.join(most)} and {last} are missing: create the certificates"
                ' with "isthmus pki init", see isthmus pki init -h'
                f"{', or use --uds-name alone' if tcp_only else ''}"
            )

    def _check_frontend(self) -> None:
        self._check_modes()
        for door in self.doors:
            if len(door.uds.encode()) > _MAX_UDS_BYTES:
                raise ConfigError(
                    f"--{door.uds_flag} is longer than the {_MAX_UDS_BYTES} bytes allowed"
                )
        check_pair("server-cert", self.server_cert, "server-key", self.server_key)
        tls = {
            "server-cert": self.server_cert,
            "server-key": self.server_key,
            "server-ca-cert": self.server_ca_cert,
        }
        if self.uds_name and self.compat == KONNECTIVITY:
            extra = [f"--{flag}" for flag, value in tls.items() if value]
            extra += ["--server-port"] if self.server_port else []
            if extra:
                raise ConfigError(
                    f"{extra[0]} and --uds-name exclude each other with --compat=konnectivity"
                )
        self._check_files()
        if all(door.port is None for door in self.doors):
            return
        self.roles.check_frontend(self.server_bind_address, self.server_ca_cert)
        if not self.roles.proves_clients:
            del tls["server-ca-cert"]
        *others, last = (f"--{flag}" for flag in tls)
        for flag, value in tls.items():
            if not value:
                raise ConfigError(
                    f"--{flag} is missing: a TCP frontend needs {', '.join(others)} and {last}, or"
                    " use --uds-name alone"
                )

    def _check_agents(self) -> None:
        for flag, value in (("cluster-cert", self.cluster_cert), ("cluster-key", self.cluster_key)):
            if not value:
                raise ConfigError(f"--{flag} is missing: the agent port is always TLS")
        if not self.proxy_strategies:
            raise ConfigError("--proxy-strategies needs at least one strategy, such as default")
        ways = {
            "cluster-ca-cert": bool(self.cluster_ca_cert),
            "agent-namespace": self._check_tokens(),
            "insecure-agents": self.insecure_agents,
        }
        used = [flag for flag, given in ways.items() if given]
        if len(used) > 1:
            raise ConfigError(f"--{used[1]} and --{used[0]} exclude each other")
        if not used:
            raise ConfigError(
                "--cluster-ca-cert is missing: without it, or --agent-namespace,"
                " --agent-service-account and --authentication-audience for tokens, agents cannot"
                " be authenticated, and only --insecure-agents accepts that"
            )
        if self.agent_identity_binding and self.insecure_agents:
            raise ConfigError(
                "--agent-identity-binding and --insecure-agents exclude each other: agents do not"
                " prove who they are"
            )

    def _check_tokens(self) -> bool:
        tokens = {
            "agent-namespace": self.agent_namespace,
            "agent-service-account": self.agent_service_account,
            "authentication-audience": self.authentication_audience,
        }
        missing = [flag for flag, value in tokens.items() if not value]
        if missing and len(missing) < len(tokens):
            raise ConfigError(
                f"--{missing[0]} is missing: agent tokens need --agent-namespace,"
                " --agent-service-account and --authentication-audience together"
            )
        return not missing

    def _check_leases(self) -> None:
        if self.advertise_agent_address:
            parse_address("--advertise-agent-address", self.advertise_agent_address)
        if not self.enable_lease_controller:
            if self.advertise_agent_address:
                raise ConfigError(
                    "--advertise-agent-address needs --enable-lease-controller as well: it is"
                    " written to the Lease, where other servers find it"
                )
            return
        for flag, check, text in (
            ("lease-label", parse_labels, self.lease_label),
            ("server-id", lambda text: lease_name(ServerId(text)), self.server_id or "any"),
        ):
            try:
                check(text)
            except ValueError as error:
                raise ConfigError(f"--{flag}: {error}") from error

    @property
    def wants_tokens(self) -> bool:
        """Whether agents authenticate with a token."""
        return bool(self.agent_namespace)

    @property
    def needs_kube(self) -> bool:
        """Whether the Kubernetes API is needed."""
        return self.wants_tokens or self.enable_lease_controller

    def _check_ports(self) -> None:
        if self.compat == KONNECTIVITY:
            for door in self.doors:
                if door.port is not None:
                    check_go_port(door.port_flag, door.port)
            check_go_port("agent-port", self.agent_port)
        self.admin.check_ports(compat=self.compat)
        for flag, host in (
            ("server-bind-address", self.server_bind_address),
            ("agent-bind-address", self.agent_bind_address),
        ):
            if host:
                check_host(flag, host)
