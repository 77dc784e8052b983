"""Which interfaces are taken for uplinks with no route through them: real ones, in a network."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from subprocess import PIPE

import pytest
from clients import LIMIT_S
from own_network import needs_root, own_network

pytestmark = needs_root
Names = Callable[[], set[str]]


def ip(*args: str) -> bool:
    """Run ip; tells whether this kernel can do that."""
    done = subprocess.run(["ip", *args], capture_output=True, text=True, timeout=LIMIT_S)
    return done.returncode == 0


@pytest.fixture
def uplinks() -> Iterator[Names]:
    from isthmus.net.host_links import find_uplinks, kernel_of_this_host

    def names() -> set[str]:
        with kernel_of_this_host() as kernel:
            return set(find_uplinks(kernel))

    with own_network():
        assert names() == set()
        yield names


def test_a_tun_is_and_a_tap_is_not(uplinks: Names) -> None:
    if not ip("tuntap", "add", "vpn0", "mode", "tun"):
        pytest.skip("this kernel has no tun")
    assert ip("tuntap", "add", "guest0", "mode", "tap")
    assert uplinks() == {"vpn0"}


def test_neither_a_pods_cable_nor_its_bridge_is(uplinks: Names) -> None:
    assert ip("link", "add", "cni0", "type", "bridge")
    assert ip("link", "add", "pod0", "master", "cni0", "type", "veth", "peer", "name", "pod1")
    assert uplinks() == set()


LOOKS = """
from isthmus.net.host_links import kernel_of_this_host
from isthmus.net.host_links import find_uplinks
print("here", flush=True)
input()
with kernel_of_this_host() as kernel:
    print(*find_uplinks(kernel))
"""


def test_what_is_built_upon_an_interface_elsewhere_is(uplinks: Names) -> None:
    """As a container's own way out, which its host made for it."""
    assert ip("link", "add", "one", "type", "veth", "peer", "name", "two")
    if not ip("link", "add", "eth1", "link", "one", "type", "macvlan"):
        pytest.skip("this kernel has no macvlan")
    assert uplinks() == set()
    argv = ["unshare", "--net", sys.executable, "-c", LOOKS]
    with subprocess.Popen(argv, text=True, stdin=PIPE, stdout=PIPE) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == "here\n"
            for name in ("eth1", "two"):
                assert ip("link", "set", name, "netns", str(other.pid))
            said, _ = other.communicate("\n", timeout=LIMIT_S)
            assert said == "eth1\n"
        finally:
            other.kill()


def test_one_that_is_named_and_not_there_is_said(uplinks: Names) -> None:
    """A name that is mistyped keeps nobody away."""
    from isthmus.net.host_address import put

    assert ip("link", "add", "eth0", "type", "veth", "peer", "name", "far")
    here = put(ip_address("10.99.0.1"), interface="lo", uplinks=("eth0", "eht0"))
    try:
        assert here.refresh() == ["--uplink-interface eht0: no such interface yet"]
        assert here.refresh() == [] and here.uplinks == ("eht0", "eth0")
    finally:
        here.take_away()
