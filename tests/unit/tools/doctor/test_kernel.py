"""A node that does not forward, whose table is full, whose routes are odd: each is found."""

from __future__ import annotations

from pathlib import Path

import pytest
from doctor_bed import by_check, patient

from isthmus.frame.finding import Asked, CheckId, CheckState
from isthmus.programs.node_proxy.doctor import (
    Tracking,
    judge_conntrack,
    judge_localnet,
    see_sysctls,
)
from isthmus.programs.node_proxy.kernel.host import Sysctls
from isthmus.programs.node_proxy.settings import NodeProxySettings
from isthmus.tools.doctor.host import Route, filter_of, judge_filter, judge_mtu, judge_route

ROUTE = Asked(CheckId.ROUTE, "10.0.0.1", "asked")


def machine(root: Path, **values: int) -> Sysctls:
    """What a kernel is set to, in files as it has them."""
    wanted = {
        "net/ipv4/ip_forward": 1,
        "net/ipv6/conf/all/forwarding": 1,
        "net/ipv4/conf/all/route_localnet": 1,
        "net/netfilter/nf_conntrack_count": 10,
        "net/netfilter/nf_conntrack_max": 1000,
        **{name.replace("__", "/"): value for name, value in values.items()},
    }
    for name, value in wanted.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{value}\n")
    return Sysctls(root)


def seen(sysctls: Sysctls) -> dict[CheckId, set[CheckState]]:
    settings = NodeProxySettings(proxy_mode="iptables")
    findings = see_sysctls(patient("node-proxy", settings), sysctls)
    return {check: {one.state for one in found} for check, found in by_check(findings).items()}


def test_a_good_node_is_well(tmp_path: Path) -> None:
    assert seen(machine(tmp_path)) == {
        CheckId.FORWARDING: {CheckState.OK},
        CheckId.LOCALNET: {CheckState.OK},
        CheckId.CONNTRACK: {CheckState.OK},
    }


def test_a_node_that_does_not_forward_is_found(tmp_path: Path) -> None:
    assert CheckState.FAILED in seen(machine(tmp_path, net__ipv4__ip_forward=0))[CheckId.FORWARDING]


@pytest.mark.parametrize(("used", "state"), [(850, CheckState.WARNING), (990, CheckState.FAILED)])
def test_a_table_that_is_full_is_found(tmp_path: Path, used: int, state: CheckState) -> None:
    sysctls = machine(tmp_path, net__netfilter__nf_conntrack_count=used)
    assert seen(sysctls)[CheckId.CONNTRACK] == {state}


def test_what_cannot_be_read_is_skipped(tmp_path: Path) -> None:
    assert judge_conntrack(Tracking(used=None, most=None)).state is CheckState.SKIPPED
    assert seen(Sysctls(tmp_path))[CheckId.FORWARDING] == {CheckState.SKIPPED}


def test_localhost_node_ports_of_a_running_node_proxy() -> None:
    assert judge_localnet(0, running=True).state is CheckState.FAILED
    assert judge_localnet(0, running=False).state is CheckState.OK
    assert judge_localnet(1, running=True).state is CheckState.OK


def route(**more: object) -> Route:
    given = {"interface": "eth0", "gateway": "", "source": "10.0.0.2", "mtu": 1500, "up": True}
    return Route(**{**given, **more})  # type: ignore[arg-type]


def test_no_route_is_found() -> None:
    assert judge_route(ROUTE, None).state is CheckState.FAILED
    assert judge_route(ROUTE, route(up=False)).state is CheckState.FAILED
    assert judge_route(ROUTE, route(gateway="10.0.0.1")).state is CheckState.OK


@pytest.mark.parametrize(
    ("mtu", "state"), [(1500, CheckState.OK), (1300, CheckState.WARNING), (576, CheckState.FAILED)]
)
def test_a_small_mtu_is_found(mtu: int, state: CheckState) -> None:
    assert judge_mtu("10.0.0.1", route(mtu=mtu)).state is state


def test_strict_filters_with_two_uplinks_are_found(tmp_path: Path) -> None:
    for name, value in (("all", 0), ("eth0", 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rp_filter").write_text(f"{value}\n")
    assert filter_of("eth0", tmp_path) == 1
    two = ("eth0", "eth1")
    assert judge_filter("10.0.0.1", "eth0", 1, two).state is CheckState.WARNING
    assert judge_filter("10.0.0.1", "eth0", 1, ("eth0",)).state is CheckState.OK
    assert judge_filter("10.0.0.1", "eth0", 2, two).state is CheckState.OK
