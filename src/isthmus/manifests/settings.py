"""Shared settings of every ``isthmus manifest PROGRAM``: forms, and checks of names.

Each program has its own ones, and their flags, in settings_manifest.py of its room.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from isthmus import __version__
from isthmus.errors import ConfigError
from isthmus.settings.options import OURS, option, shared
from isthmus.text.addresses import cidr

STATIC_POD = "static-pod"
SYSTEMD = "systemd"
DAEMON_SET = "daemonset"
DEPLOYMENT = "deployment"
PATCH, POD_SPEC = "patch", "pod-spec"
#: The forms that a node can run before it has reached kube-apiserver.
EARLY_FORMS = (STATIC_POD, SYSTEMD)

#: The default user of programs in pods.
UNPRIVILEGED = 65532
#: The image that ``make image`` builds; no registry has it under this name.
DEFAULT_IMAGE = f"isthmus:{__version__}"
_AROUND = "Around the pods"

# Settings of several programs' manifests.
FORM = shared("", help="Form of the manifest", flag="as")
NAMESPACE = shared("kube-system", help="Namespace of the objects", metavar="NAME")
HOSTED_NAMESPACE = shared("", help="Namespace of the hosted control plane", metavar="NAME")
IMAGE = shared(DEFAULT_IMAGE, help="Image to run, which has isthmus in its PATH", metavar="IMAGE")
RUN_AS = shared(
    UNPRIVILEGED,
    help="User and group to run as, which must be able to read the files",
    metavar="ID",
)
REPLICAS = shared(2, help="Number of pods of a deployment")
EXECUTABLE = shared("/usr/bin/isthmus", help="Program that a unit starts", metavar="PATH")
UNIT_GROUP = shared(
    "isthmus",
    help="Additional group of a unit, which must be able to read the files",
    metavar="NAME",
)
CLIENT_SECRET = shared("konnectivity-client", metavar="NAME")
CA_CONFIG_MAP = shared("konnectivity-ca-bundle", metavar="NAME")
# RFC 1123 labels, as Kubernetes requires for names; with room for its suffixes.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?", re.ASCII)
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_LINUX_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,30}", re.ASCII)
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,510}", re.ASCII)
_EXECUTABLE = re.compile(r"(/[A-Za-z0-9_.+-]+)+", re.ASCII)
_AUDIENCE = re.compile(r"[!-~]{1,253}", re.ASCII)
_LARGEST_ID = 2**31 - 1
#: For servers in a namespace that is not their own; see ``lease_namespace``.
LEASE_NAMESPACE = "isthmus-leases"
#: The audience of konnectivity's own DaemonSet; no server has it as default, so it must be named.
AUDIENCE = "system:konnectivity-server"


@dataclass(frozen=True, slots=True, kw_only=True)
class AroundSettings:
    """The objects around a daemonset or deployment; ``check_around()`` validates them."""

    GO: ClassVar = OURS

    host_network: bool = option(
        True,
        help="Run the pods of a daemonset in the host network",
        group=_AROUND,
    )
    network_policy: bool = option(
        True,
        help="Add a NetworkPolicy where pods have a network of their own; none is enforced in the "
        "host network",
        group=_AROUND,
    )
    allow_cidr: tuple[str, ...] = option(
        (),
        help="Network to narrow the NetworkPolicy to: a server's agents come from it, an agent "
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
        """Check these settings.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        for text in self.allow_cidr:
            try:
                cidr(text)
            except ValueError as error:
                raise ConfigError(f"--allow-cidr {text} {error}") from None


def lease_namespace(namespace: str) -> str:
    """The namespace for the Leases of a namespace's servers: the same one, if it is their own.

    The right to write Leases is for all of a namespace. Leases in kube-system elect the leaders of
    the control plane, and default may have Leases of any program.
    """
    shared = namespace == "default" or namespace.startswith("kube-")
    return LEASE_NAMESPACE if shared else namespace


def check_name(flag: str, text: str) -> None:
    """Raise ConfigError unless it is a name for an object of Kubernetes."""
    _check(_NAME, flag, text, "a name of at most 48 small letters, digits and dashes")


def check_namespace(text: str) -> None:
    """Raise ConfigError unless it is a name for a namespace."""
    what = "a namespace of at most 63 small letters, digits and dashes"
    _check(_NAMESPACE, "namespace", text, what)


def check_object(flag: str, text: str) -> None:
    """Raise ConfigError unless it is a name for a Secret or ConfigMap."""
    _check(_OBJECT, flag, text, "the name of an object, of small letters, digits, dashes and dots")


def check_image(text: str) -> None:
    """Raise ConfigError unless it is the name of an image."""
    _check(_IMAGE, "image", text, "an image such as isthmus:1.0")


def check_executable(text: str) -> None:
    """Raise ConfigError unless it is a program that a unit can start."""
    _check(_EXECUTABLE, "executable", text, "an absolute path without spaces")


def check_group(text: str) -> None:
    """Raise ConfigError unless it is a name for a group."""
    _check(_LINUX_NAME, "unit-group", text, "the name of a group")


def check_audience(flag: str, text: str) -> None:
    """Raise ConfigError unless it is an audience for a token."""
    _check(_AUDIENCE, flag, text, "an audience, printable and without spaces")


def check_user(number: int) -> None:
    """Raise ConfigError unless it is a user, and not root."""
    if not 0 < number <= _LARGEST_ID:
        raise ConfigError(
            f"--run-as must be from 1 to {_LARGEST_ID}, not {number}: programs must not run as root"
        )


def _check(pattern: re.Pattern[str], flag: str, text: str, what: str) -> None:
    if not pattern.fullmatch(text):
        raise ConfigError(f"--{flag} takes {what}, not {text!r}")
