"""bench/etcd.py, briefly: etcd's own client puts, gets and watches by each way, and none fails."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from kube.build import NotBuiltError, build_etcd

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.interop, pytest.mark.nightly]


@pytest.mark.timeout(900)
def test_all_clients_and_watchers_are_served_through_the_tunnel(tmp_path: Path) -> None:
    try:
        build_etcd(print)
    except NotBuiltError as exc:
        pytest.skip(str(exc))
    written = tmp_path / "etcd.json"
    done = subprocess.run(
        [
            sys.executable, str(ROOT / "bench" / "run.py"), "--only=etcd", "--rounds=1",
            "--seconds=0.2", "--topologies=direct,isthmus", f"--json={written}",
        ],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    # Another value than was put, or a watcher that misses one, is an error of the run.
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    samples = json.loads(written.read_text())["samples"]
    loads = itertools.product(("get", "put", "watch"), ("1", "16", "64"), ("1000", "100000"))
    for command, clients, size in loads:
        by_way = samples[f"{command}{clients}-{size}"]
        assert all(by_way[way][0]["per_s"] > 0 for way in ("direct", "isthmus"))
    assert any(by_way["isthmus"][0]["cpu_s"] > 0 for by_way in samples.values())
