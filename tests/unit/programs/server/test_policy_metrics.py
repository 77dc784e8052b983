"""Denials are counted by rule, and rules that are renamed all the time cannot fill memory."""

from __future__ import annotations

from isthmus.dial.rules_policy import Decision
from isthmus.programs.server.metrics import MOST_RULES, ServerMetrics


def test_denials_by_rule_are_bounded() -> None:
    metrics = ServerMetrics()
    for number in range(MOST_RULES + 50):
        for _ in range(2):
            metrics.policy_denied(Decision(allowed=False, rule=f"r{number}"))
    lines = [
        line
        for line in metrics.render().decode().splitlines()
        if line.startswith("isthmus_server_policy_denials_total{")
    ]
    assert len(lines) == MOST_RULES + 1
    assert 'isthmus_server_policy_denials_total{rule="r0"} 2.0' in lines
    assert 'isthmus_server_policy_denials_total{rule="(other)"} 100.0' in lines
