"""The doctor's checks of a node proxy: its ports and rights, and what it needs of its node.

Programs are run as the node proxy runs them when it starts; nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from typing_extensions import override

from isthmus.errors import ConfigError
from isthmus.frame.finding import Asked, CheckId, Finding
from isthmus.frame.layout import READ, KubeNeed, ListeningPort, SettingsLayout
from isthmus.frame.patient import Look, Patient
from isthmus.kube.permissions import Permission
from isthmus.programs.node_proxy import PROGRAM
from isthmus.programs.node_proxy.kernel.host import Sysctls, has_ipv6
from isthmus.programs.node_proxy.rules.model import IpFamily
from isthmus.programs.node_proxy.settings import IPTABLES, IPVS, NFTABLES, NodeProxySettings

_NFT_LIMIT_S = 30.0
_UPDATE_NFT = "update nft to 1.1.2 or later, or 1.0.6.1, to list rules"
_NEARLY, _FULL = 0.8, 0.95
_FORWARD = {
    IpFamily.IPV4: "net/ipv4/ip_forward",
    IpFamily.IPV6: "net/ipv6/conf/all/forwarding",
}
_LOCALNET = "net/ipv4/conf/all/route_localnet"
_THIS = frozenset({PROGRAM.name})
_WATCHED = (("services", ""), ("nodes", ""), ("endpointslices", "discovery.k8s.io"))
_TRACKED, _MOST = "net/netfilter/nf_conntrack_count", "net/netfilter/nf_conntrack_max"


def see_tools(patient: Patient) -> Iterator[Finding]:
    """Run the start-up checks of the backend of --proxy-mode, and nothing more."""
    settings: NodeProxySettings = patient.settings
    for family in _families():
        about = f"--proxy-mode={settings.mode}, {family.value}"
        asked = Asked(CheckId.TOOLS, about, "checked programs and kernel features")
        try:
            _check_backend(settings.mode, family)
        except ConfigError as error:
            yield asked.fail(
                str(error), "install or update it, run as root, or choose another --proxy-mode"
            )
        else:
            yield asked.ok("available")
    if settings.mode == NFTABLES:
        yield _see_nft()


def _see_nft() -> Finding:
    """Let nft read the sets of every table, as it does before it lists or writes anything."""
    from isthmus.programs.node_proxy.kernel.backend import ApplyError
    from isthmus.programs.node_proxy.kernel.nftables import CrashError, NftProgram

    program = NftProgram(limit_s=_NFT_LIMIT_S)
    version = why = ""
    try:
        version = program.version().strip()
        program.lists_sets()
    except CrashError as error:
        return judge_nft(version, crash=str(error))
    except ApplyError as error:
        why = str(error)
    return judge_nft(version, refusal=why)


def judge_nft(version: str, *, crash: str = "", refusal: str = "") -> Finding:
    """Judge whether nft can list rules here; the node proxy writes its own without nft."""
    from isthmus.programs.node_proxy.kernel.nftables import crashes_on_later_sets

    asked = Asked(CheckId.TOOLS, "nft", "ran nft --version and listed all sets")
    update = f"{_UPDATE_NFT}; the node proxy writes its own rules without nft"
    if crash:
        return asked.warn(f"{version}: {crash.partition(';')[0]}: a newer nft made a set", update)
    if not version:
        return asked.ok(f"{refusal}: only listing rules and some detectors need nft")
    if crashes_on_later_sets(version):
        return asked.warn(f"{version} crashes as soon as a newer nft makes a set", update)
    return asked.warn(refusal, "run as root") if refusal else asked.ok(version)


def _families() -> list[IpFamily]:
    return [IpFamily.IPV4, IpFamily.IPV6] if has_ipv6() else [IpFamily.IPV4]


def _check_backend(mode: str, family: IpFamily) -> None:
    if mode == NFTABLES:
        from isthmus.programs.node_proxy.kernel.nftables import NftablesBackend

        NftablesBackend(family).start()
        return
    from isthmus.programs.node_proxy.kernel.commands import (
        IptablesCommands,
        IptablesPrograms,
    )

    assert mode in (IPTABLES, IPVS)
    IptablesCommands(programs=IptablesPrograms(family=family)).check()


def see_sysctls(patient: Patient, sysctls: Sysctls | None = None) -> Iterator[Finding]:
    """Judge the sysctls."""
    settings: NodeProxySettings = patient.settings
    sysctls = sysctls or Sysctls()
    for family in _families():
        name = _FORWARD[family]
        yield judge_forwarding(name, sysctls.read(name))
    if settings.mode == IPTABLES and settings.iptables_localhost_nodeports:
        yield judge_localnet(sysctls.read(_LOCALNET), running=patient.running is not None)
    yield judge_conntrack(Tracking(used=sysctls.read(_TRACKED), most=sysctls.read(_MOST)))


def _dotted(name: str) -> str:
    return name.replace("/", ".")


def judge_forwarding(name: str, value: int | None) -> Finding:
    """Judge whether the node forwards packets."""
    asked = Asked(CheckId.FORWARDING, _dotted(name), "read it")
    if value is None:
        return asked.skip("not readable here")
    if not value:
        return asked.fail(
            "0: packets of pods and to node ports are not forwarded",
            f"run: sysctl -w {_dotted(name)}=1, and add it to /etc/sysctl.d",
        )
    return asked.ok(str(value))


def judge_localnet(value: int | None, *, running: bool) -> Finding:
    """Judge whether node ports on localhost work; as root the program sets the sysctl itself."""
    asked = Asked(CheckId.LOCALNET, _dotted(_LOCALNET), "read it")
    if value is None:
        return asked.skip("not readable here")
    if value:
        return asked.ok("1: node ports on localhost work")
    if not running:
        return asked.ok("0: the program sets it to 1 when it starts as root")
    return asked.fail(
        "0: node ports on localhost do not work",
        f"run: sysctl -w {_dotted(_LOCALNET)}=1, or use --iptables-localhost-nodeports=false",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracking:
    """The number of tracked connections and the limit; None if not visible."""

    used: int | None
    most: int | None


def judge_conntrack(tracking: Tracking) -> Finding:
    """Judge whether the conntrack table has room."""
    asked = Asked(CheckId.CONNTRACK, _dotted(_MOST), "compared it with nf_conntrack_count")
    if not tracking.most or tracking.used is None:
        return asked.skip("no connections tracked yet, or not readable here")
    seen = f"{tracking.used:,} of {tracking.most:,} connections"
    todo = "raise the limit (--conntrack-max-per-core, --conntrack-min), and find their clients"
    share = tracking.used / tracking.most
    if share > _FULL:
        return asked.fail(f"{seen}: new connections are dropped", todo)
    if share > _NEARLY:
        return asked.warn(seen, todo)
    return asked.ok(seen)


class NodeProxyLayout(SettingsLayout[NodeProxySettings]):
    """The layout of a node proxy's settings."""

    looks = (
        Look(checks=(CheckId.TOOLS,), programs=_THIS, see=see_tools),
        Look(
            checks=(CheckId.FORWARDING, CheckId.LOCALNET, CheckId.CONNTRACK),
            programs=_THIS,
            see=see_sysctls,
        ),
    )

    @staticmethod
    @override
    def read(settings: NodeProxySettings) -> NodeProxySettings:
        if not settings.config:
            return settings
        from isthmus.programs.node_proxy.config import read_config

        return read_config(settings)

    @override
    def warnings(self) -> list[str]:
        return self.settings.notes()

    @override
    def listeners(self) -> Iterator[ListeningPort]:
        bounds = (
            ("--healthz-bind-address", self.settings.healthz),
            ("--metrics-bind-address", self.settings.metrics),
        )
        for flag, bound in bounds:
            if bound is not None:
                yield ListeningPort(flag=flag, host=bound.host, port=bound.port)

    @override
    def kube(self) -> KubeNeed | None:
        settings = self.settings
        if settings.manifests:
            return None
        return KubeNeed(
            kubeconfig=settings.kubeconfig,
            server=settings.master,
            permissions=tuple(
                Permission(verb=verb, resource=resource, group=group)
                for resource, group in _WATCHED
                for verb in READ
            ),
        )
