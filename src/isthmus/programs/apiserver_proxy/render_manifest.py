"""The proxy that gives a node its own address for kube-apiserver: static pod, unit or Ignition.

HyperShift's static pod has one probe, which goes through to the apiserver: when that is down, every
proxy is restarted. Here both probes ask the proxy about itself. The program itself sets up its
address, with the one capability that this needs and without a script.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from isthmus.errors import ConfigError
from isthmus.manifests import containers, pods, volumes
from isthmus.manifests.arguments import Given, arguments, for_pod, references
from isthmus.manifests.containers import PodContainer, fields
from isthmus.manifests.pods import Pod
from isthmus.manifests.settings import STATIC_POD
from isthmus.manifests.systemd import ServiceUnit, command_line, file_names
from isthmus.manifests.volumes import SERVICE_ACCOUNT, FlagFile
from isthmus.programs.apiserver_proxy.plan import ProxyPlan
from isthmus.programs.apiserver_proxy.settings import IN_THE_FILE, ApiserverProxySettings
from isthmus.programs.apiserver_proxy.settings_file import write
from isthmus.programs.apiserver_proxy.settings_manifest import (
    IGNITION,
    ApiserverProxyManifestSettings,
)
from isthmus.settings.options import options_of
from isthmus.text.go_yaml import to_yaml

VERSION = "3.2.0"
#: Not percent-encoded in a URL, besides letters and digits (RFC 3986 §3.3, without delimiters).
_SAFE = "/:=,;@!*()-._~"


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnitionFile:
    """A file owned by root; ``group`` is a name or a number, empty for root's group."""

    path: str
    contents: bytes
    mode: int
    group: str | int = ""

    def to_field(self) -> dict[str, Any]:
        """As in ``storage.files``."""
        found: dict[str, Any] = {
            "path": self.path,
            "mode": self.mode,
            "overwrite": True,
            "contents": {"source": data_url(self.contents)},
        }
        if self.group != "":
            found["group"] = {"name" if isinstance(self.group, str) else "id": self.group}
        return found


def data_url(contents: bytes) -> str:
    """The contents as a data URL: percent-encoded text, otherwise base64."""
    try:
        contents.decode("ascii")
    except UnicodeDecodeError:
        return f"data:;base64,{base64.b64encode(contents).decode()}"
    return f"data:,{quote(contents, safe=_SAFE)}"


def ignition(
    files: Sequence[IgnitionFile],
    *,
    units: Mapping[str, str] | None = None,
    groups: Sequence[str] = (),
) -> str:
    """Write it; ``units`` are texts by name, all enabled; ``groups`` become system groups."""
    document: dict[str, Any] = {"ignition": {"version": VERSION}}
    if groups:
        document["passwd"] = {"groups": [{"name": name, "system": True} for name in groups]}
    document["storage"] = {"files": [file.to_field() for file in files]}
    if units:
        document["systemd"] = {
            "units": [
                {"name": name, "enabled": True, "contents": text} for name, text in units.items()
            ]
        }
    return json.dumps(document, indent=2) + "\n"


#: HyperShift's directory for haproxy.cfg, and the kubelet's for static pods.
CONFIG = "/etc/kubernetes/apiserver-proxy-config/apiserver-proxy.yaml"
MANIFESTS = "/etc/kubernetes/manifests"
_SPARE_S = 10
_PROGRAM = "apiserver-proxy"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyManifestPlan:
    """The settings of the manifest and of the proxy in it.

    ``given`` has the proxy's flags as they were typed, ``settings`` their values, ``carried`` the
    contents of files that Ignition writes to the node, by their paths there.
    """

    manifest: ApiserverProxyManifestSettings
    settings: ApiserverProxySettings
    given: Given
    carried: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def config(self) -> str:
        """The path of the configuration file; empty if flags are used.

        Ignition writes a file: every user can read a password in a command line.
        """
        if self.settings.config or self.manifest.form != IGNITION:
            return self.settings.config
        return CONFIG

    @property
    def known(self) -> ProxyPlan | None:
        """The plan of the proxy; None if a file on the node has it."""
        return None if self.settings.config else self.settings.plan()

    @property
    def args(self) -> list[str]:
        """The proxy's arguments, beginning with the name of the program."""
        given = self.given
        if self.config:
            inside = {
                option.attribute
                for option in options_of(ApiserverProxySettings)
                if option.group in IN_THE_FILE
            }
            given = {key: texts for key, texts in given.items() if key not in inside}
            given = {**given, "config": (self.config,)}
        return [_PROGRAM, *arguments(options_of(ApiserverProxySettings), given)]

    @property
    def files(self) -> tuple[FlagFile, ...]:
        """The files that it reads, if flags name them.

        Raises:
            ConfigError: a path cannot be used in a manifest.
        """
        config = [FlagFile.named("--config", self.config)] if self.config else []
        return (*config, *volumes.flag_files(self.settings, without=("config",)))

    @property
    def capabilities(self) -> list[str]:
        """The capabilities it needs: to put addresses on ``lo``, to listen on low ports."""
        plan = self.known
        if plan is None:
            return [containers.NET_ADMIN]
        low = any(0 < port < 1024 for _, port in plan.listen)
        found = [containers.NET_ADMIN] if plan.managed else []
        return [*found, containers.NET_BIND_SERVICE] if low else found

    @property
    def grace_s(self) -> int:
        """How long it may take to end, including removing the address."""
        return math.ceil(self.settings.graceful_shutdown_timeout_s) + _SPARE_S


