"""The node proxy's own node: its addresses, pod ranges, and the detector made from them.

The Node comes from the API and may change; settings are always those of its present state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from isthmus.errors import ConfigError
from isthmus.logs import log
from isthmus.programs.node_proxy.kernel.host import (
    has_loopback,
    node_ips,
    ranges_of,
    within,
)
from isthmus.programs.node_proxy.rules.detectors import (
    MODES,
    NOTHING_LOCAL,
    DetectorSettings,
    LocalMatch,
    LocalTrafficDetector,
    for_family,
    needs_pod_cidrs,
)
from isthmus.programs.node_proxy.rules.model import IpFamily, NodeObject
from isthmus.programs.node_proxy.rules.settings import RuleSettings
from isthmus.programs.node_proxy.settings import IPTABLES, NFTABLES, NodeProxySettings
from isthmus.text.suggestions import nearest

GROUP = "isthmus.local_traffic_detectors"

DetectorMaker = Callable[[DetectorSettings], LocalTrafficDetector]


def installed() -> dict[str, EntryPoint]:
    return {found.name: found for found in entry_points(group=GROUP)}


def find_detector(mode: str) -> DetectorMaker:
    """The factory of a mode's detector: built in, or installed by another package.

    Raises:
        ConfigError: the mode is unknown, or its package cannot be loaded.
    """
    if mode in MODES:
        return MODES[mode].make
    there = installed()
    if mode not in there:
        ours = [name for name in MODES if name[0].islower()]
        known = [*ours, *sorted(there)]
        raise ConfigError(
            f"--detect-local must be {', '.join(known[:-1])} or {known[-1]}, not"
            f" {mode!r}{nearest(mode, known)}"
        )
    try:
        load = there[mode].load()
    except Exception as exc:
        raise ConfigError(_broken(there[mode], f"cannot be loaded: {_described(exc)}")) from exc
    if not callable(load):
        raise ConfigError(_broken(there[mode], "is not callable"))
    return _checked(there[mode], load)


def _checked(point: EntryPoint, load: DetectorMaker) -> DetectorMaker:
    """Check another package's detectors against the interface, each time one is made."""

    def make(given: DetectorSettings) -> LocalTrafficDetector:
        try:
            made = load(given)
            matches = [match for family in IpFamily for match in made.matches(family)]
            _ = made.bridge_ports
        except Exception as exc:
            raise ConfigError(_broken(point, f"failed: {_described(exc)}")) from exc
        if not all(isinstance(match, LocalMatch) for match in matches):
            raise ConfigError(_broken(point, "returned something other than LocalMatch values"))
        return made

    return make


def _broken(point: EntryPoint, what: str) -> str:
    return f"the detector {point.name!r} ({point.value}) {what}"


def _described(exc: BaseException) -> str:
    text = " ".join(str(exc).split())
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


#: kube-proxy waits this long for a Node with an address, and then continues without.
ADDRESS_WAIT_S = 30.0
#: An API without ServiceCIDRs delivers none; waiting for them saves writing all rules twice.
SERVICE_CIDRS_WAIT_S = 3.0
#: The interval of messages while the Node has no podCIDRs.
_SAY_AGAIN_S = 60.0
_log = logging.getLogger("isthmus.node_proxy")


@dataclass(slots=True, kw_only=True)
class HostFacts:
    """What was found out about this host; ``addresses`` may change later."""

    addresses: Mapping[IpFamily, frozenset[str]]
    drop_invalid: bool = True
    accounting: bool = False


