"""The address of an agent over time: shared, left behind, put back, and set up for others."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from host_bed import (
    DROPPED,
    INTERFACE,
    KIND,
    REACHED,
    V4,
    V6,
    Address,
    Bed,
    made,
    only_firewall,
    run,
)
from machine import environment

from isthmus.errors import ConfigError
from isthmus.lab.namespaces import in_namespace
from isthmus.net.host_address import (
    MOST_USERS,
    AddressClaim,
    remove_leftovers,
    set_up,
    turn,
    undo_set_up,
    used,
)

FAMILIES = pytest.mark.parametrize("address", [V4, V6], ids=["v4", "v6"])
FIREWALLS = pytest.mark.parametrize("firewall", ["nft", "iptables"], indirect=True)
NOBODY = 65534

AGENT = """\
from ipaddress import ip_address
from isthmus.net.host_address import put
here = put(ip_address("{address}"), interface="{interface}", kind="{kind}")
print("ready", flush=True)
input()
"""
# Imports first: who is nobody may not be able to read where Python is.
NOBODYS = f"""\
import os, sys
from ipaddress import ip_address
from isthmus.errors import ConfigError
from isthmus.net.host_address import put
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
try:
    here = put(
        ip_address("{{address}}"), interface="{INTERFACE}", kind="{KIND}", uplinks={{uplinks}}
    )
except ConfigError as error:
    print(error)
    sys.exit(2)
"""
PUT_AND_LEAVE = """\
print(here.where, here.refresh())
here.take_away()
"""
PUT_AND_LOOK = """\
print("ready", flush=True)
for _ in sys.stdin:
    print(here.refresh(), flush=True)
"""


@pytest.fixture
def bed() -> Iterator[Bed]:
    with made() as one:
        yield one


@pytest.fixture
def firewall(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Only these programs are there for whoever puts an address."""
    only_firewall(request.param, tmp_path, monkeypatch)
    name: str = request.param
    return name


def agent(address: Address, interface: str = INTERFACE) -> str:
    return AGENT.format(address=address, interface=interface, kind=KIND)


def nobodys(bed: Bed, address: Address, uplinks: tuple[str, ...] = ()) -> tuple[int, str]:
    """What an agent without any capability gets: its exit code, and what it printed."""
    script = NOBODYS.format(address=address, uplinks=uplinks) + PUT_AND_LEAVE
    done = subprocess.run(
        in_namespace(bed.node, [sys.executable, "-c", script]),
        env=environment(), text=True, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert not done.stderr
    return done.returncode, done.stdout.strip()


def setup(bed: Bed, address: Address, *, uplinks: tuple[str, ...] = ()) -> tuple[str, list[str]]:
    return bed.on_node(lambda: set_up(address, interface=INTERFACE, kind=KIND, uplinks=uplinks))


@FAMILIES
def test_the_last_one_that_leaves_takes_it_away(bed: Bed, address: Address) -> None:
    before = bed.state()
    first, second = bed.put(address), bed.put(address)
    bed.on_node(first.take_away)
    with bed.listens(address):
        assert bed.reach(bed.pod, address) == REACHED
        assert bed.reach(bed.neighbour, address) == DROPPED
    assert bed.on_node(second.refresh) == []
    bed.on_node(second.take_away)
    assert bed.state() == before


@FIREWALLS
def test_those_who_share_it_add_their_uplinks(bed: Bed, firewall: str) -> None:
    first = bed.put(V4, uplinks=("uplink",))
    second = bed.put(V4, uplinks=("cni0",))
    for one in (first, second, first):
        assert bed.on_node(one.refresh) == []
    with bed.listens(V4):
        assert bed.everybody(V4) == {"host": REACHED, "pod": DROPPED, "neighbour": DROPPED}
    bed.on_node(second.take_away)
    assert bed.on_node(first.refresh) == []
    with bed.listens(V4):
        assert bed.reach(bed.pod, V4) == REACHED


def test_everything_waits_for_its_turn(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    held = ExitStack()
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        held.close()

    monkeypatch.setattr("isthmus.net.host_address.sleep", sleep)
    here = bed.put(V4)
    deeds: list[Callable[[], object]] = [
        here.refresh,
        here.take_away,
        partial(remove_leftovers, V4, interface=INTERFACE),
        partial(set_up, V4, interface=INTERFACE, kind=KIND),
        partial(undo_set_up, V4, interface=INTERFACE),
    ]
    for done, deed in enumerate(deeds, 1):
        bed.on_node(lambda: held.enter_context(turn()))
        bed.on_node(deed)
        assert len(waits) == done, deed
    bed.on_node(lambda: held.enter_context(turn()))
    bed.put(V4)
    assert len(waits) == len(deeds) + 1


def test_those_who_take_every_place_keep_no_agent_from_starting(bed: Bed) -> None:
    """Anybody on the host can: a place is only a name."""
    users = bed.on_node(lambda: [AddressClaim(V4) for _ in range(MOST_USERS)])
    here = bed.put(V4)
    (said,) = bed.on_node(here.refresh)
    assert said.startswith(f"{MOST_USERS} programs of this host already claim to use {V4}")
    with bed.listens(V4):
        assert bed.reach(bed.pod, V4) == REACHED
        assert bed.reach(bed.neighbour, V4) == DROPPED
    bed.on_node(here.take_away)
    for user in users:
        user.close()
    assert not bed.on_node(partial(used, V4))


@FAMILIES
def test_what_a_killed_agent_left_is_taken_over(bed: Bed, address: Address) -> None:
    before = bed.state()
    with bed.process(agent(address)) as child:
        assert bed.on_node(partial(used, address))
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=10)
    assert bed.state() != before
    here = bed.put(address)
    with bed.listens(address):
        assert bed.reach(bed.neighbour, address) == DROPPED
    bed.on_node(here.take_away)
    assert bed.state() == before


@FAMILIES
def test_what_a_killed_agent_left_is_removed(bed: Bed, address: Address) -> None:
    before = bed.state()
    clear = partial(remove_leftovers, address, interface=INTERFACE)
    assert bed.on_node(clear) is False
    with bed.process(agent(address)) as child:
        assert bed.on_node(clear) is False  # it is in use
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=10)
    assert bed.on_node(clear) is True
    assert bed.state() == before
    assert bed.on_node(clear) is False


