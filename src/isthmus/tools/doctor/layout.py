"""What the settings of each program name: files, certificates, ports, sockets and peers.

This knows the flags of every program; the looks know none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from isthmus.net.certificates import Purpose, TlsFiles
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.programs import programs
from isthmus.programs.agent.settings import AgentSettings, is_srv_name
from isthmus.programs.apiserver_proxy.plan import Checks, ProxyPlan
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings
from isthmus.programs.node_proxy.settings import NodeProxySettings
from isthmus.programs.server.peers_relay import peer_files
from isthmus.programs.server.settings import BY_NAME_WORD, ServerSettings
from isthmus.programs.sidecar.settings import SidecarSettings
from isthmus.programs.sni_router.settings import SniRouterSettings
from isthmus.settings.admin import AdminSettings
from isthmus.settings.options import block_of, values_of
from isthmus.values import HostPort
from isthmus.wire.link import RELAY_ALPN

SETTINGS: dict[str, type] = {it.name: it.settings_class for it in programs()}
ALL = frozenset(SETTINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsUse:
    """A certificate with its key and the authorities beside it, and what it is used as.

    ``names`` are those that peers ask for, as far as flags say.
    """

    files: TlsFiles
    purpose: Purpose
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """A file that a flag names; what is in a secret one is for the program alone.

    A ``document`` is configuration that somebody wrote, as flags are.
    """

    flag: str
    path: str
    secret: bool = False
    is_directory: bool = False
    certificates: bool = False
    document: bool = False


def plan_of(settings: ApiserverProxySettings) -> ProxyPlan:
    """What an apiserver proxy does, by its flags or its file; reads it.

    Raises:
        ConfigError: it is wrong.
    """
    if not settings.config:
        return settings.plan()
    from isthmus.programs.apiserver_proxy.planning import read_plan

    return read_plan(settings.config)


def tls_uses(settings: object) -> Iterator[TlsUse]:
    """Every certificate that the settings name."""
    match settings:
        case ServerSettings():
            address = settings.advertise_agent_address
            names = (HostPort.parse(address).host,) if address else ()
            yield _use(settings, "cluster", "server", names)
            yield _use(settings, "server", "server")
            if settings.relay.peer_relay:
                yield TlsUse(files=peer_files(settings), purpose="client")
            else:
                yield _use(settings, "peer", "client")
        case AgentSettings():
            yield TlsUse(
                files=TlsFiles(
                    settings.agent_cert,
                    settings.agent_key,
                    settings.ca_cert,
                    labels=("--agent-cert", "--agent-key", "--ca-cert"),
                ),
                purpose="client",
            )
        case ApiserverProxySettings():
            check = plan_of(settings).check
            labels = ("--client-cert", "--client-key", "--ca-cert")
            if check.kind is Checks.HTTPS:
                files = TlsFiles(check.cert, check.key, check.ca, labels=labels)
                yield TlsUse(files=files, purpose="client")
        case SidecarSettings():
            if not settings.konnectivity_uds:
                yield TlsUse(files=sidecar_files(settings), purpose="client")
        case _:
            pass
    admin = block_of(settings, AdminSettings)
    if admin is not None and admin.cert:
        yield TlsUse(
            files=TlsFiles(
                admin.cert,
                admin.key,
                admin.client_ca,
                labels=("--admin-cert", "--admin-key", "--admin-client-ca"),
            ),
            purpose="server",
        )


def _use(
    settings: ServerSettings, prefix: str, purpose: Purpose, names: tuple[str, ...] = ()
) -> TlsUse:
    values = values_of(settings)
    files = TlsFiles(
        values[f"{prefix}_cert"],
        values[f"{prefix}_key"],
        values[f"{prefix}_ca_cert"],
        labels=(f"--{prefix}-cert", f"--{prefix}-key", f"--{prefix}-ca-cert"),
    )
    return TlsUse(files=files, purpose=purpose, names=names)


def sidecar_files(settings: SidecarSettings) -> TlsFiles:
    """The files that a sidecar shows its server, and trusts it by."""
    return TlsFiles(
        settings.tls_cert_path,
        settings.tls_key_path,
        settings.ca_cert_path,
        labels=("--tls-cert-path", "--tls-key-path", "--ca-cert-path"),
    )


#: Flags that name a file with a secret in it; certificates are in ``tls_uses``.
_SECRET_FLAGS = ("kubeconfig", "service_account_token_path", "password_file", "admin_token_file")
_DOCUMENT_FLAGS = ("policy_file", "config")
_OTHER_FLAGS = ("cluster_crl_file", "server_crl_file", "crl_file")
_CA_FLAGS = ("proxy_ca_path", "http_proxy_ca_cert")


def named_files(settings: object) -> Iterator[SettingsFile]:
    """Every file that the settings name, in a fixed order, each once."""
    found: dict[str, SettingsFile] = {}
    values = values_of(settings)
    for use in tls_uses(settings):
        cert, key, ca = use.files.labels
        for flag, path, secret in (
            (cert, use.files.cert, False),
            (key, use.files.key, True),
            (ca, use.files.ca, False),
        ):
            if path:
                file = SettingsFile(flag=flag, path=path, secret=secret, certificates=not secret)
                found.setdefault(path, file)
    for attributes, kind in (
        (_SECRET_FLAGS, {"secret": True}),
        (_DOCUMENT_FLAGS, {"document": True}),
        (_OTHER_FLAGS, {}),
        (_CA_FLAGS, {"certificates": True}),
    ):
        for attribute in attributes:
            said = values.get(attribute, "")
            for path in said if isinstance(said, tuple) else filter(None, (said,)):
                flag = f"--{attribute.replace('_', '-')}"
                found.setdefault(path, SettingsFile(flag=flag, path=path, **kind))
    binding = values.get("agent_identity_binding", "")
    if binding and binding != BY_NAME_WORD:
        file = SettingsFile(flag="--agent-identity-binding", path=binding, document=True)
        found.setdefault(binding, file)
    manifests = values.get("manifests", "")
    if manifests:
        file = SettingsFile(flag="--manifests", path=manifests, is_directory=True)
        found.setdefault(manifests, file)
    yield from found.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningPort:
    """A TCP port that a program opens; ``brought`` means that it brings the address itself."""

    flag: str
    host: str
    port: int
    brought: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketFile:
    """A UNIX socket; one that we make, or one that somebody else has."""

    flag: str
    path: str
    ours: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Somebody a program connects to.

    ``name`` is what is asked for in TLS where it is not the host; the program has ``name_flag`` for
    it. ``files`` None means no TLS of our own. ``proxy`` is a proxy of the settings; with
    ``by_environment``, HTTPS_PROXY counts. ``http`` means that it answers HTTP.
    """

    flag: str
    at: HostPort
    name: str = ""
    name_flag: str = ""
    files: TlsFiles | None = None
    alpn: tuple[str, ...] = ()
    proxy: ProxyAddress | None = None
    by_environment: bool = False
    http: bool = False
    srv: bool = False


