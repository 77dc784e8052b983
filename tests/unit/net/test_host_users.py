"""Who uses an address: counted by the kernel, so that nobody who ended is counted."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from ipaddress import ip_address

import pytest

from isthmus.net import host_address
from isthmus.net.host_address import AddressClaim, turn, used

# Documentation's own (RFC 5737, RFC 3849): no agent of this machine has them.
HERE = ip_address("192.0.2.77")
ALSO = ip_address("2001:db8::77")

USES = """\
from ipaddress import ip_address
from isthmus.net.host_address import AddressClaim
user = AddressClaim(ip_address("{address}"))
print("ready", flush=True)
input()
"""


def test_an_address_is_used_until_the_last_one_leaves() -> None:
    assert not used(HERE)
    first = AddressClaim(HERE)
    assert first.alone()
    second = AddressClaim(HERE)
    assert not first.alone()
    assert not second.alone()
    assert not used(ALSO)
    first.close()
    first.close()
    assert second.alone()
    assert used(HERE)
    second.close()
    assert not used(HERE)


def test_one_that_finds_no_place_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_address, "MOST_USERS", 2)
    first, second, third = AddressClaim(HERE), AddressClaim(HERE), AddressClaim(HERE)
    assert (first.counted, second.counted, third.counted) == (True, True, False)
    assert not third.alone()
    third.close()
    assert not first.alone()
    second.close()
    assert first.alone()
    first.close()
    assert not used(HERE)


def test_a_killed_process_uses_nothing() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", USES.format(address=ALSO)], stdin=pipe, stdout=pipe
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert used(ALSO)
        child.kill()
        child.wait(timeout=10)
    assert not used(ALSO)


def test_one_waits_for_the_turn_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ExitStack()
    first.enter_context(turn())
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            first.close()

    monkeypatch.setattr("isthmus.net.host_address.sleep", sleep)
    with turn():
        assert len(waits) == 2
    with turn():
        assert len(waits) == 2


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_address, "_WAIT_S", 0.0)
    reached = []
    with turn(), turn():
        reached.append("both")
    assert reached
