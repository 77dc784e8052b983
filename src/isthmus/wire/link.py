"""Length-prefixed messages of an Isthmus link, and the tables between its enums and ours.

The messages themselves are declared in link.proto; link_pb2.py is generated from it.
"""

from __future__ import annotations

from typing import TypeVar, cast

from google.protobuf.message import DecodeError, Message

from isthmus.errors import DialFailure, ProtocolError
from isthmus.wire.link_pb2 import DialResult

ALPN = "isthmus/1"
MAX_MESSAGE_BYTES = 64 * 1024
_PREFIX_BYTES = 4

M = TypeVar("M", bound=Message)

TO_WIRE: dict[DialFailure, DialResult.Failure] = {
    failure: cast(DialResult.Failure, DialResult.Failure.Value(failure.name))
    for failure in DialFailure
}
FROM_WIRE = {number: failure for failure, number in TO_WIRE.items()}


def to_bytes(message: Message) -> bytes:
    """Write one message behind its length."""
    body = message.SerializeToString()
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
