"""Hostile objects, programmed into the kernel: they must not affect rules of other Services.

A single rule that iptables-restore or nft refuses would keep the rules of every Service out of the
kernel, so that anybody who may write a Service could stop all of them.
"""

from __future__ import annotations

import fcntl
import ipaddress
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nftables_bed import Space, spaces

from isthmus.programs.node_proxy.kernel import commands as iptables_commands
from isthmus.programs.node_proxy.kernel.backend import ApplyError, KernelBackend
from isthmus.programs.node_proxy.kernel.iptables import IptablesBackend
from isthmus.programs.node_proxy.kernel.nftables import NftablesBackend
from isthmus.programs.node_proxy.rules.detectors import SourceRanges
from isthmus.programs.node_proxy.rules.model import IpFamily
from isthmus.programs.node_proxy.rules.reading import read_service, read_slice
from isthmus.programs.node_proxy.rules.settings import RuleSettings
from isthmus.programs.node_proxy.rules.tracker import ServiceTracker

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("nft", "iptables-nft", "iptables-legacy"))),
    reason="nft or iptables is not installed",
)

DETECTOR = SourceRanges(("10.0.0.0/8", "fd00::/8"))
NODE_IPS = {IpFamily.IPV4: "192.0.2.1", IpFamily.IPV6: "2001:db8:ffff::1"}
LONGEST = "a" * 63
JsonObject = dict[str, Any]


def service(
    name: str = "hostile", ip: str = "172.30.0.1", *, namespace: str = "n",
    status: Iterable[str] = (), ports: list[JsonObject] | None = None, **spec: Any,
) -> JsonObject:  # fmt: skip
    ips = [ip] if ":" in ip else [ip, "fd00:30::" + ip.rpartition(".")[2]]
    return {
        "kind": "Service",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"clusterIP": ip, "clusterIPs": ips, "ports": ports or [{"port": 80}], **spec},
        "status": {"loadBalancer": {"ingress": [{"ip": each} for each in status]}},
    }


def behind(
    name: str = "hostile", *addresses: str, namespace: str = "n", node: str = "here",
    ports: list[JsonObject] | None = None,
) -> JsonObject:  # fmt: skip
    first = addresses[0] if addresses else "10.1.0.1"
    family = "IPv6" if ":" in first and "ffff:" not in first else "IPv4"
    return {
        "kind": "EndpointSlice",
        "metadata": {"namespace": namespace, "name": f"{name}-{family.lower()}",
                     "labels": {"kubernetes.io/service-name": name}},
        "addressType": family,
        "ports": ports or [{"name": "", "port": 8080}],
        "endpoints": [{"addresses": [each], "nodeName": node} for each in addresses or (first,)],
    }  # fmt: skip


def balancer(*ranges: str, **spec: Any) -> JsonObject:
    given = {"type": "LoadBalancer", "status": ["203.0.113.1", "2001:db8::1"]}
    return service(loadBalancerSourceRanges=list(ranges), **{**given, **spec})


def long_names(*slices: JsonObject, **spec: Any) -> list[JsonObject]:
    ports = [{"name": LONGEST, "port": 80, "nodePort": 30080, "protocol": "UDP"}]
    given = balancer("10.0.0.0/8", "fd00::/8", name=LONGEST, namespace=LONGEST, ports=ports, **spec)
    return [given, *slices]


def long_slice(*addresses: str, node: str = "here") -> JsonObject:
    ports = [{"name": LONGEST, "port": 8080, "protocol": "UDP"}]
    return behind(LONGEST, *addresses, namespace=LONGEST, ports=ports, node=node)


CASES: dict[str, list[JsonObject]] = {
    "long names": long_names(
        long_slice("10.1.0.1"), long_slice("fd00:1111:2222:3333:4444:5555:6666:7777"),
        sessionAffinity="ClientIP",
    ),
    "long names without endpoints": long_names(),
    "long names without local endpoints": long_names(
        long_slice("10.1.0.1", node="there"), externalTrafficPolicy="Local",
        internalTrafficPolicy="Local", healthCheckNodePort=30099,
    ),
    "text that ends a rule": [
        service('a" -j ACCEPT'), service("a\n-A INPUT -j ACCEPT"), service("a; flush ruleset"),
        service("b", namespace='n"'), service("é"),
        service(ports=[{"name": each, "port": 80 + i} for i, each in enumerate(
            ('x"', "x y", "x\n-F", "x;", "X", "*nat", "#"))]),
        service("c", "172.30.0.9\n-A"), service("d", "172.30.0.9; "),
        service("e", "172.30.0.10", externalIPs=['1.2.3.4" }', "1.2.3.4\nflush ruleset", "$x"]),
        behind("hostile", "10.1.0.1 . 80 } }"),
    ],
    "ports out of range": [
        service(ports=[{"name": f"p{i}", "port": port, "nodePort": node_port}
                       for i, (port, node_port) in enumerate(
                           ((0, 1), (65536, 1), (-1, 1), (80, 65536), (81, -1), (82, 0)))]),
        behind(ports=[{"name": "p3", "port": each} for each in (0, 65536, -1, 1, 65535)]),
    ],
    "ranges over each other": [
        balancer("10.0.0.0/8", "10.0.0.0/8", "10.1.0.0/16", "192.0.2.1/32", "203.0.113.1/32",
                 "203.0.113.0/24", "fd00::/8", "fd00:1::/32", "2001:db8::/32"),
        behind(), behind("hostile", "fd00:1::1"),
    ],
    "thousands of ranges": [
        balancer(*(f"{ipaddress.IPv4Address('20.0.0.0') + 512 * i}/24" for i in range(3000))),
        behind(),
    ],
    "thousands of endpoints": [
        service(), behind("hostile", *(f"10.1.{i // 250}.{i % 250 + 1}" for i in range(5000))),
    ],
    "IPv4 in IPv6": [
        balancer("::ffff:10.0.0.0/104", ip="::ffff:172.30.0.1", status=["::ffff:203.0.113.1"],
                 externalIPs=["::ffff:1.2.3.4", "010.1.1.1"]),
        behind("hostile", "::ffff:10.1.0.1", "10.1.0.1", "010.001.0.1"),
    ],
    "addresses that are nobody's": [
        service(externalIPs=["0.0.0.0", "127.0.0.1", "255.255.255.255", "224.0.0.1", "192.0.2.1"]),
        service("six", "fd00:30::9", externalIPs=["::", "::1", "ff02::1", "fe80::1%eth0"]),
        behind("hostile", "0.0.0.0", "127.0.0.1", "224.0.0.1"), behind("six", "::", "ff02::1"),
    ],
    "two that claim the same": [
        service("x", ports=[{"port": 80, "nodePort": 30080}], type="NodePort",
                externalIPs=["1.2.3.4", "1.2.3.4", "172.30.0.1"]),
        service("y", ports=[{"port": 80, "nodePort": 30080}], type="NodePort",
                externalIPs=["1.2.3.4"]),
        behind("x"), behind("y"),
        *(balancer(each, name=name) for name, each in (("v", "10.0.0.0/8"), ("w", "11.0.0.0/8"))),
    ],
    "clients remembered for ever": [
        service(sessionAffinity="ClientIP",
                sessionAffinityConfig={"clientIP": {"timeoutSeconds": 10**20}}),
        behind(),
    ],
}  # fmt: skip


