"""kube-apiserver reaches a node behind a firewall through each way that a selector can name.

Every call is made three times: through the tunnel, where it works; without an agent and without a
tunnel, where it fails and says why. That it fails soon is what the limit of each call is for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from kube.api import Api, CallFailedError
from kube.checks import CHECKS, WEBSOCKET, Check, check_named
from kube.cluster import Cluster
from kube.objects import (
    AGGREGATED,
    PLAIN,
    SOCKETS,
    create_everything,
    wait_available,
    wait_unavailable,
)
from kube.programs import LIMIT_S, wait_until
from kube.tunnels import DIRECT, MODES, Mode, Tunnel

pytestmark = pytest.mark.interop

# The node closes right after the exit code, while kubectl closes its side: what is lost then is
# lost by luck, some times in a hundred.
LAST_WORDS = 50
Running = tuple[Cluster, Tunnel, Api]


@pytest.fixture(scope="module", params=MODES, ids=str)
def running(the_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Running]:
    """A tunnel and an apiserver that uses it for everything in the cluster."""
    mode: Mode = request.param
    tunnel = the_cluster.tunnel(mode)
    selector = [{"name": "cluster", "connection": tunnel.connection}]
    with tunnel.up(), the_cluster.control_plane.apiserver(selector=selector) as api:
        create_everything(api, the_cluster.files.ca_cert)
        wait_available(api)
        yield the_cluster, tunnel, api


@pytest.fixture(scope="class")
def without_agent(running: Running) -> Iterator[Running]:
    """The same while the agent is not there."""
    _, tunnel, _ = running
    with tunnel.without_agent():
        yield running


@pytest.fixture(scope="module")
def direct(the_cluster: Cluster) -> Iterator[Api]:
    """An apiserver with a selector that says Direct."""
    selector = [{"name": "cluster", "connection": DIRECT}]
    with the_cluster.control_plane.apiserver(selector=selector) as api:
        create_everything(api, the_cluster.files.ca_cert)
        yield api


def assert_fails(check: Check, cluster: Cluster, api: Api, why: str) -> None:
    """It fails, and the apiserver's words say why."""
    with pytest.raises(CallFailedError) as failed:
        check.run(cluster, api)
    said = f"{failed.value.status}: {failed.value}"
    accepted = [why] if check.instead is None else [why, check.instead]
    assert any(re.search(each, said) for each in accepted), f"{check}: {said}"


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_it_works_through_the_tunnel(running: Running, check: Check) -> None:
    cluster, _, api = running
    check.run(cluster, api)


def test_the_openapi_of_an_aggregated_api_becomes_part_of_the_whole(running: Running) -> None:
    _, _, api = running
    path = f"/apis/{AGGREGATED}/v1alpha1/bridges"
    wait_until(lambda: path in api.get("/openapi/v2")["paths"], "it is described")


def test_the_apiserver_says_that_it_came_this_way(running: Running) -> None:
    _, tunnel, api = running
    labels = tunnel.mode.labels
    (line,) = (
        line for line in api.get("/metrics").splitlines()
        if line.startswith("apiserver_egress_dialer_dial_start_total{")
    )  # fmt: skip
    assert labels in line
    assert 0 < float(line.rsplit(" ", 1)[1]) <= tunnel.dials


def test_the_last_words_of_a_program_always_arrive(running: Running) -> None:
    _, _, api = running
    for _ in range(LAST_WORDS):
        with pytest.raises(CallFailedError) as ended:
            api.kubectl("exec", "-i", SOCKETS, "--", "exit", "7", env=WEBSOCKET)
        assert ended.value.status == 7, ended.value


def test_streams_end_with_the_agent(running: Running) -> None:
    _, tunnel, api = running
    with (
        api.kubectl_running("logs", "--follow", PLAIN) as log,
        # Where the apiserver makes SPDY of it, kubectl takes a lost program for one that ended.
        api.kubectl_running("exec", "-i", SOCKETS, "--", "upper", env=WEBSOCKET) as program,
    ):
        assert program.stdin is not None
        program.stdin.write(b"hello\n")
        program.stdin.flush()
        assert log.stdout is not None
        assert log.stdout.readline() == f"line 0 of {PLAIN}\n".encode()
        assert program.stdout is not None
        assert program.stdout.readline() == b"HELLO\n"
        with tunnel.without_agent():
            log.stdout.read()
            log.wait(LIMIT_S)  # with 0: the apiserver ends a log the same way however it ended
            assert program.stdout.read() == b""
            assert program.wait(LIMIT_S) != 0


class TestWithoutAgent:
    """While there is no agent, then again with one."""

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    def test_it_fails_and_says_why(self, without_agent: Running, check: Check) -> None:
        cluster, tunnel, api = without_agent
        assert_fails(check, cluster, api, tunnel.mode.no_agent)

    def test_the_apiserver_says_why_it_has_no_aggregated_api(self, without_agent: Running) -> None:
        _, tunnel, api = without_agent
        said = wait_unavailable(api)
        assert re.search(tunnel.mode.no_agent, said)
        assert api.is_ready()


def test_everything_works_again_with_an_agent(running: Running) -> None:
    cluster, _, api = running
    wait_available(api)
    for check in CHECKS:
        check.run(cluster, api)


def test_the_apiserver_stays_ready_while_the_server_is_killed(running: Running) -> None:
    cluster, tunnel, api = running
    with tunnel.without_server():
        for check in CHECKS if tunnel.mode.fails_at_once else [check_named("admission")]:
            assert_fails(check, cluster, api, tunnel.mode.no_server)
        assert api.is_ready()
    wait_available(api)
    for check in CHECKS:
        check.run(cluster, api)
    assert api.is_ready()


@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_it_fails_when_the_selector_says_direct(
    the_cluster: Cluster, direct: Api, check: Check
) -> None:
    assert_fails(check, the_cluster, direct, "connect: connection refused")
