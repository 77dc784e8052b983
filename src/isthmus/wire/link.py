"""Length-prefixed messages of an Isthmus link, and the tables between its enums and ours.

The messages themselves are declared in link.proto; link_pb2.py is generated from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar, cast

from google.protobuf.message import DecodeError, Message

from isthmus.errors import DialFailure, ProtocolError
from isthmus.wire.link_pb2 import DialResult

ALPN = "isthmus/1"
#: The same protocol between two servers, one of which passes dials to its agents. A name of its
#: own: to a server that knows nothing of this, the other would be one more agent.
RELAY_ALPN = "isthmus-relay/1"
MAX_MESSAGE_BYTES = 64 * 1024
_PREFIX_BYTES = 4
# A name of ALPN has 255 bytes (RFC 7301 §3.1), and this goes into logs and flags as it is.
_ASKABLE = re.compile(r"[A-Za-z0-9._-]{1,200}", re.ASCII)

M = TypeVar("M", bound=Message)

TO_WIRE: dict[DialFailure, DialResult.Failure] = {
    failure: cast(DialResult.Failure, DialResult.Failure.Value(failure.name))
    for failure in DialFailure
}
FROM_WIRE = {number: failure for failure, number in TO_WIRE.items()}


def is_askable(server_id: str) -> bool:
    """Tell whether a server of this id can be asked for by ALPN."""
    return _ASKABLE.fullmatch(server_id) is not None


def alpn_asking_for(server_id: str) -> str:
    """The protocol of a link to one certain server; the id has to be askable."""
    return f"{ALPN}@{server_id}"


def is_ours(alpn: str | None) -> bool:
    """Tell whether this is our own protocol, with or without a server's id."""
    return alpn is not None and (alpn == ALPN or alpn.startswith(f"{ALPN}@"))


def asked_for(names: Iterable[str]) -> str:
    """Which server the first of the offered protocols that names one asks for; empty: any."""
    for name in names:
        protocol, at, server_id = name.partition("@")
        if protocol == ALPN and at:
            return server_id if is_askable(server_id) else ""
    return ""


def to_bytes(message: Message, known: bytes = b"") -> bytes:
    """Write one message behind its length; ``known`` are fields of it that are written already."""
    body = known + message.SerializeToString()
    return len(body).to_bytes(_PREFIX_BYTES, "big") + body


def take_message(buffer: bytearray, kind: type[M]) -> M | None:
    """Consume one message from the front of the buffer, or return None if not all is here yet.

    Raises:
        ProtocolError: too long, or not a message of this kind.
    """
    if len(buffer) < _PREFIX_BYTES:
        return None
    size = int.from_bytes(buffer[:_PREFIX_BYTES], "big")
    if size > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"link: message of {size} bytes, at most {MAX_MESSAGE_BYTES}")
    end = _PREFIX_BYTES + size
    if len(buffer) < end:
        return None
    try:
        message = kind.FromString(bytes(buffer[_PREFIX_BYTES:end]))
    except DecodeError as exc:
        raise ProtocolError(f"link: not a {kind.__name__} message") from exc
    del buffer[:end]
    return message


def failure_of(result: DialResult) -> DialFailure | None:
    """Tell why a dial failed, or None if it did not; reasons we do not know are internal errors."""
    if not result.failure:
        return None
    return FROM_WIRE.get(result.failure, DialFailure.INTERNAL)
