"""What four workers show as one: metrics and snapshots by their rules, with real programs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

from clients import LIMIT_S, Client, connect_uds, echo_target, head_for, status_of
from programs import Program, Programs
from proxies_bed import ProxiesBed, ask, greet
from relay_bed import NAME as RELAY_NAME
from relay_bed import peer_files
from stack import Stack, http_get, metric, wait_until
from workers_bed import START_S, serving

from isthmus.tools.pki import making as pki
from isthmus.tools.pki.making import revoke

WORKERS = 4


def started(programs: Programs, *args: str) -> Program:
    program = serving(programs, *args, f"--workers={WORKERS}")
    wait_until(
        lambda: sum(it["state"] == "running" for it in workers_of(program)) == WORKERS,
        "every worker serves",
        START_S,
    )
    return program


def workers_of(program: Program) -> list[dict[str, Any]]:
    return list(json.loads(http_get(program.port("admin_port"), "/workers")[1])["workers"])


def metrics_of(program: Program) -> str:
    return http_get(program.port("admin_port"), "/metrics")[1]


def of_worker(program: Program, worker: dict[str, Any]) -> str:
    return http_get(program.port("admin_port"), f"/metrics?worker={worker['index']}")[1]


def snapshot_of(program: Program) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(http_get(program.port("admin_port"), "/snapshot")[1])
    return found


def test_a_server_shows_files_once_and_its_relays(tmp_path: Path) -> None:
    files = pki.init(tmp_path / "pki", server_names=("localhost", "127.0.0.1"))
    revoke([files.agent_cert], directory=files.directory)
    crl = files.directory / "ca.crl"
    with Programs(files, tmp_path) as programs:
        other = programs.server(
            "--server-id=two-w0",
            f"--peer-relay-name={RELAY_NAME}",
            f"--uds-name={programs.uds}.two",
        )
        # It is what the first worker of a server "two" would be to the workers of "one".
        peer = peer_files(files, tmp_path / "peer")
        server = started(
            programs, "server", *programs.server_flags(), "--server-id=one",
            f"--cluster-crl-file={crl}", "--peer-relay",
            f"--peer-server=two=127.0.0.1:{other.port('agent_port')}",
            f"--peer-cert={peer.client_cert}", f"--peer-key={peer.client_key}",
        )  # fmt: skip
        text = metrics_of(server)
        assert metric(text, f'isthmus_server_crl_revoked_certificates{{file="{crl}"}}') == 1
        assert len(re.findall(r"^isthmus_build_info\{[^\n]*\} 1\.0$", text, re.MULTILINE)) == 2
        assert metric(text, "process_open_fds") < metric(text, "process_max_fds")

        def links() -> float:
            return metric(metrics_of(server), 'isthmus_server_relay_links{direction="sent"}')

        wait_until(lambda: links() == WORKERS, "every worker is linked to the other server")
        (relay,) = snapshot_of(server)["relays"]
        assert (relay["serverId"], relay["direction"]) == ("two-w0", "to")


def test_an_audit_log_that_the_parent_cannot_write_is_counted(programs: Programs) -> None:
    server = started(
        programs, "server", *programs.server_flags(), "--audit-log-path=/dev/full"
    )  # fmt: skip
    with connect_uds(programs.uds) as client:
        client.send(head_for("127.0.0.1:1"))
        assert status_of(client.read_head()) == 503  # there is no agent
    name = "isthmus_server_audit_write_errors_total"
    wait_until(lambda: metric(metrics_of(server), name) > 0, "the failed write is counted")


def test_a_sidecar_is_healthy_once_and_one_worker_in_trouble_is_seen(
    stack: Stack, programs: Programs, tmp_path: Path
) -> None:
    healthy = "isthmus_socks5_proxy_tunnel_healthy"
    with ProxiesBed(stack, tmp_path) as bed, echo_target() as echo:
        sidecar = started(
            programs, "socks5-proxy", "--serving-port=0", "--health-bind-address=127.0.0.1",
            "--health-port=0", "--admin-port=0",
            f"--konnectivity-uds={stack.server.settings.uds_name}",
            f"--kubeconfig={bed.api.kubeconfig()}", "--resolve-from-guest-cluster-dns",
            "--resolve-from-management-cluster-dns",
        )  # fmt: skip
        assert metric(metrics_of(sidecar), healthy) == 1
        assert snapshot_of(sidecar)["names"]["tunnelWorks"] is True
        stack.run(bed.dns.stop())
        with Client(
            socket.create_connection(("127.0.0.1", sidecar.port("port")), LIMIT_S)
        ) as client:
            assert greet(client).method == 0
            assert ask(client, "localhost", echo.port).code == 0
        # One worker of four knows; IsthmusGuestNamesFail fires on == 0.
        assert metric(metrics_of(sidecar), healthy) == 0
        assert snapshot_of(sidecar)["names"]["tunnelWorks"] is False
        (in_trouble,) = (
            it for it in workers_of(sidecar) if metric(of_worker(sidecar, it), healthy) == 0
        )
        dials = 'isthmus_socks5_proxy_dials_total{way="direct"}'
        before = metric(metrics_of(sidecar), dials)
        assert before == 1
        os.kill(in_trouble["pid"], signal.SIGKILL)
        wait_until(
            lambda: (
                workers_of(sidecar)[in_trouble["index"]]["restarts"] == 1
                and workers_of(sidecar)[in_trouble["index"]]["state"] == "running"
            ),
            "the worker runs again",
            START_S,
        )
        # What it had counted stays, what it was does not.
        assert metric(metrics_of(sidecar), dials) == before
        assert metric(metrics_of(sidecar), healthy) == 1
