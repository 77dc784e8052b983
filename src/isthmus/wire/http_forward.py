"""Plain HTTP requests for a forward proxy: targets, headers, passwords.

h11 reads and writes heads and bodies; the HTTP sidecar's frontend dials and answers.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Iterable
from dataclasses import dataclass

import h11

from isthmus.values import HostPort
from isthmus.wire.http_connect import BadRequest

VIA = b"1.1 isthmus"
# RFC 9110 §7.6.1, and headers for the next hop alone (§11.7); Connection names more of them.
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"proxy-connection",
        b"keep-alive",
        b"te",
        b"transfer-encoding",
        b"upgrade",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-authentication-info",
    }
)
# Connection may not name these: without them the message would mean something else.
_NEVER_NAMED = frozenset({b"host", b"content-length", b"expect", b"via"})
# RFC 9110 §6.5.1: a trailer has no fields for framing, routing or authentication. A reader that
# merges trailers with headers would treat them as headers of the request.
_NEVER_TRAILING = frozenset(
    {b"host", b"content-length", b"expect", b"authorization", b"cookie", b"set-cookie", b"via"}
)
_ABSOLUTE = re.compile(rb"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)((?:[/?][^#]*)?)")  # RFC 9112 §3.2.2
_BASIC = re.compile(rb"[Bb][Aa][Ss][Ii][Cc] +([A-Za-z0-9+/=]+) *")
#: Methods that may be repeated if their outcome is unknown (RFC 9110 §9.2.2).
_IDEMPOTENT = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"PUT", b"DELETE"})

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRequest:
    """A request to forward, without the headers meant for this proxy."""

    method: bytes
    #: The target as received, for a proxy; and its path and query, for the destination.
    absolute: bytes
    path: bytes
    target: HostPort
    authority: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    chunked: bool = False
    has_body: bool = False
    upgrade: bytes = b""

    @property
    def may_be_repeated(self) -> bool:
        """Whether sending the request twice is safe, and its body is still available."""
        return self.method in _IDEMPOTENT and not self.has_body and not self.upgrade

    def to_send(self, *, proxy: bool = False, authorization: str | None = None) -> h11.Request:
        """The request for the next hop: a proxy, optionally with a password, or the destination."""
        headers: Headers = [(b"Host", self.authority), *self.headers, (b"Via", VIA)]
        if self.chunked:
            headers.append((b"Transfer-Encoding", b"chunked"))
        if self.upgrade:
            headers += [(b"Connection", b"Upgrade"), (b"Upgrade", self.upgrade)]
        if authorization is not None:
            headers.append((b"Proxy-Authorization", authorization.encode()))
        target = self.absolute if proxy else self.path
        return h11.Request(method=self.method, target=target, headers=headers)


def read_request(event: h11.Request) -> PlainRequest:
    """Read a request to forward.

    Raises:
        BadRequest: the target cannot be forwarded to; the message says why.
    """
    _check_framing(event)
    match = _ABSOLUTE.fullmatch(event.target)
    if match is None:
        # RFC 9112 §3.2.2: to a proxy, the target is a whole URL.
        raise BadRequest(
            400, "this is a proxy: it serves CONNECT and requests with an http:// URL as target"
        )
    scheme, authority, rest = match.groups()
    if scheme.lower() != b"http":
        name = scheme.decode("ascii", "replace").lower()
        raise BadRequest(400, f"use CONNECT for {name}:// targets, not a plain request")
    if b"@" in authority:
        # RFC 9110 §4.2.4: deprecated, and used to deceive.
        raise BadRequest(400, "a user name in the URL is not supported: send Authorization instead")
    path = rest if rest.startswith(b"/") else b"/" + rest
    if event.method == b"OPTIONS" and not rest:
        path = b"*"  # RFC 9112 §3.2.4
    wanted = [value for name, value in event.headers if name == b"upgrade"]
    upgrade = wanted[0] if len(wanted) == 1 and b"upgrade" in named_in(event.headers) else b""
    chunked = any(name == b"transfer-encoding" for name, _ in event.headers)
    lengths = [value for name, value in event.headers if name == b"content-length"]
    kept = [
        (raw, value)
        for raw, value in end_to_end(event.headers)
        if raw.lower() != b"host"
        # RFC 9110 §10.1.1: an older client does not wait for a 100.
        and not (raw.lower() == b"expect" and event.http_version < b"1.1")
    ]
    return PlainRequest(
        method=event.method,
        absolute=event.target,
        path=path,
        target=_target(authority),
        authority=authority,
        headers=tuple(kept),
        chunked=chunked,
        has_body=chunked or any(int(value) for value in lengths),
        upgrade=upgrade,
    )


def _check_framing(event: h11.Request) -> None:
    """Reject a request whose end is ambiguous between readers (RFC 9112 §6.1).

    Raises:
        BadRequest: ambiguous; the caller closes the connection after the reply and reads
            nothing after the head.
    """
    if not any(name == b"transfer-encoding" for name, _ in event.headers):
        return
    if has_both_lengths(event.headers):
        raise BadRequest(400, "both Content-Length and Transfer-Encoding: request smuggling?")
    if event.http_version < b"1.1":
        raise BadRequest(400, "Transfer-Encoding in an HTTP/1.0 request: request smuggling?")


def has_both_lengths(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return {b"content-length", b"transfer-encoding"} <= {name for name, _ in headers}


def _target(authority: bytes) -> HostPort:
    text = authority.decode("latin-1").removesuffix(":")  # RFC 3986 §3.2.3: a port may be empty
    has_port = ":" in text.rpartition("]")[2]
    try:
        return HostPort.parse(text if has_port else f"{text}:80")
    except ValueError as exc:
        raise BadRequest(400, f"bad destination {text[:100]!a}: {exc}") from exc


def end_to_end(headers: h11._headers.Headers) -> Headers:
    """The headers for the final recipient, with their names as received."""
    named = named_in(headers) - _NEVER_NAMED
    return [
        (raw, value)
        for raw, value in headers.raw_items()
        if (name := raw.lower()) not in _HOP_BY_HOP and name not in named
    ]


def trailers(headers: h11._headers.Headers) -> Headers:
    """The trailers of a message that may be forwarded."""
    return [pair for pair in end_to_end(headers) if pair[0].lower() not in _NEVER_TRAILING]


def named_in(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """The header names listed in Connection, in lower case."""
    values = [value for name, value in headers if name == b"connection"]
    return frozenset(
        word.strip().lower() for value in values for word in value.split(b",") if word.strip()
    )


def password_in(headers: Iterable[tuple[bytes, bytes]]) -> tuple[bytes, bytes] | None:
    """The user name and password of Proxy-Authorization (RFC 7617); None if absent."""
    given = [value for name, value in headers if name == b"proxy-authorization"]
    match = _BASIC.fullmatch(given[0]) if len(given) == 1 else None
    if match is None:
        return None
    try:
        username, colon, password = b64decode(match[1], validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (username, password) if colon else None
