"""Reads the smallest parts of a topology: names, addresses, targets, commands, templates.

Functions that take a text raise ValueError with a phrase that continues it; functions that take a
node record errors on it. reading.py, reading_hosts.py and reading_steps.py read whole sections.
"""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from isthmus.lab.commands import unknown
from isthmus.lab.state import OWN_FILES
from isthmus.lab.topology import UDP, IpAddress
from isthmus.text.located_yaml import Fields, Located, near
from isthmus.values import HostPort, is_address

MAX_ITEMS = 256  # per list
PORTS = (1, 65535)
LONGEST_S = 600.0

_NAME = re.compile(r"[a-z](?:[a-z0-9-]*[a-z0-9])?", re.ASCII)
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII)
_PROGRAM = re.compile(r"[A-Za-z0-9_./+-]{1,100}", re.ASCII)
_SYSCTL = re.compile(r"net(?:\.[A-Za-z0-9_-]{1,40}){1,8}", re.ASCII)
_CONGESTION = re.compile(r"[a-z][a-z0-9_]{0,14}", re.ASCII)  # TCP_CA_NAME_MAX without NUL


def check_name(
    entry: Located, name: str, what: str, *, most: int, reserved: Collection[str]
) -> None:
    """Check the name of a network, host, process, way or traffic."""
    if not _NAME.fullmatch(name):
        entry.error(
            f"is not a valid name for {what}: lower-case letters, digits and hyphens,"
            " beginning with a letter and not ending with a hyphen"
        )
    elif len(name) > most:
        entry.error(f"is too long for {what}: at most {most} characters")
    elif name in reserved:
        entry.error("is a reserved name")


def address(text: str) -> IpAddress:
    if not is_address(text):
        raise ValueError("is not an IPv4 or IPv6 address")
    return ip_address(text)


def address_and_port(text: str) -> tuple[IpAddress, int]:
    """An address and a port, IPv6 in brackets."""
    found = host_and_port(text)
    if not is_address(found.host):
        raise ValueError("is not an address and port such as 10.96.0.10:80")
    return ip_address(found.host), found.port


def host_and_port(text: str) -> HostPort:
    try:
        return HostPort.parse(text)
    except ValueError as error:
        raise ValueError(f"is not host:port: {error}") from None


def target(text: str) -> str:
    host_and_port(text)
    return text


def asked(text: str) -> str:
    """The target of ask: host:port, or udp://host:port."""
    host_and_port(text.removeprefix(UDP))
    return text


def page(text: str) -> str:
    """The target of get: host:port, or a URL."""
    return url(text) if "://" in text else target(text)


def url(text: str) -> str:
    """An http or https URL with a host."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
        HostPort(host, 80 if port is None else port)
    except ValueError as error:
        raise ValueError(f"is not a URL: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError("is not an http or https URL")
    if not all("!" <= char <= "~" for char in text):
        raise ValueError("is not a URL: escape spaces and other special characters")
    return text


def ready(text: str) -> str:
    """How to check that a program is ready: a URL, ``tcp:PORT``, or empty."""
    kind, colon, port = text.partition(":")
    if not text or (kind == "tcp" and colon and _is_port(port)):
        return text
    if "://" not in text:
        raise ValueError("is neither a URL nor tcp:PORT")
    return url(text)


def dns_name(text: str) -> str:
    """A host name that is not an address."""
    if is_address(text):
        raise ValueError("is an address, not a name for one")
    try:
        HostPort(text, 1)
    except ValueError as error:
        raise ValueError(f"is {error}") from None
    if "_" in text:
        raise ValueError("has an underscore, which certificates cannot contain")
    return text


def file_name(text: str) -> str:
    _matching(_FILE_NAME, text, "is not a file name of letters, digits, dots and hyphens")
    if text in OWN_FILES:
        raise ValueError("is a name that the lab uses itself")
    return text


def program(text: str) -> str:
    return _matching(_PROGRAM, text, "is not a program name")


def congestion_control(text: str) -> str:
    return _matching(_CONGESTION, text, "is not an algorithm name such as bbr")


def sysctl(text: str) -> str:
    """A sysctl of the network stack: others belong to the whole machine."""
    return _matching(_SYSCTL, text, "is not a sysctl below net.")


def regular_expression(text: str) -> str:
    """A pattern for the output of a command."""
    try:
        with warnings.catch_warnings(action="error"):  # syntax that will change its meaning
            re.compile(text)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return text


def some(found: Fields, key: str) -> list[Located]:
    """The value of a key as a non-empty list: one item, or a list of at least one."""
    if key in found and found[key].is_list and found[key].is_empty:
        found[key].error("is empty")
    return found.one_or_nodes(key, most=MAX_ITEMS)


def filled(node: Located, known: Collection[str]) -> str | None:
    """A text with placeholders; None if it is not text, or a placeholder is unknown."""
    text = node.text()
    strange = unknown(text or "", known)
    for name in strange:
        node.error(f"unknown placeholder {{{name}}}{near(name, sorted(known))}", at=f"{{{name}}}")
    return None if strange else text


def command(node: Located, known: Collection[str]) -> tuple[str, ...]:
    """A command with placeholders: a command line as in a shell, or the list of its words."""
    if node.is_list:
        words = tuple(filled(word, known) or "" for word in node.items(most=MAX_ITEMS))
    else:
        text = filled(node, known)
        if text is None:
            return ()
        try:
            words = tuple(shlex.split(text))
        except ValueError as error:
            node.error(f"is not a command line: {str(error).lower()}")
            return ()
    if not words or not words[0]:
        node.error("is empty: write a command")
    if any("\0" in word for word in words):
        node.error("contains a NUL byte")
    return words


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536


def _matching(pattern: re.Pattern[str], text: str, what: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(what)
    return text
