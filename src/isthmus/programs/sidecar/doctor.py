"""For the doctor: the port, server and rights in a sidecar's settings."""

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
)
from isthmus.kube.permissions import Permission
from isthmus.net.certificates import TlsFiles
from isthmus.programs.sidecar.settings import HTTP_CONNECT, SidecarSettings


class SidecarLayout(SettingsLayout[SidecarSettings]):
    """The layout of a sidecar of either kind."""

    @property
    def _files(self) -> TlsFiles:
        settings = self.settings
        return TlsFiles(
            settings.tls_cert_path,
            settings.tls_key_path,
            settings.ca_cert_path,
            labels=("--tls-cert-path", "--tls-key-path", "--ca-cert-path"),
        )

    @override
    def tls_uses(self) -> Iterator[TlsUse]:
        if not self.settings.konnectivity_uds:
            yield TlsUse(files=self._files, purpose="client")

    @override
    def listeners(self) -> Iterator[ListeningPort]:
        settings = self.settings
        yield ListeningPort(
            flag="--serving-port", host=settings.serving_address, port=settings.serving_port
        )

    @override
    def socket_files(self) -> Iterator[SocketFile]:
        path = self.settings.konnectivity_uds
        if path:
            yield SocketFile(flag="--konnectivity-uds", path=path, ours=False)

    @override
    def peers(self) -> Iterator[Peer]:
        settings = self.settings
        if settings.server_at is not None:
            connect = settings.konnectivity_protocol == HTTP_CONNECT
            yield Peer(
                flag="--konnectivity-hostname",
                at=settings.server_at,
                files=self._files,
                alpn=() if connect else ("h2",),
            )

    @override
    def kube(self) -> KubeNeed | None:
        settings = self.settings
        if not settings.needs_kube:
            return None
        permissions = tuple(Permission(verb=verb, resource="services") for verb in READ)
        return KubeNeed(kubeconfig=settings.kubeconfig, permissions=permissions)