class Proxy:
    """A backend of each family in a namespace, with a good Service beside what it is given."""

    def __init__(self, space: Space, kind: str) -> None:
        self.space = space
        self.tracker = ServiceTracker(node_name="here", families=tuple(IpFamily))
        self.backends: list[KernelBackend] = [self._backend(kind, family) for family in IpFamily]
        for backend in self.backends:
            space.do(backend.start)
        self.notes: list[str] = []

    @staticmethod
    def _backend(kind: str, family: IpFamily) -> KernelBackend:
        if kind == "nftables":
            return NftablesBackend(family)
        return IptablesBackend(family, variant=kind)

    def sync(self, objects: Iterable[JsonObject], *, full: bool = True) -> None:
        good = [service("good", "172.30.0.200"), behind("good", "10.1.0.200")]
        kinds: dict[str, list[JsonObject]] = {"Service": [], "EndpointSlice": []}
        for each in [*objects, *good]:
            kinds[each["kind"]].append(each)
        services = [read_service(each, self.notes) for each in kinds["Service"]]
        slices = [read_slice(each, self.notes) for each in kinds["EndpointSlice"]]
        self.tracker.replace_services([each for each in services if each])
        self.tracker.replace_slices([each for each in slices if each])
        for family, update in self.tracker.take().items():
            rules = RuleSettings(family=family, detector=DETECTOR, node_ip=NODE_IPS[family])
            backend = next(each for each in self.backends if each.family is family)
            self.space.do(backend.sync, update, rules, full=full)


@pytest.fixture(params=["nft", "legacy", "nftables"])
def proxy(request: pytest.FixtureRequest) -> Iterator[Proxy]:
    with spaces("hostile") as [space]:
        yield Proxy(space, request.param)


def kernel(proxy: Proxy) -> str:
    found = proxy.space.run("nft", "list", "ruleset")
    if isinstance(proxy.backends[0], IptablesBackend):
        for program in ("iptables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save"):
            found += proxy.space.run(program)
    return found


@pytest.mark.parametrize("objects", CASES.values(), ids=CASES.keys())
def test_the_others_are_served_all_the_same(proxy: Proxy, objects: list[JsonObject]) -> None:
    proxy.sync([])
    proxy.sync(objects, full=False)
    assert "172.30.0.200" in kernel(proxy)
    proxy.sync(objects, full=True)
    proxy.sync([], full=False)
    assert "172.30.0.200" in kernel(proxy)
    assert all(len(note) < 200 for note in proxy.notes)


def test_a_lock_that_somebody_holds_is_no_reason_to_leave_a_family_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Else it would be left alone until the next start, for a moment's bad luck.
    lock = tmp_path / "xtables.lock"
    monkeypatch.setenv("XTABLES_LOCKFILE", str(lock))
    monkeypatch.setattr(iptables_commands, "LOCK_WAIT_S", 1)
    with spaces("locked") as [space]:
        backend = IptablesBackend(IpFamily.IPV4, variant="legacy")
        with lock.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            space.do(backend.start)
            tracker = ServiceTracker(node_name="here", families=(IpFamily.IPV4,))
            tracker.replace_services([])
            tracker.replace_slices([])
            update = tracker.take()[IpFamily.IPV4]
            rules = RuleSettings(family=IpFamily.IPV4)
            with pytest.raises(ApplyError, match="holding the xtables lock"):
                space.do(backend.sync, update, rules, full=True)
            assert "KUBE-" not in space.run("iptables-legacy-save")
        space.do(backend.sync, update, rules, full=False)
        assert "KUBE-SERVICES" in space.run("iptables-legacy-save")
