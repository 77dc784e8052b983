"""A plan for running a server: where, with which flags, files, sockets and ports.

Also the sources of its volumes, and kube-apiserver's configuration for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from isthmus.dial.rules_connectivity import (
    CONTROL_PLANE,
    ClientTls,
    ConnectivityConfig,
    NetworkConfig,
    NetworkConnection,
    NetworkProtocol,
)
from isthmus.dial.settings_connectivity_writing import to_egress_selector
from isthmus.dial.settings_egress_selector import CLUSTER, ETCD
from isthmus.errors import ConfigError
from isthmus.manifests import volumes
from isthmus.manifests.arguments import Given, arguments
from isthmus.manifests.pods import Manifest
from isthmus.manifests.settings import DEPLOYMENT
from isthmus.manifests.volumes import CA, CERT, KEY, FlagFile, Volume
from isthmus.programs.server.settings import BY_NAME_WORD, HTTP_CONNECT, ServerSettings
from isthmus.programs.server.settings_manifest import SIDECAR, ServerManifestSettings
from isthmus.settings.options import FILE, options_of
from isthmus.text.go_yaml import to_yaml
from isthmus.values import HostPort

_SPARE_S = 5
_LOW = 1024
#: How long a terminating server behind a Service keeps serving, until no new traffic is routed to
#: it: a draining server accepts nothing, and later connections would be refused.
LEAVE_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """Where a server runs, and its flags: ``given`` as typed, ``settings`` their values.

    ``makes_lease_namespace``: the namespace of the Leases is created with it, for it alone.
    """

    manifest: ServerManifestSettings
    settings: ServerSettings
    given: Given
    makes_lease_namespace: bool = False

    @property
    def args(self) -> list[str]:
        """The server's own command line, without the program."""
        return ["server", *arguments(options_of(ServerSettings), self.given)]

    @property
    def grace_s(self) -> int:
        """The pod's grace period; next to kube-apiserver, including kube-apiserver's own."""
        stopping = math.ceil(self.settings.graceful_shutdown_timeout_s)
        if self.manifest.form == SIDECAR:
            return math.ceil(self.manifest.pre_stop_s) + stopping
        leaving = LEAVE_S if self.manifest.form == DEPLOYMENT else 0
        return leaving + stopping + _SPARE_S

    @property
    def named(self) -> Mapping[str, str]:
        """The paths of files that flags name, by attribute; empty if a flag names none."""
        settings = self.settings
        found = {
            option.attribute: str(option.value_in(settings))
            for option in options_of(ServerSettings)
            if option.metavar == FILE
        }
        if settings.agent_identity_binding != BY_NAME_WORD:
            found["agent_identity_binding"] = settings.agent_identity_binding
        return found

    @property
    def files(self) -> tuple[FlagFile, ...]:
        """The files that flags name.

        Raises:
            ConfigError: a path cannot be used in a manifest.
        """
        found = (file_of(attribute, path) for attribute, path in self.named.items())
        return tuple(file for file in found if file is not None)

    @property
    def sockets(self) -> tuple[FlagFile, ...]:
        """The UNIX sockets, as files of flags.

        Raises:
            ConfigError: a path cannot be used in a manifest.
        """
        doors = self.settings.doors
        return tuple(FlagFile.named(f"--{door.uds_flag}", door.uds) for door in doors if door.uds)

    @property
    def socket_directories(self) -> list[PurePosixPath]:
        """The directories of the sockets, each once."""
        return list(dict.fromkeys(file.directory for file in self.sockets))

    @property
    def frontend_ports(self) -> dict[str, int]:
        """The TCP ports for kube-apiserver, by protocol."""
        return {door.mode: door.port for door in self.settings.doors if door.port}

    @property
    def low_ports(self) -> list[int]:
        """The ports that need a capability."""
        settings = self.settings
        ports = (*self.frontend_ports.values(), settings.agent_port, settings.admin.health_port)
        return sorted({port for port in ports if port < _LOW})

    @property
    def audit_log(self) -> FlagFile | None:
        """The file that the audit log is written to; None for standard output, or for none.

        Raises:
            ConfigError: the path cannot be used in a manifest.
        """
        path = self.settings.audit.log_path
        return None if path == "-" else file_of("audit_log_path", path)

    @property
    def uses_account(self) -> bool:
        """Whether it uses the Kubernetes API with its pod's service account."""
        return self.settings.needs_kube and not self.settings.kubeconfig


def file_of(attribute: str, path: str) -> FlagFile | None:
    """The file of a flag; None for an empty path.

    Raises:
        ConfigError: the path cannot be used in a manifest.
    """
    return FlagFile.named(f"--{attribute.replace('_', '-')}", path) if path else None


Source = Mapping[str, Any]

_AUTHORITIES = ("server_ca_cert", "cluster_ca_cert")
_ELSEWHERE = frozenset({"server_cert", "server_key", "cluster_cert", "cluster_key", *_AUTHORITIES})


