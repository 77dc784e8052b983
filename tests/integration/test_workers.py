"""A server with two workers: every frontend and link, sums, ending, and how connections spread."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from clients import Target, echo_target, receive_all, send_all, tunnel
from grpc_clients import GrpcCall
from programs import Programs
from stack import http_get, metric, wait_until
from workers_bed import HANDED, WORKERS, Bed

from isthmus.client.admin import AdminClient
from isthmus.tools.pki.making import PkiFiles


@pytest.fixture(scope="module", params=["mux", "grpc"])
def bed(
    request: pytest.FixtureRequest,
    certificates: PkiFiles,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Bed]:
    """A server with workers and an agent that is linked to each, by either kind of link."""
    logs = tmp_path_factory.mktemp("logs")
    with Programs(certificates, logs) as programs:
        bed = Bed.start(programs, "--enable-profiling", audited=True)
        bed.agent(f"--link={request.param}")
        yield bed


@pytest.mark.parametrize("kind", ["uds", "tcp"])
def test_bytes_both_ways(bed: Bed, kind: str) -> None:
    with Target() as target:
        for seed in range(2 * WORKERS):
            with tunnel(bed.client(kind), target.name) as client, target.accept() as far:
                sent = send_all(client, seed, 300_000)
                assert receive_all(far) == (300_000, sent)
                back = send_all(far, seed + 100, 300_000)
                assert receive_all(client) == (300_000, back)


@pytest.mark.parametrize("kind", ["grpc-uds", "grpc-tcp"])
def test_bytes_both_ways_by_grpc(bed: Bed, kind: str) -> None:
    with Target() as target:
        for _ in range(2 * WORKERS):
            with bed.client(kind) as client:
                call = GrpcCall(client)
                assert call.dial(target.name) == ""
                with target.accept() as far:
                    call.send(b"ping")
                    assert far.read_exactly(4) == b"ping"
                    far.send(b"pong")
                    assert call.read_exactly(4) == b"pong"


def test_each_worker_is_a_server_of_its_own_to_agents(bed: Bed) -> None:
    ids = {json.loads(bed.get("/snapshot")[1])["serverId"]}
    assert ids == {"one"}
    assert len(bed.snapshot["links"]) == WORKERS
    assert [agent["links"] for agent in bed.snapshot["agents"]] == [WORKERS]
    assert metric(bed.get("/metrics")[1], "isthmus_server_links") == WORKERS
    ready = 'konnectivity_network_proxy_server_ready_backends{proxy_strategy="default"}'
    assert metric(bed.get("/metrics")[1], ready) == 1  # an agent is one, however many links


def test_sums_are_those_of_the_workers(bed: Bed) -> None:
    names = (
        'isthmus_server_bytes_total{direction="to_target"}',
        'isthmus_server_tunnels_ended_total{ending="clean"}',
        "konnectivity_network_proxy_server_dial_duration_seconds_count",
        'konnectivity_network_proxy_server_dial_duration_seconds_bucket{le="+Inf"}',
        "isthmus_server_links_opened_total",
    )
    with Target() as target:
        for _ in range(2 * WORKERS):
            with tunnel(bed.client("uds"), target.name) as client, target.accept() as far:
                client.send(b"x")
                assert far.read_exactly(1) == b"x"
                for side in (client, far):
                    side.half_close()
                assert client.read_to_end() == far.read_to_end() == b""

    def clean(index: int) -> float:
        return metric(bed.get(f"/metrics?worker={index}")[1], names[1])

    wait_until(lambda: all(map(clean, range(WORKERS))), "the ends are counted")
    each = [bed.get(f"/metrics?worker={index}")[1] for index in range(WORKERS)]
    total = bed.get("/metrics")[1]
    for name in names:
        parts = [metric(text, name) for text in each]
        assert all(parts), name
        assert metric(total, name) == sum(parts)
    status, text = http_get(bed.server.port("health_port"), "/metrics")
    assert status == 200
    assert metric(text, names[0]) == metric(total, names[0])


def test_both_use_a_core_under_load(bed: Bed) -> None:
    def used() -> list[float]:
        texts = [bed.get(f"/metrics?worker={index}")[1] for index in range(WORKERS)]
        return [metric(text, "process_cpu_seconds_total") for text in texts]

    before = used()
    with echo_target() as target, ExitStack() as opened:
        clients = [
            opened.enter_context(tunnel(bed.client("uds"), target.name)) for _ in range(WORKERS * 2)
        ]
        for _ in range(40):
            for client in clients:
                client.send(b"x" * 65536)
                assert len(client.read_exactly(65536)) == 65536
    after = used()
    assert all(now > then for then, now in zip(before, after, strict=True)), (before, after)


def tunnels_at_each(bed: Bed, target: Target, opened: ExitStack) -> list[dict[str, Any]]:
    """Open tunnels until every worker has one; all of them, as the snapshot shows them.

    Whoever has the least to do gets the next, and may still be ending those of the test before.
    """
    shown: list[dict[str, Any]] = []

    def spread() -> bool:
        opened.enter_context(tunnel(bed.client("uds"), target.name))
        opened.enter_context(target.accept())
        shown[:] = [it for it in bed.snapshot["tunnels"] if it["target"] == target.name]
        return {bed.worker_of(it) for it in shown} == set(range(WORKERS))

    wait_until(spread, "every worker has a tunnel")
    return shown


def test_a_tunnel_is_ended_through_the_parent(bed: Bed) -> None:
    admin = AdminClient(f"http://127.0.0.1:{bed.server.port('admin_port')}")
    with Target() as target, ExitStack() as opened:
        shown = tunnels_at_each(bed, target, opened)
        assert len({it["id"] for it in shown}) == len(shown)
        for index in range(WORKERS):
            one = next(it for it in shown if bed.worker_of(it) == index)
            ended = admin.post(f"/tunnels/{one['id']}/end")
            assert ended == {"ended": one["id"], "connectionId": one["connectionId"]}
        left = {it["id"] for it in bed.snapshot["tunnels"] if it["target"] == target.name}
        assert len(left) == len(shown) - WORKERS
        by = [it["by"] for it in bed.snapshot["recentEndings"] if it["target"] == target.name]
        assert all(text.startswith("operator ") for text in by[:WORKERS]), by


def test_the_audit_log_has_whole_records_of_every_worker(bed: Bed) -> None:
    with Target() as target:
        with ExitStack() as opened:
            records = 2 * len(tunnels_at_each(bed, target, opened))
        wait_until(lambda: len(records_of(bed, target.name)) == records, "every record arrived")
        found = records_of(bed, target.name)
        assert {it["serverId"] for it in found} == {"one-w0", "one-w1"}
    shown = json.loads(bed.get("/audit?limit=1")[1])
    assert (shown["enabled"], len(shown["records"])) == (True, 1)


def records_of(bed: Bed, destination: str) -> list[dict[str, object]]:
    """The audit records of tunnels to a destination.

    From the file: the admin port has the last 200, which one worker's backlog may be.
    """
    # The last piece is empty, or a line that is being written.
    *lines, _ = bed.audit_log.read_text().split("\n")
    return [it for it in map(json.loads, lines) if it.get("destination") == destination]


def test_connections_spread_evenly(bed: Bed) -> None:
    def handed() -> dict[int, float]:
        text = bed.get("/metrics")[1]
        return {i: metric(text, f'{HANDED}{{worker="{i}"}}') for i in range(WORKERS)}

    before = handed()
    with Target() as target, ExitStack() as opened:
        for _ in range(500):
            opened.enter_context(tunnel(bed.client("uds"), target.name))
            opened.enter_context(target.accept())
        after = handed()
        open_now = Counter(bed.worker_of(it) for it in bed.snapshot["tunnels"])
    each = [after[index] - before[index] for index in range(WORKERS)]
    assert sum(each) == 500
    assert max(each) - min(each) <= 20, each
    assert max(open_now.values()) - min(open_now.values()) <= 20, open_now


def test_health_speaks_of_every_worker(bed: Bed) -> None:
    status, text = bed.get("/livez?verbose")
    assert status == 200, text
    status, ready = bed.get("/readyz?verbose")
    assert status == 200, ready
    for index in range(WORKERS):
        assert f"[+]worker:{index}:event-loop ok" in text
        assert f"[+]worker:{index} ok" in ready


def test_signals_to_workers_do_nothing(bed: Bed) -> None:
    before = [it["pid"] for it in bed.workers]
    for pid in before:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, number)
    with Target() as target:
        for _ in range(2 * WORKERS):
            with tunnel(bed.client("uds"), target.name) as client, target.accept() as far:
                client.send(b"x")
                assert far.read_exactly(1) == b"x"
        # Who rotates logs sends SIGHUP to every process of that name; a worker has no file.
        wait_until(lambda: len(records_of(bed, target.name)) == 4 * WORKERS, "every record arrived")
    assert [it["pid"] for it in bed.workers] == before


def test_a_profile_of_one_worker(bed: Bed) -> None:
    status, text = bed.get("/debug/pprof/goroutine?debug=1&worker=1")
    assert status == 200
    assert "worker.py" in text
    # Whatever else is said there means nothing, to the parent as to the worker.
    status, text = bed.get("/debug/pprof/goroutine?debug=1&worker=1&what=x&timeout_s=1&self=2")
    assert (status, "worker.py" in text) == (200, True)
    assert bed.get("/debug/pprof/goroutine?debug=1&worker=7") == (404, "no such worker\n")
    assert "reporting.py" not in bed.get("/debug/pprof/goroutine?debug=1")[1]


def test_what_workers_log_says_which_one_and_is_shown(bed: Bed) -> None:
    wait_until(lambda: '"worker": 1' in bed.get("/logs")[1], "its lines arrived")
    assert 'agent linked worker=1 agent_id="' in bed.server.log


def test_openmetrics_has_exemplars_of_the_workers(bed: Bed) -> None:
    with Target() as target, tunnel(bed.client("uds"), target.name), target.accept():
        pass  # a dial to be an example
    url = f"http://127.0.0.1:{bed.server.port('admin_port')}/metrics"
    request = urllib.request.Request(
        url, headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with Target() as target, tunnel(bed.client("uds"), target.name), target.accept():
        pass  # an exemplar is that of a dial
    with urllib.request.urlopen(request, timeout=20) as reply:
        text = reply.read().decode()
    assert text.endswith("# EOF\n")
    assert text.count("# EOF") == 1
    assert "connection_id=" in text
