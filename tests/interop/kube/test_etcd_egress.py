"""kube-apiserver reaches etcd through a tunnel, and what that costs."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest
from kube.api import Api
from kube.cluster import Cluster
from kube.objects import CORE
from kube.programs import wait_until
from kube.tunnels import DIRECT, GRPC_UDS, HTTP_UDS, Tunnel

pytestmark = pytest.mark.interop

ROUNDS = 800
Times = dict[str, list[float]]
WAYS = {"tunnel": HTTP_UDS, "tunnel-grpc": GRPC_UDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Apiservers on the same data, one with etcd beside it and the others with a tunnel between."""

    direct: Api
    tunnelled: dict[str, tuple[Tunnel, Api]]


@pytest.fixture(scope="module")
def running(the_cluster: Cluster) -> Iterator[Running]:
    """One apiserver for each way to etcd."""
    with contextlib.ExitStack() as stack:

        def start(connection: object) -> Api:
            selector = [{"name": "etcd", "connection": connection}]
            start = the_cluster.control_plane.apiserver
            return stack.enter_context(start(selector=selector, prefix="etcd-egress"))

        tunnels = {name: the_cluster.tunnel(mode, agent_here=True) for name, mode in WAYS.items()}
        for tunnel in tunnels.values():
            stack.enter_context(tunnel.up())
        yield Running(
            direct=start(DIRECT),
            tunnelled={name: (each, start(each.connection)) for name, each in tunnels.items()},
        )


def _timed(times: list[float], call: Callable[[], object]) -> None:
    began = time.perf_counter()
    call()
    times.append((time.perf_counter() - began) * 1000)


def _measure(apis: dict[str, Api]) -> dict[str, Times]:
    """Get and put by turns, so that whatever else goes on meets all alike."""
    found: dict[str, Times] = {name: {"get": [], "put": []} for name in apis}
    with contextlib.ExitStack() as stack:
        calls = {}
        for name, api in apis.items():
            api.create(f"{CORE}/configmaps", {"metadata": {"name": name}})
            over = stack.enter_context(api.connection())
            calls[name] = partial(api.call, path=f"{CORE}/configmaps/{name}", over=over)
        for number in range(ROUNDS):
            for name, call in calls.items():
                body = {"metadata": {"name": name}, "data": {"round": str(number)}}
                _timed(found[name]["put"], partial(call, "PUT", body=body))
                _timed(found[name]["get"], partial(call, "GET"))
    return found


def _line(name: str, times: Times) -> str:
    said = []
    for verb, found in times.items():
        cuts = statistics.quantiles(found, n=100)
        said.append(f"{verb} p50 {cuts[49]:.2f} ms p99 {cuts[98]:.2f} ms")
    return f"{name} {' '.join(said)}"


def test_what_it_costs(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    tunnelled = {name: api for name, (_, api) in running.tunnelled.items()}
    found = _measure({"direct": running.direct, **tunnelled})
    for tunnel, _ in running.tunnelled.values():
        assert tunnel.dials > 0
    for name, times in found.items():
        assert {len(each) for each in times.values()} == {ROUNDS}, name
    with capsys.disabled():
        print(f"\netcd {' '.join(_line(name, times) for name, times in found.items())}")


@pytest.mark.parametrize("name", WAYS)
def test_the_apiserver_waits_for_its_tunnel(running: Running, name: str) -> None:
    tunnel, api = running.tunnelled[name]
    with tunnel.without_server():
        wait_until(lambda: not api.is_ready(), "it misses etcd")
        assert running.direct.is_ready()
    wait_until(api.is_ready, "it found etcd again")
    api.create(f"{CORE}/secrets", {"metadata": {"name": name}})
    assert running.direct.get(f"{CORE}/secrets/{name}")["metadata"]["name"] == name
