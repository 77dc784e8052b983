"""What a program's settings refer to: files, certificates, ports, sockets, peers, permissions.

The doctor and the support bundle use it. Each room describes its own settings in doctor.py, which
``Program.layout`` names; admin ports are common to all programs and not described there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any, ClassVar, Generic, TypeVar

from isthmus.frame.patient import Look
from isthmus.kube.permissions import Permission
from isthmus.net.certificates import Purpose, TlsFiles
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.values import HostPort

S = TypeVar("S")
_LEASES = "coordination.k8s.io"
#: The verbs for reading.
READ = ("list", "watch")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsUse:
    """A certificate with its key, its authorities, and its use.

    ``names`` are those that peers request, as far as flags tell.
    """

    files: TlsFiles
    purpose: Purpose
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """A file that a flag names; only the program may read a secret one.

    A ``document`` is configuration written by a person, like flags.
    """

    flag: str
    path: str
    secret: bool = False
    is_directory: bool = False
    certificates: bool = False
    document: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningPort:
    """A TCP port that a program opens; ``brought``: the program adds the address itself."""

    flag: str
    host: str
    port: int
    brought: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketFile:
    """A UNIX socket, created by the program or by another one."""

    flag: str
    path: str
    ours: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A peer that a program connects to.

    ``name`` is the TLS server name if it is not the host, set by ``name_flag``. ``files`` None
    means no TLS by the program. ``proxy`` is a proxy of the settings; with
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeNeed:
    """How a program uses the Kubernetes API: its identity, and the permissions it needs."""

    kubeconfig: str
    server: str = ""
    permissions: tuple[Permission, ...] = ()

    @property
    def about(self) -> str:
        """Its name in texts."""
        return f"--kubeconfig {self.kubeconfig}" if self.kubeconfig else "the pod's service account"


def lease_permissions(namespace: str, verbs: Iterable[str] = READ) -> tuple[Permission, ...]:
    """The permissions for Leases of a namespace."""
    return tuple(
        Permission(verb=verb, resource="leases", group=_LEASES, namespace=namespace)
        for verb in verbs
    )


class SettingsLayout(Generic[S]):
    """What one program's settings refer to; a program overrides what it has.

    ``looks`` are the doctor's looks for this program only.
    """

    looks: ClassVar[Sequence[Look]] = ()

    def __init__(self, settings: S) -> None:
        self.settings = settings

    @classmethod
    def has(cls, what: str) -> bool:
        """Whether this program has such things, by the name of the method."""
        return getattr(cls, what) is not getattr(SettingsLayout, what)

    @staticmethod
    def read(settings: Any) -> Any:
        """The settings, completed from the file of their flags.

        Raises:
            ConfigError: it is wrong.
        """
        return settings

    def warnings(self) -> Iterable[str]:
        """Warnings: settings that are valid but may be a mistake."""
        find = getattr(self.settings, "warnings", None)
        return find() if find is not None else ()

    def tls_uses(self) -> Iterable[TlsUse]:
        """Every certificate."""
        return ()

    def listeners(self) -> Iterable[ListeningPort]:
        """Every TCP port that the program opens; 0 is any free one."""
        return ()

    def socket_files(self) -> Iterable[SocketFile]:
        """Every UNIX socket."""
        return ()

    def peers(self) -> Iterable[Peer]:
        """Every peer that the program connects to, except the Kubernetes API."""
        return ()

    def brought(self) -> Sequence[IPv4Address | IPv6Address]:
        """The addresses that the program adds to the host itself."""
        return ()

    def kube(self) -> KubeNeed | None:
        """How the program uses the Kubernetes API; None if not at all."""
        return None
