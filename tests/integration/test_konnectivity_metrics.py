"""Metrics with konnectivity's names, of real programs: a label's value is there once it counted."""

from __future__ import annotations

import re
from pathlib import Path

from clients import ask, connect_uds, echo_target, free_port, head_for, tunnel
from stack import Stack, wait_until

GO = "konnectivity_network_proxy_"
#: In konnectivity this one has a value from its start, for every strategy.
FROM_THE_START = f"{GO}server_ready_backends"


def labelled(text: str) -> dict[str, float]:
    """What has a label, but for buckets."""
    found = re.findall(rf"^({GO}\w+(?<!_bucket)\{{[^\n]*\}}) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found if not name.startswith(FROM_THE_START)}


def test_reasons_appear_with_the_first_failure(fresh: Stack, tmp_path: Path) -> None:
    fresh.add_server()
    agent = fresh.add_agent()
    uds = fresh.server.settings.uds_name
    with echo_target() as target, tunnel(connect_uds(uds), target.name) as client:
        client.send(b"x")
        assert client.read_exactly(1) == b"x"
    assert labelled(fresh.metrics()) == {}
    assert labelled(fresh.metrics(agent)) == {}
    with connect_uds(uds) as client:
        assert ask(client, head_for(f"127.0.0.1:{free_port()}")).status == 502
    wait_until(
        lambda: (
            labelled(fresh.metrics())
            == {f'{GO}server_dial_failure_count{{reason="error_response"}}': 1}
        ),
        "one reason is there",
    )
    assert labelled(fresh.metrics(agent)) == {
        f'{GO}agent_endpoint_dial_failure_total{{reason="unknown"}}': 1
    }
    fresh.wait_idle()
