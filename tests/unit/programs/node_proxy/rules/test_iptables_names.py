"""Names of chains, by vectors recomputed outside of Isthmus."""

from __future__ import annotations

import pytest

from isthmus.programs.node_proxy.rules.iptables import base


@pytest.mark.parametrize(
    ("text", "expected"),
    [("ns1/svc1:p80tcp", "XPGD46QRK7WJZT7O"), ("ns5/svc5:p80tcp", "NUKIZ6OKUXPJNT4C")],
)
def test_suffixes(text: str, expected: str) -> None:
    assert base.suffix(text) == expected


@pytest.mark.parametrize(
    ("port", "endpoint", "expected"),
    [
        ("ns1/svc1:p80", "10.180.0.1:80", "KUBE-SEP-SXIVWICOYRO3J4NJ"),
        ("ns5/svc5:p80", "10.180.0.3:80", "KUBE-SEP-I77PXRDZVX7PMWMN"),
    ],
)
def test_endpoints(port: str, endpoint: str, expected: str) -> None:
    assert base.endpoint_chain(port, "tcp", endpoint) == expected


def test_names_fit() -> None:
    longest = max((*base.PORT_PREFIXES,), key=len)
    assert len(longest + base.suffix("x")) <= 28


def test_nothing_ends_a_comment() -> None:
    assert base.comment_text("ns/svc:p-80.x") == "ns/svc:p-80.x"
    assert base.comment_text('a" -j ACCEPT\n-A b') == "a??-j?ACCEPT?-A?b"
