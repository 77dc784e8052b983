"""The settings of ``isthmus manifest node-proxy``: the form of the manifest, and names in it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from isthmus.errors import ConfigError
from isthmus.manifests.settings import (
    DAEMON_SET,
    EXECUTABLE,
    IMAGE,
    STATIC_POD,
    SYSTEMD,
    check_executable,
    check_image,
    check_name,
    check_namespace,
    check_object,
)
from isthmus.settings.options import OURS, option
from isthmus.settings.parsing import check_values
from isthmus.values import HostPort

FORMS = (DAEMON_SET, STATIC_POD, SYSTEMD)
_GROUP = "Manifest"
#: Settings that apply to some forms only.
_ONLY_IN = {
    "namespace": (DAEMON_SET, STATIC_POD),
    "image": (DAEMON_SET, STATIC_POD),
    "api_server": (DAEMON_SET,),
    "config_map": (DAEMON_SET,),
    "executable": (SYSTEMD,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProxyManifestSettings:
    """How to run a node proxy; ``validate()`` checks the settings."""

    GO: ClassVar = OURS

    form: str = option(
        "",
        help="Form of the manifest",
        flag="as",
        choices=("", *FORMS),
        metavar="|".join(FORMS),
        group=_GROUP,
    )
    name: str = option(
        "isthmus-node-proxy", help="Name of the objects", metavar="NAME", group=_GROUP
    )
    namespace: str = option(
        "kube-system", help="Namespace of the pods", metavar="NAME", group=_GROUP
    )
    image: str = IMAGE(
        help="Image to run, which has isthmus in its PATH, and iptables for modes that use it",
        group=_GROUP,
    )
    api_server: str = option(
        "",
        help="Address of kube-apiserver for the pods of a daemonset, which use their service "
        "account: not the Service, which only a node proxy makes reachable",
        metavar="HOST:PORT",
        group=_GROUP,
    )
    config_map: str = option(
        "",
        help="ConfigMap to mount where --config and --kubeconfig are, such as kubeadm's "
        "kube-proxy; without it they are files of the node",
        metavar="NAME",
        group=_GROUP,
    )
    executable: str = EXECUTABLE(group=_GROUP)

    @property
    def api(self) -> HostPort | None:
        """The API's address for a daemonset, if given."""
        return HostPort.parse(self.api_server) if self.api_server else None

    def validate(self) -> None:
        """Check each setting.

        Raises:
            ConfigError: a value is invalid; the message names the flag and says what to do.
        """
        if not self.form:
            raise ConfigError(f"--as is required: use {', '.join(FORMS[:-1])} or {FORMS[-1]}")
        check_values(self)
        check_name("name", self.name)
        check_namespace(self.namespace)
        check_image(self.image)
        check_executable(self.executable)
        if self.config_map:
            check_object("config-map", self.config_map)
        try:
            _ = self.api
        except ValueError as error:
            raise ConfigError(f"--api-server: {error}") from error

    def warnings(self, given: Collection[str]) -> list[str]:
        """Warnings about settings, by attribute, that have no effect in this form."""
        return [
            f"--{attribute.replace('_', '-')} has no effect with --as={self.form}"
            for attribute, forms in _ONLY_IN.items()
            if attribute in given and self.form not in forms
        ]
