"""What the settings of a program name: files, certificates, ports, sockets, peers, rights.

The doctor and the support bundle look at all that. Each room says it for its own settings, in
doctor.py, which ``Program.layout`` names; admin ports are the same for all and not said there.
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
#: The verbs of what only reads.
READ = ("list", "watch")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeNeed:
    """What a program asks of the API: as whom, and which permissions that takes."""

    kubeconfig: str
    server: str = ""
    permissions: tuple[Permission, ...] = ()

    @property
    def about(self) -> str:
        """What sentences call it."""
        return f"--kubeconfig {self.kubeconfig}" if self.kubeconfig else "the pod's service account"


def lease_permissions(namespace: str, verbs: Iterable[str] = READ) -> tuple[Permission, ...]:
    """What may be done with the Leases of a namespace."""
    return tuple(
        Permission(verb=verb, resource="leases", group=_LEASES, namespace=namespace)
        for verb in verbs
    )


class SettingsLayout(Generic[S]):
    """What the settings of one program name; a program overrides what it has.

    ``looks`` are those that only this program has.
    """

    looks: ClassVar[Sequence[Look]] = ()

    def __init__(self, settings: S) -> None:
        self.settings = settings

    @classmethod
    def has(cls, what: str) -> bool:
        """Whether this program has such things at all, by the name of the method."""
        return getattr(cls, what) is not getattr(SettingsLayout, what)

    @staticmethod
    def read(settings: Any) -> Any:
        """The settings with what the file of their flags says.

        Raises:
            ConfigError: it is wrong.
        """
        return settings

    def warnings(self) -> Iterable[str]:
        """What is not wrong and may still not be meant, each a sentence."""
        find = getattr(self.settings, "warnings", None)
        return find() if find is not None else ()

    def tls_uses(self) -> Iterable[TlsUse]:
        """Every certificate."""
        return ()

    def listeners(self) -> Iterable[ListeningPort]:
        """Every TCP port that is opened; 0 is any free one."""
        return ()

    def socket_files(self) -> Iterable[SocketFile]:
        """Every UNIX socket."""
        return ()

    def peers(self) -> Iterable[Peer]:
        """Everybody that is connected to, but for the Kubernetes API."""
        return ()

    def brought(self) -> Sequence[IPv4Address | IPv6Address]:
        """The addresses that the program puts on its machine itself."""
        return ()

    def kube(self) -> KubeNeed | None:
        """What is asked of the Kubernetes API; None if nothing."""
        return None
