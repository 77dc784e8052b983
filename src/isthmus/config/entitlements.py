"""Reading AgentIdentityBinding, the YAML document that says what agents may claim.

Strict: what is not understood is an error with its place, and all errors come at once. Text comes
in; opening the file and reading it again is for the caller. Imports yaml, which takes its time:
import this module only where there is a document to read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import TypeVar

import yaml

from isthmus.config.checks import nearest
from isthmus.core.entitlements import (
    CERTIFICATE_KEYS,
    SUBJECT_KEYS,
    TOKEN_KEYS,
    Entitlements,
    Grants,
    IpNetwork,
    Rule,
    fold_san,
)
from isthmus.core.patterns import Pattern
from isthmus.errors import ConfigError
from isthmus.values import is_address

T = TypeVar("T")
Nodes = dict[str, yaml.Node]

API_VERSION = "isthmus.dev/v1alpha1"
KIND = "AgentIdentityBinding"

_MAX_CHARS = 1024 * 1024  # what a ConfigMap holds
_MAX_ERRORS = 20
_MAX_KEY_CHARS = 64
_STR = "tag:yaml.org,2002:str"
_NULL = "tag:yaml.org,2002:null"
_BOOL = "tag:yaml.org,2002:bool"
_HOST_CHARS = re.compile(r"[A-Za-z0-9_.*-]*", re.ASCII)
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_PREFIX = re.compile(r"[^/%]+(/[0-9]{1,3})?", re.ASCII)
_ACCOUNT = re.compile(r"[^/]+/[^/]+")


def parse(text: str, name: str) -> Entitlements:
    """Read the document; ``name`` is what messages call it, a path as a rule.

    Raises:
        ConfigError: one line for each thing that is wrong, ``name:line:column: field: what``.
    """
    reader = _Reader(name)
    rules = reader.document(_compose(text, name))
    if reader.wrong:
        lines = [f"{name}:{line}:{column}: {what}" for line, column, what in sorted(reader.wrong)]
        if len(lines) > _MAX_ERRORS:
            lines[_MAX_ERRORS:] = [f"{name}: and {len(lines) - _MAX_ERRORS} more"]
        raise ConfigError("\n".join(lines))
    return Entitlements(rules=rules, source=name)


def _compose(text: str, name: str) -> yaml.Node:
    """The nodes of the one document in the text: they know their places, and nothing is built."""
    if len(text) > _MAX_CHARS:
        raise ConfigError(f"{name}: longer than {_MAX_CHARS} characters")
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        what = ", ".join(filter(None, (error.context, error.problem)))
        hint = "; a value that begins with * needs quotes" if "alias" in what else ""
        raise ConfigError(f"{place}: not YAML: {what}{hint}") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ConfigError(f"{name}: not YAML: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise ConfigError(f"{name}: nested too deeply") from error
    if root is None:
        raise ConfigError(f"{name}: is empty, a document of kind {KIND} is expected")
    return root


class _Reader:
    """Walks the nodes by the schema, and collects what is wrong with them.

    Every method returns something of its type; when anything was wrong, nobody looks at it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.wrong: list[tuple[int, int, str]] = []

    def document(self, root: yaml.Node) -> tuple[Rule, ...]:
        """Read the whole document."""
        keys = ("apiVersion", "kind", "rules")
        found = self._mapping(root, "", keys, required=keys)
        for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
            text = self._text(found[key], key) if key in found else None
            if text is not None and text != wanted:
                self._error(found[key], key, f"must be {wanted}, not {_short(text)}")
        nodes = self._items(found["rules"], "rules") if "rules" in found else []
        if "rules" in found and found["rules"].value == []:
            self._error(found["rules"], "rules", "is empty, and would refuse every agent")
        return tuple(self._rule(node, f"rules[{index}]") for index, node in enumerate(nodes))

    def _rule(self, node: yaml.Node, path: str) -> Rule:
        keys = ("subject", "agentIDs", "identifiers", "networks")
        found = self._mapping(node, path, keys, required=keys[:2])
        for key in ("agentIDs", "networks"):
            if key in found and found[key].value == []:
                self._error(found[key], f"{path}.{key}", "is empty, so the rule allows nothing")
        rule = Rule(
            subject=self._subject(found, path),
            agent_ids=self._list(found, path, "agentIDs", Pattern),
            grants=self._grants(found, path),
            path=path,
            where=f"{self._name}:{node.start_mark.line + 1}",
        )
        networks = self._list(found, path, "networks", Pattern)
        return replace(rule, networks=networks) if networks else rule

    def _subject(self, rule: Nodes, path: str) -> tuple[tuple[str, Pattern], ...]:
        if "subject" not in rule:
            return ()
        node, path = rule["subject"], f"{path}.subject"
        found = self._mapping(node, path, SUBJECT_KEYS)
        if isinstance(node, yaml.MappingNode) and not node.value:
            self._error(node, path, f"is empty, it needs one of {', '.join(SUBJECT_KEYS)}")
        theirs, ours = ([key for key in keys if key in found] for keys in _PROOFS)
        if theirs and ours:
            both = f"{theirs[0]} is of a certificate and {ours[0]} of a token"
            self._error(node, path, f"fits nobody: {both}")
        pairs = []
        for key, value in found.items():
            pattern = self._value(value, f"{path}.{key}", _SUBJECTS.get(key, _glob))
            pairs += [(key, pattern)] if pattern is not None else []
        return tuple(pairs)

    def _grants(self, rule: Nodes, path: str) -> Grants:
        if "identifiers" not in rule:
            return Grants()
        path = f"{path}.identifiers"
        keys = ("ipv4", "ipv6", "host", "cidr", "defaultRoute")
        found = self._mapping(rule["identifiers"], path, keys)
        route = found.get("defaultRoute")
        return Grants(
            ipv4=self._list(found, path, "ipv4", _ipv4),
            ipv6=self._list(found, path, "ipv6", _ipv6),
            host=self._list(found, path, "host", _host),
            cidr=self._list(found, path, "cidr", _cidr),
            default_route=self._bool(route, f"{path}.defaultRoute") if route else False,
        )

    def _mapping(
        self, node: yaml.Node, path: str, known: Sequence[str], required: Sequence[str] = ()
    ) -> Nodes:
        """The values of a mapping that has these keys and no others, each once."""
        found: Nodes = {}
        if not isinstance(node, yaml.MappingNode):
            self._error(node, path, f"must be a mapping, not {_kind(node)}")
            return found
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name is None or name not in known:
                near = nearest(name, list(known)) if name and len(name) <= _MAX_KEY_CHARS else ""
                what = _kind(key) if name is None else _short(name)
                self._error(key, path, f"unknown key {what}{near}")
            elif name in found:
                self._error(key, _join(path, name), "is there twice")
            else:
                found[name] = value
        for name in required:
            if name not in found:
                self._error(node, _join(path, name), "is missing")
        return found

    def _items(self, node: yaml.Node, path: str) -> list[yaml.Node]:
        if isinstance(node, yaml.SequenceNode):
            return list(node.value)
        self._error(node, path, f"must be a list, not {_kind(node)}")
        return []

    def _list(self, found: Nodes, path: str, key: str, read: Callable[[str], T]) -> tuple[T, ...]:
        if key not in found:
            return ()
        path = f"{path}.{key}"
        values = (
            self._value(node, f"{path}[{index}]", read)
            for index, node in enumerate(self._items(found[key], path))
        )
        return tuple(value for value in values if value is not None)

    def _value(self, node: yaml.Node, path: str, read: Callable[[str], T]) -> T | None:
        text = self._text(node, path)
        if text is None:
            return None
        try:
            return read(text)
        except ValueError as error:
            self._error(node, path, f"{_short(text)} {error}")
            return None

    def _text(self, node: yaml.Node, path: str) -> str | None:
        # YAML reads on, 1.5 and 2001:1 as something else than text; to guess would be worse.
        if isinstance(node, yaml.ScalarNode) and node.tag == _STR:
            return str(node.value)
        self._error(node, path, f"must be text, not {_kind(node)}: put it in quotes")
        return None

    def _bool(self, node: yaml.Node, path: str) -> bool:
        text = node.value if node.tag == _BOOL else ""
        if text not in ("true", "false"):
            self._error(node, path, f"must be true or false, not {_kind(node)}")
        return bool(text == "true")

    def _error(self, node: yaml.Node, path: str, what: str) -> None:
        mark = node.start_mark
        told = f"{path}: {what}" if path else what
        self.wrong.append((mark.line + 1, mark.column + 1, told))


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


