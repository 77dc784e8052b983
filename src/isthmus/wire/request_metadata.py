"""Request metadata besides the target: headers of CONNECT, metadata of gRPC.

        isthmus-network   the requested network
        isthmus-user      the user on whose behalf the client asks
        isthmus-group     a group of that user; may occur several times
        isthmus-tenant    the tenant
        isthmus-object    the Kubernetes object that the request is about
        traceparent, tracestate   W3C Trace Context
        isthmus-half-close        half-closes are supported; a server that does answers the same

Values of ``isthmus-`` keys are percent-encoded UTF-8 (RFC 3986 §2.1). The server, which knows the
client's identity, decides what to trust; this module only reads.

Trace context is the Recommendation of 23 November 2021, https://www.w3.org/TR/trace-context/: read
strictly and written back unchanged. frame/observe/tracing.py creates spans; a program without
tracing forwards the context.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

from isthmus.text.text_limits import (
    MAX_GROUP_BYTES,
    MAX_GROUPS,
    MAX_NAME_BYTES,
    MAX_TRACEPARENT_CHARS,
    MAX_TRACESTATE_CHARS,
)
from isthmus.values import NOTHING, RequestMetadata

#: In UTF-8. All metadata has to fit into the first message of a stream (links/dials.py).
MAX_VALUE_BYTES = MAX_NAME_BYTES

_NETWORK = b"isthmus-network"
_USER = b"isthmus-user"
_GROUP = b"isthmus-group"
_TENANT = b"isthmus-tenant"
_OBJECT = b"isthmus-object"
_TRACEPARENT = b"traceparent"
_TRACESTATE = b"tracestate"
_TEXTS = {_NETWORK: "network", _USER: "user", _TENANT: "tenant", _OBJECT: "object"}
#: Both sides set it for a tunnel that ends as TCP does, one direction at a time. Without it the
#: peer may be a konnectivity server, which closes both.
HALF_CLOSE = b"isthmus-half-close"
NAMES = frozenset({*_TEXTS, _GROUP, _TRACEPARENT, _TRACESTATE})

SAMPLED = 0x01

# §3.2.2: lower-case hex, and version ff is forbidden; a later version may add fields after a dash.
_PARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?", re.ASCII
)
# §3.3.1.3: a key, "=", and a value of printable ASCII without comma, equals sign or last blank.
_MEMBER = re.compile(
    r"([a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    r"=([ !-+\--<>-~]{0,255}[!-+\--<>-~])",
    re.ASCII,
)
_MOST_MEMBERS = 32
_MOST_ENCODED_BYTES = 3 * MAX_VALUE_BYTES
_ENCODED = re.compile(rb"(?:[!-$&-~]|%[0-9A-Fa-f]{2})+")
# Common in Kubernetes names; everything else is encoded, so that a header is one line.
_SAFE = ":/@.,=+()!*'"


def metadata_in(headers: Iterable[tuple[bytes, bytes]]) -> RequestMetadata:
    """Read the metadata. Invalid, too long or repeated values count as not set.

    Names are compared without case; groups and ``tracestate`` may occur several times.
    """
    # Most requests have none: they cost a set lookup for each header.
    found = [(name, value) for raw, value in headers if (name := raw.lower()) in NAMES]
    if not found:
        return NOTHING
    said: dict[bytes, list[bytes]] = {}
    for name, value in found:
        said.setdefault(name, []).append(value)
    texts = {field: _only(said.get(name)) for name, field in _TEXTS.items()}
    groups = _groups(said.get(_GROUP, []))
    parent = _ascii(said.get(_TRACEPARENT, ()))
    if not is_traceparent(parent):
        # Trace Context §4.3: without a valid parent the state is ignored, too.
        return RequestMetadata(**texts, groups=groups)
    # §3.3.1: several headers are joined in order (RFC 9110 §5.3).
    state = _ascii(said.get(_TRACESTATE, ()))
    return RequestMetadata(
        **texts,
        groups=groups,
        traceparent=parent,
        tracestate=state if is_tracestate(state) else "",
    )


def headers_of(asking: RequestMetadata) -> list[tuple[bytes, bytes]]:
    """Write the metadata as headers, names in lower case; the inverse of ``metadata_in``.

    Raises:
        ValueError: a value is too long, or has an unprintable character.
    """
    headers: list[tuple[bytes, bytes]] = []
    for name, field in _TEXTS.items():
        value: str = getattr(asking, field)
        if value:
            headers.append((name, _encoded(value, field)))
    if not _fits(asking.groups):
        raise ValueError(f"more than {MAX_GROUPS} groups, or {MAX_GROUP_BYTES} bytes of them")
    headers += [(_GROUP, _encoded(group, "group")) for group in asking.groups]
    if asking.traceparent:
        headers.append((_TRACEPARENT, asking.traceparent.encode("ascii")))
        if asking.tracestate:
            headers.append((_TRACESTATE, asking.tracestate.encode("ascii")))
    return headers


def _encoded(value: str, what: str) -> bytes:
    if len(value.encode()) > MAX_VALUE_BYTES:
        raise ValueError(f"the {what} is longer than {MAX_VALUE_BYTES} bytes")
    if not value.isprintable():
        raise ValueError(f"the {what} has unprintable characters")
    return quote(value, safe=_SAFE).encode("ascii")


def _only(values: list[bytes] | None) -> str:
    """The value if there is exactly one; two are ambiguous."""
    return _text(values[0]) if values is not None and len(values) == 1 else ""


def _groups(raw: list[bytes]) -> tuple[str, ...]:
    """The groups without repetition; none if too many, because a subset would mislead."""
    if len(raw) > MAX_GROUPS:
        return ()
    groups = tuple(dict.fromkeys(filter(None, map(_text, raw))))
    return groups if _fits(groups) else ()


def _fits(groups: tuple[str, ...]) -> bool:
    return len(groups) <= MAX_GROUPS and sum(map(len, map(str.encode, groups))) <= MAX_GROUP_BYTES


def _text(raw: bytes) -> str:
    """Decode a value; empty if invalid or too long."""
    if len(raw) > _MOST_ENCODED_BYTES or not _ENCODED.fullmatch(raw):
        return ""
    try:
        decoded = unquote_to_bytes(raw)
        text = decoded.decode("utf-8")
    except UnicodeDecodeError:
        return ""
    return text if len(decoded) <= MAX_VALUE_BYTES and text.isprintable() else ""


def _ascii(values: Iterable[bytes]) -> str:
    """Several headers as one (RFC 9110 §5.3); empty if not ASCII."""
    joined = b",".join(values)
    return joined.decode("ascii") if joined.isascii() else ""


@dataclass(frozen=True, slots=True)
class TraceParent:
    """The parent of a span; ``str()`` gives the header, always of version 00."""

    trace_id: str
    parent_id: str
    flags: int = 0

    @property
    def sampled(self) -> bool:
        """Whether the sender may have recorded its part."""
        return bool(self.flags & SAMPLED)

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.parent_id}-{self.flags:02x}"


def parse_traceparent(text: str) -> TraceParent | None:
    """Read the header; None if invalid, which means that there is no trace (§4.3)."""
    if len(text) > MAX_TRACEPARENT_CHARS:
        return None
    match = _PARENT.fullmatch(text)
    if match is None:
        return None
    version, trace_id, parent_id, flags, more = match.groups()
    if more is not None and version == "00":  # §3.2.4: only a later version has more
        return None
    if not (trace_id.strip("0") and parent_id.strip("0")):  # §3.2.2.3 and §3.2.2.4
        return None
    return TraceParent(trace_id, parent_id, int(flags, 16))


def is_traceparent(text: str) -> bool:
    return parse_traceparent(text) is not None


def is_tracestate(text: str) -> bool:
    """Whether the text is a valid ``tracestate`` within the limits; an empty one is.

    A repeated key, or too many members, invalidate all of it (§3.3.1.1).
    """
    if not text or len(text) > MAX_TRACESTATE_CHARS:
        return False
    members = [member.strip(" \t") for member in text.split(",")]
    found = [_MEMBER.fullmatch(member) for member in members if member]
    keys = [match[1] for match in found if match is not None]
    return 0 < len(keys) == len(found) == len(set(keys)) <= _MOST_MEMBERS
