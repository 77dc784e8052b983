"""Workers and their parent killed, drained and hurried: who loses what, and who comes back."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from clients import Client, Target, tunnel
from programs import Programs
from stack import http_get, metric, wait_until
from workers_bed import START_S, WORKERS, Bed, children, is_running

CUT = (ConnectionResetError, BrokenPipeError)
COUNTERS = (
    'isthmus_server_bytes_total{direction="to_target"}',
    'isthmus_server_tunnels_ended_total{ending="clean"}',
    "konnectivity_network_proxy_server_dial_duration_seconds_count",
    "process_cpu_seconds_total",
)


class Pair:
    """A tunnel, both ends in the test's hands."""

    def __init__(self, client: Client, far: Client, shown: dict[str, Any]) -> None:
        self.client, self.far, self.shown = client, far, shown

    def carry(self, size: int = 100_000) -> None:
        """Send bytes both ways and see that they arrive whole."""
        payload = os.urandom(size)
        for one, other in ((self.client, self.far), (self.far, self.client)):
            one.send(payload)
            assert other.read_exactly(size) == payload


def opened_pairs(bed: Bed, target: Target, opened: ExitStack, count: int) -> dict[int, list[Pair]]:
    """Open tunnels; those of each worker."""
    found: dict[int, list[Pair]] = {index: [] for index in range(WORKERS)}
    known = {it["id"] for it in bed.snapshot["tunnels"]}
    for _ in range(count):
        client = opened.enter_context(tunnel(bed.client("uds"), target.name))
        far = opened.enter_context(target.accept())
        (shown,) = [it for it in bed.snapshot["tunnels"] if it["id"] not in known]
        known.add(shown["id"])
        found[bed.worker_of(shown)].append(Pair(client, far, shown))
    return found


def scrape(bed: Bed) -> list[float]:
    text = bed.get("/metrics")[1]
    return [metric(text, name) for name in COUNTERS]


@pytest.mark.parametrize("link", ["mux", "grpc"])
def test_a_killed_worker_takes_only_its_own_tunnels(programs: Programs, link: str) -> None:
    bed = Bed.start(programs)
    bed.agent(f"--link={link}")
    with Target() as target, ExitStack() as opened:
        pairs = opened_pairs(bed, target, opened, 2 * WORKERS)
        assert all(pairs.values())
        for pair in (pair for each in pairs.values() for pair in each):
            pair.carry()
        with tunnel(bed.client("uds"), target.name), target.accept():
            pass  # one that has ended
        wait_until(lambda: scrape(bed)[1] >= 1, "the end was counted")
        before = scrape(bed)
        victim = next(it for it in bed.workers if it["index"] == 0)
        os.kill(victim["pid"], signal.SIGKILL)
        for pair in pairs[0]:
            # A UNIX socket cannot be reset: its end is all that a client sees there.
            with pytest.raises(ConnectionError):
                while pair.client.recv():
                    pass
                raise ConnectionResetError
        for pair in pairs[1]:
            pair.carry()
        # Clients may hear of its end before its parent does.
        wait_until(lambda: bed.workers[0]["restarts"] == 1, "its end is known")
        wait_until(lambda: bed.workers[0]["state"] == "running", "it is back", START_S)
        assert bed.workers[0]["pid"] != victim["pid"]
        bed.wait_linked()
        for pair in pairs[1]:
            pair.carry()
        more = opened_pairs(bed, target, opened, 3 * WORKERS)
        assert more[0]  # it had the least to do
        for pair in (pair for each in more.values() for pair in each):
            pair.carry(1000)
        after = scrape(bed)
        assert all(now >= then for then, now in zip(before, after, strict=True)), (before, after)
        text = bed.get("/metrics")[1]
        assert metric(text, 'isthmus_workers_restarts_total{worker="0"}') == 1
        assert metric(text, 'isthmus_workers_restarts_total{worker="1"}') == 0
    bed.server.wait_log("worker exited, restarting")


def test_totals_do_not_go_back_while_a_worker_is_down(programs: Programs) -> None:
    bed = Bed.start(programs)
    bed.agent()
    with Target() as target:
        for _ in range(3 * WORKERS):
            with tunnel(bed.client("uds"), target.name) as client, target.accept() as far:
                client.send(b"x" * 1000)
                assert len(far.read_exactly(1000)) == 1000
    # Every five seconds a worker says what is to be kept of it.
    wait_until(lambda: scrape(bed)[1] == 3 * WORKERS, "all have ended")
    before = scrape(bed)
    began = bed.snapshot["uptimeSeconds"]
    wait_until(lambda: bed.snapshot["uptimeSeconds"] > began + 6, "it was kept")
    pids = [it["pid"] for it in bed.workers]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(it["state"] == "running" for it in bed.workers), "all are down")
    status, text = bed.get("/readyz")
    assert status == 500, text
    while_down = scrape(bed)
    assert while_down[:3] == before[:3]
    totals = bed.snapshot["totals"]
    assert totals["tunnelsEnded"] == 3 * WORKERS
    assert sum(it["connectionsHanded"] for it in bed.workers) >= 3 * WORKERS
    wait_until(lambda: all(it["state"] == "running" for it in bed.workers), "all are back", START_S)
    assert scrape(bed)[:3] == before[:3]


