"""Chooses the backend that programs the kernel, and removes the rules of other backends.

Backends are imported on demand: a mode does not load the others' modules.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence

from isthmus.errors import ConfigError
from isthmus.logs import log
from isthmus.programs.node_proxy.kernel.backend import KernelBackend
from isthmus.programs.node_proxy.kernel.host import has_ipv6
from isthmus.programs.node_proxy.rules.detectors import tidy_range
from isthmus.programs.node_proxy.rules.model import IpFamily
from isthmus.programs.node_proxy.settings import IPTABLES, IPVS, NFTABLES, NodeProxySettings

_log = logging.getLogger("isthmus.node_proxy")


def _iptables(family: IpFamily, settings: NodeProxySettings) -> KernelBackend:
    from isthmus.programs.node_proxy.kernel.iptables import IptablesBackend

    return IptablesBackend(family)


def _nftables(family: IpFamily, settings: NodeProxySettings) -> KernelBackend:
    from isthmus.programs.node_proxy.kernel.nftables import NftablesBackend

    return NftablesBackend(family)


def _ipvs(family: IpFamily, settings: NodeProxySettings) -> KernelBackend:
    from isthmus.programs.node_proxy.kernel.ipvs import IpvsBackend
    from isthmus.programs.node_proxy.rules.ipvs.plan import DEFAULT_SCHEDULER, IpvsOptions

    options = IpvsOptions(
        scheduler=settings.ipvs_scheduler or DEFAULT_SCHEDULER,
        exclude_cidrs=tuple(map(tidy_range, settings.ipvs_exclude_cidrs)),
        strict_arp=settings.ipvs_strict_arp,
        tcp_timeout_s=int(settings.ipvs_tcp_timeout_s),
        tcp_fin_timeout_s=int(settings.ipvs_tcpfin_timeout_s),
        udp_timeout_s=int(settings.ipvs_udp_timeout_s),
    )
    return IpvsBackend(family, options=options)


BACKENDS: dict[str, Callable[[IpFamily, NodeProxySettings], KernelBackend]] = {
    IPTABLES: _iptables,
    NFTABLES: _nftables,
    IPVS: _ipvs,
}
_SAVE = {IpFamily.IPV4: "iptables-save", IpFamily.IPV6: "ip6tables-save"}
# As in kube-proxy: ipvs uses iptables too, so that the rules of the two are cleaned up together.
_OTHERS = {IPTABLES: (NFTABLES,), IPVS: (NFTABLES,), NFTABLES: (IPTABLES, IPVS)}


def families_of_host() -> list[IpFamily]:
    return [IpFamily.IPV4, *([IpFamily.IPV6] if has_ipv6() else [])]


def start_backends(settings: NodeProxySettings) -> list[KernelBackend]:
    """Make a backend for each family that can be programmed on this host; blocks.

    Raises:
        ConfigError: there is none; the message is that of the first family.
    """
    started, reasons = [], []
    for family in families_of_host():
        backend = BACKENDS[settings.mode](family, settings)
        try:
            backend.start()
        except ConfigError as error:
            reasons.append((family, error))
        else:
            started.append(backend)
    if not started:
        raise reasons[0][1]
    for family, reason in reasons:
        log(_log, logging.WARNING, "IP family not programmed", family=family.value, error=reason)
    return started


def clean_others(settings: NodeProxySettings, families: Sequence[IpFamily]) -> list[str]:
    """Remove rules of other modes; returns messages about what remains."""
    return clean(_OTHERS[settings.mode], settings, families)


def clean_all(settings: NodeProxySettings) -> list[str]:
    """Remove the node proxy's rules of every mode; returns messages about what remains."""
    return clean(tuple(BACKENDS), settings, tuple(IpFamily))


def clean(
    modes: Sequence[str], settings: NodeProxySettings, families: Sequence[IpFamily]
) -> list[str]:
    """Remove the rules of these modes; blocks."""
    stayed: list[str] = []
    for mode in modes:
        for family in families:
            # Without iptables installed, nothing can have written rules with it.
            if mode != IPTABLES or shutil.which(_SAVE[family]):
                stayed += BACKENDS[mode](family, settings).cleanup()
    return stayed
