"""What kube-apiserver is told so that it goes through the server in its pod."""

from __future__ import annotations

from isthmus.dial.rules_connectivity import (
    CONTROL_PLANE,
    ClientTls,
    Connection,
    ConnectivityConfig,
    NetworkConfig,
    Protocol,
)
from isthmus.dial.rules_egress import CLUSTER, ETCD
from isthmus.dial.settings_connectivity_writing import to_egress_selector
from isthmus.errors import ConfigError
from isthmus.manifests.pods import Manifest
from isthmus.manifests.settings_server import ServerManifestSettings
from isthmus.manifests.volumes import File
from isthmus.programs.server.settings import HTTP_CONNECT, ServerSettings
from isthmus.settings.go_yaml_writing import to_yaml
from isthmus.values import HostPort

_PROTOCOLS = {HTTP_CONNECT: Protocol.HTTP_CONNECT}


def connection(manifest: ServerManifestSettings, settings: ServerSettings) -> Connection:
    """How kube-apiserver reaches the server: its UNIX socket, or else TCP.

    Raises:
        ConfigError: kube-apiserver knows no such way; one sentence.
    """
    doors = settings.doors
    for door in doors:
        if door.uds:
            return Connection(protocol=_PROTOCOLS.get(door.mode, Protocol.PACKET), uds=door.uds)
    for door in doors:
        if door.mode == HTTP_CONNECT and door.port:
            tls = ClientTls(
                ca_bundle=manifest.egress_ca_bundle,
                client_cert=manifest.egress_client_cert,
                client_key=manifest.egress_client_key,
            )
            at = HostPort(manifest.egress_host, door.port)
            return Connection(protocol=Protocol.HTTP_CONNECT, tcp=at, tls=tls)
    if any(door.mode == HTTP_CONNECT for door in doors):
        raise ConfigError(
            "--server-port must not be 0 in a manifest: kube-apiserver has to find it"
        )
    raise ConfigError(
        "kube-apiserver speaks grpc over a UNIX socket only: say --mode=http-connect, or --uds-name"
    )


def egress_selector(manifest: ServerManifestSettings, settings: ServerSettings) -> str:
    """Write the EgressSelectorConfiguration.

    Raises:
        ConfigError: as ``connection()``.
    """
    direct = Connection(protocol=Protocol.DIRECT)
    ways = {CONTROL_PLANE: direct, ETCD: direct, CLUSTER: connection(manifest, settings)}
    networks = {name: NetworkConfig(name=name, connection=way) for name, way in ways.items()}
    return to_egress_selector(ConnectivityConfig(networks=networks))


def config_map(manifest: ServerManifestSettings, settings: ServerSettings) -> str:
    """Write the ConfigMap that has it.

    Raises:
        ConfigError: as ``connection()``, or the path of the file is none.
    """
    file = File.named("--egress-config-path", manifest.egress_config_path)
    metadata: Manifest = {"name": manifest.egress_config_map}
    if manifest.namespace:
        metadata["namespace"] = manifest.namespace
    data = {file.path.name: egress_selector(manifest, settings)}
    return to_yaml([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}])
