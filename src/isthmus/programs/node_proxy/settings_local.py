"""Settings of the node proxy about local traffic: how to recognise packets of this node's own pods.

Isthmus' own flags, and kube-proxy's with their own meaning.
``isthmus.programs.node_proxy.rules.detectors`` has the detectors; those of other packages are not
known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from isthmus.errors import ConfigError
from isthmus.programs.node_proxy.rules.detectors import (
    BRIDGE_MARK_BIT,
    MODES,
    DetectorSettings,
    tidy_range,
)
from isthmus.programs.node_proxy.rules.model import IpFamily
from isthmus.programs.node_proxy.settings_kernel import NFTABLES, KernelSettings
from isthmus.settings.options import OURS, option
from isthmus.text.suggestions import nearest

#: kube-proxy's names of modes; the others are Isthmus' own.
KUBE_MODES = ("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix")
# Pairs of names with the same meaning, which may be given together.
_SAME = {("cluster-cidr", "ClusterCIDR"), ("node-cidr", "NodeCIDR")}
_LOCAL = "Local traffic"
_NAME_CHARS = 15  # linux/if.h: IFNAMSIZ is 16 including NUL; iptables counts the + as well
_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.@-]+", re.ASCII)
# The flag of each detector setting.
_FLAGS = {
    "cluster_cidrs": "cluster_cidr",
    "node_cidrs": "node_cidr",
    "interface_prefixes": "pod_interface_prefix",
    "bridge_interface": "pod_bridge_interface",
    "interface_name_prefix": "pod_interface_name_prefix",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTrafficSettings(KernelSettings):
    """Settings about local traffic; ``check_detector()`` checks them."""

    detect_local: str = option(
        "",
        help="How to recognise traffic from this node's pods; further detectors may be installed",
        shown_default="cluster-cidr",
        group=_LOCAL,
        metavar="cluster-cidr|node-cidr|pod-interface-prefix|bridge",
        go=OURS,
    )
    cluster_cidr: tuple[str, ...] = option(
        (),
        help="Source ranges of local traffic; only used if --detect-local=cluster-cidr",
        group=_LOCAL,
        metavar="CIDR,…",
        go="one for each family",
        common=True,
    )
    node_cidr: tuple[str, ...] = option(
        (),
        help="Source ranges of local traffic; only used if --detect-local=node-cidr",
        shown_default="the Node's podCIDRs",
        group=_LOCAL,
        metavar="CIDR,…",
        go=OURS,
    )
    pod_interface_prefix: tuple[str, ...] = option(
        (),
        help="Prefixes of interface names that local traffic comes in by; only used if "
        "--detect-local=pod-interface-prefix or --detect-local=bridge",
        group=_LOCAL,
        metavar="PREFIX,…",
        go=OURS,
    )
    detect_local_mode: str = option(
        "",
        help="How to recognise traffic from this node's pods, in kube-proxy's words and with "
        "their meaning",
        group=_LOCAL,
        metavar="|".join(KUBE_MODES),
        common=True,
    )
    pod_bridge_interface: str = option(
        "",
        help="Bridge that local traffic comes in by; only used if "
        "--detect-local-mode=BridgeInterface",
        group=_LOCAL,
        metavar="NAME",
    )
    pod_interface_name_prefix: str = option(
        "",
        help="Prefix of interface names that local traffic comes in by; only used if "
        "--detect-local-mode=InterfaceNamePrefix",
        group=_LOCAL,
        metavar="PREFIX",
    )

    @property
    def detector_mode(self) -> str:
        """The detector's name, built in or of another package."""
        return self.detect_local or self.detect_local_mode or "cluster-cidr"

    def detector_settings(self, pod_cidrs: tuple[str, ...] = ()) -> DetectorSettings:
        """The input of a detector; ``pod_cidrs`` are the Node's."""
        return DetectorSettings(
            cluster_cidrs=self._ranges("cluster_cidr"),
            node_cidrs=self._ranges("node_cidr"),
            interface_prefixes=self.pod_interface_prefix,
            bridge_interface=self.pod_bridge_interface,
            interface_name_prefix=self.pod_interface_name_prefix,
            pod_cidrs=_tidied(pod_cidrs),
        )

    def _ranges(self, attribute: str) -> tuple[str, ...]:
        # Values that only another mode uses are neither checked nor used.
        return _tidied(getattr(self, attribute))

    def check_ranges(self, attribute: str) -> None:
        """Check that every value of a setting is an address range.

        Raises:
            ConfigError: a value is not; the message names the flag, or the line in the file.
        """
        for text in getattr(self, attribute):
            try:
                tidy_range(text)
            except ValueError as error:
                raise ConfigError(f"{self.named(attribute)}: {text!r} {error}") from None

    def check_detector(self) -> None:
        """Check that the detector exists and has the settings it needs.

        Raises:
            ConfigError: it does not; the message names the flag, or the line in the file.
        """
        ours, theirs = self.detect_local, self.detect_local_mode
        if theirs and theirs not in KUBE_MODES:
            raise ConfigError(
                f"{self.named('detect_local_mode')} must be {', '.join(KUBE_MODES[:-1])} or"
                f" {KUBE_MODES[-1]}, not {theirs!r}{nearest(theirs, list(KUBE_MODES))}"
            )
        if ours in KUBE_MODES:
            raise ConfigError(f"--detect-local={ours} is kube-proxy's: use --detect-local-mode")
        if ours and theirs and (ours, theirs) not in _SAME:
            raise ConfigError(
                f"--detect-local={ours} contradicts {self.named('detect_local_mode')}={theirs}"
            )
        mode = self.detector_mode
        used = MODES[mode].uses if mode in MODES else ()
        for setting in used:
            self._check_value(mode, setting)
        if mode == "bridge" and self.mode == NFTABLES:
            self._check_mark()

    def _check_value(self, mode: str, setting: str) -> None:
        attribute = _FLAGS.get(setting, "")
        if not attribute:
            return
        if setting.endswith("_cidrs"):
            self.check_ranges(attribute)
            if mode in KUBE_MODES:
                self._check_pair(attribute)
            return
        value = getattr(self, attribute)
        names = value if isinstance(value, tuple) else (value,) if value else ()
        if not names and mode != "bridge":
            raise ConfigError(f"{self.named(attribute)} is empty: {self._asked(mode)} requires it")
        room = _NAME_CHARS - ("prefix" in attribute)
        for name in names:
            if not _NAME.fullmatch(name):
                what = "prefix of interface names" if "prefix" in attribute else "interface name"
                hint = ", leave out the + at its end" if name.endswith(("+", "*")) else ""
                raise ConfigError(f"{self.named(attribute)}: {name!r} is not a valid {what}{hint}")
            if len(name) > room:
                raise ConfigError(
                    f"{self.named(attribute)}: {name!r} is too long for an interface:"
                    f" at most {room} characters"
                )

    def _check_pair(self, attribute: str) -> None:
        ranges = _tidied(getattr(self, attribute))
        for family in IpFamily:
            if sum((":" in each) == (family is IpFamily.IPV6) for each in ranges) > 1:
                raise ConfigError(
                    f"{self.named(attribute)} has several {family.value} ranges, but"
                    f" {self._asked('ClusterCIDR')} takes one per IP family:"
                    " use --detect-local=cluster-cidr for more"
                )

    def _check_mark(self) -> None:
        if self.masquerade_bit == BRIDGE_MARK_BIT:
            raise ConfigError(
                f"{self.named('nftables_masquerade_bit')} cannot be {BRIDGE_MARK_BIT} with"
                " --detect-local=bridge, which uses that bit to mark traffic of pods"
            )

    def _asked(self, mode: str) -> str:
        kube = mode in KUBE_MODES
        return f"{self.named('detect_local_mode') if kube else '--detect-local'}={mode}"

    def unused_values(self) -> Iterator[str]:
        """Messages about settings that only another detector uses."""
        mode = self.detector_mode
        if mode not in MODES:
            return  # another package's detector gets all settings
        for setting, attribute in _FLAGS.items():
            if getattr(self, attribute) and setting not in MODES[mode].uses:
                users = [name for name, each in MODES.items() if setting in each.uses]
                asked = " or ".join(dict.fromkeys(map(_mode_flag, users)))
                yield f"{self.named(attribute)} is ignored: only {asked} uses it"


def _mode_flag(mode: str) -> str:
    return f"--detect-local-mode={mode}" if mode in KUBE_MODES else f"--detect-local={mode}"


def _tidied(ranges: tuple[str, ...]) -> tuple[str, ...]:
    """The ranges in canonical form, without invalid ones."""
    found = []
    for text in ranges:
        try:
            found.append(tidy_range(text))
        except ValueError:
            continue
    return tuple(found)
