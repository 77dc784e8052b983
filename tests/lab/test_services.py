"""Services on two nodes, by iptables and by nftables: real connections, and disturbances.

test_services_masquerade.py checks what is masqueraded.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from machine import wait_until
from services_bed import (
    DROPPED_S,
    LIMIT_S,
    MODES,
    NODE_IPS,
    POD_GATEWAYS,
    PODS,
    Bed,
    Proxy,
    Seen,
    ask_by,
    up,
)

pytestmark = pytest.mark.timeout(300)

FLAGS = ("--detect-local=node-cidr",)
CONNECTIONS = 300
#: Of three endpoints; fair dice leave it less than once in a million runs.
FAIR = range(60, 141)
STICKY_S = 10800
BRIEF_S = 1
#: Rounds of a choice between two of which one never comes once in a million runs.
ROUNDS = 20
FLIPS = 25
MANY = 40
CRASHES = 6
_PAUSE_S = 0.005  # other programs want to do something meanwhile


@pytest.fixture(scope="module")
def lab_bed() -> Iterator[Bed]:
    with up() as bed:
        yield bed


@pytest.fixture(scope="module", params=MODES)
def fresh(request: pytest.FixtureRequest, lab_bed: Bed) -> Bed:
    lab_bed.use_mode(request.param)
    return lab_bed


@pytest.fixture
def bed(fresh: Bed) -> Bed:
    fresh.use(*FLAGS)
    return fresh


@contextmanager
def service(bed: Bed, name: str, *ends: str, ip: str, **more: Any) -> Iterator[str]:
    """Have a Service for the time of the block, in force on both nodes; its cluster IP."""
    bed.service(name, ends, ip=ip, **more)
    try:
        bed.wait_known(ip, *([more["lb_ip"]] if "lb_ip" in more else []))
        yield ip
    finally:
        bed.remove_service(name)
    bed.wait_forgotten(ip)  # or the next of this address would be taken to be there


def servers(bed: Bed, host: str, target: str, port: int = 80, *, times: int) -> set[str]:
    return {seen.server for seen in bed.ask_all(host, target, port, times=times)}


# Choosing an endpoint.


def test_connections_are_spread(bed: Bed) -> None:
    with service(bed, "spread", "pod-1a", "pod-2a", "pod-2b", ip="10.96.2.1") as ip:
        for host in ("pod-1b", "client-2"):
            counts = Counter(each.server for each in bed.ask_all(host, ip, times=CONNECTIONS))
            assert set(counts) == {"pod-1a", "pod-2a", "pod-2b"}
            assert all(count in FAIR for count in counts.values()), counts


def affinity(seconds: int) -> dict[str, object]:
    return {
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}},
    }


def test_a_client_comes_to_the_same_endpoint(bed: Bed) -> None:
    ends = ("pod-1a", "pod-2a", "pod-2b")
    with service(
        bed, "sticky", *ends, ip="10.96.2.2", node_port=30202, protocols="TCP UDP",
        **affinity(STICKY_S),
    ) as ip:  # fmt: skip
        for host in ("pod-1b", "client-1", "client-2"):
            assert len(servers(bed, host, ip, times=1) | servers(bed, host, ip, times=30)) == 1
        # By the node port, too; and UDP has a memory of its own.
        for _ in range(2):
            first = bed.ask("client-1", NODE_IPS["node-1"], 30202).server
            assert servers(bed, "client-1", NODE_IPS["node-1"], 30202, times=20) == {first}
        assert len({bed.ask("pod-1b", ip, udp=True).server for _ in range(20)}) == 1
        # An endpoint that is gone is not come back to.
        chosen = bed.ask("pod-1b", ip).server
        left = [end for end in ends if end != chosen]
        bed.endpoints("sticky", left, protocols="TCP UDP")
        wait_until(lambda: bed.ask("pod-1b", ip).server != chosen, "another is chosen", LIMIT_S)
        assert len(servers(bed, "pod-1b", ip, times=20)) == 1


def test_an_endpoint_is_forgotten_in_time(bed: Bed) -> None:
    with service(bed, "brief", "pod-1a", "pod-2a", ip="10.96.2.3", **affinity(BRIEF_S)) as ip:
        first = bed.ask("pod-1b", ip).server
        for _ in range(ROUNDS):
            time.sleep(BRIEF_S * 1.3)  # each question begins the time anew
            if bed.ask("pod-1b", ip).server != first:
                return
    pytest.fail(f"always {first}")


# Who may, and who is told that nobody is there.


def test_source_ranges(bed: Bed) -> None:
    lb = "192.0.2.11"
    with service(
        bed, "ranges", "pod-1a", ip="10.96.2.4", lb_ip=lb, node_port=30204,
        loadBalancerSourceRanges=["10.220.0.51/32", "203.0.113.0/24"],
    ) as ip:  # fmt: skip
        assert bed.ask("client-1", lb) == Seen("pod-1a", POD_GATEWAYS["node-1"])
        assert bed.dropped("client-2", lb)
        # A pod is in no range either; cluster IPs and node ports are for everybody.
        assert bed.dropped("pod-1b", lb)
        for host in ("client-2", "pod-1b", "node-2"):
            assert bed.ask(host, ip).server == "pod-1a"
        assert bed.ask("client-2", NODE_IPS["node-2"], 30204).server == "pod-1a"


def test_no_endpoints_at_all_is_refused(bed: Bed) -> None:
    lb = "192.0.2.12"
    with service(
        bed, "empty", ip="10.96.2.5", lb_ip=lb, node_port=30205, protocols="TCP UDP"
    ) as ip:
        for udp in (False, True):
            for host in ("pod-1b", "pod-2b", "client-1", "client-2", "node-1", "node-2"):
                assert bed.refused(host, ip, udp=udp), host
            for host in ("pod-1b", "client-1"):
                assert bed.refused(host, lb, udp=udp), host
                assert bed.refused(host, NODE_IPS["node-1"], 30205, udp=udp), host
        # They come, and it is no more.
        bed.endpoints("empty", ["pod-2a"], protocols="TCP UDP")
        for udp in (False, True):
            wait_until(partial(works, bed, "pod-1b", ip, udp=udp), "an endpoint", LIMIT_S)
            assert bed.ask("pod-1b", ip, udp=udp) == Seen("pod-2a", PODS["pod-1b"])


def test_policy_local_without_an_endpoint_here(bed: Bed) -> None:
    lb = "192.0.2.13"
    with service(
        bed, "far", "pod-1a", ip="10.96.2.6", lb_ip=lb, node_port=30206,
        externalTrafficPolicy="Local", internalTrafficPolicy="Local", healthCheckNodePort=30216,
    ) as ip:  # fmt: skip
        assert bed.ask("client-1", lb) == Seen("pod-1a", "10.220.0.51")
        assert bed.ask("pod-1b", ip).server == "pod-1a"
        # Dropped and not refused: a load balancer asks the next node.
        assert bed.dropped("client-2", lb)
        assert bed.dropped("client-2", NODE_IPS["node-2"], 30206)
        assert bed.dropped("pod-2b", ip)
        # Which node has one is told at the health check port.
        for node, status, count in (("node-1", 200, 1), ("node-2", 503, 0)):
            said = bed.begin("client-1", partial(health, NODE_IPS[node], 30216)).result()
            assert said == (status, count), node


def health(address: str, port: int) -> tuple[int, int]:
    opened = http.client.HTTPConnection(address, port, timeout=LIMIT_S)
    try:
        opened.request("GET", "/")
        answer = opened.getresponse()
        return answer.status, json.loads(answer.read())["localEndpoints"]
    finally:
        opened.close()


def test_node_ports_at_loopback(bed: Bed) -> None:
    with service(bed, "loop", "pod-1a", "pod-2a", ip="10.96.2.7", node_port=30207):
        if bed.mode == "iptables":
            assert servers(bed, "node-1", "127.0.0.1", 30207, times=30) == {"pod-1a", "pod-2a"}
        else:
            assert bed.refused("node-1", "127.0.0.1", 30207)


def test_sctp_by_its_rules(bed: Bed) -> None:
    # This kernel has no SCTP sockets: nobody could connect.
    with service(bed, "sctp", "pod-1a", ip="10.96.2.8", protocols="SCTP", port=9):
        rules = bed.rules("node-1")
    if bed.mode == "iptables":
        assert "-d 10.96.2.8/32 -p sctp" in rules and "-m sctp --dport 9 -j KUBE-SVC-" in rules
        assert "-p sctp" in rules and f"-j DNAT --to-destination {PODS['pod-1a']}:8080" in rules
    else:
        assert "10.96.2.8 . sctp . 9 : goto service-" in rules


# Changes, and what goes wrong.


@contextmanager
def connecting(bed: Bed, target: str, *hosts: str) -> Iterator[Callable[[], int]]:
    """Connect over and over meanwhile, which has to work. Says how often it did."""
    over = threading.Event()
    worked: Counter[str] = Counter()
    lost: list[tuple[str, OSError]] = []

    def work(host: str) -> None:
        while not over.wait(_PAUSE_S):
            try:
                bed.ask(host, target)
            except OSError as error:
                lost.append((host, error))
            else:
                worked[host] += 1

    with ThreadPoolExecutor(2 * len(hosts)) as threads:
        begun = [threads.submit(work, host) for host in 2 * hosts]
        try:
            yield worked.total
        finally:
            over.set()
        for each in begun:
            each.result(LIMIT_S)
    assert min(worked[host] for host in hosts) > 0
    assert not lost


def test_no_new_connection_is_lost_when_endpoints_change(bed: Bed) -> None:
    sets = (["pod-1a"], ["pod-2a", "pod-2b"], ["pod-1a", "pod-1b"], ["pod-2a"])
    with (
        service(bed, "busy", *sets[0], ip="10.96.2.9") as ip,
        connecting(bed, ip, "pod-1b", "pod-2b", "client-1", "node-2") as worked,
    ):
        for number in range(FLIPS):
            bed.endpoints("busy", sets[number % len(sets)])
            before = worked()
            wait_until(partial(more_than, worked, before + 8), "connections", LIMIT_S)
        # Neither by a restart, which finds its own rules there.
        bed.use(*FLAGS, "--v=3")
        bed.endpoints("busy", ["pod-1b"])
        wait_until(lambda: bed.ask("client-2", ip).server == "pod-1b", "the last", LIMIT_S)


@pytest.mark.parametrize("host", ["pod-1b", "client-1", "node-1"])
def test_udp_flows_go_to_the_endpoint_that_is_there(bed: Bed, host: str) -> None:
    with (
        service(bed, "flow", "pod-1a", ip="10.96.2.10", protocols="UDP") as ip,
        bed.begin(host, partial(connected, ip, 80)).result() as sock,
    ):
        assert ask_by(sock).server == "pod-1a"
        bed.endpoints("flow", ["pod-2a"], protocols="UDP")

        # A flow that goes on is never forgotten by the kernel itself.
        def moved() -> bool:
            with suppress(TimeoutError):
                return ask_by(sock).server == "pod-2a"
            return False

        wait_until(moved, "the flow leads to the new endpoint", LIMIT_S)


def connected(address: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect((address, port))
    sock.settimeout(1.0)
    return sock


def flushes(mode: str, what: str) -> Iterator[tuple[str, ...]]:
    """Commands by which others make room for rules of their own: as firewalls do at a restart."""
    if mode == "nftables":
        yield ("nft", "flush" if what == "rules" else "delete", "table", "ip", "kube-proxy")
        return
    tables = ("nat", "filter", "mangle")
    yield from (("iptables", "-t", table, "-F") for table in tables)
    if what == "chains":
        yield from (("iptables", "-t", table, "-X") for table in tables)


@pytest.mark.parametrize("what", ["rules", "chains"])
def test_a_foreign_flush_is_healed(bed: Bed, what: str) -> None:
    with service(bed, "flushed", "pod-1a", ip="10.96.2.11", node_port=30211) as ip:
        before = bed.rules("node-1")
        for argv in flushes(bed.mode, what):
            bed.run("node-1", *argv)
        wait_until(lambda: works(bed, "client-1", ip), "it is healed", LIMIT_S)
        assert bed.ask("client-1", NODE_IPS["node-1"], 30211).server == "pod-1a"
        assert bed.rules("node-1") == before


def works(bed: Bed, host: str, target: str, *, udp: bool = False) -> bool:
    """Whether somebody answers, now."""
    try:
        bed.ask(host, target, udp=udp, limit_s=DROPPED_S)
    except OSError:
        return False
    return True


def more_than(count: Callable[[], int], least: int) -> bool:
    return count() > least


def says(proxy: Proxy, word: str) -> bool:
    return word in proxy.log


def test_a_crash_at_any_moment_leaves_services_as_they_were(fresh: Bed) -> None:
    bed, node = fresh, "node-1"
    for number in range(MANY):
        bed.service(f"many-{number}", ["pod-1a", "pod-2a"], ip=f"10.96.3.{number + 1}")
    try:
        bed.service("kept", ["pod-1a", "pod-2a"], ip="10.96.2.12")
        bed.use(*FLAGS, nodes=[node])
        bed.wait_known("10.96.2.12", nodes=[node])
        wanted, unfinished = bed.rules(node), 0
        with connecting(bed, "10.96.2.12", "pod-1b", "client-1"):
            bed.crash(node)
            for crash in range(CRASHES):
                # Whatever it finds is not what it wants, so that it has something to write.
                for number in range(0, MANY, 5):
                    bed.endpoints(f"many-{number}", [("pod-1a", "pod-2b")[crash % 2]])
                crashed = bed.start(node, *FLAGS)
                wait_until(partial(says, crashed, "serving"), "it begins", LIMIT_S)
                time.sleep(crash * 0.04)  # another moment each time, of reading and of writing
                crashed.kill()
                unfinished += "synced" not in crashed.log
                assert servers(bed, "pod-1b", "10.96.2.12", times=20) == {"pod-1a", "pod-2a"}
            for number in range(0, MANY, 5):
                bed.endpoints(f"many-{number}", ["pod-1a", "pod-2a"])
            bed.use(*FLAGS, nodes=[node])
        assert bed.rules(node) == wanted
        assert unfinished > 0
    finally:
        bed.remove_service("kept")
        for number in range(MANY):
            bed.remove_service(f"many-{number}")


def test_cleaning_up_leaves_what_is_somebody_elses(fresh: Bed) -> None:
    bed, node = fresh, "node-1"
    bed.use(*FLAGS)
    foreign: tuple[tuple[str, ...], ...] = (
        ("iptables", "-t", "nat", "-N", "FOREIGN"),
        ("iptables", "-t", "nat", "-A", "PREROUTING", "-d", "198.51.100.7/32", "-j", "FOREIGN"),
        ("iptables", "-A", "INPUT", "-p", "tcp", "--dport", "81", "-j", "DROP"),
        ("nft", "add", "table", "inet", "foreign"),
    )
    for argv in foreign:
        bed.run(node, *argv)
    with service(bed, "cleaned", "pod-1a", ip="10.96.2.13") as ip:
        assert bed.ask("pod-1b", ip).server == "pod-1a"
        bed.use_mode(bed.mode)  # which ends proxies, and cleans up
        assert bed.dropped("pod-1b", ip)
    saved, ruleset = bed.run(node, "iptables-save"), bed.run(node, "nft", "list", "ruleset")
    assert "-A PREROUTING -d 198.51.100.7/32 -j FOREIGN" in saved and ":FOREIGN" in saved
    assert "-A INPUT -p tcp -m tcp --dport 81 -j DROP" in saved
    assert "table inet foreign" in ruleset
    assert "kube-proxy" not in ruleset and "KUBE-S" not in saved
    # Nor does it stay for who comes next.
    for table in ("nat", "filter"):
        bed.run(node, "iptables", "-t", table, "-F")
    bed.run(node, "iptables", "-t", "nat", "-X")
    bed.run(node, "nft", "delete", "table", "inet", "foreign")
