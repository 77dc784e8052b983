"""Where the settings of each program listen, and whom they connect to; files are layout.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from isthmus.net.certificates import TlsFiles
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.programs.agent.settings import AgentSettings, is_srv_name
from isthmus.programs.apiserver_proxy.plan import Checks, ProxyPlan
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings
from isthmus.programs.node_proxy.settings import NodeProxySettings
from isthmus.programs.server.peers_relay import peer_files
from isthmus.programs.server.settings import ServerSettings
from isthmus.programs.sidecar.settings import SidecarSettings
from isthmus.programs.sni_router.settings import SniRouterSettings
from isthmus.settings.admin import AdminSettings
from isthmus.settings.options import block_of
from isthmus.tools.doctor.layout import plan_of, sidecar_files, tls_uses
from isthmus.values import HostPort
from isthmus.wire.link import RELAY_ALPN


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
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


def listeners(settings: object) -> Iterator[Listener]:
    """Every TCP port that the settings open; 0 is any free one."""
    match settings:
        case ServerSettings():
            for door in settings.doors:
                if door.port is not None:
                    flag = f"--{door.port_flag}"
                    yield Listener(flag=flag, host=settings.server_bind_address, port=door.port)
            yield Listener(
                flag="--agent-port", host=settings.agent_bind_address, port=settings.agent_port
            )
        case AgentSettings():
            if settings.takes_node_traffic:
                for target in settings.node_traffic.targets:
                    yield Listener(
                        flag="--target",
                        host=settings.bind.address,
                        port=target.local_port,
                        brought=True,
                    )
        case SniRouterSettings():
            for host, port in settings.listeners:
                yield Listener(flag="--listen", host=host, port=port)
        case ApiserverProxySettings():
            plan = plan_of(settings)
            managed = {str(address) for address in plan.managed}
            for host, port in plan.listen:
                yield Listener(flag="--listen", host=host, port=port, brought=host in managed)
        case SidecarSettings():
            yield Listener(
                flag="--serving-port", host=settings.serving_address, port=settings.serving_port
            )
        case NodeProxySettings():
            bounds = (
                ("--healthz-bind-address", settings.healthz),
                ("--metrics-bind-address", settings.metrics),
            )
            for flag, bound in bounds:
                if bound is not None:
                    yield Listener(flag=flag, host=bound.host, port=bound.port)
        case _:
            pass
    admin = block_of(settings, AdminSettings)
    if admin is not None:
        infix = "-server" if isinstance(settings, AgentSettings) else ""
        yield Listener(
            flag=f"--health{infix}-port", host=admin.health_bind_address, port=admin.health_port
        )
        yield Listener(flag=f"--admin{infix}-port", host=admin.bind_address, port=admin.port)


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
            proxy=plan.through.proxy_for(upstream) if plan.through is not None else None,
            http=files is not None and plan.proxy_protocol is None,
        )
