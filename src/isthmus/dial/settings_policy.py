"""Reads ConnectivityPolicy, the YAML document that controls which dials are allowed.

Strict: anything unknown is an error with its position, and all errors are reported at once. Text
is passed in; the caller opens and rereads the file. Imports yaml, which is slow:
import this module only if there is a document to read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from isthmus.dial.rules_policy import REQUESTER_KINDS, Effect, Match, Policy, PolicyRule, Ports
from isthmus.dial.settings_shares import (
    MAX_CLASS_RULES,
    MAX_SHARES,
    OBJECTS,
    check_class_names,
    check_names,
    read_class,
    read_share,
)
from isthmus.text.addresses import IpNetwork, cidr, is_ipv4_range
from isthmus.text.located_yaml import Fields, Located, compose, near, short
from isthmus.text.patterns import Pattern
from isthmus.values import is_address

API_VERSION = "isthmus.dev/v1alpha1"
KIND = "ConnectivityPolicy"
MAX_RULES = 1000

_MATCH_KEYS = ("requesters", "groups", "networks", "cidrs", "hosts", "ports")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9_.*-]*", re.ASCII)
_PORTS = re.compile(r"([1-9][0-9]{0,4})(?:-([1-9][0-9]{0,4}))?", re.ASCII)


def parse(text: str, name: str) -> Policy:
    """Read the document; ``name`` is its name in messages, usually a path.

    Raises:
        ConfigError: one line for each error, ``name:line:column: field: what``.
    """
    root = compose(text, name, expected=f"a document of kind {KIND} is expected")
    policy = _document(root, name)
    root.errors.raise_any()
    return policy


def _document(root: Located, name: str) -> Policy:
    keys = ("apiVersion", "kind", "default", "rules", "shares", "classes")
    found = root.mapping(keys, required=("apiVersion", "kind", "rules"))
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        text = found[key].text() if key in found else None
        if text is not None and text != wanted:
            found[key].error(f"must be {wanted}, not {short(text)}")
    nodes = found.nodes("rules", most=MAX_RULES)
    rules = [_rule(node) for node in nodes]
    _check_names(nodes, rules)
    places = found.nodes("shares", most=MAX_SHARES)
    shares = tuple(read_share(node, _whom, _name) for node in places)
    check_names(places, shares)
    places = found.nodes("classes", most=MAX_CLASS_RULES)
    classes = tuple(read_class(node, _match_and_objects, _name) for node in places)
    check_class_names(places, classes)
    default = found.member("default", Effect.DENY)
    return Policy(rules=tuple(rules), default=default, shares=shares, classes=classes, source=name)


def _check_names(nodes: Sequence[Located], rules: Sequence[PolicyRule]) -> None:
    """Names are unique, because audit and metrics identify rules by them."""
    first: dict[str, Located] = {}
    for node, rule in zip(nodes, rules, strict=True):
        other = first.setdefault(rule.name, node)
        if rule.name and other is not node:
            node.error(f"{short(rule.name)} is the name of {other.path} already ({other.where})")


def _rule(node: Located) -> PolicyRule:
    found = node.mapping(("name", "effect", "match"), required=("name", "effect"))
    return PolicyRule(
        name=found.value("name", _name, ""),
        effect=found.member("effect", Effect.DENY),
        match=_match(found["match"]) if "match" in found else Match(),
        where=node.where,
    )


def _whom(node: Located) -> Match:
    """The match of a share, which has no destinations within a network."""
    return _match(node, ("requesters", "groups", "networks"))


def _match_and_objects(node: Located) -> tuple[Match, tuple[Pattern, ...]]:
    """The match of a class rule, including the object named by a trusted client."""
    found = _parts(node, (*_MATCH_KEYS, OBJECTS))
    return _match_of(found), found.listed(OBJECTS, _pattern)


def _match(node: Located, keys: Sequence[str] = _MATCH_KEYS) -> Match:
    return _match_of(_parts(node, keys))


def _parts(node: Located, keys: Sequence[str]) -> Fields:
    found = node.mapping(keys)
    for value in found.values():
        # An empty list is ambiguous: it could match nothing or everything.
        if value.is_list and value.is_empty:
            value.error("is empty; leave it out to match everything")
    return found


def _match_of(found: Fields) -> Match:
    return Match(
        requesters=found.listed("requesters", _requester),
        groups=found.listed("groups", _pattern),
        networks=found.listed("networks", _network),
        cidrs=found.listed("cidrs", _cidr),
        hosts=found.listed("hosts", _host),
        ports=_ports(found["ports"]) if "ports" in found else (),
    )


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("is not a name of at most 63 letters, digits, '.', '_' and '-'")
    return text


def _pattern(text: str) -> Pattern:
    pattern = Pattern(text)
    if pattern.placeholders:
        raise ValueError(f"has {{{pattern.placeholders[0]}}}, and only * stands for something here")
    return pattern


def _requester(text: str) -> Pattern:
    pattern = _pattern(text)
    kind, colon, _ = text.partition(":")
    if "*" in kind:
        return pattern
    if not colon or kind not in REQUESTER_KINDS:
        meant = f", did you mean certificate:{text}?" if text.isprintable() else ""
        hint = near(kind, REQUESTER_KINDS) if colon else meant
        raise ValueError(f"is not KIND:NAME with a kind of {', '.join(REQUESTER_KINDS)}{hint}")
    return pattern


def _network(text: str) -> Pattern:
    return _pattern(text.lower())


def _cidr(text: str) -> IpNetwork:
    network = cidr(text)
    if is_ipv4_range(network):
        raise ValueError("is a range of IPv4 addresses, list it as such")
    return network


def _host(text: str) -> Pattern:
    if is_address(text) or "/" in text:
        raise ValueError("is an address, list it under cidrs")
    if not _HOST.fullmatch(text):
        raise ValueError("is not a host name, nor a pattern of one")
    return Pattern(text, fold=True)


def _ports(node: Located) -> tuple[Ports, ...]:
    found = []
    for item in node.items():
        text = item.text_or_number()
        ports = None if text is None else _port_range(text)
        if ports is not None:
            found.append(ports)
        elif text is not None:
            item.error(
                f"{short(text)} is not a port from 1 to 65535, nor a range such as 8000-8999"
            )
    return tuple(found)


def _port_range(text: str) -> Ports | None:
    parts = _PORTS.fullmatch(text)
    if parts is None:
        return None
    low = int(parts[1])
    high = int(parts[2] or parts[1])
    return Ports(low, high) if low <= high < 65536 else None