def listeners(settings: object) -> Iterator[ListeningPort]:
    """Every TCP port that the settings open; 0 is any free one."""
    match settings:
        case ServerSettings():
            for door in settings.doors:
                if door.port is not None:
                    flag = f"--{door.port_flag}"
                    yield ListeningPort(
                        flag=flag, host=settings.server_bind_address, port=door.port
                    )
            yield ListeningPort(
                flag="--agent-port", host=settings.agent_bind_address, port=settings.agent_port
            )
        case AgentSettings():
            if settings.takes_node_traffic:
                for target in settings.node_traffic.targets:
                    yield ListeningPort(
                        flag="--target",
                        host=settings.bind.address,
                        port=target.local_port,
                        brought=True,
                    )
        case SniRouterSettings():
            for host, port in settings.listeners:
                yield ListeningPort(flag="--listen", host=host, port=port)
            for host, port in settings.proxy_listeners:
                yield ListeningPort(flag="--listen-proxy", host=host, port=port)
        case ApiserverProxySettings():
            plan = plan_of(settings)
            managed = {str(address) for address in plan.managed}
            for host, port in plan.listen:
                yield ListeningPort(flag="--listen", host=host, port=port, brought=host in managed)
        case SidecarSettings():
            yield ListeningPort(
                flag="--serving-port", host=settings.serving_address, port=settings.serving_port
            )
        case NodeProxySettings():
            bounds = (
                ("--healthz-bind-address", settings.healthz),
                ("--metrics-bind-address", settings.metrics),
            )
            for flag, bound in bounds:
                if bound is not None:
                    yield ListeningPort(flag=flag, host=bound.host, port=bound.port)
        case _:
            pass
    admin = block_of(settings, AdminSettings)
    if admin is not None:
        infix = "-server" if isinstance(settings, AgentSettings) else ""
        yield ListeningPort(
            flag=f"--health{infix}-port", host=admin.health_bind_address, port=admin.health_port
        )
        yield ListeningPort(flag=f"--admin{infix}-port", host=admin.bind_address, port=admin.port)


