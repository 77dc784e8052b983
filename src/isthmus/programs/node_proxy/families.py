"""The families of the node service proxy's metrics: kube-proxy's names, labels and types.

Which of them there are depends on what programs the kernel, as in kube-proxy. The numbers are kept
by node_proxy_metrics.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from isthmus.frame.model.merge import Merge
from isthmus.frame.observe.counters import Family, Samples, by_name, counter, gauge, histograms, one

if TYPE_CHECKING:
    from isthmus.programs.node_proxy.metrics import FamilyTimings, NodeProxyMetrics

_BY_FAMILY = ("ip_family",)


def own_families(of: NodeProxyMetrics) -> list[Family]:
    """Everything that kube-proxy shows in the mode of these metrics."""
    by_mode = {
        "iptables": _iptables_families,
        "ipvs": _ipvs_families,
        "nftables": _nftables_families,
    }
    return [
        *_sync_families(of),
        *_change_families(of),
        *_probe_families(of),
        *by_mode[of.mode](of),
    ]


def _sync_families(of: NodeProxyMetrics) -> list[Family]:
    sync = "kubeproxy_sync_proxy_rules_"
    return [
        _timings(f"{sync}duration_seconds", "SyncProxyRules latency in seconds", of.syncs),
        gauge(
            f"{sync}last_queued_timestamp_seconds",
            "The last time a sync of proxy rules was queued",
            by_name(of.last_queued),
            _BY_FAMILY,
            merge=Merge.MAX,
        ),
        gauge(
            f"{sync}last_timestamp_seconds",
            "The last time proxy rules were successfully synced",
            by_name(of.last_synced),
            _BY_FAMILY,
            merge=Merge.MIN,
        ),
        _timings(
            "kubeproxy_network_programming_duration_seconds",
            "In Cluster Network Programming Latency in seconds",
            of.programming,
        ),
        gauge(
            f"{sync}no_local_endpoints_total",
            "Number of services with a Local traffic policy and no endpoints",
            _by_labels(of.no_local_endpoints),
            ("traffic_policy", "ip_family"),
            merge=Merge.SAME,
        ),
    ]


def _change_families(of: NodeProxyMetrics) -> list[Family]:
    sync = "kubeproxy_sync_proxy_rules_"
    return [
        gauge(
            f"{sync}endpoint_changes_pending",
            "Pending proxy rules Endpoint changes",
            one(lambda: of.endpoints_pending()),
            merge=Merge.SUM,
        ),
        counter(
            f"{sync}endpoint_changes_total",
            "Cumulative proxy rules Endpoint changes",
            one(lambda: of.endpoint_changes),
        ),
        gauge(
            f"{sync}service_changes_pending",
            "Pending proxy rules Service changes",
            one(lambda: of.services_pending()),
            merge=Merge.SUM,
        ),
        counter(
            f"{sync}service_changes_total",
            "Cumulative proxy rules Service changes",
            one(lambda: of.service_changes),
        ),
    ]


def _probe_families(of: NodeProxyMetrics) -> list[Family]:
    return [
        counter(
            "kubeproxy_proxy_healthz_total",
            "Cumulative proxy healthz HTTP status",
            by_name(of.healthz_codes),
            ("code",),
        ),
        counter(
            "kubeproxy_proxy_livez_total",
            "Cumulative proxy livez HTTP status",
            by_name(of.livez_codes),
            ("code",),
        ),
    ]


def _iptables_families(of: NodeProxyMetrics) -> list[Family]:
    sync = "kubeproxy_sync_proxy_rules_iptables_"
    return [
        *_full_and_partial(of),
        _restore_failures(of),
        counter(
            f"{sync}partial_restore_failures_total",
            "Cumulative proxy iptables partial restore failures",
            by_name(of.partial_failures),
            _BY_FAMILY,
        ),
        gauge(
            f"{sync}total",
            "Total number of iptables rules owned by kube-proxy",
            _by_labels(of.rules),
            ("table", "ip_family"),
            merge=Merge.SAME,
        ),
        gauge(
            f"{sync}last",
            "Number of iptables rules written by kube-proxy in last sync",
            _by_labels(of.rules_written),
            ("table", "ip_family"),
            merge=Merge.SAME,
        ),
        *_conntrack_families(of),
        _packet_family(
            of,
            "ct_state_invalid_dropped_pkts",
            "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
            "packets dropped by iptables to work around conntrack problems",
        ),
        _packet_family(
            of,
            "localhost_nps_accepted_pkts",
            "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
            "Number of packets accepted on nodeports of loopback interface",
        ),
    ]


def _ipvs_families(of: NodeProxyMetrics) -> list[Family]:
    return [_restore_failures(of), *_conntrack_families(of)]


def _nftables_families(of: NodeProxyMetrics) -> list[Family]:
    sync = "kubeproxy_sync_proxy_rules_nftables_"
    return [
        *_full_and_partial(of),
        counter(
            f"{sync}sync_failures_total",
            "Cumulative proxy nftables sync failures",
            by_name(of.failures),
            _BY_FAMILY,
        ),
        counter(
            f"{sync}cleanup_failures_total",
            "Cumulative proxy nftables cleanup failures",
            by_name(of.cleanup_failures),
            _BY_FAMILY,
        ),
        *_conntrack_families(of),
    ]


def _full_and_partial(of: NodeProxyMetrics) -> list[Family]:
    return [
        _timings(
            "kubeproxy_sync_full_proxy_rules_duration_seconds",
            "SyncProxyRules latency in seconds for full resyncs",
            of.full_syncs,
        ),
        _timings(
            "kubeproxy_sync_partial_proxy_rules_duration_seconds",
            "SyncProxyRules latency in seconds for partial resyncs",
            of.partial_syncs,
        ),
    ]


def _restore_failures(of: NodeProxyMetrics) -> Family:
    return counter(
        "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
        "Cumulative proxy iptables restore failures",
        by_name(of.failures),
        _BY_FAMILY,
    )


def _conntrack_families(of: NodeProxyMetrics) -> list[Family]:
    return [
        _timings(
            "kubeproxy_conntrack_reconciler_sync_duration_seconds",
            "ReconcileConntrackFlowsLatency latency in seconds",
            of.conntrack,
        ),
        counter(
            "kubeproxy_conntrack_reconciler_deleted_entries_total",
            "Cumulative conntrack flows deleted by conntrack reconciler",
            by_name(of.flows_deleted),
            _BY_FAMILY,
        ),
    ]


def _packet_family(of: NodeProxyMetrics, accounted: str, name: str, help: str) -> Family:
    def read() -> Samples:
        found = of.packets().get(accounted)
        return () if found is None else (((), found),)

    return counter(name, help, read)


def sli_families(of: NodeProxyMetrics) -> list[Family]:
    """Everything of ``/metrics/slis``."""
    return [
        gauge(
            "kubernetes_healthcheck",
            "This metric records the result of a single healthcheck.",
            lambda: ((("ping", "healthz"), 1),) if of.pings else (),
            ("name", "type"),
            merge=Merge.SAME,
        ),
        counter(
            "kubernetes_healthchecks_total",
            "This metric records the results of all healthcheck.",
            lambda: ((("ping", "healthz", "success"), of.pings),) if of.pings else (),
            ("name", "type", "status"),
        ),
    ]


def _timings(name: str, help: str, of: FamilyTimings) -> Family:
    return histograms(name, help, _BY_FAMILY, of.read)


def _by_labels(numbers: Mapping[tuple[str, ...], float]) -> Callable[[], Samples]:
    return lambda: list(numbers.items())
