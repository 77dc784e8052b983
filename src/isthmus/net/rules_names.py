"""How a Linux host resolves names, and in which order it tries addresses. Pure.

resolv.conf, hosts and nsswitch.conf become values, as glibc reads them: invalid lines
are skipped. Every parser takes time proportional to its text. name_service.py follows the files,
dns_client.py queries the servers that they name.

Addresses are sorted by RFC 6724 §6, with its default policy table. Rules 3, 4 and 7 need
information that only the kernel has and are left out; so is gai.conf(5). resolver.py finds
the source address for a destination.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cmp_to_key, lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

#: resolv.conf(5): MAXNS, and the caps of its options.
MOST_SERVERS = 3
_MOST_NDOTS = 15
_MOST_TIMEOUT_S = 30
_MOST_ATTEMPTS = 5
#: glibc has no limit any more; a lookup queries each of them.
MOST_SEARCHED = 32
_MOST_NAME_CHARS = 253
_MOST_SOURCES = 16
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,63}", re.ASCII)
_SOURCES = re.compile(r"\[[^\[\]]*\]?|[^\s\[\]]+|\]")
#: RFC 6724 §2.1: prefix, precedence, label; the longest matching prefix.
_POLICY: list[tuple[IPv6Network, int, int]] = [
    (IPv6Network(prefix), precedence, label)
    for prefix, precedence, label in (
        ("::1/128", 50, 0),
        ("::ffff:0:0/96", 35, 4),
        ("::/96", 1, 3),
        ("2001::/32", 5, 5),
        ("2002::/16", 30, 2),
        ("3ffe::/16", 1, 12),
        ("fec0::/10", 1, 11),
        ("fc00::/7", 3, 13),
        ("::/0", 40, 1),
    )
]
_LINK_LOCAL, _SITE_LOCAL, _GLOBAL = 0x2, 0x5, 0xE
#: Rule 9 compares the network part; many hosts choose the rest at random.
_PREFIX_BITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvConf:
    """The DNS servers, search list and timeouts (resolv.conf(5))."""

    servers: tuple[str, ...] = ("127.0.0.1",)
    search: tuple[str, ...] = ()
    ndots: int = 1
    timeout_s: int = 5
    attempts: int = 2
    rotate: bool = False
    use_tcp: bool = False
    edns: bool = False
    ask_ipv6: bool = True

    def questions(self, name: str) -> tuple[str, ...]:
        """The complete names to query, in order, without final dots."""
        if name.endswith("."):
            return (name[:-1],)
        searched = [f"{name}.{domain}" for domain in self.search]
        first = name.count(".") >= self.ndots
        both = [name, *searched] if first else [*searched, name]
        return tuple(dict.fromkeys(one for one in both if len(one) <= _MOST_NAME_CHARS))


def parse_resolv_conf(text: str, hostname: str = "") -> ResolvConf:
    """Read a resolv.conf; ``hostname`` provides the search list if the file has none."""
    servers: list[str] = []
    search = _domains([hostname.partition(".")[2]])
    options: dict[str, str] = {}
    for line in text.splitlines():
        keyword, *words = line.split() or [""]
        if line[:1] in ("", " ", "\t", "#", ";"):
            continue
        if keyword == "nameserver" and words:
            if _is_address(words[0]) and len(servers) < MOST_SERVERS:
                servers.append(words[0])
        elif keyword == "domain" and words:
            search = _domains(words[:1])
        elif keyword == "search":
            search = _domains(words)
        elif keyword == "options":
            options.update((it[0], it[2]) for it in (word.partition(":") for word in words))
    return ResolvConf(
        servers=tuple(servers) or ("127.0.0.1",),
        search=search,
        ndots=_number(options.get("ndots", ""), 1, least=0, most=_MOST_NDOTS),
        timeout_s=_number(options.get("timeout", ""), 5, least=1, most=_MOST_TIMEOUT_S),
        attempts=_number(options.get("attempts", ""), 2, least=1, most=_MOST_ATTEMPTS),
        rotate="rotate" in options,
        use_tcp="use-vc" in options,
        edns="edns0" in options,
        ask_ipv6="no-aaaa" not in options,
    )


def _number(text: str, default: int, *, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit()):
        return default
    return max(least, min(int(text[:6]), most))


def _domains(words: list[str]) -> tuple[str, ...]:
    stripped = (word.removesuffix(".").lower() for word in words[: 4 * MOST_SEARCHED])
    return tuple(dict.fromkeys(filter(_is_name, stripped)))[:MOST_SEARCHED]


def _is_name(text: str) -> bool:
    return len(text) <= _MOST_NAME_CHARS and all(map(_LABEL.fullmatch, text.split(".")))


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def parse_hosts(text: str) -> Mapping[str, tuple[str, ...]]:
    """Read a hosts file (hosts(5)): the addresses of each name, in lower case."""
    found: dict[str, dict[str, None]] = {}
    for line in text.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        if names and _is_address(address):
            for name in names:
                found.setdefault(name.lower().removesuffix("."), {})[address] = None
    return {name: tuple(addresses) for name, addresses in found.items()}


class LookupStatus(Enum):
    """The result of a source (nsswitch.conf(5))."""

    SUCCESS = "success"
    NOT_FOUND = "notfound"
    UNAVAILABLE = "unavail"
    TRY_AGAIN = "tryagain"


_STATUS = {status.value: status for status in LookupStatus}


@dataclass(frozen=True, slots=True)
class NameSource:
    """One source of names, and the results that end the search."""

    name: str
    ends: frozenset[LookupStatus] = frozenset({LookupStatus.SUCCESS})

    @property
    def is_plain(self) -> bool:
        """Whether it is a hosts file or DNS, and success ends the search."""
        return self.name in ("files", "dns") and LookupStatus.SUCCESS in self.ends


FILES_THEN_DNS: tuple[NameSource, ...] = (NameSource("files"), NameSource("dns"))


def parse_nsswitch(text: str) -> tuple[NameSource, ...]:
    """Read the sources of host names of an nsswitch.conf, in order.

    An invalid part becomes a source that only the C library can handle.
    """
    found = FILES_THEN_DNS
    for line in text.splitlines():
        database, colon, rest = line.partition("#")[0].partition(":")
        if colon and database.strip() == "hosts":
            found = _sources(rest)
    return found


def _sources(text: str) -> tuple[NameSource, ...]:
    made: list[NameSource] = []
    for word in _SOURCES.findall(text):
        if not word.startswith("["):
            made.append(NameSource(word.lower()))
        elif made:
            ends = _with_actions(made[-1].ends, word)
            made[-1] = NameSource(made[-1].name if ends is not None else word, ends or frozenset())
        if len(made) >= _MOST_SOURCES:
            break
    return tuple(made)


def _with_actions(ends: frozenset[LookupStatus], word: str) -> frozenset[LookupStatus] | None:
    """Apply ``[STATUS=action ...]``; None if invalid."""
    if not word.endswith("]"):
        return None
    for each in word[1:-1].lower().split():
        status, _, action = each.partition("=")
        negated = status.startswith("!")
        named = _STATUS.get(status.removeprefix("!"))
        if named is None or action not in ("return", "continue", "merge"):
            return None
        meant = frozenset(_STATUS.values()) - {named} if negated else frozenset({named})
        ends = ends | meant if action == "return" else ends - meant
    return ends


@dataclass(frozen=True, slots=True)
class _Seen:
    """A destination for the rules, with its source address."""

    is_v6: bool
    bits: int
    scope: int
    precedence: int
    label: int
    source: _Seen | None = None


def in_order(found: Sequence[tuple[str, str]]) -> list[str]:
    """Sort pairs of a destination and its source, empty without a route."""
    seen = {destination: _see(destination, source) for destination, source in found}
    key = cmp_to_key(_compare)
    return sorted(seen, key=lambda destination: key(seen[destination]))


@lru_cache(maxsize=512)
def _see(address: str, source: str = "") -> _Seen:
    """Cached, because addresses repeat, above all this host's: 1 µs instead of 25."""
    ip = ip_address(address.partition("%")[0])
    mapped = IPv6Address(0xFFFF_0000_0000 + int(ip)) if isinstance(ip, IPv4Address) else ip
    _, precedence, label = next((row for row in _POLICY if mapped in row[0]), _POLICY[-1])
    return _Seen(
        is_v6=isinstance(ip, IPv6Address),
        bits=int(mapped),
        scope=_scope(ip),
        precedence=precedence,
        label=label,
        source=_see(source) if source else None,
    )