def test_one_killed_agent_of_two_changes_nothing(bed: Bed) -> None:
    before = bed.state()
    here = bed.put(V4)
    with bed.process(agent(V4)) as child:
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=10)
    assert bed.on_node(here.refresh) == []
    bed.on_node(here.take_away)
    assert bed.state() == before


def test_leftovers_move_to_another_interface(bed: Bed) -> None:
    before = bed.state()
    with bed.process(agent(V4, "isthmus-old")) as child:
        with pytest.raises(ConfigError, match=f"{V4} is on isthmus-old, .*--bind-interface="):
            bed.put(V4)
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=10)
    here = bed.put(V4)
    assert here.where == INTERFACE
    assert "isthmus-old" not in bed.ip(bed.node, "-br", "link")
    bed.on_node(here.take_away)
    assert bed.state() == before


FLUSHES = {
    "nft": (["nft", "flush", "ruleset"],),
    "iptables": (["iptables", "-t", "mangle", "-F"], ["ip6tables", "-t", "mangle", "-F"]),
}


@FIREWALLS
@FAMILIES
def test_a_rule_that_was_flushed_is_put_back(bed: Bed, address: Address, firewall: str) -> None:
    here = bed.put(address)
    for argv in FLUSHES[firewall]:
        bed.node_runs(*argv)
    with bed.listens(address):
        assert bed.reach(bed.neighbour, address) == REACHED
        (said,) = bed.on_node(here.refresh)
        assert said.startswith(f"the rule that keeps other machines from {address} was changed")
        assert bed.reach(bed.neighbour, address) == DROPPED
        assert bed.reach(bed.pod, address) == REACHED
    assert bed.on_node(here.refresh) == []


def test_a_rule_that_was_changed_is_put_back(bed: Bed) -> None:
    here = bed.put(V4)
    bed.node_runs("nft", "flush", "chain", "inet", "isthmus_agent_10_99_0_1", "input")
    with bed.listens(V4):
        assert bed.reach(bed.neighbour, V4) == REACHED
        assert len(bed.on_node(here.refresh)) == 1
        assert bed.reach(bed.neighbour, V4) == DROPPED


@FAMILIES
@pytest.mark.parametrize(
    "deed", [["addr", "flush", "dev", INTERFACE], ["link", "del", INTERFACE]], ids=["addr", "link"]
)
def test_an_address_that_was_removed_is_put_back(
    bed: Bed, address: Address, deed: list[str]
) -> None:
    here = bed.put(address)
    bed.ip(bed.node, *deed)
    assert bed.on_node(here.refresh) == [f"{address} was missing on {INTERFACE}: restored"]
    with bed.listens(address):
        assert bed.reach(bed.pod, address) == REACHED


def test_an_interface_that_was_set_down_is_up_again(bed: Bed) -> None:
    here = bed.put(V4)
    bed.ip(bed.node, "link", "set", INTERFACE, "down")
    assert bed.on_node(here.refresh) == [f"{INTERFACE} was down: brought up"]


def test_what_cannot_be_put_back_is_said_once(bed: Bed) -> None:
    here = bed.put(V4)
    bed.ip(bed.node, "link", "del", INTERFACE)
    bed.ip(bed.node, "link", "add", INTERFACE, "type", "bridge")
    (said,) = bed.on_node(here.refresh)
    assert "already exists" in said
    assert bed.on_node(here.refresh) == []
    bed.ip(bed.node, "link", "del", INTERFACE)
    assert len(bed.on_node(here.refresh)) == 1


