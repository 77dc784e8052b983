"""The settings of ``isthmus manifest``: in which form a program is to run, and under which names.

The flags of the program itself stand beside them; what becomes of all that is manifests/.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from isthmus import __version__
from isthmus.errors import ConfigError
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.settings.options import OURS, option
from isthmus.settings.parsing import check_at_least, check_choices
from isthmus.text.addresses import cidr

STATIC_POD = "static-pod"
SYSTEMD = "systemd"
DAEMON_SET = "daemonset"
DEPLOYMENT = "deployment"
FORMS = (STATIC_POD, SYSTEMD, DAEMON_SET, DEPLOYMENT)
#: The forms that a node can run before it has ever reached kube-apiserver.
EARLY_FORMS = (STATIC_POD, SYSTEMD)

_GROUP = "Manifest"
_AROUND = "Around the pods"
# RFC 1123 labels, as Kubernetes takes them for names; with room for a suffix of its own.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?", re.ASCII)
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_LINUX_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,30}", re.ASCII)
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,510}", re.ASCII)
_EXECUTABLE = re.compile(r"(/[A-Za-z0-9_.+-]+)+", re.ASCII)
_AUDIENCE = re.compile(r"[!-~]{1,253}", re.ASCII)
_LARGEST_ID = 2**31 - 1
_DNS_POLICIES = ("Default", "ClusterFirst", "ClusterFirstWithHostNet")
_PODS = (STATIC_POD, DAEMON_SET, DEPLOYMENT)
_ONLY_FOR = {
    "image": _PODS,
    "namespace": _PODS,
    "run_as": _PODS,
    "secret": (DAEMON_SET, DEPLOYMENT),
    "ca_config_map": (DAEMON_SET, DEPLOYMENT),
    "dns_policy": (DAEMON_SET, DEPLOYMENT),
    "https_proxy": _PODS,
    "no_proxy": _PODS,
    "replicas": (DEPLOYMENT,),
    "executable": (SYSTEMD,),
    "unit_group": (SYSTEMD,),
    "token_audience": (DAEMON_SET, DEPLOYMENT),
    "host_network": (DAEMON_SET,),
    "network_policy": (DAEMON_SET, DEPLOYMENT),
    "allow_cidr": (DAEMON_SET, DEPLOYMENT),
    "disruption_budget": (DEPLOYMENT,),
}
#: The audience of konnectivity's own DaemonSet, and the default of no server: it has to be named.
AUDIENCE = "system:konnectivity-server"


@dataclass(frozen=True, slots=True, kw_only=True)
class AroundSettings:
    """What a daemonset or deployment comes with; ``check_around()`` says whether it makes sense."""

    GO: ClassVar = OURS

    host_network: bool = option(
        True,
        help="Run the pods of a daemonset in the network of their nodes",
        group=_AROUND,
    )
    network_policy: bool = option(
        True,
        help="Add a NetworkPolicy where pods have a network of their own; nobody enforces one in "
        "the network of a node",
        group=_AROUND,
    )
    allow_cidr: tuple[str, ...] = option(
        (),
        help="Narrow the NetworkPolicy to this network: a server's agents come from it, an agent "
        "dials into it",
        repeat=True,
        metavar="CIDR",
        shown_default="everywhere",
        group=_AROUND,
    )
    disruption_budget: bool = option(
        True,
        help="Add a PodDisruptionBudget to a deployment with several pods",
        group=_AROUND,
    )

    def check_around(self) -> None:
        """Look at these settings.

        Raises:
            ConfigError: one sentence that names the flag and says what to do.
        """
        for text in self.allow_cidr:
            try:
                cidr(text)
            except ValueError as error:
                raise ConfigError(f"--allow-cidr {text} {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSettings(AroundSettings):
    """How a program is to be run; ``validate()`` says whether it makes sense."""

    GO: ClassVar = OURS

    form: str = option(
        "",
        help="Write a manifest of this form",
        flag="as",
        choices=("", *FORMS),
        metavar="|".join(FORMS),
        group=_GROUP,
    )
    name: str = option("isthmus-agent", help="Call it so", metavar="NAME", group=_GROUP)
    namespace: str = option(
        "kube-system", help="Put it into this namespace", metavar="NAME", group=_GROUP
    )
    image: str = option(
        f"isthmus:{__version__}",
        help="Run this image, which has isthmus in its PATH, and nft for --bind-address",
        metavar="IMAGE",
        group=_GROUP,
    )
    run_as: int = option(
        65532,
        help="Run as this user and group, who must be able to read the files",
        metavar="ID",
        group=_GROUP,
    )
    secret: str = option(
        "",
        help="Take the files of a daemonset or deployment from this Secret; empty means its name",
        metavar="NAME",
        group=_GROUP,
    )
    ca_config_map: str = option(
        "",
        help="Take --ca-cert of a daemonset or deployment from this ConfigMap, as ca.crt",
        metavar="NAME",
        group=_GROUP,
    )
    token_audience: str = option(
        AUDIENCE,
        help="Get tokens for this audience, the server's --authentication-audience",
        metavar="AUDIENCE",
        group=_GROUP,
    )
    stand_for: tuple[str, ...] = option(
        (),
        help="Have the agent stand for this address, network or host, by the --agent-identifiers "
        "of its kind",
        repeat=True,
        metavar="ADDRESS|CIDR|HOST",
        group=_GROUP,
    )
    dns_policy: str = option(
        "",
        help="Resolve names so; Default is as the node does it, and needs no DNS of the cluster",
        choices=("", *_DNS_POLICIES),
        metavar="|".join(_DNS_POLICIES),
        shown_default="ClusterFirstWithHostNet for a daemonset, ClusterFirst for a deployment",
        group=_GROUP,
    )
    https_proxy: str = option(
        "",
        help="Let the agent reach servers by this proxy, as HTTPS_PROXY of its pod",
        metavar="URL",
        group=_GROUP,
    )
    no_proxy: tuple[str, ...] = option(
        (),
        help="Let the agent reach these without the proxy, as NO_PROXY of its pod",
        repeat=True,
        metavar="LIST",
        group=_GROUP,
    )
    replicas: int = option(2, help="Run so many pods of a deployment", group=_GROUP)
    executable: str = option(
        "/usr/bin/isthmus", help="Start this file in a unit", metavar="PATH", group=_GROUP
    )
    unit_group: str = option(
        "isthmus",
        help="Run a unit with this group as well, who must be able to read the files",
        metavar="NAME",
        group=_GROUP,
    )

    def validate(self) -> None:
        """Look at each setting.

        Raises:
            ConfigError: one sentence that names the flag and says what to do.
        """
        if not self.form:
            raise ConfigError(f"--as is missing: say {', '.join(FORMS[:-1])} or {FORMS[-1]}")
        check_choices(self)
        check_name("name", self.name)
        check_namespace(self.namespace)
        for flag, text in (("secret", self.secret), ("ca-config-map", self.ca_config_map)):
            if text:
                check_object(flag, text)
        check_image(self.image)
        check_executable(self.executable)
        check_group(self.unit_group)
        check_at_least("replicas", self.replicas, 1)
        check_user(self.run_as)
        if self.https_proxy:
            ProxyAddress.parse(self.https_proxy, variable="--https-proxy")
        elif self.no_proxy:
            raise ConfigError("--no-proxy needs --https-proxy as well")
        check_audience("token-audience", self.token_audience)
        self.check_around()

    def warnings(self, given: Collection[str]) -> list[str]:
        """What was given, by attribute, and means nothing in this form; each a sentence."""
        return [
            f"--{attribute.replace('_', '-')} has no effect with --as={self.form}"
            for attribute, forms in _ONLY_FOR.items()
            if attribute in given and self.form not in forms
        ]


def check_name(flag: str, text: str) -> None:
    """Raise ConfigError unless an object of Kubernetes can be called so."""
    _check(_NAME, flag, text, "a name of at most 48 small letters, digits and dashes")


def check_namespace(text: str) -> None:
    """Raise ConfigError unless a namespace can be called so."""
    what = "a namespace of at most 63 small letters, digits and dashes"
    _check(_NAMESPACE, "namespace", text, what)


def check_object(flag: str, text: str) -> None:
    """Raise ConfigError unless a Secret or ConfigMap can be called so."""
    _check(_OBJECT, flag, text, "the name of an object, of small letters, digits, dashes and dots")


def check_image(text: str) -> None:
    """Raise ConfigError unless it can be an image."""
    _check(_IMAGE, "image", text, "an image such as isthmus:1.0")


def check_executable(text: str) -> None:
    """Raise ConfigError unless a unit can start it."""
    _check(_EXECUTABLE, "executable", text, "an absolute path without spaces")


def check_group(text: str) -> None:
    """Raise ConfigError unless a group can be called so."""
    _check(_LINUX_NAME, "unit-group", text, "the name of a group")


def check_audience(flag: str, text: str) -> None:
    """Raise ConfigError unless a token can be for it."""
    _check(_AUDIENCE, flag, text, "an audience, printable and without spaces")


def check_user(number: int) -> None:
    """Raise ConfigError unless it is a user, and not root."""
    if not 0 < number <= _LARGEST_ID:
        raise ConfigError(
            f"--run-as must be from 1 to {_LARGEST_ID}, not {number}: it is for who is not root"
        )


def _check(pattern: re.Pattern[str], flag: str, text: str, what: str) -> None:
    if not pattern.fullmatch(text):
        raise ConfigError(f"--{flag} takes {what}, not {text!r}")