def file_volumes(plan: ServerPlan) -> list[Volume]:
    """The volumes with the files of a server in a pod created through the API.

    Raises:
        ConfigError: the files cannot be mounted at their paths.
    """
    manifest, settings = plan.manifest, plan.settings
    found = []
    for name, secret, pair in (
        ("server-certs", manifest.server_secret, ("server_cert", "server_key")),
        ("cluster-certs", manifest.cluster_secret, ("cluster_cert", "cluster_key")),
    ):
        files = [file_of(attribute, getattr(settings, attribute)) for attribute in pair]
        if files[0] is not None and files[1] is not None:
            found.append(volumes.secret(name, secret, {CERT: files[0], KEY: files[1]}))
    mounted: dict[str, Volume] = {}
    for attribute in _AUTHORITIES:
        file = file_of(attribute, getattr(settings, attribute))
        if file is None:
            continue
        name, source = "konnectivity-ca", manifest.ca_config_map
        if attribute == "server_ca_cert" and manifest.client_ca_config_map:
            name, source = "konnectivity-client-ca", manifest.client_ca_config_map
        volume = volumes.config_map(name, source, {CA: file})
        other = mounted.setdefault(volume.mount, volume)
        if other != volume:
            raise ConfigError(
                f"{file.flag} {file.path} needs its own directory: --client-ca-config-map and"
                " --ca-config-map cannot both be mounted there"
            )
    return [*found, *mounted.values(), *_others(plan)]


def _others(plan: ServerPlan) -> list[Volume]:
    named = {key: path for key, path in plan.named.items() if key not in _ELSEWHERE}
    files = [file for attribute, path in named.items() if (file := file_of(attribute, path))]
    if files and not plan.manifest.secret:
        raise ConfigError(f"{files[0].flag} needs --secret, the Secret with the file")
    found = volumes.secret_directory(files, secret=plan.manifest.secret)
    return [replace(volume, name="konnectivity-files") for volume in found]


def scratch(plan: ServerPlan) -> list[Volume]:
    """A memory volume for keys embedded in a kubeconfig."""
    if not plan.settings.kubeconfig:
        return []
    return [replace(volumes.scratch(), name="konnectivity-tmp")]


def pod_sockets(plan: ServerPlan) -> list[Volume]:
    """The directories of sockets shared by both containers of a pod.

    Raises:
        ConfigError: a directory cannot be mounted.
    """
    return _sockets(plan, lambda _: {"emptyDir": {"medium": "Memory"}})


def node_sockets(plan: ServerPlan) -> list[Volume]:
    """The directories of sockets on the node, shared with kube-apiserver.

    Raises:
        ConfigError: a directory cannot be mounted.
    """
    return _sockets(
        plan, lambda path: {"hostPath": {"path": str(path), "type": "DirectoryOrCreate"}}
    )


def _sockets(plan: ServerPlan, source: Callable[[PurePosixPath], Source]) -> list[Volume]:
    volumes.check_mountable(plan.sockets)
    return [
        Volume(
            name=f"konnectivity-uds-{number}",
            mount=str(directory),
            source=source(directory),
            read_only=False,
        )
        for number, directory in enumerate(plan.socket_directories, 1)
    ]


_PROTOCOLS = {HTTP_CONNECT: NetworkProtocol.HTTP_CONNECT}


def connection(manifest: ServerManifestSettings, settings: ServerSettings) -> NetworkConnection:
    """How kube-apiserver reaches the server: its UNIX socket, or else TCP.

    Raises:
        ConfigError: kube-apiserver does not support it.
    """
    doors = settings.doors
    for door in doors:
        if door.uds:
            return NetworkConnection(
                protocol=_PROTOCOLS.get(door.mode, NetworkProtocol.PACKET), uds=door.uds
            )
    for door in doors:
        if door.mode == HTTP_CONNECT and door.port:
            tls = ClientTls(
                ca_bundle=manifest.egress_ca_bundle,
                client_cert=manifest.egress_client_cert,
                client_key=manifest.egress_client_key,
            )
            at = HostPort(manifest.egress_host, door.port)
            return NetworkConnection(protocol=NetworkProtocol.HTTP_CONNECT, tcp=at, tls=tls)
    if any(door.mode == HTTP_CONNECT for door in doors):
        raise ConfigError(
            "--server-port must not be 0 in a manifest: kube-apiserver needs a fixed port"
        )
    raise ConfigError(
        "kube-apiserver supports grpc only over a UNIX socket: use --uds-name,"
        " or --mode=http-connect"
    )


def egress_selector(manifest: ServerManifestSettings, settings: ServerSettings) -> str:
    """Write the EgressSelectorConfiguration.

    Raises:
        ConfigError: as ``connection()``.
    """
    return egress_selector_of(connection(manifest, settings))


def egress_selector_of(server: NetworkConnection) -> str:
    """Write the EgressSelectorConfiguration: the cluster through the server, others directly."""
    direct = NetworkConnection(protocol=NetworkProtocol.DIRECT)
    ways = {CONTROL_PLANE: direct, ETCD: direct, CLUSTER: server}
    networks = {name: NetworkConfig(name=name, connection=way) for name, way in ways.items()}
    return to_egress_selector(ConnectivityConfig(networks=networks))


def egress_config_map(manifest: ServerManifestSettings, settings: ServerSettings) -> str:
    """Write the ConfigMap with the EgressSelectorConfiguration.

    Raises:
        ConfigError: as ``connection()``, or the path of the file is invalid.
    """
    file = FlagFile.named("--egress-config-path", manifest.egress_config_path)
    metadata: Manifest = {"name": manifest.egress_config_map}
    if manifest.namespace:
        metadata["namespace"] = manifest.namespace
    data = {file.path.name: egress_selector(manifest, settings)}
    return to_yaml([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}])