def test_a_killed_parent_leaves_nobody_behind(programs: Programs) -> None:
    bed = Bed.start(programs)
    bed.agent()
    pids = [it["pid"] for it in bed.workers]
    assert sorted(children(bed.server.process.pid)) == sorted(pids)
    with Target() as target, tunnel(bed.client("uds"), target.name) as client, target.accept():
        bed.server.signal(signal.SIGKILL)
        bed.server.wait_exit()
        wait_until(lambda: not any(map(is_running, pids)), "the workers are gone")
        assert client.read_to_end() == b""


def test_a_drain_waits_for_the_tunnels_of_every_worker(programs: Programs) -> None:
    bed = Bed.start(programs)
    bed.agent()
    with Target() as target, ExitStack() as opened:
        pairs = opened_pairs(bed, target, opened, 2 * WORKERS)
        assert all(pairs.values())
        bed.server.signal(signal.SIGTERM)
        wait_until(lambda: not Path(f"{programs.uds}.http").exists(), "it accepts no more")
        status, text = http_get(bed.server.port("health_port"), "/readyz")
        assert status == 500 and "draining" in text
        for pair in (pair for each in pairs.values() for pair in each):
            pair.carry()
        for index in range(WORKERS):
            for pair in pairs[index]:
                pair.client.half_close()
                assert pair.far.read_to_end() == b""
                pair.far.send(b"bye")
                pair.far.half_close()
                assert pair.client.read_to_end() == b"bye"
    assert bed.server.wait_exit() == 0
    assert "killed" not in bed.server.log


def test_a_second_signal_ends_it_at_once(programs: Programs) -> None:
    bed = Bed.start(programs)
    bed.agent()
    pids = [it["pid"] for it in bed.workers]
    with Target() as target, tunnel(bed.client("uds"), target.name) as client, target.accept():
        bed.server.signal(signal.SIGTERM)
        bed.server.wait_log("draining")
        bed.server.signal(signal.SIGTERM)
        assert bed.server.wait_exit() == 0
        assert client.read_to_end() == b""
    assert not any(map(is_running, pids))


def test_a_worker_that_cannot_start_again_fails_readiness(
    programs: Programs, tmp_path: Path
) -> None:
    key = tmp_path / "cluster.key"
    key.write_bytes(Path(programs.files.server_key).read_bytes())
    bed = Bed.start(programs, f"--cluster-key={key}")
    bed.agent()
    assert bed.get("/readyz")[0] == 200
    key.unlink()
    os.kill(bed.workers[1]["pid"], signal.SIGKILL)
    wait_until(lambda: bed.workers[1]["restarts"] >= 2, "it was tried again", START_S)
    status, text = bed.get("/readyz?verbose")
    assert status == 500
    assert "[+]worker:0 ok" in text
    assert "[-]worker:1 failed" in text
    assert "cluster.key" in bed.workers[1]["why"]
    assert bed.get("/livez")[0] == 200  # those that serve go on
    with (
        Target() as target,
        tunnel(bed.client("uds"), target.name) as client,
        target.accept() as far,
    ):
        client.send(b"x")
        assert far.read_exactly(1) == b"x"
    key.write_bytes(Path(programs.files.server_key).read_bytes())
    wait_until(lambda: bed.get("/readyz")[0] == 200, "it is back", START_S)


def test_a_wrong_file_is_one_sentence_and_nothing_is_opened(programs: Programs) -> None:
    program = programs.start(
        "server", *programs.server_flags(), "--workers=2", "--cluster-key=/nowhere/key"
    )
    assert program.process.wait(START_S) == 2
    assert program.log.count("isthmus: ") == 1
    assert "--cluster-key" in program.log
    assert not Path(programs.uds).exists()


def test_a_port_in_use_ends_the_workers_too(programs: Programs) -> None:
    with Target() as taken:
        program = programs.start(
            "server", *programs.server_flags(), "--workers=2", f"--agent-port={taken.port}"
        )
        assert program.process.wait(START_S) == 2
    assert f"--agent-port: cannot listen on 127.0.0.1:{taken.port}" in program.log