def apiserver_proxy_manifest(plan: ProxyManifestPlan) -> str:
    """Write the manifest.

    Raises:
        ConfigError: the proxy cannot run in that form; the message has the reason.
    """
    _check(plan)
    if plan.manifest.form == IGNITION:
        return _ignition(plan)
    return _static_pod(plan) if plan.manifest.form == STATIC_POD else _unit(plan)


def _check(plan: ProxyManifestPlan) -> None:
    what = "a static pod" if plan.manifest.runs_as == STATIC_POD else "a unit"
    if plan.settings.admin.health_port == 0:
        raise ConfigError("--health-port must not be 0 in a manifest: probes need a fixed port")
    for file in plan.files:
        if SERVICE_ACCOUNT in file.path.parents:
            raise ConfigError(
                f"{file.flag} {file.path}: {what} has no service account; name a file on the node"
            )
    named = references(plan.given)
    if named and (plan.config or plan.manifest.runs_as != STATIC_POD):
        raise ConfigError(f"$({named[0]}) is expanded only in the flags of a pod")


def _static_pod(plan: ProxyManifestPlan) -> str:
    manifest, settings = plan.manifest, plan.settings
    found = volumes.host_directories(plan.files)
    capabilities = plan.capabilities
    security = containers.unprivileged(manifest.run_as)
    if capabilities:
        security = containers.with_capability(*capabilities)
    container = PodContainer(
        name=_PROGRAM,
        image=manifest.image,
        args=for_pod(plan.args),
        security=security,
        env=fields(references(plan.given)),
        volumes=found,
        ports=_ports(plan),
        # Ready while it is alive: the apiserver has probes of its own.
        probes=containers.probes_of(
            settings.admin,
            readiness="/livez",
        ),
        resources=containers.resources(),
    )
    pod = Pod(
        name=manifest.name,
        namespace=manifest.namespace,
        containers=[container.to_spec()],
        volumes=found,
        grace_s=plan.grace_s,
    )
    return to_yaml([pods.static_pod(pod)])


def _ports(plan: ProxyManifestPlan) -> dict[str, int]:
    listened = plan.known.listen if plan.known is not None else ()
    numbers = dict.fromkeys(port for _, port in listened if port)
    named = {f"apiserver-{at}": port for at, port in enumerate(numbers, 1)}
    return {**named, "health": plan.settings.admin.health_port}


_UNIT_COMMENTS = (
    "The address of kube-apiserver on this node, which leads to a control plane elsewhere.",
    "",
    "    groupadd --system {group}",
    "    chgrp {group} FILES && chmod 0640 FILES      # {names}",
    "    systemctl enable --now UNIT",
)


def _unit(plan: ProxyManifestPlan) -> str:
    group, names = plan.manifest.unit_group, file_names(plan.files) or "none"
    connections = (plan.known or ProxyPlan()).max_connections
    unit = ServiceUnit(
        description="Isthmus apiserver proxy",
        comments=[line.format(group=group, names=names) for line in _UNIT_COMMENTS],
        commands=[
            # The program puts the address on lo and removes it: no script, no second unit.
            ("ExecStart", command_line([plan.manifest.executable, *plan.args])),
            # A changed --config is noticed automatically; this reloads it at once.
            ("ExecReload", "/bin/kill -HUP $MAINPID"),
        ],
        files=plan.files,
        user=[("DynamicUser", "yes"), ("SupplementaryGroups", group)],
        capabilities=plan.capabilities,
        before_kubelet=True,
        grace_s=plan.grace_s,
        max_files=max(65536, 4 * connections + 1024),
    )
    return unit.to_text()


def _ignition(plan: ProxyManifestPlan) -> str:
    manifest = plan.manifest
    is_pod = manifest.runs_as == STATIC_POD
    contents = dict(plan.carried)
    if plan.known is not None:
        if CONFIG in contents:
            raise ConfigError(f"--file {CONFIG} is also written from the flags; omit one of them")
        contents = {CONFIG: write(plan.known).encode(), **contents}
    # The reader: root in a pod with a capability, otherwise a group.
    group: str | int = "" if plan.capabilities else manifest.run_as
    if not is_pod:
        group = manifest.unit_group
    mode = 0o640 if group != "" else 0o600
    files = [
        IgnitionFile(path=path, contents=content, mode=mode, group=group)
        for path, content in contents.items()
    ]
    if is_pod:
        path = f"{MANIFESTS}/{manifest.name}.yaml"
        text = _static_pod(plan).encode()
        return ignition([*files, IgnitionFile(path=path, contents=text, mode=0o644)])
    units = {f"{manifest.name}.service": _unit(plan)}
    return ignition(files, units=units, groups=[manifest.unit_group])


def plan_warnings(plan: ProxyManifestPlan) -> list[str]:
    """Warnings, one text each."""
    found, known = [], plan.known
    proxy = known.through.proxy if known is not None and known.through is not None else None
    if plan.manifest.form != IGNITION:
        if proxy is not None and proxy.user is not None:
            found.append(
                "every user who can list processes can read the password of --http-proxy; with"
                " --config it is in a file"
            )
        return found
    written = {*plan.carried, *([CONFIG] if known is not None else [])}
    missing = [str(file.path) for file in plan.files if str(file.path) not in written]
    if missing:
        found.append(
            f"these files must exist on the node, unless --file adds them: {', '.join(missing)}"
        )
    return found
