"""The node proxy's metrics are kube-proxy's, by name, label, type and mode."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from isthmus.programs.node_proxy.metrics import (
    PROGRAMMING_BUCKETS_S,
    SYNC_BUCKETS_S,
    NodeProxyMetrics,
)
from isthmus.testing.clock import ManualClock

# pkg/proxy/metrics/metrics.go of v1.36.3, typed from there: name → type and labels.
Shapes = dict[str, tuple[str, tuple[str, ...]]]
FAMILY = ("ip_family",)
ALL_MODES: Shapes = {
    "sync_proxy_rules_duration_seconds": ("histogram", FAMILY),
    "sync_proxy_rules_last_queued_timestamp_seconds": ("gauge", FAMILY),
    "sync_proxy_rules_last_timestamp_seconds": ("gauge", FAMILY),
    "sync_proxy_rules_endpoint_changes_pending": ("gauge", ()),
    "sync_proxy_rules_endpoint_changes_total": ("counter", ()),
    "sync_proxy_rules_service_changes_pending": ("gauge", ()),
    "sync_proxy_rules_service_changes_total": ("counter", ()),
    "proxy_healthz_total": ("counter", ("code",)),
    "proxy_livez_total": ("counter", ("code",)),
    "network_programming_duration_seconds": ("histogram", FAMILY),
    "sync_proxy_rules_no_local_endpoints_total": ("gauge", ("traffic_policy", "ip_family")),
    "conntrack_reconciler_sync_duration_seconds": ("histogram", FAMILY),
    "conntrack_reconciler_deleted_entries_total": ("counter", FAMILY),
}
FULL_AND_PARTIAL: Shapes = {
    "sync_full_proxy_rules_duration_seconds": ("histogram", FAMILY),
    "sync_partial_proxy_rules_duration_seconds": ("histogram", FAMILY),
}
RESTORE: Shapes = {"sync_proxy_rules_iptables_restore_failures_total": ("counter", FAMILY)}
BY_MODE: dict[str, Shapes] = {
    "iptables": {
        **FULL_AND_PARTIAL,
        **RESTORE,
        "sync_proxy_rules_iptables_partial_restore_failures_total": ("counter", FAMILY),
        "sync_proxy_rules_iptables_total": ("gauge", ("table", "ip_family")),
        "sync_proxy_rules_iptables_last": ("gauge", ("table", "ip_family")),
        "iptables_ct_state_invalid_dropped_packets_total": ("counter", ()),
        "iptables_localhost_nodeports_accepted_packets_total": ("counter", ()),
    },
    "ipvs": RESTORE,
    "nftables": {
        **FULL_AND_PARTIAL,
        "sync_proxy_rules_nftables_sync_failures_total": ("counter", FAMILY),
        "sync_proxy_rules_nftables_cleanup_failures_total": ("counter", FAMILY),
    },
}


def samples(metrics: NodeProxyMetrics) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


@pytest.mark.parametrize("mode", BY_MODE)
def test_families_are_kube_proxys(mode: str) -> None:
    ours = {
        family.name.removeprefix("kubeproxy_"): (family.kind, family.labels)
        for family in NodeProxyMetrics(mode).families
        if family.name.startswith("kubeproxy_")
    }
    assert ours == {**ALL_MODES, **BY_MODE[mode]}


def test_nothing_of_tunnels() -> None:
    names = [family.name for family in NodeProxyMetrics().families]
    assert not [name for name in names if "dial" in name or "tunnel" in name or "link" in name]
    assert "isthmus_node_proxy_loop_lag_seconds" in names
    with pytest.raises(ValueError, match="userspace"):
        NodeProxyMetrics("userspace")


def test_buckets() -> None:
    assert SYNC_BUCKETS_S[:3] == (0.001, 0.002, 0.004)
    assert (len(SYNC_BUCKETS_S), SYNC_BUCKETS_S[-1]) == (15, 16.384)
    assert PROGRAMMING_BUCKETS_S[:4] == (0.25, 0.5, 1, 2)
    assert len(PROGRAMMING_BUCKETS_S) == 2 + 59 + 12 + 7
    assert PROGRAMMING_BUCKETS_S[-9:] == (110, 115, 120, 150, 180, 210, 240, 270, 300)


def test_a_sync_is_seen_under_its_family() -> None:
    wall = ManualClock(5000.0)
    metrics = NodeProxyMetrics(wall=wall)
    metrics.queued("IPv4")
    wall.advance(2)
    metrics.synced(
        "IPv4",
        0.3,
        full=True,
        rules={"nat": 325, "filter": 4},
        written={"nat": 25},
        no_local_endpoints={"internal": 2},
        triggers=[5001.0, 4000.0, 6000.0],
    )
    metrics.synced("IPv6", 0.1, full=False)
    found = samples(metrics)
    sync = "kubeproxy_sync_proxy_rules_"
    assert found[f"{sync}last_queued_timestamp_seconds{{ip_family=IPv4}}"] == 5000
    assert found[f"{sync}last_timestamp_seconds{{ip_family=IPv4}}"] == 5002
    assert found[f"{sync}iptables_total{{ip_family=IPv4,table=nat}}"] == 325
    assert found[f"{sync}iptables_last{{ip_family=IPv4,table=nat}}"] == 25
    policy = f"{sync}no_local_endpoints_total{{ip_family=IPv4,traffic_policy="
    assert (found[f"{policy}internal}}"], found[f"{policy}external}}"]) == (2, 0)
    full, partial = (
        f"kubeproxy_sync_{kind}_proxy_rules_duration_seconds_count{{ip_family="
        for kind in ("full", "partial")
    )
    assert found[f"{full}IPv4}}"] == found[f"{partial}IPv6}}"] == 1
    assert f"{full}IPv6}}" not in found
    programming = "kubeproxy_network_programming_duration_seconds_"
    assert found[f"{programming}count{{ip_family=IPv4}}"] == 3
    # One in the future, by a clock that goes wrong, counts as none.
    assert found[f"{programming}bucket{{ip_family=IPv4,le=0.25}}"] == 1
    assert found[f"{programming}sum{{ip_family=IPv4}}"] == 1 + 1002


def test_headers_name_what_follows_them() -> None:
    metrics = NodeProxyMetrics()
    metrics.synced("IPv4", 0.1, full=True, rules={"nat": 1}, written={"nat": 1})
    text = metrics.render().decode()
    assert "# TYPE kubeproxy_sync_proxy_rules_iptables_total gauge" in text
    assert "# TYPE kubeproxy_sync_proxy_rules_no_local_endpoints_total gauge" in text
    assert "# TYPE kubeproxy_sync_proxy_rules_service_changes_total counter" in text


def test_failures_probes_changes_and_packets() -> None:
    metrics = NodeProxyMetrics()
    metrics.sync_failed("IPv4", 0.1, full=False)
    metrics.sync_failed("IPv4", 0.1, full=True)
    metrics.flows_cleaned("IPv4", 0.01, 7)
    metrics.healthz_answered(200)
    metrics.healthz_answered(503)
    metrics.livez_answered(200)
    metrics.service_changes += 3
    metrics.endpoints_pending = lambda: 5
    metrics.packets = lambda: {"localhost_nps_accepted_pkts": 9.0}
    found = samples(metrics)
    iptables = "kubeproxy_sync_proxy_rules_iptables_"
    assert found[f"{iptables}restore_failures_total{{ip_family=IPv4}}"] == 2
    assert found[f"{iptables}partial_restore_failures_total{{ip_family=IPv4}}"] == 1
    assert found["kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=IPv4}"] == 7
    assert found["kubeproxy_proxy_healthz_total{code=503}"] == 1
    assert found["kubeproxy_proxy_livez_total{code=200}"] == 1
    assert found["kubeproxy_sync_proxy_rules_service_changes_total{}"] == 3
    assert found["kubeproxy_sync_proxy_rules_endpoint_changes_pending{}"] == 5
    assert found["kubeproxy_iptables_localhost_nodeports_accepted_packets_total{}"] == 9
    assert "kubeproxy_iptables_ct_state_invalid_dropped_packets_total{}" not in found


def test_slis() -> None:
    metrics = NodeProxyMetrics()
    assert b"kubernetes_healthcheck{" not in metrics.render_slis()
    metrics.pinged()
    metrics.pinged()
    text = metrics.render_slis().decode()
    assert 'kubernetes_healthcheck{name="ping",type="healthz"} 1.0' in text
    assert 'healthchecks_total{name="ping",status="success",type="healthz"} 2.0' in text
