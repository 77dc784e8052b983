"""Node traffic in the lab, beyond what the topology says: many connections, and much data."""

from __future__ import annotations

import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest
from machine import nothing_left, wait_until
from nodes_bed import ADDRESS, ECHO, LIMIT_S, Bed, raise_limit, talk, up

from isthmus.lab.topology import LabAttempt, Verb

WATCHES = 1000
BULK_BYTES = 200_000_000
SERVERS = ("server-1", "server-2")
NODES = {"mux": "node-mux", "grpc": "node-grpc"}
LINKS = pytest.mark.parametrize("node", NODES.values(), ids=NODES)
GATE = "EnableClusterToMasterTraffic"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    raise_limit()
    with nothing_left(), up() as one:
        yield one


def carried(bed: Bed) -> int:
    return sum(map(bed.carried_by, SERVERS))


@LINKS
def test_a_thousand_connections_that_are_idle(bed: Bed, node: str) -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(bed.connect(node)) for _ in range(WATCHES)]
        for number, sock in enumerate(held):
            talk(sock, b"watch %d" % number)
        assert bed.open_on_node(node) == WATCHES
        assert carried(bed) == WATCHES
        # Both servers carry them, each about as many.
        assert min(map(bed.carried_by, SERVERS)) > WATCHES // 4
        # Another one is not slower for it, and none was forgotten.
        with bed.connect(node) as one:
            talk(one, b"and another")
        for number, sock in enumerate(held):
            talk(sock, b"event %d" % number)
    wait_until(lambda: bed.open_on_node(node) == 0, "the agent forgets them", LIMIT_S)
    wait_until(lambda: carried(bed) == 0, "the servers forget them", LIMIT_S)


@LINKS
def test_200_megabytes_each_way(bed: Bed, node: str) -> None:
    # What comes back is compared, byte by byte, with what was sent.
    attempt = LabAttempt(
        source=node, verb=Verb.ECHO, target=f"{ADDRESS}:{ECHO}", bytes=BULK_BYTES, timeout_s=200
    )
    outcome = bed.prober(node).attempt(attempt, None)
    assert outcome.worked and outcome.bytes == BULK_BYTES, outcome


@LINKS
def test_connections_outlive_a_short_cut(bed: Bed, node: str) -> None:
    with bed.connect(node) as sock:
        talk(sock, b"before")
        bed.cable(node, whole=False)
        try:
            sock.sendall(b"during")
            sock.settimeout(1.0)
            with pytest.raises(TimeoutError):
                sock.recv(100)
        finally:
            bed.cable(node, whole=True)
        sock.settimeout(LIMIT_S)
        assert sock.recv(100) == b"during"
        talk(sock, b"after")


@LINKS
def test_a_server_that_is_killed_takes_only_its_own_connections(bed: Bed, node: str) -> None:
    with ExitStack() as stack:
        held: list[socket.socket] = []
        on_first = 0
        # The slower of the two, by what the tests before did to it, gets none of the first ones.
        while not 0 < on_first < len(held) and len(held) < 400:
            more = [stack.enter_context(bed.connect(node)) for _ in range(20)]
            for sock in more:
                talk(sock, b"both servers carry some")
            held += more
            on_first = bed.carried_by("server-1")
        assert 0 < on_first < len(held)
        bed.end("s1")
        try:
            # A reset and not an end of file: nobody takes what came for all there is.
            ended = 0
            for sock in held:
                try:
                    talk(sock, b"still there?")
                except (ConnectionResetError, BrokenPipeError):
                    ended += 1
            assert ended == on_first
            with bed.connect(node) as sock:
                talk(sock, b"new ones go to the other")
        finally:
            bed.start("s1")
            both_ready(bed)


def both_ready(bed: Bed) -> None:
    """Wait until both agents know both servers, and that they carry node traffic."""

    def known() -> bool:
        told = [bed.snapshot(node, "agent")["nodeTraffic"]["servers"] for node in NODES.values()]
        return all([one["carries"] for one in each] == ["yes", "yes"] for each in told)

    wait_until(known, "every agent knows both servers", LIMIT_S)


@pytest.mark.skipif(not shutil.which("nft"), reason="the rules are looked at by nft")
def test_off_and_on_again_leaves_nothing(bed: Bed) -> None:
    node = NODES["mux"]
    while_on = bed.kernel(node)
    assert ADDRESS in while_on["addresses"] and ADDRESS in while_on["rules"]
    assert len(while_on["ports"].split()) == 6  # one of each --target
    bed.end("mux", signal.SIGTERM)
    off = bed.kernel(node)
    assert all(ADDRESS not in text for text in (off["addresses"], without_services(off["rules"])))
    assert off["ports"] == ""
    bed.start("mux-off")
    wait_until(lambda: linked(bed, node), "the agent with the gate off is linked", LIMIT_S)
    assert bed.kernel(node) == off
    assert bed.snapshot(node, "agent")["nodeTraffic"] is None
    assert f"without --feature-gates={GATE}=true: nothing is bound" in bed.log("mux-off")
    with pytest.raises(OSError, match="No route to host"):
        bed.connect(node)
    bed.end("mux-off", signal.SIGTERM)
    bed.start("mux")
    wait_until(lambda: linked(bed, node), "the agent is linked", LIMIT_S)
    both_ready(bed)
    assert bed.kernel(node) == while_on
    with bed.connect(node) as sock:
        talk(sock, b"on again")


def without_services(rules: str) -> str:
    """The rules without those of the lab itself."""
    return "\n".join(line for line in rules.splitlines() if "dnat" not in line)


def linked(bed: Bed, node: str) -> bool:
    try:
        return len(bed.snapshot(node, "agent")["links"]) == len(SERVERS)
    except OSError:  # it has just been started
        return False


def waits_for(bed: Bed, node: str, what: str) -> bool:
    return what in bed.unready(node)


def is_ready(bed: Bed, node: str) -> bool:
    return bed.unready(node) == ""


def says(bed: Bed, process: str, what: str) -> None:
    """Wait for a line of a log: the state that it tells of is there a moment before."""
    wait_until(lambda: what in bed.log(process), f"{process} says: {what}", LIMIT_S)


def test_a_gate_that_is_off_at_the_server_is_told_on_both_sides(bed: Bed) -> None:
    for name in ("s1", "s2"):
        bed.end(name)
    bed.start("s1-off")
    try:
        for process, node in NODES.items():
            waits = partial(waits_for, bed, node, "it is off at s1")
            wait_until(waits, f"{node} says what it waits for", LIMIT_S)
            says(bed, process, f"the feature gate {GATE} is on here and off at the server")
        says(bed, "s1-off", f"{GATE} is on at this agent and off at this server")
        # What waits gets a reset after --target-wait.
        with bed.connect(NODES["mux"]) as sock, pytest.raises(ConnectionResetError):
            sock.recv(1)
    finally:
        bed.end("s1-off", signal.SIGTERM)
        for name in ("s1", "s2"):
            bed.start(name)
        both_ready(bed)
    for node in NODES.values():
        wait_until(partial(is_ready, bed, node), f"{node} is ready", LIMIT_S)
        with bed.connect(node) as sock:
            talk(sock, b"on again")
