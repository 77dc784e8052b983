"""Length-prefixed messages of an Isthmus link, and the mappings between its enums and ours.

The messages themselves are declared in link.proto; link_pb2.py is generated from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

from google.protobuf.message import DecodeError, Message

from isthmus.errors import DialFailure, ProtocolError
from isthmus.text.text_limits import (
    MAX_ADDRESS_CHARS,
    MAX_AGENT_ID_CHARS,
    MAX_DETAIL_CHARS,
    MAX_DIAL_BYTES,
    MAX_GROUP_BYTES,
    MAX_GROUPS,
    MAX_KIND_CHARS,
    MAX_NAME_BYTES,
    MAX_NETWORK_CHARS,
    MAX_SERVER_ID_CHARS,
    MAX_TOKEN_CHARS,
    MAX_TRACEPARENT_CHARS,
    MAX_TRACESTATE_CHARS,
    MAX_VERSION_CHARS,
    cut,
    first_too_long,
)
from isthmus.wire.link_pb2 import Control, Dial, DialResult, Refusal, Resume, Resumed, Welcome

MAX_MESSAGE_BYTES = 64 * 1024
MESSAGE_PREFIX_BYTES = 4

#: Texts that decide something: a longer one is a protocol error. links/talk.py checks the texts
#: of a Hello, so that the agent is told the reason; a long host fails its dial.
_REFUSED: dict[type[Message], tuple[tuple[str, int], ...]] = {
    Dial: (
        ("network", MAX_NETWORK_CHARS),
        ("requester", MAX_NAME_BYTES),
        ("requester_kind", MAX_KIND_CHARS),
        ("user", MAX_NAME_BYTES),
        ("tenant", MAX_NAME_BYTES),
        ("object", MAX_NAME_BYTES),
        ("traceparent", MAX_TRACEPARENT_CHARS),
        ("tracestate", MAX_TRACESTATE_CHARS),
    ),
    Welcome: (("server_id", MAX_SERVER_ID_CHARS),),
    Resume: (("bearer_token", MAX_TOKEN_CHARS),),
}
#: Texts that are only displayed.
_CUT: dict[type[Message], tuple[tuple[str, int], ...]] = {
    DialResult: (
        ("detail", MAX_DETAIL_CHARS),
        ("address", MAX_ADDRESS_CHARS),
        ("agent_id", MAX_AGENT_ID_CHARS),
    ),
    Welcome: (("version", MAX_VERSION_CHARS),),
    Refusal: (("reason", MAX_DETAIL_CHARS),),
    Resumed: (("refusal", MAX_DETAIL_CHARS),),
}
#: In a message this short no text can be too long: most are, and need no further check.
_SHORT_BYTES = min(most for fields in (*_REFUSED.values(), *_CUT.values()) for _, most in fields)

M = TypeVar("M", bound=Message)

TO_WIRE: dict[DialFailure, DialResult.Failure] = {
    failure: cast(DialResult.Failure, DialResult.Failure.Value(failure.name))
    for failure in DialFailure
}
FROM_WIRE = {number: failure for failure, number in TO_WIRE.items()}


def to_bytes(message: Message, known: bytes = b"") -> bytes:
    """Write one length-prefixed message; ``known`` are fields that are already encoded."""
    body = known + message.SerializeToString()
    return len(body).to_bytes(MESSAGE_PREFIX_BYTES, "big") + body


def take_message(buffer: bytearray, kind: type[M]) -> M | None:
    """Consume one message from the front of the buffer, or return None while it is incomplete.

    Its texts are within text_limits.py.

    Raises:
        ProtocolError: too long, or not a message of this kind.
    """
    if len(buffer) < MESSAGE_PREFIX_BYTES:
        return None
    size = int.from_bytes(buffer[:MESSAGE_PREFIX_BYTES], "big")
    most = MAX_DIAL_BYTES if kind is Dial or kind is DialResult else MAX_MESSAGE_BYTES
    if size > most:
        raise ProtocolError(f"link: message of {size} bytes, at most {most}")
    end = MESSAGE_PREFIX_BYTES + size
    if len(buffer) < end:
        return None
    try:
        message = kind.FromString(bytes(buffer[MESSAGE_PREFIX_BYTES:end]))
    except DecodeError as exc:
        raise ProtocolError(f"link: not a {kind.__name__} message") from exc
    del buffer[:end]
    if size > _SHORT_BYTES:
        bound_texts(message)
    return message


def bound_texts(message: Message) -> None:
    """Cut the texts of a message that are only displayed.

    Raises:
        ProtocolError: a text that decides something is too long.
    """
    if isinstance(message, Control):
        kind = message.WhichOneof("message")
        if kind is None:
            return
        message = getattr(message, kind)
    of = type(message)
    fields = _REFUSED.get(of, ())
    fault = first_too_long((name, getattr(message, name), most) for name, most in fields)
    if not fault and isinstance(message, Dial):
        fault = _groups_fault(message.requester_groups) or _groups_fault(message.user_groups)
    if fault:
        raise ProtocolError(f"link: {of.__name__}: {fault}")
    for name, most in _CUT.get(of, ()):
        text = getattr(message, name)
        if len(text) > most:
            setattr(message, name, cut(text, most))


def _groups_fault(groups: Sequence[str]) -> str:
    if len(groups) > MAX_GROUPS or sum(map(len, groups)) > MAX_GROUP_BYTES:
        return f"more than {MAX_GROUPS} groups, or {MAX_GROUP_BYTES} characters of them"
    return ""


def failure_of(result: DialResult) -> DialFailure | None:
    """Why a dial failed, or None on success; unknown reasons count as internal errors."""
    if not result.failure:
        return None
    return FROM_WIRE.get(result.failure, DialFailure.INTERNAL)
