"""Every detector in a real kernel: iptables and nft take what it writes, in both families."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from own_network import needs_root, own_network

from isthmus.dial.rules_service_names import ServiceName
from isthmus.programs.node_proxy.backends import BACKENDS
from isthmus.programs.node_proxy.rules.detectors import MODES, DetectorSettings, for_family
from isthmus.programs.node_proxy.rules.model import (
    BackedPort,
    ChosenEndpoints,
    Endpoint,
    IpFamily,
    PortKey,
    PortProtocol,
    ServicePort,
    ServiceView,
    Update,
)
from isthmus.programs.node_proxy.rules.settings import RuleSettings
from isthmus.programs.node_proxy.settings import NodeProxySettings

pytestmark = [
    needs_root,
    pytest.mark.skipif(
        not all(map(shutil.which, ("iptables-save", "nft"))), reason="needs iptables and nft"
    ),
]
ADDRESSES = {
    IpFamily.IPV4: ("10.96.0.1", "10.1.0.1", "iptables-save", "ip"),
    IpFamily.IPV6: ("fd00:96::1", "fd00:1::1", "ip6tables-save", "ip6"),
}
GIVEN = DetectorSettings(
    cluster_cidrs=("10.1.0.0/16", "10.2.0.0/16", "fd00:1::/48", "fd00:2::/48"),
    node_cidrs=("10.3.0.0/24", "10.4.0.0/24", "fd00:3::/64", "fd00:4::/64"),
    interface_prefixes=("veth", "cali"),
    bridge_interface="cbr0",
    interface_name_prefix="azv",
    pod_cidrs=("10.5.0.0/24", "fd00:5::/64"),
)
CASES = [*((mode, GIVEN) for mode in MODES), ("bridge", DetectorSettings())]


def view(family: IpFamily) -> ServiceView:
    cluster_ip, ip, *_ = ADDRESSES[family]
    key = PortKey(ServiceName("ns", "web"), "", PortProtocol.TCP)
    port = ServicePort(key=key, cluster_ip=cluster_ip, port=80)
    there = (Endpoint(ip=ip, port=8080, local=True),)
    backends = ChosenEndpoints(
        cluster=there, local=there, reachable=there, exist=True, serving=there
    )
    return ServiceView(
        family=family, ports={key: BackedPort(port=port, backends=backends)}, endpoints=1
    )


def output(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True)
    return done.stdout


@pytest.mark.parametrize("family", IpFamily)
@pytest.mark.parametrize("mode", ["iptables", "nftables"])
@pytest.mark.parametrize(("detector", "given"), CASES, ids=lambda it: it if it in MODES else "")
def test_the_kernel_takes_it(
    detector: str, given: DetectorSettings, mode: str, family: IpFamily
) -> None:
    made = for_family(MODES[detector].make(given), family)
    matches = made.matches(family)
    assert matches
    settings = RuleSettings(family=family, detector=made)
    with own_network():
        backend = BACKENDS[mode](family, NodeProxySettings(proxy_mode=mode))
        backend.start()
        backend.sync(Update(view=view(family)), settings, full=True)
        *_, save, word = ADDRESSES[family]
        if mode == "nftables":
            assert "masquerad" in output("nft", "list", "table", word, "kube-proxy")
        else:
            rules = output(save, "-t", "nat")
            several = len(matches) > 1
            assert ("-j KUBE-MASQ-IF-NOT-LOCAL" in rules) is several
            for match in matches:
                assert " ".join(match.iptables if several else match.iptables_not) in rules
        assert backend.intact()
        assert backend.cleanup() == []
