"""The node proxy's flags: what is refused, what is ignored and said, what holds in the end."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.node_proxy.settings import BindAddress, NodeProxySettings
from isthmus.settings.options import compose, options_of
from isthmus.settings.parsing import load


def settings(**given: Any) -> NodeProxySettings:
    made = compose(NodeProxySettings, **given)
    made.validate()
    return made


@pytest.mark.parametrize(
    ("given", "flag", "named"),
    [
        ({"cluster_cidr": ("10.0.0.0",)}, "--cluster-cidr", ["'10.0.0.0'", "10.0.0.0/24"]),
        (
            {"cluster_cidr": ("10.0.0.0/8", "10.0.0.0/33")},
            "--cluster-cidr",
            ["'10.0.0.0/33'", "10.0.0.0/16", "fd00::/48"],
        ),
        (
            {"cluster_cidr": ("10.0.0.0/8", "11.0.0.0/8"), "detect_local_mode": "ClusterCIDR"},
            "--cluster-cidr",
            ["IPv4", "--detect-local-mode=ClusterCIDR", "--detect-local=cluster-cidr"],
        ),
        ({"detect_local": "node-cidr", "node_cidr": ("x/8",)}, "--node-cidr", ["'x/8'"]),
        (
            {"detect_local": "pod-interface-prefix"},
            "--pod-interface-prefix",
            ["--detect-local=pod-interface-prefix"],
        ),
        (
            {"detect_local": "pod-interface-prefix", "pod_interface_prefix": ("a" * 15,)},
            "--pod-interface-prefix",
            [f"'{'a' * 15}'", "14 characters"],
        ),
        (
            {"detect_local": "bridge", "pod_interface_prefix": ("veth+",)},
            "--pod-interface-prefix",
            ["'veth+'", "leave out the +"],
        ),
        (
            {"detect_local": "bridge", "pod_interface_prefix": ('a"b',)},
            "--pod-interface-prefix",
            ["'a\"b'"],
        ),
        (
            {"detect_local_mode": "BridgeInterface"},
            "--pod-bridge-interface",
            ["--detect-local-mode=BridgeInterface"],
        ),
        (
            {"detect_local_mode": "BridgeInterface", "pod_bridge_interface": "b" * 16},
            "--pod-bridge-interface",
            [f"'{'b' * 16}'", "15 characters"],
        ),
        (
            {"detect_local_mode": "InterfaceNamePrefix"},
            "--pod-interface-name-prefix",
            ["--detect-local-mode=InterfaceNamePrefix"],
        ),
        (
            {"detect_local_mode": "NodeCidr"},
            "--detect-local-mode",
            ["ClusterCIDR, NodeCIDR", "'NodeCidr'", "did you mean NodeCIDR?"],
        ),
        ({"detect_local": "NodeCIDR"}, "--detect-local=NodeCIDR", ["--detect-local-mode"]),
        (
            {"detect_local": "bridge", "detect_local_mode": "BridgeInterface"},
            "--detect-local=bridge",
            ["--detect-local-mode=BridgeInterface"],
        ),
        (
            {"detect_local": "bridge", "proxy_mode": "nftables", "nftables_masquerade_bit": 12},
            "--nftables-masquerade-bit",
            ["12", "--detect-local=bridge"],
        ),
        (
            {"proxy_mode": "userspace"},
            "--proxy-mode",
            ["iptables", "nftables", "ipvs", "'userspace'"],
        ),
        ({"iptables_masquerade_bit": 32}, "--iptables-masquerade-bit", ["0 to 31", "32"]),
        ({"oom_score_adj": 1001}, "--oom-score-adj", ["-1000 to 1000", "1001"]),
        ({"bind_address": "node"}, "--bind-address", ["'node'"]),
        (
            {"healthz_bind_address": "0.0.0.0:x"},
            "--healthz-bind-address",
            ["'0.0.0.0:x'", "0.0.0.0:10256"],
        ),
        (
            {"metrics_bind_address": "0.0.0.0:65536"},
            "--metrics-bind-address",
            ["'0.0.0.0:65536'", "out of range"],
        ),
        (
            {"nodeport_addresses": ("primary", "10.0.0.0/8")},
            "--nodeport-addresses",
            ["primary"],
        ),
        ({"nodeport_addresses": ("10.0.0.1",)}, "--nodeport-addresses", ["'10.0.0.1'"]),
        ({"iptables_sync_period_s": 0.0}, "--iptables-sync-period", ["more than 0"]),
        ({"metrics_bind_address": "[::1"}, "--metrics-bind-address", ["'[::1'"]),
        (
            {"iptables_sync_period_s": 10800.0, "iptables_min_sync_period_s": 3601.0},
            "--iptables-min-sync-period",
            ["an hour"],
        ),
        (
            {"iptables_min_sync_period_s": 31.0},
            "--iptables-min-sync-period",
            ["--iptables-sync-period"],
        ),
        ({"conntrack_udp_timeout_s": -1.0}, "--conntrack-udp-timeout", ["negative"]),
        ({"hostname_override": " "}, "--hostname-override", ["empty"]),
    ],
)
def test_an_error_is_one_line_that_names_the_flag(
    given: dict[str, Any], flag: str, named: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(**given)
    message = str(caught.value)
    assert message.startswith(flag) and "\n" not in message
    assert [each for each in named if each not in message] == []


@pytest.mark.parametrize(
    ("given", "unused", "users"),
    [
        ({"cluster_cidr": ("10.0.0.0/8",)}, "", []),
        (
            {"detect_local": "node-cidr", "cluster_cidr": ("not one",)},
            "--cluster-cidr",
            ["--detect-local=cluster-cidr", "--detect-local-mode=ClusterCIDR"],
        ),
        ({"node_cidr": ("10.0.0.0/8",)}, "--node-cidr", ["--detect-local=node-cidr"]),
        (
            {"detect_local_mode": "NodeCIDR", "node_cidr": ("10.0.0.0/8",)},
            "--node-cidr",
            ["--detect-local=node-cidr"],
        ),
        ({"detect_local": "bridge", "pod_interface_prefix": ("veth",)}, "", []),
        (
            {"pod_interface_prefix": ("veth",)},
            "--pod-interface-prefix",
            ["--detect-local=pod-interface-prefix", "--detect-local=bridge"],
        ),
        (
            {"proxy_mode": "ipvs", "iptables_sync_period_s": 5.0, "ipvs_scheduler": "lc"},
            "--iptables-sync-period",
            ["--proxy-mode=iptables", "--proxy-mode=nftables"],
        ),
        ({"ipvs_scheduler": "lc"}, "--ipvs-scheduler", ["--proxy-mode=ipvs"]),
        ({"detect_local": "somebody-elses", "cluster_cidr": ("anything",)}, "", []),
    ],
)
def test_a_setting_of_another_mode_is_ignored_with_a_note(
    given: dict[str, Any], unused: str, users: list[str]
) -> None:
    notes = settings(**given).notes()
    assert [note.split(" ")[0] for note in notes] == [unused] * bool(unused)
    found = {word for note in notes for word in note.split() if "=" in word}
    assert found == set(users)


def test_the_default_is_that_of_the_seed() -> None:
    made = settings(cluster_cidr=("10.0.0.0/8", "11.0.0.0/8", "fd00::/8"))
    assert made.detector_mode == "cluster-cidr"
    assert made.detector_settings().cluster_cidrs == ("10.0.0.0/8", "11.0.0.0/8", "fd00::/8")


def test_ranges_are_tidied() -> None:
    made = settings(cluster_cidr=("10.1.2.3/8",), nodeport_addresses=("10.1.2.3/16",))
    assert made.detector_settings().cluster_cidrs == ("10.0.0.0/8",)
    assert made.node_port_ranges == ("10.1.0.0/16",)


def test_two_spellings_of_one_mode_may_meet() -> None:
    made = settings(detect_local="node-cidr", detect_local_mode="NodeCIDR")
    assert made.detector_mode == "node-cidr"


@pytest.mark.parametrize(
    ("given", "sync", "least", "bit"),
    [
        ({}, 30.0, 1.0, 14),
        ({"iptables_sync_period_s": 9.0, "proxy_mode": "nftables"}, 9.0, 1.0, 14),
        (
            {"proxy_mode": "nftables", "nftables_sync_period_s": 7.0, "iptables_masquerade_bit": 3},
            7.0, 1.0, 14,
        ),
        ({"proxy_mode": "ipvs", "ipvs_min_sync_period_s": 2.0}, 30.0, 2.0, 14),
        ({"proxy_mode": "ipvs", "iptables_masquerade_bit": 3}, 30.0, 1.0, 3),
    ],
)  # fmt: skip
def test_what_holds_in_each_mode(
    given: dict[str, Any], sync: float, least: float, bit: int
) -> None:
    made = settings(**given)
    assert (made.sync_period_s, made.min_sync_period_s, made.masquerade_bit) == (sync, least, bit)


@pytest.mark.parametrize(
    ("given", "healthz", "metrics"),
    [
        ({}, BindAddress("0.0.0.0", 10256), BindAddress("127.0.0.1", 10249)),
        ({"bind_address": "fd00::1"}, BindAddress("::", 10256), BindAddress("::1", 10249)),
        ({"healthz_bind_address": "", "metrics_port": 0}, None, None),
        (
            {"healthz_bind_address": "10.0.0.1", "healthz_port": 7,
             "metrics_bind_address": "[::]:0"},
            BindAddress("10.0.0.1", 7), BindAddress("::", 0),
        ),
        (
            {"healthz_bind_address": "::1"},
            BindAddress("::1", 10256), BindAddress("127.0.0.1", 10249),
        ),
    ],
)  # fmt: skip
def test_where_it_serves(
    given: dict[str, Any], healthz: BindAddress | None, metrics: BindAddress | None
) -> None:
    made = settings(**given)
    assert (made.healthz, made.metrics) == (healthz, metrics)


def test_node_ports_are_at_the_primary_address_with_nftables() -> None:
    assert settings().node_port_ranges == ()
    assert settings(proxy_mode="nftables").node_port_ranges == ("primary",)


# The flags of kube-proxy v1.36.3, from its --help; --version and --help are not settings.
KUBE_PROXY = [
    "bind-address", "bind-address-hard-fail", "cleanup", "cluster-cidr", "config",
    "config-sync-period", "conntrack-max-per-core", "conntrack-min", "conntrack-tcp-be-liberal",
    "conntrack-tcp-timeout-close-wait", "conntrack-tcp-timeout-established",
    "conntrack-udp-timeout", "conntrack-udp-timeout-stream", "detect-local-mode",
    "feature-gates", "healthz-bind-address", "healthz-port", "hostname-override", "init-only",
    "iptables-localhost-nodeports", "iptables-masquerade-bit", "iptables-min-sync-period",
    "iptables-sync-period", "ipvs-exclude-cidrs", "ipvs-min-sync-period", "ipvs-scheduler",
    "ipvs-strict-arp", "ipvs-sync-period", "ipvs-tcp-timeout", "ipvs-tcpfin-timeout",
    "ipvs-udp-timeout", "kube-api-burst", "kube-api-content-type", "kube-api-qps", "kubeconfig",
    "log-flush-frequency", "log-json-info-buffer-size", "log-json-split-stream",
    "log-text-info-buffer-size", "log-text-split-stream", "logging-format", "masquerade-all",
    "master", "metrics-bind-address", "metrics-port", "nodeport-addresses", "oom-score-adj",
    "pod-bridge-interface", "pod-interface-name-prefix", "profiling", "proxy-mode",
    "show-hidden-metrics-for-version", "v", "vmodule", "write-config-to", "boot-id-file",
    "machine-id-file",
]  # fmt: skip


def test_every_flag_of_kube_proxy_is_known() -> None:
    known = {name for each in options_of(NodeProxySettings) for name in (each.flag, *each.aliases)}
    assert set(KUBE_PROXY) <= known
    assert {"detect-local", "node-cidr", "pod-interface-prefix"} <= known


def test_lists_are_separated_by_commas() -> None:
    given = {"cluster_cidr": ["10.0.0.0/8, fd00::/8"], "node_cidr": [""]}
    made = load(NodeProxySettings, given, {})
    assert made.cluster_cidr == ("10.0.0.0/8", "fd00::/8")
    assert made.node_cidr == ()