def _cidr(text: str) -> IpNetwork:
    """A network or an address; ipaddress would take netmasks and zones too."""
    try:
        if not _PREFIX.fullmatch(text):
            raise ValueError
        network = ip_network(text, strict=False)
    except ValueError:
        raise ValueError("is not a network such as 10.0.0.0/8, nor an address") from None
    if network.network_address != ip_address(text.partition("/")[0]):
        raise ValueError(f"has bits below its prefix, did you mean {network}?")
    return network


def _ipv4(text: str) -> IpNetwork:
    return _of_version(4, text)


def _ipv6(text: str) -> IpNetwork:
    return _of_version(6, text)


def _of_version(version: int, text: str) -> IpNetwork:
    network = _cidr(text)
    if network.version != version:
        raise ValueError(f"is IPv{network.version}, list it under ipv{network.version}")
    return network


_PROOFS = (CERTIFICATE_KEYS, TOKEN_KEYS)
_SUBJECTS = {"san": _san, "serviceAccount": _account}


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _short(text: str) -> str:
    return repr(text if len(text) <= 100 else f"{text[:99]}…")


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if node.tag == _NULL:
        return "nothing"
    named = node.tag.removeprefix("tag:yaml.org,2002:")
    return _short(node.value) if node.tag == _STR else f"{_short(node.value)} (YAML: {named})"
