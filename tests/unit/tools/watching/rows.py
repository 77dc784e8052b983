"""Programs and tunnels as the terminal tools see them, for tests."""

from __future__ import annotations

from typing import Any

from isthmus.client.admin import AdminClient
from isthmus.tools.watching.looking import Seen
from isthmus.tools.watching.tunnel_rows import TunnelRow


def tunnel(number: int, **more: Any) -> dict[str, Any]:
    """A tunnel of a snapshot."""
    return {
        "id": number,
        "frontend": "http-connect",
        "requester": "certificate:kube-apiserver",
        "target": f"10.0.0.{number}:443",
        "agentId": "node-1",
        "linkId": 1,
        "state": "open",
        "ageSeconds": 10.0 * number,
        "bytesToTarget": 100 * number,
        "bytesToClient": 1000 * number,
        "stalled": "",
        "connectionId": f"aa-{number}",
        **more,
    }


def seen(port: int, kind: str, *tunnels: dict[str, Any], **more: Any) -> Seen:
    """A program with these tunnels."""
    snapshot = {"kind": kind, "tunnels": list(tunnels), **more}
    return Seen(client=AdminClient(f"127.0.0.1:{port}"), snapshot=snapshot)


def row(number: int, **more: Any) -> TunnelRow:
    """A row."""
    given: dict[str, Any] = {
        "url": "http://127.0.0.1:8095",
        "server": "cp-1",
        "id": str(number),
        "target": f"10.0.0.{number}:443",
        "agent": "node-1",
        "frontend": "http-connect",
        "requester": "certificate:kube-apiserver",
        "state": "open",
        "stalled": "",
        "age_s": 10.0 * number,
        "to_target": 0,
        "to_client": 0,
        "connection_id": f"aa-{number}",
        "rate": 100.0 * number,
    }
    return TunnelRow(**(given | more))
