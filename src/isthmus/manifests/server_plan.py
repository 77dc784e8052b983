"""A server that is to be run: where, by which flags, with which files and ports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from isthmus.manifests.arguments import Given, arguments
from isthmus.manifests.extras import NOTHING, Extras
from isthmus.manifests.settings import DEPLOYMENT
from isthmus.manifests.settings_server import ServerManifestSettings
from isthmus.manifests.settings_server_forms import SIDECAR
from isthmus.manifests.volumes import File
from isthmus.programs.server.settings import BY_NAME_WORD, ServerSettings
from isthmus.settings.options import options_of

_FILE = "FILE"
_SPARE_S = 5
_LOW = 1024
#: How long a server behind a Service goes on when it has to end, until nobody is sent to it any
#: more: one that drains accepts nothing, and who was still sent to it would be refused.
LEAVE_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """Where a server is put, and its flags: ``given`` as typed, ``settings`` what they mean.

    ``makes_lease_namespace``: the namespace of the Leases is made with it, and nobody else's.
    """

    manifest: ServerManifestSettings
    settings: ServerSettings
    given: Given
    extras: Extras = NOTHING
    makes_lease_namespace: bool = False

    @property
    def args(self) -> list[str]:
        """The server's own command line, without the program."""
        return ["server", *arguments(options_of(ServerSettings), self.given)]

    @property
    def grace_s(self) -> int:
        """How long the pod may take to end; beside kube-apiserver that ends first."""
        stopping = math.ceil(self.settings.graceful_shutdown_timeout_s)
        if self.manifest.form == SIDECAR:
            return math.ceil(self.manifest.pre_stop_s) + stopping
        leaving = LEAVE_S if self.manifest.form == DEPLOYMENT else 0
        return leaving + stopping + _SPARE_S

    @property
    def named(self) -> Mapping[str, str]:
        """The paths of files that flags name, by attribute; empty where a flag names none."""
        settings = self.settings
        found = {
            option.attribute: str(getattr(settings, option.attribute))
            for option in options_of(ServerSettings)
            if option.metavar == _FILE
        }
        if settings.agent_identity_binding != BY_NAME_WORD:
            found["agent_identity_binding"] = settings.agent_identity_binding
        return found

    @property
    def files(self) -> tuple[File, ...]:
        """The files that flags name.

        Raises:
            ConfigError: a path is none that a manifest can say.
        """
        found = (file_of(attribute, path) for attribute, path in self.named.items())
        return tuple(file for file in found if file is not None)

    @property
    def sockets(self) -> tuple[File, ...]:
        """The UNIX sockets, as files of flags.

        Raises:
            ConfigError: a path is none that a manifest can say.
        """
        doors = self.settings.doors
        return tuple(File.named(f"--{door.uds_flag}", door.uds) for door in doors if door.uds)

    @property
    def socket_directories(self) -> list[PurePosixPath]:
        """Where the sockets are, each directory once."""
        return list(dict.fromkeys(file.directory for file in self.sockets))

    @property
    def frontend_ports(self) -> dict[str, int]:
        """The TCP ports for kube-apiserver, by protocol."""
        return {door.mode: door.port for door in self.settings.doors if door.port}

    @property
    def low_ports(self) -> list[int]:
        """The ports that only who has a capability may open."""
        settings = self.settings
        ports = (*self.frontend_ports.values(), settings.agent_port, settings.health_port)
        return sorted({port for port in ports if port < _LOW})

    @property
    def audit_log(self) -> File | None:
        """The file that the audit log is written to; None for standard output, or for none.

        Raises:
            ConfigError: the path is none that a manifest can say.
        """
        path = self.settings.audit_log_path
        return None if path == "-" else file_of("audit_log_path", path)

    @property
    def uses_account(self) -> bool:
        """It asks the Kubernetes API as the account of its pod."""
        return self.settings.needs_kube and not self.settings.kubeconfig


def file_of(attribute: str, path: str) -> File | None:
    """The file of a flag; None for an empty path.

    Raises:
        ConfigError: the path is none that a manifest can say.
    """
    return File.named(f"--{attribute.replace('_', '-')}", path) if path else None
