"""The files of the name service: whatever is in them, something sensible comes of it."""

from __future__ import annotations

from ipaddress import ip_address

from hypothesis import given
from hypothesis import strategies as st

from isthmus.net.rules_names import (
    MOST_SEARCHED,
    MOST_SERVERS,
    in_order,
    parse_hosts,
    parse_nsswitch,
    parse_resolv_conf,
)

words = st.sampled_from([
    "nameserver", "search", "domain", "options", "hosts:", "files", "dns", "1.2.3.4", "::1",
    "fe80::1%lo", "ndots:3", "timeout:9", "rotate", "#", ";", "[", "]", "[NOTFOUND=return]",
    "[!UNAVAIL=continue]", ".", "a.example", "a..b", "\n", "\t", ":", "=", "!",
])  # fmt: skip
texts = st.one_of(st.text(), st.lists(words).map(" ".join), st.lists(words).map("\n".join))
addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)


@given(texts, st.text(max_size=80))
def test_any_resolv_conf(text: str, name: str) -> None:
    conf = parse_resolv_conf(text, name)
    assert 1 <= len(conf.servers) <= MOST_SERVERS and len(conf.search) <= MOST_SEARCHED
    assert 0 <= conf.ndots <= 15 and 1 <= conf.timeout_s <= 30 and 1 <= conf.attempts <= 5
    for server in conf.servers:
        ip_address(server)
    asked = conf.questions("api")
    assert "api" in asked and len(asked) <= MOST_SEARCHED + 1
    assert all(len(one) <= 253 and not one.endswith(".") for one in asked)


@given(texts)
def test_any_hosts_file(text: str) -> None:
    for name, found in parse_hosts(text).items():
        assert name == name.lower() and found
        assert len(set(found)) == len(found)
        for address in found:
            ip_address(address)


@given(texts)
def test_any_nsswitch(text: str) -> None:
    assert len(parse_nsswitch(text)) <= 16
    assert all(source.name for source in parse_nsswitch(text))


@given(
    st.lists(st.tuples(addresses, addresses | st.just("")), max_size=12, unique_by=lambda it: it[0])
)
def test_an_order_loses_nothing_and_puts_what_has_a_way_first(pairs: list[tuple[str, str]]) -> None:
    ordered = in_order(pairs)
    assert sorted(ordered) == sorted(address for address, _ in pairs)
    sources = dict(pairs)
    has_way = [bool(sources[address]) for address in ordered]
    assert has_way == sorted(has_way, reverse=True)
    assert in_order([(address, sources[address]) for address in ordered]) == ordered