def _scope(ip: IPv4Address | IPv6Address) -> int:
    if isinstance(ip, IPv6Address) and ip.is_multicast:
        return ip.packed[1] & 0xF
    if ip.is_link_local or ip.is_loopback:  # RFC 6724 §3.1, §3.2
        return _LINK_LOCAL
    if isinstance(ip, IPv6Address) and ip.is_site_local:
        return _SITE_LOCAL
    return _GLOBAL


def _compare(one: _Seen, other: _Seen) -> int:
    """Negative when ``one`` is better; 0 keeps their order (rule 10)."""
    for better in (_usable, _scope_matches, _label_matches, _precedence, _smaller_scope):
        difference = better(other) - better(one)
        if difference:
            return difference
    if one.is_v6 == other.is_v6:
        return _common_bits(other) - _common_bits(one)
    return 0


def _usable(one: _Seen) -> int:
    return int(one.source is not None)


def _scope_matches(one: _Seen) -> int:
    return int(one.source is not None and one.source.scope == one.scope)


def _label_matches(one: _Seen) -> int:
    return int(one.source is not None and one.source.label == one.label)


def _precedence(one: _Seen) -> int:
    return one.precedence


def _smaller_scope(one: _Seen) -> int:
    return -one.scope


def _common_bits(one: _Seen) -> int:
    """Rule 9, not for IPv4, where it would undo a server's rotation (RFC 6724 §10.3)."""
    if one.source is None or not one.is_v6:
        return 0
    return min(_PREFIX_BITS, 128 - (one.bits ^ one.source.bits).bit_length())
