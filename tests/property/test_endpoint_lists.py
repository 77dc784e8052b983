"""An agent's lists: no order of entries changes what they say, and no spelling gets past them."""

from __future__ import annotations

import random
from ipaddress import IPv4Address, IPv6Address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from isthmus.dial.rules_policy import Ports
from isthmus.dial.settings_endpoint_lists import DENY, EndpointLists, Entry, parse_entries
from isthmus.errors import ConfigError
from isthmus.text.addresses import IpNetwork

# Few bits in play, so that entries match and contain each other often.
addresses = st.builds(lambda bits: IPv4Address(bits << 28 | 1), st.integers(0, 15))
networks: st.SearchStrategy[IpNetwork] = st.builds(
    lambda bits, length: ip_network((bits << 28, length), strict=False),
    st.integers(0, 15),
    st.integers(0, 4),
)
ports = st.builds(lambda low, more: Ports(low, low + more), st.integers(1, 4), st.integers(0, 3))
entries = st.lists(
    st.one_of(
        st.builds(lambda it, p: Entry(text=f"{it}:{p}", network=it, ports=p), networks, ports),
        st.builds(
            lambda it, p: Entry(text=f"{it}:{p}", name=it, ports=p),
            st.sampled_from(["a.b.c", "*.c", "*.b.c", "*", "x"]),
            ports,
        ),
    ),
    max_size=8,
)


@given(entries, entries, entries, addresses, st.integers(1, 8), st.randoms())
def test_the_order_of_entries_says_nothing(
    allow: list[Entry],
    deny: list[Entry],
    default: list[Entry],
    address: IPv4Address,
    port: int,
    chance: random.Random,
) -> None:
    def shuffled(of: list[Entry]) -> list[Entry]:
        return chance.sample(of, len(of))

    one = EndpointLists(allow=allow, deny=deny, deny_by_default=default)
    other = EndpointLists(
        allow=shuffled(allow), deny=shuffled(deny), deny_by_default=shuffled(default)
    )
    host = str(address)
    assert (one.refuse_address(host, port) is None) == (other.refuse_address(host, port) is None)
    for name in ("a.b.c", "d.c", "x", "y"):
        assert (one.refuse_name(name, port) is None) == (other.refuse_name(name, port) is None)
        found = [it.refuse_found(name, host, port) is None for it in (one, other)]
        assert found[0] == found[1]


@given(entries, entries, addresses, st.integers(1, 8))
def test_as_a_slower_way_says_it(
    allow: list[Entry], deny: list[Entry], address: IPv4Address, port: int
) -> None:
    def best(of: list[Entry]) -> tuple[int, int]:
        fitting = [
            it.rank()
            for it in of
            if it.network is not None
            and address in it.network
            and it.ports.low <= port <= it.ports.high
        ]
        return max(fitting, default=(-1, 0))

    denied = best(deny) >= best(allow) and best(deny) != (-1, 0)
    unlisted = bool(allow) and best(allow) == (-1, 0)
    refusal = EndpointLists(allow=allow, deny=deny).refuse_address(str(address), port)
    assert (refusal is not None) == (denied or unlisted)


@given(entries, entries, addresses, st.integers(1, 8))
def test_another_spelling_of_an_address_is_that_address(
    allow: list[Entry], deny: list[Entry], address: IPv4Address, port: int
) -> None:
    made = EndpointLists(allow=allow, deny=deny)
    plain = made.refuse_address(str(address), port)
    for prefix in (0xFFFF << 32, 0x0064FF9B << 96):  # mapped, and as translators have it
        spelled = made.refuse_address(str(IPv6Address(prefix | int(address))), port)
        assert (spelled is None) == (plain is None)


@given(st.text("0123456789abcdefx.:-[]/%* ", max_size=24))
def test_any_text_is_an_entry_or_one_sentence(text: str) -> None:
    try:
        found = parse_entries(DENY, [text])
    except ConfigError as error:
        assert str(error).startswith(f"{DENY} {text}: ")
        assert "\n" not in str(error)
    else:
        assert all(it.text == text for it in found)
