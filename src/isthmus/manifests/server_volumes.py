"""Where the files and sockets of a server in a pod come from.

Certificates are in Secrets that hold one pair each, authorities in a ConfigMap, all other files in
one more Secret. A socket is in a directory that kube-apiserver has as well: of the pod where both
are in it, else of the node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from isthmus.errors import ConfigError
from isthmus.manifests import objects, volumes
from isthmus.manifests.objects import CA, CERT, KEY
from isthmus.manifests.server_plan import ServerPlan, file_of
from isthmus.manifests.volumes import Volume

Source = Mapping[str, Any]

_AUTHORITIES = ("server_ca_cert", "cluster_ca_cert")
_ELSEWHERE = frozenset({"server_cert", "server_key", "cluster_cert", "cluster_key", *_AUTHORITIES})


def file_volumes(plan: ServerPlan) -> list[Volume]:
    """What has the files of a server whose pod is made by the API.

    Raises:
        ConfigError: files are where they cannot be mounted; one sentence.
    """
    manifest, settings = plan.manifest, plan.settings
    found = []
    for name, secret, pair in (
        ("server-certs", manifest.server_secret, ("server_cert", "server_key")),
        ("cluster-certs", manifest.cluster_secret, ("cluster_cert", "cluster_key")),
    ):
        files = [file_of(attribute, getattr(settings, attribute)) for attribute in pair]
        if files[0] is not None and files[1] is not None:
            found.append(objects.secret(name, secret, {CERT: files[0], KEY: files[1]}))
    mounted: dict[str, Volume] = {}
    for attribute in _AUTHORITIES:
        file = file_of(attribute, getattr(settings, attribute))
        if file is None:
            continue
        name, source = "konnectivity-ca", manifest.ca_config_map
        if attribute == "server_ca_cert" and manifest.client_ca_config_map:
            name, source = "konnectivity-client-ca", manifest.client_ca_config_map
        volume = objects.config_map(name, source, {CA: file})
        other = mounted.setdefault(volume.mount, volume)
        if other != volume:
            raise ConfigError(
                f"{file.flag} {file.path} needs a directory of its own: --client-ca-config-map and"
                " --ca-config-map cannot both be mounted there"
            )
    return [*found, *mounted.values(), *_others(plan)]


def _others(plan: ServerPlan) -> list[Volume]:
    named = {key: path for key, path in plan.named.items() if key not in _ELSEWHERE}
    files = [file for attribute, path in named.items() if (file := file_of(attribute, path))]
    if files and not plan.manifest.secret:
        raise ConfigError(f"{files[0].flag} needs --secret: the Secret that has the file")
    found = volumes.secret_directory(files, secret=plan.manifest.secret)
    return [replace(volume, name="konnectivity-files") for volume in found]


def scratch(plan: ServerPlan) -> list[Volume]:
    """Memory for keys that are written in a kubeconfig itself."""
    if not plan.settings.kubeconfig:
        return []
    return [replace(volumes.scratch(), name="konnectivity-tmp")]


def pod_sockets(plan: ServerPlan) -> list[Volume]:
    """The directories of sockets that both containers of a pod have.

    Raises:
        ConfigError: one cannot be mounted.
    """
    return _sockets(plan, lambda _: {"emptyDir": {"medium": "Memory"}})


def node_sockets(plan: ServerPlan) -> list[Volume]:
    """The directories of sockets that kube-apiserver has from the node as well.

    Raises:
        ConfigError: one cannot be mounted.
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
