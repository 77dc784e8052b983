"""The rule that keeps other machines from an address, beside a set that ends an older nft."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from own_network import needs_root, own_network
from test_node_proxy_foreign_sets import make_foreign_set, nft, remove_foreign_set

from isthmus.net import host_only
from isthmus.net.host_only import NftGuard, guard, has_guard, remove_guards

pytestmark = [
    needs_root,
    pytest.mark.skipif(not shutil.which("nft"), reason="nft is not installed"),
]
ADDRESSES = [ip_address("192.0.2.9"), ip_address("2001:db8::9")]
#: What nft is told to make the same table.
TEXT = """\
table inet isthmus_agent_{0} {{
  set uplinks {{ type ifname; elements = {{ "eth0", "bond0.7" }}; }}
  chain input {{
    type filter hook input priority -10; policy accept;
    {1} daddr {2} iifname @uplinks drop
  }}
}}
"""


@pytest.fixture
def network() -> Iterator[None]:
    with own_network():
        yield


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize("address", ADDRESSES, ids=str)
def test_the_table_is_the_one_that_nft_makes(address: IPv4Address | IPv6Address) -> None:
    NftGuard(address).keep(["eth0", "bond0.7"], exact=True)
    listed = nft("list", "ruleset").stdout
    assert nft("flush", "ruleset").returncode == 0
    table = address.exploded.replace(".", "_").replace(":", "_")
    family = "ip" if address.version == 4 else "ip6"
    text = TEXT.format(table, family, address)
    subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True, timeout=20)
    assert listed == nft("list", "ruleset").stdout


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize("address", ADDRESSES, ids=str)
def test_a_set_of_a_later_nft_is_no_hindrance(
    address: IPv4Address | IPv6Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without iptables to fall back to: the rule is made, changed and removed all the same."""
    monkeypatch.setattr(host_only, "_tool", lambda _: "no-such-program")
    make_foreign_set()
    made = guard(address, ["eth0"], exact=True)
    assert isinstance(made, NftGuard) and has_guard(address)
    assert made.keep(["eth1"], exact=False) and not made.keep(["eth0", "eth1"], exact=True)
    remove_foreign_set()
    listed = nft("list", "ruleset").stdout
    assert '"eth0"' in listed and '"eth1"' in listed
    make_foreign_set()
    assert remove_guards(address) and not has_guard(address)


@pytest.mark.usefixtures("network")
def test_no_uplink_is_an_empty_set() -> None:
    address = ADDRESSES[0]
    made = guard(address, [], exact=True)
    assert has_guard(address) and "elements" not in nft("list", "ruleset").stdout
    assert not made.keep([], exact=True)
