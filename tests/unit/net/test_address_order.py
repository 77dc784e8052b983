"""The examples of RFC 6724 §10.2, as far as they need no rule that is left out."""

from __future__ import annotations

import pytest

from isthmus.net.rules_names import in_order


@pytest.mark.parametrize(
    ("pairs", "order"),
    [
        # Prefer matching scope.
        ([("198.51.100.121", "198.51.100.117"), ("2001:db8:1::1", "2001:db8:1::2")],
         ["2001:db8:1::1", "198.51.100.121"]),
        ([("2001:db8:1::1", "fe80::1"), ("198.51.100.121", "198.51.100.117")],
         ["198.51.100.121", "2001:db8:1::1"]),
        # Prefer higher precedence.
        ([("10.1.2.3", "10.1.2.4"), ("2001:db8:1::1", "2001:db8:1::2")],
         ["2001:db8:1::1", "10.1.2.3"]),
        # Prefer smaller scope.
        ([("2001:db8:1::1", "2001:db8:1::2"), ("fe80::1", "fe80::2")],
         ["fe80::1", "2001:db8:1::1"]),
        # Longest matching prefix.
        ([("2001:db8:1::1", "2001:db8:1::2"), ("2001:db8:3ffe::1", "2001:db8:3f44::2")],
         ["2001:db8:1::1", "2001:db8:3ffe::1"]),
        # Prefer matching label.
        ([("2002:c633:6401::1", "2002:c633:6401::2"), ("2001:db8:1::1", "2002:c633:6401::2")],
         ["2002:c633:6401::1", "2001:db8:1::1"]),
        # Avoid unusable destinations.
        ([("2001:db8::1", ""), ("192.0.2.1", "192.0.2.9")], ["192.0.2.1", "2001:db8::1"]),
        # Otherwise as they came.
        ([("192.0.2.2", "192.0.2.9"), ("192.0.2.1", "192.0.2.9")], ["192.0.2.2", "192.0.2.1"]),
        ([("127.0.0.1", "127.0.0.1"), ("::1", "::1")], ["::1", "127.0.0.1"]),
    ],
)  # fmt: skip
def test_order(pairs: list[tuple[str, str]], order: list[str]) -> None:
    assert in_order(pairs) == order
