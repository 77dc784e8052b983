"""Agent identifiers: the targets that an agent declares, in konnectivity's URL-query format.

``host=node1.example.com&ipv4=10.0.0.1&cidr=10.0.0.0/16&default-route=true``. The agent is strict
about its own flag; the server skips unknown keys, because agents may be newer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_network
from urllib.parse import parse_qsl, urlencode

from isthmus.settings.parsing import parse_bool
from isthmus.text.suggestions import nearest
from isthmus.text.text_limits import MAX_IDENTIFIERS, MAX_IDENTIFIERS_CHARS, MAX_SHOWN_CHARS
from isthmus.values import HostPort, is_address

DEFAULT_ROUTE = "default-route"
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identifiers:
    """The targets of one agent; texts are in normal form, so that equal values compare equal.

    Go compares the texts as typed; here ``::01`` and ``::1`` are the same address.
    """

    ipv4: tuple[str, ...] = ()
    ipv6: tuple[str, ...] = ()
    host: tuple[str, ...] = ()
    cidr: tuple[str, ...] = ()
    default_route: bool = False

    @staticmethod
    def parse(text: str) -> Identifiers:
        """Read what the user of an agent typed; the inverse of ``to_query()``.

        Raises:
            ValueError: a key is unknown or a value is invalid.
        """
        found, wrong = _read(text, lenient=False)
        if wrong:
            raise ValueError(wrong[0])
        return found

    @staticmethod
    def read_claim(text: str) -> Identifiers:
        """Read what an agent sent; unknown keys are skipped, as Go's server does.

        Raises:
            ValueError: a value is invalid; names the key and the value.
        """
        found, wrong = _read(text, lenient=True)
        if wrong:
            raise ValueError(wrong[0])
        return found

    @staticmethod
    def without_empty(text: str) -> tuple[str, list[str]]:
        """Remove empty values and their keys from a text.

        A template whose address is not known yet writes ``ipv4=10.0.0.1&ipv4=``.
        """
        pieces = text.split("&")
        empty = [piece for piece in pieces if _is_empty(piece)]
        if len(empty) == len(pieces):  # no identifier would be left
            return text, []
        kept = [piece for piece in pieces if not _is_empty(piece)]
        return "&".join(kept), [piece.partition("=")[0] for piece in empty]

    def to_query(self) -> str:
        """Write the identifiers as an agent sends them."""
        pairs = [(key, value) for key in _READERS for value in getattr(self, key)]
        if self.default_route:
            pairs.append((DEFAULT_ROUTE, "true"))
        return urlencode(pairs, safe=":/")


def _is_empty(piece: str) -> bool:
    key, _, value = piece.partition("=")
    return key in _READERS and not value


def _host(text: str) -> str:
    if is_address(text):
        return _address(text)
    return HostPort(text, 1).host.lower().removesuffix(".")


def _address(text: str) -> str:
    return str(IPv6Address(text)) if ":" in text else str(IPv4Address(text))


# Host bits below the prefix are allowed: konnectivity's own example is 127.0.0.1/16.
_READERS: dict[str, Callable[[str], str]] = {
    "ipv4": lambda text: str(IPv4Address(text)),
    "ipv6": lambda text: str(IPv6Address(text)),
    "host": _host,
    "cidr": lambda text: str(ip_network(text, strict=False)),
}
_KEYS = [*_READERS, DEFAULT_ROUTE]


def _read(text: str, *, lenient: bool) -> tuple[Identifiers, list[str]]:
    """The valid values, and what is wrong with the text, in order.

    If ``lenient``, unknown keys are not reported: a peer sends the text, and suggestions are slow
    to find.
    """
    pairs, wrong = _pairs(text)
    found: dict[str, list[str]] = {}
    route: bool | None = None
    for key, value in pairs:
        try:
            if key in _READERS and (value or not lenient):
                found.setdefault(key, []).append(_READERS[key](value))
            elif key != DEFAULT_ROUTE:
                if not lenient and key not in _READERS:
                    wrong.append(f"unknown key {key!r}{nearest(key, _KEYS)}")
            elif route is None:  # as in Go, only the first value counts
                route = parse_bool(value)
        except ValueError:
            wrong.append(f"{key}={value[:MAX_SHOWN_CHARS]} is not a value for {key}")
    lists = {key: tuple(values) for key, values in found.items()}
    return Identifiers(default_route=bool(route), **lists), wrong


def _pairs(text: str) -> tuple[list[tuple[str, str]], list[str]]:
    if len(text) > MAX_IDENTIFIERS_CHARS:
        return [], [f"longer than {MAX_IDENTIFIERS_CHARS} characters"]
    if text.count("&") >= MAX_IDENTIFIERS:
        return [], [f"more than {MAX_IDENTIFIERS} values"]
    wrong = ["a % must be followed by two hex digits"] if _BAD_PERCENT.search(text) else []
    return parse_qsl(text, keep_blank_values=True), wrong