def socket_files(settings: object) -> Iterator[SocketFile]:
    """Every UNIX socket that the settings name."""
    match settings:
        case ServerSettings():
            for door in settings.doors:
                if door.uds:
                    yield SocketFile(flag=f"--{door.uds_flag}", path=door.uds)
        case SidecarSettings() if settings.konnectivity_uds:
            path = settings.konnectivity_uds
            yield SocketFile(flag="--konnectivity-uds", path=path, ours=False)
        case _:
            pass


def peers(settings: object) -> Iterator[Peer]:
    """Everybody that the settings connect to, but for the Kubernetes API."""
    match settings:
        case ServerSettings():
            # Agents are handed on to them as they come; TLS of our own is for relaying only.
            for other in settings.peers.values():
                yield Peer(
                    flag="--peer-server",
                    at=other,
                    name=settings.relay.peer_server_name,
                    name_flag="--peer-server-name",
                    files=peer_files(settings) if settings.relay.peer_relay else None,
                    alpn=(RELAY_ALPN,),
                )
        case AgentSettings():
            (use,) = (use for use in tls_uses(settings) if use.purpose == "client")
            for host in settings.proxy_server_host:
                yield Peer(
                    flag="--proxy-server-host",
                    at=HostPort(host, settings.proxy_server_port),
                    name=settings.proxy_server_name,
                    name_flag="--proxy-server-name",
                    files=use.files,
                    alpn=settings.alpn,
                    by_environment=True,
                    srv=is_srv_name(host),
                )
        case ApiserverProxySettings():
            yield from _upstreams(plan_of(settings))
        case SidecarSettings():
            at = settings.server_at
            if at is not None:
                connect = settings.konnectivity_protocol == "http-connect"
                yield Peer(
                    flag="--konnectivity-hostname",
                    at=at,
                    files=sidecar_files(settings),
                    alpn=() if connect else ("h2",),
                )
        case _:
            pass


def _upstreams(plan: ProxyPlan) -> Iterator[Peer]:
    check = plan.check
    for upstream in plan.upstreams:
        files = None
        if check.kind is Checks.HTTPS:
            files = TlsFiles(
                check.cert,
                check.key,
                check.ca,
                labels=("--client-cert", "--client-key", "--ca-cert"),
            )
        yield Peer(
            flag="--upstream",
            at=upstream,
            name=check.server_name,
            name_flag="--health-check-server-name",
            files=files,
            alpn=("http/1.1",) if files is not None else (),
            proxy=plan.proxy_for(upstream),
            http=files is not None and plan.proxy_protocol is None,
        )
