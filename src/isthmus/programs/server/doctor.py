"""What the doctor checks of a server's settings: certificates, listeners, agent port, peers."""

from __future__ import annotations

from collections.abc import Iterator

from typing_extensions import override

from isthmus.frame.layout import (
    READ,
    KubeNeed,
    ListeningPort,
    Peer,
    SettingsLayout,
    SocketFile,
    TlsUse,
    lease_permissions,
)
from isthmus.kube.permissions import Permission
from isthmus.net.certificates import Purpose, TlsFiles
from isthmus.programs.server.peers_relay import peer_files
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.options import values_of
from isthmus.values import HostPort
from isthmus.wire.alpn import RELAY_ALPN


class ServerLayout(SettingsLayout[ServerSettings]):
    """The layout of a server."""

    @override
    def tls_uses(self) -> Iterator[TlsUse]:
        settings = self.settings
        address = settings.advertise_agent_address
        names = (HostPort.parse(address).host,) if address else ()
        yield _use(settings, "cluster", "server", names)
        yield _use(settings, "server", "server")
        if settings.relay.peer_relay:
            yield TlsUse(files=peer_files(settings), purpose="client")
        else:
            yield _use(settings, "peer", "client")

    @override
    def listeners(self) -> Iterator[ListeningPort]:
        settings = self.settings
        for door in settings.doors:
            if door.port is not None:
                flag = f"--{door.port_flag}"
                yield ListeningPort(flag=flag, host=settings.server_bind_address, port=door.port)
        yield ListeningPort(
            flag="--agent-port", host=settings.agent_bind_address, port=settings.agent_port
        )

    @override
    def socket_files(self) -> Iterator[SocketFile]:
        for door in self.settings.doors:
            if door.uds:
                yield SocketFile(flag=f"--{door.uds_flag}", path=door.uds)

    @override
    def peers(self) -> Iterator[Peer]:
        settings = self.settings
        # Agents are handed on to them unchanged; our own TLS is only for relaying.
        for other in settings.peers.values():
            yield Peer(
                flag="--peer-server",
                at=other,
                name=settings.relay.peer_server_name,
                name_flag="--peer-server-name",
                files=peer_files(settings) if settings.relay.peer_relay else None,
                alpn=(RELAY_ALPN,),
            )

    @override
    def kube(self) -> KubeNeed | None:
        settings = self.settings
        if not settings.needs_kube:
            return None
        found: list[Permission] = []
        if settings.wants_tokens:
            group = "authentication.k8s.io"
            found.append(Permission(verb="create", resource="tokenreviews", group=group))
        if settings.enable_lease_controller:
            verbs = (*READ, "get", "create", "update", "delete")
            found += lease_permissions(settings.lease_namespace, verbs)
        return KubeNeed(kubeconfig=settings.kubeconfig, permissions=tuple(found))


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
