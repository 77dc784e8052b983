"""Server and agent metrics: the names of konnectivity, ours, and the numbers behind them."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import isthmus
from isthmus.errors import DialFailure, LinkStage
from isthmus.frame.observe.program import ProgramMetrics
from isthmus.net.certificates import Lifetime
from isthmus.programs.agent.metrics import AgentMetrics
from isthmus.programs.node_proxy.metrics import NodeProxyMetrics
from isthmus.programs.server.metrics import (
    GO_DIAL_FAILURE,
    ServerMetrics,
    TlsPort,
    TlsRefusal,
)
from isthmus.tools.metrics_reference import reference
from isthmus.tunnel.end import Ending

GO_SERVER = "konnectivity_network_proxy_server_"
GO_AGENT = "konnectivity_network_proxy_agent_"
DOCS = Path(__file__).parents[4] / "docs" / "reference" / "metrics.md"


def samples(metrics: ProgramMetrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """Parse what a scrape would get: (name, label values) to number."""
    # This parser, unlike Prometheus, adds _total to a counter that lacks it.
    return {
        (sample.name.replace("_count_total", "_count"), tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def test_the_server_shows_konnectivitys_names() -> None:
    metrics = ServerMetrics()
    metrics.gauges.http_connections = lambda: 4
    metrics.gauges.ready_agents = lambda: 2
    metrics.gauges.ready_by_strategy = lambda: {"default": 2, "destHost": 1}
    metrics.gauges.pending_dials = lambda: 5
    metrics.gauges.tunnels = lambda: 3
    metrics.dial_succeeded(0.003)
    metrics.tunnel_ended(Ending.CLEAN, 61.0, 10, 20)
    seen = samples(metrics)
    assert seen[f"{GO_SERVER}dial_duration_seconds_bucket", ("0.0001",)] == 0
    assert seen[f"{GO_SERVER}dial_duration_seconds_bucket", ("0.005",)] == 1
    assert seen[f"{GO_SERVER}dial_duration_seconds_sum", ()] == 0.003
    assert seen[f"{GO_SERVER}connection_duration_seconds_bucket", ("60",)] == 0
    assert seen[f"{GO_SERVER}connection_duration_seconds_bucket", ("86400",)] == 1
    assert seen[f"{GO_SERVER}http_connections", ()] == 4
    assert seen[f"{GO_SERVER}ready_backend_connections", ()] == 2
    assert seen[f"{GO_SERVER}ready_backends", ("destHost",)] == 1
    assert seen[f"{GO_SERVER}pending_backend_dials", ()] == 5
    assert seen[f"{GO_SERVER}established_connections", ()] == 3


def test_every_dial_failure_has_a_konnectivity_reason() -> None:
    assert GO_DIAL_FAILURE.keys() == set(DialFailure)


@pytest.mark.parametrize("failure", DialFailure)
def test_a_failed_dial_counts_under_both_names(failure: DialFailure) -> None:
    metrics = ServerMetrics()
    metrics.dial_failed(failure, 0.2)
    seen = samples(metrics)
    assert seen["isthmus_server_dial_failures_total", (failure.name.lower(),)] == 1
    assert seen[f"{GO_SERVER}dial_failure_count", (GO_DIAL_FAILURE[failure].value,)] == 1
    assert seen["isthmus_server_failed_dial_duration_seconds_count", ()] == 1
    # konnectivity's dial latency is of dials that succeeded.
    assert seen[f"{GO_SERVER}dial_duration_seconds_count", ()] == 0


def test_our_deadline_and_a_leaving_client_have_their_own_reasons() -> None:
    metrics = ServerMetrics()
    metrics.dial_failed(DialFailure.TIMED_OUT, 30.0, answered=False)
    metrics.dial_abandoned()
    seen = samples(metrics)
    assert seen[f"{GO_SERVER}dial_failure_count", ("backend_dial_timeout",)] == 1
    assert seen[f"{GO_SERVER}dial_failure_count", ("frontend_close",)] == 1
    line = f'{GO_SERVER}dial_failure_count{{reason="frontend_close"}} 1.0'
    assert line in metrics.render().decode().splitlines()


@pytest.mark.parametrize("metrics", [ServerMetrics(), AgentMetrics(), NodeProxyMetrics()])
def test_values_of_labels_with_names_of_others_appear_when_counted(
    metrics: ProgramMetrics,
) -> None:
    # konnectivity's own tests refuse a reason that was not counted, as Go has none.
    metrics.gauges.packets = lambda: {"from_client": [0] * 7}
    metrics.gauges.grpc_calls = lambda: {"Proxy": 0, "Connect": 0}
    theirs = {name for name, labels in samples(metrics) if labels and not name.endswith("_bucket")}
    assert {name for name in theirs if not name.startswith("isthmus_")} == set()
    labelled = {it.name for it in metrics.families if it.labels}
    for text in (metrics.render(), metrics.render_open()):
        lines = text.decode().splitlines()
        heads = {line.split()[2] for line in lines if line.startswith("# TYPE")}
        empty = {it for it in heads & labelled if not it.startswith("isthmus_")}
        assert empty == set()


def test_a_counted_packet_and_call_are_shown_alone() -> None:
    metrics = ServerMetrics()
    calls = {"Proxy": 1, "Connect": 0}
    metrics.gauges.packets = lambda: {"from_client": [2, *[0] * 6], "from_agent": [0] * 7}
    metrics.gauges.grpc_calls = lambda: calls
    seen = samples(metrics)
    packets, grpc = f"{GO_SERVER}stream_packets_total", f"{GO_SERVER}grpc_connections"
    assert {key: it for key, it in seen.items() if key[0] in (packets, grpc)} == {
        (packets, ("DIAL_REQ", "from_client")): 2,
        (grpc, ("Proxy",)): 1,
    }
    calls["Proxy"] = 0
    assert samples(metrics)[grpc, ("Proxy",)] == 0  # once counted, it stays


def test_the_server_counts_what_it_refuses() -> None:
    metrics = ServerMetrics()
    metrics.tls_refused(TlsPort.AGENT, TlsRefusal.NO_CERTIFICATE)
    metrics.request_refused(431)
    metrics.request_refused(418)
    metrics.link_failed(LinkStage.PROTOCOL)
    metrics.stream_failed("from_agent", "Unavailable")
    seen = samples(metrics)
    lost = ("Unavailable", "Unknown", "from_agent")  # by the name of the label
    assert seen[f"{GO_SERVER}stream_errors_total", lost] == 1
    assert seen["isthmus_server_tls_refused_total", ("agent", "no_certificate")] == 1
    assert seen["isthmus_server_tls_refused_total", ("frontend", "no_certificate")] == 0
    assert seen["isthmus_server_requests_refused_total", ("431",)] == 1
    assert seen["isthmus_server_requests_refused_total", ("other",)] == 1
    assert seen["isthmus_server_link_failures_total", ("protocol",)] == 1


def test_bytes_grow_while_a_tunnel_runs_and_do_not_jump_when_it_ends() -> None:
    metrics = AgentMetrics()
    live = (100, 7)
    metrics.gauges.live_bytes = lambda: live
    assert samples(metrics)["isthmus_agent_bytes_total", ("to_target",)] == 100
    live = (0, 0)
    metrics.tunnel_ended(Ending.STALLED, 1.0, 100, 7)
    seen = samples(metrics)
    assert seen["isthmus_agent_bytes_total", ("to_target",)] == 100
    assert seen["isthmus_agent_bytes_total", ("to_client",)] == 7
    assert seen["isthmus_agent_tunnels_ended_total", ("stalled",)] == 1


def test_the_agent_shows_konnectivitys_names() -> None:
    metrics = AgentMetrics()
    metrics.gauges.links = lambda: 2
    metrics.gauges.known_servers = lambda: 3
    metrics.gauges.tunnels = lambda: 9
    metrics.dial_succeeded(0.005)
    metrics.dial_failed(DialFailure.TIMED_OUT, 5.0)
    metrics.dial_failed(DialFailure.REFUSED, 0.1)
    metrics.dial_failed(DialFailure.UNRESOLVED, 0.1)
    seen = samples(metrics)
    assert seen[f"{GO_AGENT}dial_duration_seconds_bucket", ("0.005",)] == 1
    assert seen[f"{GO_AGENT}endpoint_dial_failure_total", ("timeout",)] == 1
    assert seen[f"{GO_AGENT}endpoint_dial_failure_total", ("unknown",)] == 2
    assert seen[f"{GO_AGENT}open_server_connections", ()] == 2
    assert seen[f"{GO_AGENT}known_server_count", ()] == 3
    assert seen[f"{GO_AGENT}open_endpoint_connections", ()] == 9


@pytest.mark.parametrize("metrics", [ServerMetrics(), AgentMetrics()], ids=["server", "agent"])
def test_what_both_programs_show(metrics: ProgramMetrics) -> None:
    ours = f"isthmus_{metrics.program}_"
    metrics.gauges.certificates = lambda: {'/etc/"odd"\n.crt': Lifetime(1.8e9, 1.9e9)}
    metrics.gauges.held_bytes = lambda: 65536
    metrics.gauges.draining = lambda: True
    metrics.gauges.lines_suppressed = lambda: 11
    metrics.link_opened()
    metrics.gauges.reload_failures = lambda: 1
    metrics.stream_reset_for_budget()
    seen = samples(metrics)
    assert seen[f"{ours}certificate_expiry_timestamp_seconds", ('/etc/"odd"\n.crt',)] == 1.9e9
    assert seen[f"{ours}certificate_start_timestamp_seconds", ('/etc/"odd"\n.crt',)] == 1.8e9
    assert seen[f"{ours}certificate_reload_failures_total", ()] == 1
    assert seen[f"{ours}streams_reset_for_budget_total", ()] == 1
    assert seen[f"{ours}held_bytes", ()] == 65536
    assert seen[f"{ours}draining", ()] == 1
    assert seen[f"{ours}links_opened_total", ()] == 1
    assert seen[f"{ours}log_lines_suppressed_total", ()] == 11
    assert seen["isthmus_build_info", (metrics.program, isthmus.__version__)] == 1


@pytest.mark.parametrize("metrics", [ServerMetrics(), AgentMetrics()], ids=["server", "agent"])
def test_names_are_unique_and_well_formed(metrics: ProgramMetrics) -> None:
    names = [family.name for family in metrics.families]
    assert len(set(names)) == len(names)
    for family in metrics.families:
        known = family.name == "kubernetes_feature_enabled"  # Kubernetes' name, on purpose
        assert known or family.name.startswith(("isthmus_", "konnectivity_network_proxy_"))
        if family.kind == "counter" and family.name.startswith("isthmus_"):
            assert family.name.endswith("_total")


def test_the_reference_page_is_up_to_date() -> None:
    assert DOCS.read_text(encoding="utf-8") == reference(), (
        "run: python -m isthmus.tools.metrics_reference > docs/reference/metrics.md"
    )
