"""Checks of the machine's network: the agent's address and its rule, routes, MTU, reverse paths.

Nothing is changed. pyroute2 loads slowly, so it is imported on first use.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from isthmus.frame.finding import Asked, CheckId, Finding
from isthmus.frame.patient import Patient
from isthmus.tools.bootstrap.rules import CheckStep, judge_address, judge_rule
from isthmus.tools.doctor.layout import layout_of
from isthmus.tools.doctor.peers import resolved_peers

# IPv6 requires 1280 (RFC 8200 §5); below 1400 there is usually a tunnel inside a tunnel.
_LEAST_MTU, _SMALL_MTU = 1280, 1400
_STRICT = 1
_UP = 0x1
_SYS = Path("/proc/sys/net/ipv4/conf")


def see_bind_address(patient: Patient) -> Iterator[Finding]:
    """Is the address for connections of the program's node on the right interface?"""
    from isthmus.tools.bootstrap.check import look_at

    running = patient.running is not None
    for address in layout_of(patient.settings).brought():
        host = str(address)
        seen = look_at(address)
        if seen is None and not running:
            asked = Asked(CheckId.BIND_ADDRESS, host, "looked for it on all interfaces")
            yield asked.ok("no interface has it yet: the program puts it there when it starts")
            continue
        yield _as_finding(CheckId.BIND_ADDRESS, host, "looked for it on all interfaces",
                          judge_address(host, seen))  # fmt: skip
        if seen is not None:
            yield _as_finding(CheckId.BIND_RULE, host, "looked for the rule that keeps others away",
                              judge_rule(host, seen))  # fmt: skip


def _as_finding(check: CheckId, about: str, done: str, step: CheckStep) -> Finding:
    return Finding(
        check=check, state=step.state, about=about, done=done, seen=step.found, todo=step.advice
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How an address is reached; ``mtu`` is that of the route, if it has one."""

    interface: str
    gateway: str
    source: str
    mtu: int
    up: bool


def see_routes(patient: Patient) -> Iterator[Finding]:
    """Ask the kernel for the route to every peer, and check its interface."""
    seen: set[str] = set()
    for resolved in resolved_peers(patient):
        for _, address in resolved.places:
            if address in seen:
                continue
            seen.add(address)
            yield from _see_route(f"{resolved.peer.flag} {address}", address)


def _see_route(about: str, address: str) -> Iterator[Finding]:
    asked = Asked(CheckId.ROUTE, about, "asked the kernel for the route")
    route = route_to(address)
    finding = judge_route(asked, route)
    yield finding
    if route is None or route.interface == "lo":
        return
    yield judge_mtu(about, route)
    if ":" not in address:
        yield judge_filter(about, route.interface, filter_of(route.interface), _uplinks())


def route_to(address: str) -> Route | None:
    """The kernel's answer; None when there is no route.

    Raises:
        ConfigError: the kernel does not answer.
    """
    from pyroute2 import NetlinkError

    from isthmus.net.host_links import kernel_of_this_host

    family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
    with kernel_of_this_host() as kernel:
        try:
            (found, *_) = kernel.route("get", family=family, dst=address)
        except NetlinkError:
            return None
        (link,) = kernel.get_links(found.get_attr("RTA_OIF"))
    metrics = found.get_attr("RTA_METRICS")
    own = metrics.get_attr("RTAX_MTU") if metrics is not None else None
    return Route(
        interface=link.get_attr("IFLA_IFNAME"),
        gateway=found.get_attr("RTA_GATEWAY") or "",
        source=found.get_attr("RTA_PREFSRC") or "",
        mtu=own or link.get_attr("IFLA_MTU"),
        up=bool(link["flags"] & _UP),
    )


def judge_route(asked: Asked, route: Route | None) -> Finding:
    """Is there a route?"""
    if route is None:
        return asked.fail(
            "no route", "check ip route, and whether the interface of that network is up"
        )
    by = f" by {route.gateway}" if route.gateway else ""
    seen = f"through {route.interface}{by}, from {route.source or 'an address of it'}"
    if not route.up:
        return asked.fail(f"{seen}, which is down", f"run: ip link set {route.interface} up")
    return asked.ok(seen)


def judge_mtu(about: str, route: Route) -> Finding:
    """Do full-size packets fit?"""
    asked = Asked(CheckId.MTU, about, f"checked the MTU of {route.interface}")
    if route.mtu < _LEAST_MTU:
        return asked.fail(
            f"{route.mtu} bytes, less than every network has to carry", "raise the MTU"
        )
    if route.mtu < _SMALL_MTU:
        return asked.warn(
            f"{route.mtu} bytes",
            "if large answers hang and small ones do not, an MTU on the way is smaller still:"
            " check that ICMP 'fragmentation needed' is let through",
        )
    return asked.ok(f"{route.mtu} bytes")


def filter_of(interface: str, root: Path = _SYS) -> int:
    """The effective reverse path filter: the maximum of "all" and the interface (ip-sysctl)."""
    values = []
    for name in ("all", interface):
        try:
            values.append(int((root / name / "rp_filter").read_text()))
        except (OSError, ValueError):
            continue
    return max(values, default=0)


def judge_filter(about: str, interface: str, value: int, uplinks: tuple[str, ...]) -> Finding:
    """May answers arrive on another interface than requests leave by?"""
    asked = Asked(CheckId.RP_FILTER, about, f"checked rp_filter of {interface}, and at the uplinks")
    if value == _STRICT and len(uplinks) > 1:
        return asked.warn(
            f"strict, and there are several uplinks ({', '.join(uplinks)}): what comes in by"
            " another than it would go out by is dropped",
            f"if answers are missing, run: sysctl -w net.ipv4.conf.{interface}.rp_filter=2",
        )
    word = {0: "off", 1: "strict, with one way out", 2: "loose"}.get(value, str(value))
    return asked.ok(word)


def _uplinks() -> tuple[str, ...]:
    from isthmus.net.host_links import find_uplinks, kernel_of_this_host

    with kernel_of_this_host() as kernel:
        return tuple(find_uplinks(kernel))
