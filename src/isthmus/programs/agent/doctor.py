"""What the doctor checks of an agent's settings: certificate, servers, and node address."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address

from typing_extensions import override

from isthmus.frame.layout import (
    KubeNeed,
    ListeningPort,
    Peer,
    SettingsLayout,
    TlsUse,
    lease_permissions,
)
from isthmus.net.certificates import TlsFiles
from isthmus.programs.agent.settings import AgentSettings, is_srv_name
from isthmus.values import HostPort


class AgentLayout(SettingsLayout[AgentSettings]):
    """The layout of an agent."""

    @property
    def _files(self) -> TlsFiles:
        settings = self.settings
        labels = ("--agent-cert", "--agent-key", "--ca-cert")
        return TlsFiles(settings.agent_cert, settings.agent_key, settings.ca_cert, labels=labels)

    @override
    def tls_uses(self) -> Iterator[TlsUse]:
        yield TlsUse(files=self._files, purpose="client")

    @override
    def listeners(self) -> Iterator[ListeningPort]:
        settings = self.settings
        if settings.takes_node_traffic:
            for address in settings.bind.bound_addresses:
                for target in settings.node_traffic.targets:
                    yield ListeningPort(
                        flag="--target",
                        host=str(address),
                        port=target.local_port,
                        brought=True,
                    )

    @override
    def peers(self) -> Iterator[Peer]:
        settings = self.settings
        for host in settings.proxy_server_host:
            yield Peer(
                flag="--proxy-server-host",
                at=HostPort(host, settings.proxy_server_port),
                name=settings.proxy_server_name,
                name_flag="--proxy-server-name",
                files=self._files,
                alpn=settings.alpn,
                by_environment=True,
                srv=is_srv_name(host),
            )

    @override
    def brought(self) -> Sequence[IPv4Address | IPv6Address]:
        settings = self.settings
        return settings.bind.bound_addresses if settings.takes_node_traffic else ()

    @override
    def kube(self) -> KubeNeed | None:
        settings = self.settings
        if not settings.count_server_leases:
            return None
        permissions = lease_permissions(settings.lease_namespace)
        return KubeNeed(kubeconfig=settings.kubeconfig, permissions=permissions)
