"""Settings of the node proxy about the kernel: rules, sync intervals, ipvs, connection tracking.

Flags, meanings and defaults are kube-proxy's. settings_local.py has those about local traffic,
settings.py those about the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields

from isthmus.errors import ConfigError
from isthmus.settings.options import OURS, SAME, Kind, block, option, options_of
from isthmus.settings.program import (
    GRACEFUL_SHUTDOWN,
    KUBE_API_CONTENT_TYPE,
    MAX_CONNECTIONS,
    LogSettings,
    MemorySettings,
    ProgramSettings,
)

_LOCALHOST = "Node ports on localhost, with nftables"
#: More than one address has ports.
_MOST_CONNECTIONS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalhostSettings(ProgramSettings):
    """Limits of node ports on localhost; a base of NodeProxySettings."""

    memory: MemorySettings = block(MemorySettings(), budget={"group": _LOCALHOST})
    nftables_localhost_nodeports: bool = option(
        False,
        help="Serve TCP node ports at 127.0.0.1 and ::1 for this node, with nftables; connections "
        "go through this process",
        group=_LOCALHOST,
        go=OURS,
    )
    max_connections: int = MAX_CONNECTIONS(4096, group=_LOCALHOST)
    max_connections_per_source: int = option(
        0,
        help="Maximum number of such connections per user of this machine",
        metavar="N",
        shown_default="three quarters of --max-connections",
        group=_LOCALHOST,
        go=OURS,
    )
    graceful_shutdown_timeout_s: float = GRACEFUL_SHUTDOWN(group=_LOCALHOST, go=OURS)

    def check_localhost(self) -> None:
        """Check the limits.

        Raises:
            ConfigError: a limit is out of range; the message names the flag.
        """
        for flag, count, least in (
            ("max-connections", self.max_connections, 1),
            ("max-connections-per-source", self.max_connections_per_source, 0),
        ):
            if not least <= count <= _MOST_CONNECTIONS:
                raise ConfigError(
                    f"--{flag} must be from {least} to {_MOST_CONNECTIONS}, not {count}"
                )
        self.memory.check()


IPTABLES, NFTABLES, IPVS = "iptables", "nftables", "ipvs"
PROXY_MODES = (IPTABLES, NFTABLES, IPVS)

RULES = "Rules"
_SYNCING = "Syncing"
_IPVS = "ipvs"
_CONNTRACK = "Connection tracking"
_INERT = "Without effect here"
_LOOKED_AT_S = 3600.0  # programs/node_proxy/family_sync.py
# Settings named after one mode that other modes use as well.
_USERS = {
    "iptables_masquerade_bit": (IPTABLES, IPVS),
    "iptables_sync_period_s": (IPTABLES, NFTABLES),
    "iptables_min_sync_period_s": (IPTABLES, NFTABLES),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSettings(LocalhostSettings):
    """Settings about the kernel; the base of NodeProxySettings."""

    log: LogSettings = block(LogSettings(), log_format={"aliases": ("logging-format",), "go": SAME})
    proxy_mode: str = option(
        "",
        help="Proxy mode, the part of the kernel that carries the rules",
        choices=("", *PROXY_MODES),
        shown_default=IPTABLES,
        group=RULES,
        metavar="|".join(PROXY_MODES),
        common=True,
    )
    masquerade_all: bool = option(
        False, help="Masquerade all traffic to cluster IPs, including that of pods", group=RULES
    )
    iptables_masquerade_bit: int = option(
        14,
        help="Bit of the mark on packets to masquerade, with iptables and ipvs",
        group=RULES,
        metavar="BIT",
        bounds=(0, 31),
    )
    nftables_masquerade_bit: int = option(
        14,
        help="Bit of the mark on packets to masquerade, with nftables",
        group=RULES,
        metavar="BIT",
        go="in --config only",
        bounds=(0, 31),
    )
    iptables_localhost_nodeports: bool = option(
        True, help="Serve node ports at 127.0.0.1 for this node, with iptables", group=RULES
    )
    iptables_sync_period_s: float = option(
        30.0,
        help="How often to check the rules, and to retry after a failure",
        unit="seconds",
        group=_SYNCING,
    )
    iptables_min_sync_period_s: float = option(
        1.0, help="Minimum time between two syncs", unit="seconds", group=_SYNCING
    )
    nftables_sync_period_s: float | None = option(
        None,
        help="How often to check the rules, and to retry after a failure, with nftables",
        unit="seconds",
        shown_default="--iptables-sync-period",
        group=_SYNCING,
        go="in --config only",
    )
    nftables_min_sync_period_s: float | None = option(
        None,
        help="Minimum time between two syncs with nftables",
        unit="seconds",
        shown_default="--iptables-min-sync-period",
        group=_SYNCING,
        go="in --config only",
    )
    ipvs_sync_period_s: float = option(
        30.0,
        help="How often to check the rules, and to retry after a failure",
        unit="seconds",
        group=_IPVS,
    )
    ipvs_min_sync_period_s: float = option(
        1.0, help="Minimum time between two syncs", unit="seconds", group=_IPVS
    )
    ipvs_scheduler: str = option(
        "", help="Scheduler of virtual servers", shown_default="rr", group=_IPVS, metavar="NAME"
    )
    ipvs_exclude_cidrs: tuple[str, ...] = option(
        (),
        help="Ranges of virtual servers to leave alone when cleaning up",
        repeat=True,
        group=_IPVS,
        metavar="CIDR,…",
    )
    ipvs_strict_arp: bool = option(
        False, help="Answer ARP only for addresses of the interface that was asked", group=_IPVS
    )
    ipvs_tcp_timeout_s: float = option(
        0.0,
        help="Timeout of idle TCP connections; 0 leaves the kernel's",
        unit="seconds",
        group=_IPVS,
    )
    ipvs_tcpfin_timeout_s: float = option(
        0.0,
        help="Timeout of TCP connections after a FIN; 0 leaves the kernel's",
        unit="seconds",
        group=_IPVS,
    )
    ipvs_udp_timeout_s: float = option(
        0.0, help="Timeout of idle UDP flows; 0 leaves the kernel's", unit="seconds", group=_IPVS
    )
    conntrack_max_per_core: int = option(
        32768,
        help="Maximum number of tracked connections per CPU, one million in total at most; 0 "
        "leaves the kernel's limit",
        group=_CONNTRACK,
        bounds=(0, 2**31 - 1),
    )
    conntrack_min: int = option(
        131072,
        help="Minimum of the limit of tracked connections, however few CPUs there are",
        group=_CONNTRACK,
        bounds=(0, 2**31 - 1),
    )
    conntrack_tcp_timeout_established_s: float = option(
        86400.0,
        help="Timeout of idle established TCP connections; 0 leaves the kernel's",
        unit="seconds",
        group=_CONNTRACK,
    )
    conntrack_tcp_timeout_close_wait_s: float = option(
        3600.0,
        help="Timeout of half-closed TCP connections; 0 leaves the kernel's",
        unit="seconds",
        group=_CONNTRACK,
    )
    conntrack_tcp_be_liberal: bool = option(
        False,
        help="Accept packets outside of the TCP window as part of their connection",
        group=_CONNTRACK,
    )
    conntrack_udp_timeout_s: float = option(
        0.0,
        help="Timeout of unanswered UDP flows; 0 leaves the kernel's",
        unit="seconds",
        group=_CONNTRACK,
    )
    conntrack_udp_timeout_stream_s: float = option(
        0.0,
        help="Timeout of answered UDP flows; 0 leaves the kernel's",
        unit="seconds",
        group=_CONNTRACK,
    )
    oom_score_adj: int = option(
        -999,
        help="OOM score adjustment of this process: how soon the kernel ends it when memory runs "
        "out",
        group=RULES,
        bounds=(-1000, 1000),
    )
    config_sync_period_s: float = option(
        900.0,
        help="How often to read everything again; Isthmus's watches do not need that",
        unit="seconds",
        group=_INERT,
        inert=True,
    )
    kube_api_content_type: str = KUBE_API_CONTENT_TYPE(
        help="Content type to ask the API for; Isthmus asks for JSON", group=_INERT, metavar="TYPE"
    )
    bind_address_hard_fail: bool = option(
        False,
        help="Exit when a port cannot be bound; Isthmus always does",
        group=_INERT,
        inert=True,
    )
    feature_gates: tuple[str, ...] = option(
        (), help="Turn kube-proxy's features on or off", repeat=True, group=_INERT,
        metavar="NAME=BOOL", inert=True,
    )  # fmt: skip
    show_hidden_metrics_for_version: str = option(
        "", help="Show metrics that this version hid", group=_INERT, metavar="X.Y", inert=True
    )
    boot_id_file: tuple[str, ...] = option(
        (), help="Files to look for the boot ID in", group=_INERT, ignored=True
    )
    machine_id_file: tuple[str, ...] = option(
        (), help="Files to look for the machine ID in", group=_INERT, ignored=True
    )
    log_text_split_stream: bool = option(
        False, help="Write errors and other lines to different streams", group=_INERT, ignored=True
    )
    log_text_info_buffer_size: str = option(
        "0", help="Number of bytes of log lines to buffer", group=_INERT, ignored=True
    )
    log_json_split_stream: bool = option(
        False, help="Write errors and other lines to different streams", group=_INERT, ignored=True
    )
    log_json_info_buffer_size: str = option(
        "0", help="Number of bytes of log lines to buffer", group=_INERT, ignored=True
    )
    #: The position of each setting that came from a file; messages show it instead of a flag.
    places: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def mode(self) -> str:
        return self.proxy_mode or IPTABLES

    @property
    def sync_period_s(self) -> float:
        if self.mode == IPVS:
            return self.ipvs_sync_period_s
        ours = self.nftables_sync_period_s if self.mode == NFTABLES else None
        return self.iptables_sync_period_s if ours is None else ours

    @property
    def min_sync_period_s(self) -> float:
        if self.mode == IPVS:
            return self.ipvs_min_sync_period_s
        ours = self.nftables_min_sync_period_s if self.mode == NFTABLES else None
        return self.iptables_min_sync_period_s if ours is None else ours

    @property
    def masquerade_bit(self) -> int:
        nft = self.mode == NFTABLES
        return self.nftables_masquerade_bit if nft else self.iptables_masquerade_bit

    def named(self, attribute: str) -> str:
        """The name of a setting in a message: its flag, or its position in the file."""
        place = self.places.get(attribute)
        if place:
            return place
        names = {each.attribute: each.flag for each in options_of(type(self))}
        return f"--{names[attribute]}"

    def check_times(self) -> None:
        """Check that no time is negative, and that intervals fit together.

        Raises:
            ConfigError: a time is invalid; the message names the flag, or the line in the file.
        """
        for declared in options_of(type(self)):
            value = declared.value_in(self)
            if declared.kind is Kind.DURATION and value is not None and value < 0:
                raise ConfigError(f"{self.named(declared.attribute)} must not be negative")
        prefix = self.mode
        if prefix == NFTABLES and self.nftables_sync_period_s is None:
            prefix = IPTABLES
        if self.sync_period_s <= 0:
            raise ConfigError(f"{self.named(f'{prefix}_sync_period_s')} must be more than 0")
        if self.min_sync_period_s > _LOOKED_AT_S:
            raise ConfigError(
                f"{self.named(f'{self.mode}_min_sync_period_s')} must not be more than an hour,"
                " the interval of full checks"
            )
        if self.min_sync_period_s > self.sync_period_s:
            raise ConfigError(
                f"{self.named(f'{self.mode}_min_sync_period_s')} must not be more than"
                f" {self.named(f'{prefix}_sync_period_s')}"
            )

    def unused_by_mode(self) -> Iterator[str]:
        """Messages about settings that only another --proxy-mode uses.

        A file is exempt: it has a section for every mode.
        """
        if self.places:
            return
        defaults = {each.name: each.default for each in fields(self)}
        for attribute, default in defaults.items():
            owner = attribute.partition("_")[0]
            if owner not in PROXY_MODES or getattr(self, attribute) == default:
                continue
            users = _USERS.get(attribute, (owner,))
            if self.mode not in users:
                asked = " or ".join(f"--proxy-mode={each}" for each in users)
                yield f"{self.named(attribute)} is ignored: only {asked} uses it"