@FIREWALLS
def test_a_new_uplink_is_followed(bed: Bed, firewall: str) -> None:
    here = bed.put(V4)
    with bed.listens(V4):
        assert bed.reach(bed.pod, V4) == REACHED
        # The pod's network turns out to lead into the world as well.
        bed.ip(bed.node, "route", "add", "default", "via", "10.50.0.2", "metric", "900")
        (said,) = bed.on_node(here.refresh)
        assert said == f"uplinks on which {V4} is unreachable: cni0, uplink"
        assert bed.reach(bed.pod, V4) == DROPPED
        bed.ip(bed.node, "route", "del", "default", "via", "10.50.0.2", "metric", "900")
        assert bed.on_node(here.refresh) == [f"uplinks on which {V4} is unreachable: uplink"]
        assert bed.reach(bed.pod, V4) == REACHED


def test_what_is_built_upon_an_uplink_is_one(bed: Bed) -> None:
    here = bed.put(V4)
    bed.ip(bed.node, "link", "set", "uplink", "master", "cni0")
    bed.on_node(here.refresh)
    assert here.uplinks == ("cni0", "uplink")


@FAMILIES
def test_after_setup_an_agent_needs_no_capability(bed: Bed, address: Address) -> None:
    before = bed.state()
    code, said = nobodys(bed, address)
    assert code == 2
    assert said.startswith(f"{address} is on no interface of this host")
    assert bed.state() == before
    assert setup(bed, address) == (INTERFACE, [])
    done = bed.state()
    assert nobodys(bed, address) == (0, f"{INTERFACE} []")
    with bed.listens(address):
        assert bed.reach(bed.pod, address) == REACHED
        assert bed.reach(bed.neighbour, address) == DROPPED
    assert bed.state() == done
    assert bed.on_node(partial(undo_set_up, address, interface=INTERFACE)) is True
    assert bed.state() == before


def test_without_the_capability_changes_are_said(bed: Bed) -> None:
    setup(bed, V4)
    with bed.process(NOBODYS.format(address=V4, uplinks=()) + PUT_AND_LOOK) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def refreshed() -> str:
            print(file=child.stdin, flush=True)
            return str(child.stdout and child.stdout.readline())

        assert refreshed() == "[]\n"
        bed.ip(bed.node, "route", "add", "default", "via", "10.50.0.2", "metric", "900")
        assert refreshed().startswith(f"['cni0: new uplink that the rule for {V4} may lack")
        assert refreshed() == "[]\n"
        bed.ip(bed.node, "link", "del", INTERFACE)
        assert refreshed().startswith(f"['{V4} is on no interface of this host")
        assert refreshed() == "[]\n"


def test_a_missing_rule_is_named(bed: Bed) -> None:
    setup(bed, V4, uplinks=("none",))
    code, said = nobodys(bed, V4)
    assert code == 2
    assert said.startswith(f"{V4} is on {INTERFACE}, but no rule keeps other machines from it")
    assert nobodys(bed, V4, ("none",)) == (0, f"{INTERFACE} []")
    setup(bed, V4)
    assert nobodys(bed, V4) == (0, f"{INTERFACE} []")
    setup(bed, V4, uplinks=("none",))
    assert nobodys(bed, V4)[0] == 2
    assert bed.rules() == []


@FAMILIES
def test_no_agent_takes_away_what_setup_made(bed: Bed, address: Address) -> None:
    setup(bed, address)
    done = bed.state()
    assert setup(bed, address) == (INTERFACE, [])
    here = bed.put(address)
    with pytest.raises(ConfigError, match=f"an agent of this host uses {address}: stop it first"):
        bed.on_node(partial(undo_set_up, address, interface=INTERFACE))
    bed.on_node(here.take_away)
    assert bed.on_node(partial(remove_leftovers, address, interface=INTERFACE)) is False
    assert bed.state() == done


def test_setup_makes_lasting_what_an_agent_put(bed: Bed) -> None:
    here = bed.put(V4)
    setup(bed, V4)
    during = bed.state()
    bed.on_node(here.take_away)
    assert bed.state() == during


def test_an_agent_with_the_capability_heals_what_setup_made(bed: Bed) -> None:
    setup(bed, V4)
    done = bed.state()
    here = bed.put(V4)
    bed.ip(bed.node, "link", "del", INTERFACE)
    bed.node_runs("nft", "flush", "ruleset")
    assert len(bed.on_node(here.refresh)) == 2
    assert bed.state() == done
    bed.on_node(here.take_away)
    assert bed.state() == done


def test_the_command_does_it_and_undoes_it(bed: Bed) -> None:
    before = bed.state()
    argv = [sys.executable, "-m", "isthmus.cli.main", "agent", "setup-interface"]
    command = in_namespace(bed.node, [*argv, f"--bind-address={V4}", "--bind-interface=lo"])
    assert run(*command) == f"{V4} is on lo\n"
    assert nobodys(bed, V4) == (0, "lo []")
    assert run(*command) == f"{V4} is on lo\n"
    assert run(*command, "--remove") == f"{V4} removed\n"
    assert run(*command, "--remove") == f"{V4} was not configured\n"
    assert bed.state() == before