class OwnNode:
    """This node as the API has it, and the rule settings that follow."""

    def __init__(
        self,
        settings: NodeProxySettings,
        name: str,
        make: DetectorMaker,
        host: HostFacts,
        changed: Callable[[], None],
        *,
        address_wait_s: float = ADDRESS_WAIT_S,
    ) -> None:
        """``changed`` is called when rule settings may have changed, once they are available."""
        self.name = name
        self.host = host
        self._settings = settings
        self._make = make
        self._changed = changed
        self._address_wait_s = address_wait_s
        self._needs_ranges = needs_pod_cidrs(settings.detector_mode, settings.detector_settings())
        self._addressed = asyncio.Event()
        self._ranged = asyncio.Event()
        self._service_cidrs_heard = asyncio.Event()
        self._ready = False
        #: What rules wait for on the part of the Node; empty for nothing.
        self.waiting_for = f"the Node {name}"
        self._pod_cidrs: tuple[str, ...] = ()
        self._service_cidrs: tuple[str, ...] = ()
        self._ips = node_ips((), settings.bind_address)
        self._detector: LocalTrafficDetector = NOTHING_LOCAL

    def __repr__(self) -> str:
        return f"<OwnNode {self.name} {self._ips.of[self._ips.primary]}>"

    @property
    def primary(self) -> IpFamily:
        return self._ips.primary

    async def wait_ready(self, families: list[IpFamily]) -> None:
        """Wait for what rules need: an address, for a limited time, and pod ranges."""
        self.waiting_for = f"an address of the Node {self.name}"
        try:
            async with asyncio.timeout(self._address_wait_s):
                await self._addressed.wait()
        except TimeoutError:
            log(
                _log, logging.WARNING, "node address unknown; set --bind-address",
                node=self.name, waited_s=self._address_wait_s,
            )  # fmt: skip
        if self._settings.mode == NFTABLES:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(self._address_wait_s, SERVICE_CIDRS_WAIT_S)):
                    await self._service_cidrs_heard.wait()
        if self._needs_ranges:
            await self._wait_ranges()
        self.waiting_for = ""
        self._make_detector()
        self._ready = True
        log(
            _log, logging.INFO, "node", name=self.name, ips=", ".join(self._ips.of.values()),
            detector=repr(self._detector),
        )  # fmt: skip
        for family in families:
            if not self._detector.matches(family):
                log(
                    _log, logging.WARNING,
                    "no local traffic detector for this IP family: traffic to cluster IPs is not"
                    " masqueraded", family=family.value, detect_local=self._settings.detector_mode,
                )  # fmt: skip

    async def _wait_ranges(self) -> None:
        """Wait for the Node's podCIDRs, with a message every minute."""
        self.waiting_for = f"podCIDRs of the Node {self.name}"
        waited_s = 0.0
        while not self._ranged.is_set():
            log(
                _log, logging.WARNING,
                "waiting for podCIDRs of the Node before writing rules: have them allocated"
                " (--allocate-node-cidrs of kube-controller-manager), set --node-cidr, or use"
                " another --detect-local",
                node=self.name, waited_s=round(waited_s),
            )  # fmt: skip
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SAY_AGAIN_S):
                    await self._ranged.wait()
            waited_s += _SAY_AGAIN_S

    def heard(self, node: NodeObject | None) -> None:
        """Set the Node; None means that it does not exist."""
        if node is None:
            return
        ips = node_ips(node.addresses, self._settings.bind_address)
        before, self._ips = self._ips, ips
        if node.addresses or ips.known:
            self._addressed.set()
        if node.pod_cidrs:
            self._pod_cidrs, old = node.pod_cidrs, self._pod_cidrs
            self._ranged.set()
            if self._ready and old != self._pod_cidrs:
                self._follow_ranges(old)
        if self._ready and before != ips:
            log(_log, logging.INFO, "node addresses changed", ips=", ".join(ips.of.values()))
            self._changed()

    def heard_service_cidrs(self, ranges: tuple[str, ...]) -> None:
        self._service_cidrs_heard.set()
        if ranges != self._service_cidrs:
            self._service_cidrs = ranges
            self._changed()

    def heard_addresses(self, addresses: Mapping[IpFamily, frozenset[str]]) -> None:
        before = {family: self.rules(family) for family in IpFamily}
        self.host.addresses = addresses
        if self._ready and any(self.rules(family) != rules for family, rules in before.items()):
            log(_log, logging.INFO, "node port addresses changed")
            self._changed()

    def _follow_ranges(self, old: tuple[str, ...]) -> None:
        before = self._detector
        self._make_detector()
        if before != self._detector:
            log(
                _log, logging.INFO, "podCIDRs of the Node changed",
                pod_cidrs=",".join(self._pod_cidrs), before=",".join(old),
            )  # fmt: skip
            self._changed()

    def _make_detector(self) -> None:
        try:
            self._detector = self._make(self._settings.detector_settings(self._pod_cidrs))
        except ConfigError as error:  # of another package: the previous one stays
            log(_log, logging.ERROR, "cannot make the local traffic detector", error=error)

    def rules(self, family: IpFamily) -> RuleSettings:
        """The present rule settings of a family."""
        return rule_settings(
            self._settings,
            family,
            detector=self._detector,
            ips=self._ips.of,
            host=self.host,
            service_cidrs=self._service_cidrs,
        )


def rule_settings(
    settings: NodeProxySettings,
    family: IpFamily,
    *,
    detector: LocalTrafficDetector,
    ips: Mapping[IpFamily, str],
    host: HostFacts,
    service_cidrs: tuple[str, ...] = (),
) -> RuleSettings:
    """The rule settings of a family on a node with these addresses."""
    ranges = ranges_of(settings.node_port_ranges, family, ips.values())
    localhost = (
        settings.mode == IPTABLES
        and settings.iptables_localhost_nodeports
        and family is IpFamily.IPV4
        and has_loopback(ranges)
    )
    addresses = within(host.addresses.get(family, ()), ranges)
    if addresses is not None and not localhost:
        addresses = tuple(ip for ip in addresses if ip != "::1" and not ip.startswith("127."))
    return RuleSettings(
        family=family,
        detector=for_family(detector, family),
        masquerade_bit=settings.masquerade_bit,
        masquerade_all=settings.masquerade_all,
        localhost_node_ports=localhost,
        node_ip=ips[family],
        node_port_addresses=addresses,
        drop_invalid=host.drop_invalid,
        accounting=host.accounting,
        service_cidrs=service_cidrs,
    )
