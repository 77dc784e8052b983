"""The audit record: requester, target, decision, bytes and ending.

A record is a value, ``to_line`` its JSON on one line. Metadata only: a record never has bytes that
a tunnel carried. The line of a tunnel's end is built from that of its begin, which it repeats.
log.py writes the file; docs/audit.md explains the keys.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache

import msgspec

from isthmus.frame.model.snapshot import camel
from isthmus.text.short_cache import short_cache
from isthmus.values import Identity, RequestMetadata

#: Shown instead of a rule's name if the agent, or the next server, denied.
BY_FAR_SIDE = "(far side)"
MAX_CHARS = 1024
_MOST_GROUPS = 64
_SHORT_IDENTITY_BYTES = 4096


class Stage(Enum):
    """The stage that a record is about."""

    BEGIN = "Begin"
    END = "End"
    REFUSED = "Refused"
    FAILED = "Failed"
    DROPPED = "Dropped"


class Requester(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The requester, as authenticated by the transport; ``kind`` is how, ``none`` if not at all."""

    name: str
    kind: str
    groups: tuple[str, ...] = ()


class Claimed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The client's statements about its request; ``believed`` if it was authenticated.

    ``client`` is the client at an agent, as that agent reported.
    """

    believed: bool
    client: str = ""
    network: str = ""
    user: str = ""
    groups: tuple[str, ...] = ()
    tenant: str = ""
    object: str = ""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=camel):
    """One line of the audit log; times are RFC 3339 in UTC. Unknown fields are left out.

    ``decision`` is ``allow`` or ``deny`` and ``rule`` the deciding rule, if there is a policy.
    ``relay`` is the other server with the agent, ``relayed_by`` the other server that requested.
    ``reason`` is why a request was refused or failed, in words.
    """

    time: str
    stage: Stage
    connection_id: str = ""
    server_id: str = ""
    frontend: str = ""
    client: str = ""
    requester: Requester | None = None
    claimed: Claimed | None = None
    network: str = ""
    destination: str = ""
    address: str = ""
    agent_id: str = ""
    link_id: int = 0
    relay: str = ""
    relayed_by: str = ""
    decision: str = ""
    rule: str = ""
    start_time: str = ""
    end_time: str = ""
    duration_s: float | None = None
    bytes_to_target: int | None = None
    bytes_to_client: int | None = None
    ending: str = ""
    ended_by: str = ""
    failure: str = ""
    status: int = 0
    reason: str = ""
    dropped: int = 0


_encode = msgspec.json.Encoder().encode
# The text around the part of a begin's line that the end's line repeats; times have a fixed number
# of digits, so that the part can be cut out.
_END_HEAD = b'{"time":"%b","stage":"End"'
_END_TAIL = (
    b',"endTime":"%b","durationSeconds":%.6f,"bytesToTarget":%d,"bytesToClient":%d'
    b',"ending":"%b","endedBy":"%b"}\n'
)
_SHARED = slice(len('{"time":"2026-01-02T15:04:05.000000Z","stage":"Begin"'), -len("}\n"))


def to_line(record: Record) -> bytes:
    """Write a record as one line of JSON, line feed included."""
    try:
        return _encode(record) + b"\n"
    except UnicodeEncodeError:  # a lone surrogate, from a file name or a certificate
        text = json.dumps(msgspec.to_builtins(record), separators=(",", ":"))
        return text.encode("ascii") + b"\n"


def end_line(
    begin: bytes,
    *,
    now: float,
    duration_s: float,
    bytes_to_target: int,
    bytes_to_client: int,
    ending: str,
    ended_by: str,
) -> bytes:
    """Build the line of a tunnel's end from the line of its begin.

    The two words come from Isthmus, not from a peer: they need no escapes.
    """
    at = rfc3339(now).encode()
    tail = (at, duration_s, bytes_to_target, bytes_to_client, ending.encode(), ended_by.encode())
    return b"".join((_END_HEAD % at, begin[_SHARED], _END_TAIL % tail))


def dropped(count: int, *, now: float) -> Record:
    """A record with the number of records dropped since the last written one."""
    return Record(time=rfc3339(now), stage=Stage.DROPPED, dropped=count)


@short_cache(256, _SHORT_IDENTITY_BYTES)
def requester_of(identity: Identity) -> Requester:
    """Describe the requester; very long names are cut."""
    groups = tuple(cut(group) for group in identity.groups[:_MOST_GROUPS])
    return Requester(name=cut(identity.name), kind=identity.kind, groups=groups)


def claimed_by(asking: RequestMetadata, *, believed: bool) -> Claimed | None:
    """Describe the client's statements; None without any."""
    if not asking.claims:
        return None
    return Claimed(
        believed=believed,
        network=asking.network,
        user=asking.user,
        groups=asking.groups,
        tenant=asking.tenant,
        object=asking.object,
    )


def is_proven(identity: Identity) -> bool:
    """Whether a client was authenticated: by a certificate, or as the user of a socket."""
    return identity.kind == "certificate" or (identity.kind == "uid" and identity.name.isdigit())


def cut(text: str) -> str:
    """Shorten a text that a peer may have made long."""
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}…"


def rfc3339(seconds: float) -> str:
    """Write a UNIX time with its microseconds, always six digits, in UTC."""
    whole, micros = divmod(round(seconds * 1_000_000), 1_000_000)
    return f"{_second(whole)}.{micros:06d}Z"


@lru_cache(maxsize=16)
def _second(whole: int) -> str:
    return datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
