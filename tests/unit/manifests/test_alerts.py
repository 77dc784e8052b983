"""The alerts: promtool takes them, each fires when it should, and none when all is well."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.frame.observe.counters import merge_table
from isthmus.frame.observe.node_traffic import NodeResult
from isthmus.frame.observe.program import ProgramMetrics
from isthmus.frame.workers import exposition
from isthmus.manifests.alerts import ALERTS, NODE_FAILURES, prometheus_rule, rules, rules_text
from isthmus.net.certificates import Lifetime
from isthmus.programs.server.metrics import ServerMetrics
from isthmus.programs.sidecar.metrics import Socks5ProxyMetrics
from isthmus.tools.metrics_reference import every_name

ROOT = Path(__file__).parents[3]
GO = "konnectivity_network_proxy_"
WHERE = 'job="isthmus",instance="one"'
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")

#: What makes each alert fire: series, as promtool's tests write them, a value a minute. The second
#: part is for how many minutes.
DAY = 24 * 60
JOINED = 'result="joined"'
CASES: dict[str, tuple[dict[str, str], int]] = {
    "IsthmusServerNoAgents": (
        {f'{GO}server_ready_backends{{{WHERE},proxy_strategy="default"}}': "0x10"},
        5,
    ),
    "IsthmusDialsFailFast": (
        {
            f'isthmus_server_dial_failures_total{{{WHERE},reason="no_agent"}}': "0+5x120",
            f"{GO}server_dial_duration_seconds_count{{{WHERE}}}": "0+100x120",
        },
        10,  # the milder one waits longer
    ),
    "IsthmusDialsFailSlow": (
        {
            f'isthmus_server_dial_failures_total{{{WHERE},reason="agent_lost"}}': "0+1x600",
            f"{GO}server_dial_duration_seconds_count{{{WHERE}}}": "0+100x600",
        },
        500,
    ),
    "IsthmusDialsSlow": (
        {
            f'{GO}server_dial_duration_seconds_bucket{{{WHERE},le="2.5"}}': "0+90x60",
            f'{GO}server_dial_duration_seconds_bucket{{{WHERE},le="12.5"}}': "0+100x60",
            f'{GO}server_dial_duration_seconds_bucket{{{WHERE},le="+Inf"}}': "0+100x60",
        },
        30,
    ),
    "IsthmusTargetsFail": (
        {
            f'isthmus_server_dial_failures_total{{{WHERE},reason="refused"}}': "0+50x60",
            f"{GO}server_dial_duration_seconds_count{{{WHERE}}}": "0+10x60",
        },
        50,
    ),
    "IsthmusAgentNoServer": ({f"{GO}agent_open_server_connections{{{WHERE}}}": "0x10"}, 5),
    "IsthmusAgentMissesServers": (
        {
            f"{GO}agent_open_server_connections{{{WHERE}}}": "2x30",
            f"{GO}agent_known_server_count{{{WHERE}}}": "3x30",
        },
        20,
    ),
    "IsthmusLinksBreak": (
        {f'isthmus_server_link_failures_total{{{WHERE},reason="lost"}}': "0+2x60"},
        30,
    ),
    "IsthmusAgentsRefused": (
        {f'isthmus_server_link_failures_total{{{WHERE},reason="tls"}}': "0+1x60"},
        30,
    ),
    "IsthmusCertificateExpires": (
        {
            f'isthmus_agent_certificate_expiry_timestamp_seconds{{{WHERE},file="agent.crt"}}': (
                f"{29 * 86400}x120"
            ),
            f'isthmus_agent_certificate_start_timestamp_seconds{{{WHERE},file="agent.crt"}}': (
                f"{-336 * 86400}x120"
            ),
        },
        100,
    ),
    "IsthmusCertificateExpiresSoon": (
        {
            # One that lives for a day, with two hours left.
            f'isthmus_server_certificate_expiry_timestamp_seconds{{{WHERE},file="server.crt"}}': (
                f"{2 * 3600}x120"
            ),
            f'isthmus_server_certificate_start_timestamp_seconds{{{WHERE},file="server.crt"}}': (
                f"{-22 * 3600}x120"
            ),
        },
        10,  # the milder one waits for an hour
    ),
    "IsthmusReloadFails": (
        {f"isthmus_server_policy_reload_failures_total{{{WHERE}}}": "0x5 1x20"},
        12,
    ),
    "IsthmusEventLoopStalls": (
        {f"isthmus_socks5_proxy_loop_stalls_total{{{WHERE}}}": "0x5 1x20"},
        12,
    ),
    "IsthmusServerBusy": (
        {
            f'isthmus_server_loop_lag_seconds_bucket{{{WHERE},le="0.1"}}': "0+50x60",
            f'isthmus_server_loop_lag_seconds_bucket{{{WHERE},le="0.5"}}': "0+60x60",
            f'isthmus_server_loop_lag_seconds_bucket{{{WHERE},le="+Inf"}}': "0+60x60",
        },
        40,
    ),
    "IsthmusMemoryHeld": ({f"isthmus_server_held_bytes{{{WHERE}}}": f"{600 * 2**20}x30"}, 20),
    "IsthmusStreamsReset": (
        {f"isthmus_agent_streams_reset_for_budget_total{{{WHERE}}}": "0x5 3x20"},
        12,
    ),
    "IsthmusAuditLosesRecords": (
        {
            f"isthmus_server_audit_records_dropped_total{{{WHERE}}}": "0x5 7x20",
            f"isthmus_server_audit_write_errors_total{{{WHERE}}}": "0x30",
        },
        12,
    ),
    "IsthmusAuditNotWritten": ({f"isthmus_server_audit_failing{{{WHERE}}}": "0x5 1x20"}, 10),
    "IsthmusFilesRunOut": (
        {
            f"process_open_fds{{{WHERE}}}": "900x20",
            f"process_max_fds{{{WHERE}}}": "1000x20",
            f'isthmus_build_info{{{WHERE},program="server",version="1"}}': "1x20",
        },
        10,
    ),
    "IsthmusDrainsForLong": ({f"isthmus_agent_draining{{{WHERE}}}": "1x30"}, 15),
    "IsthmusNodesCutOff": (
        {
            f'isthmus_agent_node_connections_total{{{WHERE},result="denied"}}': "0+6x60",
            f'isthmus_agent_node_connections_total{{{WHERE},result="joined"}}': "0+4x60",
            # One node of many.
            f'isthmus_agent_node_connections_total{{job="isthmus",instance="two",{JOINED}}}': (
                "0+9999x60"
            ),
        },
        20,
    ),
    "IsthmusNodeConnectionsFail": (
        {
            f'isthmus_agent_node_connections_total{{{WHERE},result="failed"}}': "0+2x120",
            f'isthmus_agent_node_connections_total{{{WHERE},result="joined"}}': "0+98x120",
        },
        70,
    ),
    "IsthmusUpstreamDown": (
        {
            f'isthmus_apiserver_proxy_upstream_up{{{WHERE},upstream="a:6443"}}': "0x20",
            f'isthmus_apiserver_proxy_upstream_up{{{WHERE},upstream="b:6443"}}': "1x20",
        },
        10,
    ),
    "IsthmusNoUpstream": (
        {f'isthmus_apiserver_proxy_upstream_up{{{WHERE},upstream="a:6443"}}': "0x20"},
        3,
    ),
    "IsthmusGuestNamesFail": ({f"isthmus_https_proxy_tunnel_healthy{{{WHERE}}}": "0x20"}, 10),
    "IsthmusServiceRulesFail": (
        {
            "kubeproxy_sync_proxy_rules_nftables_sync_failures_total"
            f'{{{WHERE},ip_family="IPv4"}}': "0x2 5x30"
        },
        12,
    ),
    "IsthmusVersionsDiffer": (
        {
            'isthmus_build_info{job="a",instance="1",program="agent",version="1.0.0"}': (
                f"1x{DAY + 60}"
            ),
            'isthmus_build_info{job="a",instance="2",program="agent",version="1.1.0"}': (
                f"1x{DAY + 60}"
            ),
        },
        DAY + 30,
    ),
}

#: Everything as it should be, for two hours.
WELL = {
    f'{GO}server_ready_backends{{{WHERE},proxy_strategy="default"}}': "3x120",
    f'{GO}server_ready_backends{{{WHERE},proxy_strategy="destHost"}}': "0x120",
    f"{GO}server_dial_duration_seconds_count{{{WHERE}}}": "0+1000x120",
    f'{GO}server_dial_duration_seconds_bucket{{{WHERE},le="0.1"}}': "0+1000x120",
    f'{GO}server_dial_duration_seconds_bucket{{{WHERE},le="+Inf"}}': "0+1000x120",
    f'isthmus_server_dial_failures_total{{{WHERE},reason="refused"}}': "0+100x120",
    f'isthmus_server_dial_failures_total{{{WHERE},reason="no_agent"}}': "0x120",
    f"{GO}agent_open_server_connections{{{WHERE}}}": "3x120",
    f"{GO}agent_known_server_count{{{WHERE}}}": "3x120",
    f'isthmus_server_link_failures_total{{{WHERE},reason="lost"}}': "0x60 1x60",
    f'isthmus_server_certificate_expiry_timestamp_seconds{{{WHERE},file="a"}}': (
        f"{300 * 86400}x120"
    ),
    f'isthmus_server_certificate_start_timestamp_seconds{{{WHERE},file="a"}}': (
        f"{-65 * 86400}x120"
    ),
    # One that lives for a day, of which more than half is left.
    f'isthmus_server_certificate_expiry_timestamp_seconds{{{WHERE},file="short"}}': (
        f"{20 * 3600}x120"
    ),
    f'isthmus_server_certificate_start_timestamp_seconds{{{WHERE},file="short"}}': (
        f"{-4 * 3600}x120"
    ),
    f"isthmus_server_certificate_reload_failures_total{{{WHERE}}}": "4x120",
    f"isthmus_server_loop_stalls_total{{{WHERE}}}": "2x120",
    f'isthmus_server_loop_lag_seconds_bucket{{{WHERE},le="0.001"}}': "0+60x120",
    f'isthmus_server_loop_lag_seconds_bucket{{{WHERE},le="+Inf"}}': "0+60x120",
    f"isthmus_server_held_bytes{{{WHERE}}}": "1000000x120",
    f"isthmus_server_audit_records_dropped_total{{{WHERE}}}": "9x120",
    f"isthmus_server_audit_write_errors_total{{{WHERE}}}": "1x120",
    f"process_open_fds{{{WHERE}}}": "100x120",
    f"process_max_fds{{{WHERE}}}": "1000x120",
    f'isthmus_build_info{{{WHERE},program="server",version="1"}}': "1x120",
    f"isthmus_server_draining{{{WHERE}}}": "0x120",
    f'isthmus_apiserver_proxy_upstream_up{{{WHERE},upstream="a:6443"}}': "1x120",
    f"isthmus_socks5_proxy_tunnel_healthy{{{WHERE}}}": "1x120",
    f"isthmus_agent_node_traffic_ready{{{WHERE}}}": "1x120",
    f'isthmus_agent_node_connections_total{{{WHERE},result="joined"}}': "0+100x120",
    # Probes, and who comes from elsewhere.
    f'isthmus_agent_node_connections_total{{{WHERE},result="left"}}': "0+100x120",
    f'isthmus_agent_node_connections_total{{{WHERE},result="outside"}}': "0+100x120",
    **{
        f'isthmus_agent_node_connections_total{{{WHERE},result="{result}"}}': "7x120"
        for result in ("denied", "failed", "no_server", "unanswered", "too_many")
    },
}


#: The likeliest outages of nodes: what an agent then shows.
CUT_OFF = {
    **{
        result: {f'isthmus_agent_node_connections_total{{{WHERE},result="{result}"}}': "0+6x60"}
        for result in NODE_FAILURES.split("|")
    },
    # Nothing listens, so that nothing is accepted and nothing counted.
    "the gate is off at the server": {f"isthmus_agent_node_traffic_ready{{{WHERE}}}": "0x60"},
}


@needs_promtool
def test_a_node_that_is_cut_off_for_whatever_reason_is_told_of(tmp_path: Path) -> None:
    others = f'isthmus_agent_node_connections_total{{job="isthmus",instance="two",{JOINED}}}'
    judge(
        tmp_path,
        *(
            Case({**series, others: "0+9999x60"}, 20, ["IsthmusNodesCutOff"], why)
            for why, series in CUT_OFF.items()
        ),
    )


def test_every_result_of_a_connection_from_a_node_is_judged() -> None:
    fine = {"joined", "left", "outside"}
    assert {it.name.lower() for it in NodeResult} == fine | set(NODE_FAILURES.split("|"))


def test_every_alert_has_a_case() -> None:
    assert sorted(CASES) == sorted(alert.name for alert in ALERTS)


def test_every_alert_is_explained() -> None:
    page = (ROOT / "docs/how-to/monitoring.md").read_text()
    for alert in ALERTS:
        assert f"\n### {alert.name}\n" in page, f"docs/how-to/monitoring.md lacks {alert.name}"
        assert alert.to_rule()["annotations"]["runbook"].endswith(f"#{alert.name.lower()}")


NAMES = re.compile(r"\b((?:isthmus|konnectivity_network_proxy|kubeproxy)_[a-z0-9_]+)\b")
PATTERNS = re.compile(r'__name__=~"([^"]+)"')


def names_in(expression: str) -> set[str]:
    return {re.sub(r"_(bucket|sum)$", "", name) for name in NAMES.findall(expression)}


def known(name: str, ours: set[str]) -> bool:
    return name in ours or name.removesuffix("_count") in ours


@pytest.mark.parametrize("expr", [r["expr"] for g in rules()["groups"] for r in g["rules"]])
def test_every_metric_named_is_ours(expr: str) -> None:
    ours = set(every_name())
    patterns = PATTERNS.findall(expr)
    for pattern in patterns:
        assert [name for name in ours if re.fullmatch(pattern, name)], f"nothing matches {pattern}"
    for name in names_in(PATTERNS.sub("", expr)):
        assert known(name, ours), f"{name} is no metric of ours"


@dataclass(frozen=True)
class Case:
    """Series, and which alerts they fire after so many minutes."""

    series: dict[str, str]
    minutes: int
    firing: Sequence[str] = ()
    name: str = ""

    def document(self) -> dict[str, Any]:
        samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in self.firing]
        return {
            "interval": "1m",
            "name": self.name,
            "input_series": [
                {"series": it, "values": values} for it, values in self.series.items()
            ],
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": f"{self.minutes}m",
                    "exp_samples": samples,
                }
            ],
        }


def judge(tmp_path: Path, *cases: Case, every: str = "1m") -> None:
    """Ask promtool, once for all cases."""
    (tmp_path / "rules.yaml").write_text(rules_text())
    tests = [case.document() for case in cases]
    # Without the order promtool takes any, and alerts may see what was recorded ten minutes ago.
    order = [group["name"] for group in yaml.safe_load(rules_text())["groups"]]
    text = yaml.safe_dump(
        {
            "rule_files": ["rules.yaml"],
            "evaluation_interval": every,
            "group_eval_order": order,
            "tests": tests,
        }
    )
    (tmp_path / "tests.yaml").write_text(text)
    assert PROMTOOL is not None
    ran = subprocess.run(
        [PROMTOOL, "test", "rules", str(tmp_path / "tests.yaml")],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr


@needs_promtool
def test_an_alert_fires_alone(tmp_path: Path) -> None:
    cases = [Case(*case, firing=[name], name=name) for name, case in CASES.items()]
    judge(tmp_path, *(it for it in cases if it.minutes <= 100))
    # A day minute by minute takes seconds, and has no more to tell.
    judge(tmp_path, *(it for it in cases if it.minutes > 100), every="10m")


def of_workers(*each: ProgramMetrics) -> dict[str, str]:
    """What a program with these workers shows, as series that stay for half an hour."""
    rules = merge_table(family for it in each for family in it.families)
    total = exposition.merged([exposition.read(it.render()) for it in each], rules)
    lines = exposition.write(total).decode().splitlines()
    samples = [line.rpartition(" ") for line in lines if not line.startswith(("#", "process_"))]
    return {
        (f"{name[:-1]},{WHERE}}}" if name.endswith("}") else f"{name}{{{WHERE}}}"): f"{number}x30"
        for name, _, number in samples
        if number != "+Inf"
    }


@needs_promtool
def test_alerts_fire_for_one_worker_in_trouble_of_four(tmp_path: Path) -> None:
    workers = [Socks5ProxyMetrics() for _ in range(4)]
    judge(tmp_path, Case(of_workers(*workers), 20))
    workers[1].tunnel_works = lambda: False
    judge(tmp_path, Case(of_workers(*workers), 20, ["IsthmusGuestNamesFail"]))


@needs_promtool
def test_alerts_of_a_server_with_workers(tmp_path: Path) -> None:
    workers = [ServerMetrics() for _ in range(4)]
    for worker in workers:
        worker.gauges.ready_by_strategy = lambda: {"default": 0}
        worker.gauges.certificates = lambda: {"a.crt": Lifetime(-65 * 86400, 300 * 86400)}
    workers[2].gauges.certificates = lambda: {"a.crt": Lifetime(-363 * 86400, 2 * 86400)}
    fired = ["IsthmusServerNoAgents", "IsthmusCertificateExpiresSoon"]
    judge(tmp_path, Case(of_workers(*workers), 20, fired))
    workers[0].gauges.ready_by_strategy = lambda: {"default": 1}
    judge(tmp_path, Case(of_workers(*workers), 20, fired[1:]))


@needs_promtool
def test_nothing_fires_when_all_is_well(tmp_path: Path) -> None:
    judge(tmp_path, Case(WELL, 110))


#: One failure on a machine with little to do, which is a large share of it.
LONELY = {
    "a node": {
        f'isthmus_agent_node_connections_total{{{WHERE},result="failed"}}': "0x40 1x80",
        f'isthmus_agent_node_connections_total{{{WHERE},result="joined"}}': "0x120",
    },
    "a server": {
        f'isthmus_server_dial_failures_total{{{WHERE},reason="agent_lost"}}': "0x40 1x80",
        f"{GO}server_dial_duration_seconds_count{{{WHERE}}}": "0x120",
    },
}


@needs_promtool
def test_one_lonely_failure_wakes_nobody(tmp_path: Path) -> None:
    judge(
        tmp_path,
        *(
            Case(series, minute, name=f"{where}, minute {minute}")
            for where, series in LONELY.items()
            for minute in (44, 48, 60)
        ),
    )


@needs_promtool
def test_promtool_takes_the_rules() -> None:
    assert PROMTOOL is not None
    subprocess.run(
        [PROMTOOL, "check", "rules", "--lint=all", "--lint-fatal", str(ROOT / RULES)],
        check=True, timeout=60, capture_output=True,
    )  # fmt: skip


RULES = "deploy/prometheus/isthmus-rules.yaml"


def test_the_files_are_current() -> None:
    assert (ROOT / RULES).read_text() == rules_text(), (
        "run: isthmus manifest monitoring --part=rules > deploy/prometheus/isthmus-rules.yaml"
    )


def test_the_object_of_the_operator_has_the_same_rules() -> None:
    found = yaml.safe_load(prometheus_rule(name="isthmus", namespace="monitoring"))
    assert found["kind"] == "PrometheusRule"
    assert found["spec"] == rules()
