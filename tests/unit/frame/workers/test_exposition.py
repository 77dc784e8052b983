"""Metrics of several processes as those of one."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from isthmus.frame.model.merge import Merge
from isthmus.frame.observe.counters import PROCESS_MERGE, Family, gauge, merge_table, one
from isthmus.frame.workers import exposition
from isthmus.frame.workers.metrics import WorkersMetrics
from isthmus.programs import ROOMS
from isthmus.programs.server.metrics import ServerMetrics
from isthmus.programs.sidecar.metrics import Socks5ProxyMetrics
from isthmus.programs.sni_router.metrics import SniRouterMetrics
from isthmus.tools.metrics_reference import every_family

LINKS = "isthmus_server_links_opened_total"
ENDED = "isthmus_server_tunnels_ended_total"
ONE = b"""\
# HELP isthmus_server_tunnels_ended_total Some.
# TYPE isthmus_server_tunnels_ended_total counter
isthmus_server_tunnels_ended_total{ending="1"} 2.0
isthmus_server_tunnels_ended_total{ending="two words } # {"} 3.0
# HELP isthmus_server_links Now.
# TYPE isthmus_server_links gauge
isthmus_server_links 4.0
# HELP isthmus_server_draining Is it.
# TYPE isthmus_server_draining gauge
isthmus_server_draining 1.0
# HELP process_start_time_seconds When.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.0e+09
# HELP isthmus_server_policy_reload_failures_total Files.
# TYPE isthmus_server_policy_reload_failures_total counter
isthmus_server_policy_reload_failures_total 2.0
"""
OTHER = ONE.replace(b'1"} 2.0', b'1"} 5.0').replace(b"1.0e+09", b"2.0e+09") + (
    b"# HELP isthmus_server_links_opened_total Only here.\n"
    b"# TYPE isthmus_server_links_opened_total counter\n"
    b'isthmus_server_links_opened_total{le="+Inf"} +Inf\n'
)

RULES = merge_table(every_family())


def samples(text: bytes) -> dict[str, float]:
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_what_is_read_is_written_again() -> None:
    assert samples(exposition.write(exposition.read(ONE))) == samples(ONE)


def merged(*texts: bytes) -> dict[str, float]:
    each = [exposition.read(text) for text in texts]
    return samples(exposition.write(exposition.merged(each, RULES)))


def test_families_are_merged_by_their_rules() -> None:
    assert merged(ONE, OTHER) == {
        f'{ENDED}{{ending="1"}}': 7.0,
        f'{ENDED}{{ending="two words }} # {{"}}': 6.0,
        "isthmus_server_links": 8.0,
        "isthmus_server_draining": 1.0,
        "process_start_time_seconds": 1e9,
        f'{LINKS}{{le="+Inf"}}': float("inf"),
        "isthmus_server_policy_reload_failures_total": 2.0,
    }


def test_a_family_that_this_version_does_not_know_is_left_out() -> None:
    unknown = (
        b"# HELP isthmus_server_new It.\n# TYPE isthmus_server_new gauge\nisthmus_server_new 1\n"
    )
    assert merged(ONE, OTHER + unknown) == merged(ONE, OTHER)


def test_of_a_process_that_is_gone_only_what_it_counted_stays() -> None:
    gone: exposition.Exposition = {}
    exposition.keep(gone, exposition.read(ONE))
    exposition.keep(gone, exposition.read(ONE))
    total = exposition.read(ONE)
    exposition.add_gone(total, gone)
    found = samples(exposition.write(total))
    assert found[f'{ENDED}{{ending="1"}}'] == 6.0
    assert found["isthmus_server_links"] == 4.0


def test_a_counter_that_nobody_has_any_more_stays() -> None:
    gone: exposition.Exposition = {}
    exposition.keep(gone, exposition.read(OTHER))
    total = exposition.read(ONE)
    exposition.add_gone(total, gone)
    assert f"# TYPE {LINKS} counter".encode() in exposition.write(total)


def test_a_servers_own_text_goes_through_both_formats() -> None:
    metrics = ServerMetrics()
    metrics.dial_succeeded(0.01, "connection-1")
    plain, open_text = metrics.render(), metrics.render_open()
    twice = exposition.write(
        exposition.merged([exposition.read(plain), exposition.read(plain)], RULES)
    )
    name = "konnectivity_network_proxy_server_dial_duration_seconds_count"
    assert samples(twice)[name] == 2.0
    assert list(parse(twice.decode()))
    gone: exposition.Exposition = {}
    exposition.keep(gone, exposition.read(plain))
    first, ended = exposition.read(open_text), exposition.blank(exposition.read(open_text))
    exposition.add_gone(ended, gone)
    total = exposition.merged([first, exposition.read(open_text), ended], RULES)
    written = exposition.write(total, open_metrics=True).decode()
    assert 'connection_id="connection-1"' in written
    parsed = parse_open(written)  # type: ignore[no-untyped-call]  # theirs has none
    families = {family.name: family for family in parsed}
    (count,) = [
        sample.value
        for sample in families[name.removesuffix("_count")].samples
        if sample.name == name
    ]
    assert count == 3.0


#: What is not simply added: the numbers 3, 0 and 2 of three workers become this. Typed here, not
#: read from the declarations.
NOT_SUMMED = {
    "isthmus_build_info": 3,
    "kubernetes_feature_enabled": 3,
    "process_max_fds": 0,
    "process_open_fds": 3,
    "process_start_time_seconds": 0,
    # Every worker sees the same agents, files and upstreams.
    "konnectivity_network_proxy_server_ready_backends": 3,
    "konnectivity_network_proxy_server_ready_backend_connections": 3,
    "konnectivity_network_proxy_agent_known_server_count": 3,
    "isthmus_server_policy_reload_failures_total": 3,
    "isthmus_server_audit_failing": 3,
    "isthmus_sni_router_config_reloads_total": 3,
    "isthmus_sni_router_config_reload_failures_total": 3,
    "isthmus_sni_router_routes": 3,
    "isthmus_apiserver_proxy_config_reloads_total": 3,
    "isthmus_apiserver_proxy_config_reload_failures_total": 3,
    "isthmus_apiserver_proxy_upstream_up": 0,
    # One that cannot is enough to be told of.
    "isthmus_socks5_proxy_tunnel_healthy": 0,
    "isthmus_https_proxy_tunnel_healthy": 0,
    "isthmus_agent_node_traffic_ready": 0,
}
#: The same of what several programs count, each under its own name.
NOT_SUMMED_OF_ANY = {
    "certificate_expiry_timestamp_seconds": 0,
    "certificate_start_timestamp_seconds": 0,
    "certificate_reload_failures_total": 3,
    "crl_next_update_timestamp_seconds": 0,
    "crl_revoked_certificates": 0,
    "crl_reload_failures_total": 3,
    "draining": 3,
}
#: A node proxy has no workers; its families have a rule all the same.
FAMILIES = {it.name: it for it in every_family() if not it.name.startswith("kubeproxy_")}
SHARED = {
    name: value
    for room in ROOMS
    for suffix, value in NOT_SUMMED_OF_ANY.items()
    if (name := f"isthmus_{room}_{suffix}") in FAMILIES
}
EXPECTED = NOT_SUMMED | SHARED


@pytest.mark.parametrize("name", sorted({*FAMILIES, *PROCESS_MERGE}))
def test_every_family_of_three_workers_has_the_right_value(name: str) -> None:
    kind = FAMILIES[name].kind if name in FAMILIES else "gauge"
    sample = f"{name}_count" if kind == "histogram" else f'{name}{{a="b"}}'
    head = f"# HELP {name} It.\n# TYPE {name} {kind}\n"
    found = merged(*(f"{head}{sample} {number}\n".encode() for number in (3, 0, 2)))
    assert found == {sample: EXPECTED.get(name, 5)}


def test_what_is_not_summed_exists() -> None:
    assert NOT_SUMMED.keys() <= {*FAMILIES, *PROCESS_MERGE}
    unused = [it for it in NOT_SUMMED_OF_ANY if not any(name.endswith(it) for name in SHARED)]
    assert unused == []


def test_everything_that_a_program_shows_has_a_rule() -> None:
    for metrics in (ServerMetrics(), Socks5ProxyMetrics(), SniRouterMetrics(), WorkersMetrics()):
        for text in (metrics.render(), metrics.render_open()):
            found = exposition.read(text)
            assert [it.name for it in found.values() if it.rule is None] == []


def test_a_family_without_a_rule_cannot_be_declared() -> None:
    with pytest.raises(TypeError, match="merge"):
        gauge("isthmus_x", "It.", one(lambda: 1))  # type: ignore[call-arg]  # that is the test
    with pytest.raises(TypeError, match="merge"):
        Family(name="isthmus_x", kind="counter", help="It.")  # type: ignore[call-arg]  # likewise
    with pytest.raises(ValueError, match="not a merge rule of metrics"):
        gauge("isthmus_x", "It.", one(lambda: 1), merge=Merge.CONCAT)


def test_a_name_has_one_rule() -> None:
    twice = [
        gauge("isthmus_x", "It.", one(lambda: 1), merge=rule) for rule in (Merge.MIN, Merge.MAX)
    ]
    with pytest.raises(ValueError, match="isthmus_x: merged as"):
        merge_table(twice)
