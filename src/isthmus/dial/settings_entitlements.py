"""Reads AgentIdentityBinding, the YAML document that limits what agents may claim.

Strict: anything unknown is an error with its position, and all errors are reported at once. Text
is passed in; the caller opens and rereads the file. Imports yaml, which is slow:
import this module only if there is a document to read.
"""

from __future__ import annotations

import re
from dataclasses import replace

from isthmus.settings.rules_entitlements import (
    CERTIFICATE_KEYS,
    SUBJECT_KEYS,
    TOKEN_KEYS,
    Entitlements,
    Grants,
    Rule,
)
from isthmus.settings.rules_roles import fold_san
from isthmus.text.addresses import IpNetwork, cidr
from isthmus.text.located_yaml import Located, compose, short
from isthmus.text.patterns import Pattern
from isthmus.values import is_address

API_VERSION = "isthmus.dev/v1alpha1"
KIND = "AgentIdentityBinding"

_HOST_CHARS = re.compile(r"[A-Za-z0-9_.*-]*", re.ASCII)
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_ACCOUNT = re.compile(r"[^/]+/[^/]+")


def parse(text: str, name: str) -> Entitlements:
    """Read the document; ``name`` is its name in messages, usually a path.

    Raises:
        ConfigError: one line for each error, ``name:line:column: field: what``.
    """
    root = compose(text, name, expected=f"a document of kind {KIND} is expected")
    rules = _document(root)
    root.errors.raise_any()
    return Entitlements(rules=rules, source=name)


def _document(root: Located) -> tuple[Rule, ...]:
    keys = ("apiVersion", "kind", "rules")
    found = root.mapping(keys, required=keys)
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        text = found[key].text() if key in found else None
        if text is not None and text != wanted:
            found[key].error(f"must be {wanted}, not {short(text)}")
    if "rules" not in found:
        return ()
    if found["rules"].is_empty:
        found["rules"].error("is empty, and would refuse every agent")
    return tuple(_rule(node) for node in found["rules"].items())


def _rule(node: Located) -> Rule:
    keys = ("subject", "agentIDs", "identifiers", "networks")
    found = node.mapping(keys, required=keys[:2])
    for key in ("agentIDs", "networks"):
        if key in found and found[key].is_empty:
            found[key].error("is empty, so the rule allows nothing")
    rule = Rule(
        subject=_subject(found["subject"]) if "subject" in found else (),
        agent_ids=found.listed("agentIDs", Pattern),
        grants=_grants(found["identifiers"]) if "identifiers" in found else Grants(),
        path=node.path,
        where=node.where,
    )
    networks = found.listed("networks", Pattern)
    return replace(rule, networks=networks) if networks else rule


def _subject(node: Located) -> tuple[tuple[str, Pattern], ...]:
    found = node.mapping(SUBJECT_KEYS)
    if node.is_mapping and node.is_empty:
        node.error(f"is empty, it needs one of {', '.join(SUBJECT_KEYS)}")
    theirs, ours = ([key for key in keys if key in found] for keys in _PROOFS)
    if theirs and ours:
        both = f"{theirs[0]} is of a certificate and {ours[0]} of a token"
        node.error(f"matches no agent: {both}")
    pairs = []
    for key, value in found.items():
        pattern = value.read(_SUBJECTS.get(key, _glob))
        pairs += [(key, pattern)] if pattern is not None else []
    return tuple(pairs)


def _grants(node: Located) -> Grants:
    found = node.mapping(("ipv4", "ipv6", "host", "cidr", "defaultRoute"))
    return Grants(
        ipv4=found.listed("ipv4", _ipv4),
        ipv6=found.listed("ipv6", _ipv6),
        host=found.listed("host", _host),
        cidr=found.listed("cidr", cidr),
        default_route=found.boolean("defaultRoute", False),
    )


def _glob(text: str) -> Pattern:
    pattern = Pattern(text)
    if pattern.placeholders:
        raise ValueError(f"cannot have {{{pattern.placeholders[0]}}}: subjects come first")
    return pattern


def _san(text: str) -> Pattern:
    return _glob(fold_san(text))


def _account(text: str) -> Pattern:
    if not _ACCOUNT.fullmatch(text):
        raise ValueError("is not NAMESPACE/NAME")
    return _glob(text)


def _host(text: str) -> Pattern:
    pattern = Pattern(text, fold=True)
    if is_address(text):
        raise ValueError("is an address, list it under ipv4 or ipv6")
    if not _HOST_CHARS.fullmatch(_PLACEHOLDER.sub("", text)):
        raise ValueError("is not a host name, nor a pattern of one")
    return pattern


def _ipv4(text: str) -> IpNetwork:
    return _of_version(4, text)


def _ipv6(text: str) -> IpNetwork:
    return _of_version(6, text)


def _of_version(version: int, text: str) -> IpNetwork:
    network = cidr(text)
    if network.version != version:
        raise ValueError(f"is IPv{network.version}, list it under ipv{network.version}")
    return network


_PROOFS = (CERTIFICATE_KEYS, TOKEN_KEYS)
_SUBJECTS = {"san": _san, "serviceAccount": _account}
