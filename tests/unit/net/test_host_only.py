"""What we read from the firewalls' own lists, whatever they were written by."""

from __future__ import annotations

import pytest

from isthmus.errors import ConfigError
from isthmus.net.host_only import _checked, _iptables_uplink, _nft_shape, _nft_uplinks

LISTED = """\
table inet isthmus_agent_10_0_0_1 {
	set uplinks {
		type ifname
		elements = { "eth0",
				"bond0.7" }
	}

	chain input {
		type filter hook input priority filter - 10; policy accept;
		ip daddr 10.0.0.1 iifname @uplinks drop
	}
}
"""


def test_uplinks_are_read_from_nfts_list() -> None:
    assert _nft_uplinks(LISTED) == {"eth0", "bond0.7"}
    assert _nft_uplinks("") == set()


def test_only_what_is_not_an_uplink_is_the_shape_of_a_table() -> None:
    other = LISTED.replace('"eth0",', '"wlan0",').replace("\t", "  ")
    assert _nft_shape(LISTED) == _nft_shape(other)
    assert _nft_shape(LISTED) != _nft_shape(LISTED.replace("drop", "accept"))
    assert _nft_shape(LISTED) != _nft_shape(LISTED.replace("10.0.0.1 iif", "10.0.0.2 iif"))


@pytest.mark.parametrize(
    ("line", "uplink"),
    [
        ("-A ISTHMUS-10.0.0.1 -i eth0 -j DROP", "eth0"),
        ("-A ISTHMUS-10.0.0.1 -i eth0 -j ACCEPT", ""),
        ("-A ISTHMUS-10.0.0.1 -i eth0 -p tcp -j DROP", ""),
        ("-A ISTHMUS-10.0.0.1 ! -i eth0 -j DROP", ""),
        ("-A ISTHMUS-10.0.0.1 -j RETURN", ""),
    ],
)
def test_uplinks_are_read_from_iptables_list(line: str, uplink: str) -> None:
    assert _iptables_uplink(line) == uplink


@pytest.mark.parametrize("name", ['eth0" }', "eth0; flush", "eth+", "a\nb"])
def test_no_name_gets_into_a_text_that_would_mean_more(name: str) -> None:
    assert _checked(["eth1", "eth0"]) == ["eth0", "eth1"]
    with pytest.raises(ConfigError, match="requires an interface name"):
        _checked(["eth0", name])
