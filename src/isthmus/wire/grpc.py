"""gRPC messages, statuses and header rules on top of HTTP/2 streams.

A message is five bytes (a compressed flag and a length) and its body; a call ends with trailers
that carry its status. Section names are those of "gRPC over HTTP2" (PROTOCOL-HTTP2.md). HTTP/2
itself is in http2.py, the contents of messages in packet.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from isthmus.errors import ProtocolError
from isthmus.text.text_limits import MAX_STATUS_BYTES, MAX_STATUS_CHARS, cut, shown

MESSAGE_HEAD = 5
MAX_MESSAGE_BYTES = 4 * 1024 * 1024  # the default limit of Go's programs
CONTENT_TYPE = b"application/grpc"

Headers = Iterable[tuple[bytes, bytes]]

_CONTENT_TYPE = re.compile(rb"application/grpc(\+proto)?[ \t]*(;.*)?", re.IGNORECASE | re.DOTALL)
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_NOT_PLAIN = re.compile(rb"[^ -$&-~]")
_CUT_ESCAPE = re.compile(rb"%[0-9A-F]?\Z")
_ESCAPED = re.compile(rb"%([0-9A-Fa-f]{2})")


class MessageTooLarge(ProtocolError):
    """A message exceeds the limit; the call is answered with RESOURCE_EXHAUSTED."""


class Status(IntEnum):
    """How a call ended."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16

    @property
    def go_name(self) -> str:
        """The name that Go's programs use in texts and metric labels."""
        return _GO_NAMES.get(self) or self.name.title().replace("_", "")


_GO_NAMES = {Status.OK: "OK", Status.CANCELLED: "Canceled"}

# Statuses for non-gRPC responses (http-grpc-status-mapping.md); others are UNKNOWN.
_OF_HTTP = {
    400: Status.INTERNAL,
    401: Status.UNAUTHENTICATED,
    403: Status.PERMISSION_DENIED,
    404: Status.UNIMPLEMENTED,
    429: Status.UNAVAILABLE,
    502: Status.UNAVAILABLE,
    503: Status.UNAVAILABLE,
    504: Status.UNAVAILABLE,
}


# Messages.


def message_head(size: int) -> bytes:
    """Write the prefix of a body of this size ("Length-Prefixed-Message")."""
    if size > MAX_MESSAGE_BYTES:
        raise _too_large(size)
    # The flag is zero, so flag and length are one number of five bytes.
    return size.to_bytes(MESSAGE_HEAD, "big")


def message_size(head: bytes | bytearray | memoryview) -> int:
    """Read the size of a message from the MESSAGE_HEAD bytes before it.

    Raises:
        MessageTooLarge: longer than MAX_MESSAGE_BYTES.
        ProtocolError: the message is compressed.
    """
    size = int.from_bytes(head, "big")  # the flag is zero, so both are one number
    if size <= MAX_MESSAGE_BYTES:
        return size
    if size >> 32:
        # "Compressed-Flag → 0 / 1": only valid with a grpc-encoding, and we never agree to one.
        raise ProtocolError("grpc: compressed message but no encoding was agreed")
    raise _too_large(size)


def _too_large(size: int) -> MessageTooLarge:
    return MessageTooLarge(f"grpc: message of {size} bytes, at most {MAX_MESSAGE_BYTES}")


# Statuses.


def status_headers(status: Status, message: str = "") -> list[tuple[bytes, bytes]]:
    """Write the trailers that end a call ("Status" and "Status-Message"); long messages are cut."""
    headers = [(b"grpc-status", b"%d" % status)]
    if message:
        headers.append((b"grpc-message", _percent_encode(message)))
    return headers


def read_status(headers: Headers) -> tuple[Status, str]:
    """Read the status of a call from its trailers; invalid trailers give UNKNOWN."""
    fields = dict(headers)
    number = fields.get(b"grpc-status")
    if number is None:
        return Status.UNKNOWN, "no grpc-status"
    message = _percent_decode(fields.get(b"grpc-message", b"")[: 3 * MAX_STATUS_BYTES])
    if not number.isdigit() or len(number) > 10 or (code := int(number)) > max(Status):
        return Status.UNKNOWN, message
    return Status(code), message


def status_of_http(http_status: int) -> Status:
    """The status of a call that got a plain HTTP answer, for example from a proxy."""
    return _OF_HTTP.get(http_status, Status.UNKNOWN)


def _percent_encode(text: str) -> bytes:
    # "Percent-Byte-Unencoded → 1*( %x20-%x24 / %x26-%x7E ) ; space and VCHAR, except %"
    raw = cut(text, MAX_STATUS_CHARS).encode("utf-8", "replace")
    encoded = _NOT_PLAIN.sub(lambda found: b"%%%02X" % ord(found[0]), raw)
    if len(encoded) <= MAX_STATUS_BYTES:
        return encoded
    # Three bytes encode one; the decoder puts a replacement mark where a character was cut in two.
    return _CUT_ESCAPE.sub(b"", encoded[:MAX_STATUS_BYTES])


def _percent_decode(raw: bytes) -> str:
    # "When decoding invalid values, implementations MUST NOT error or throw away the message."
    whole = _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode("ascii")), raw)
    return cut(whole.decode("utf-8", "replace"), MAX_STATUS_CHARS)


# Requests and responses.


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request is refused, as HTTP and as gRPC status; the texts are for users."""

    http_status: int
    status: Status
    message: str

    def to_headers(self) -> list[tuple[bytes, bytes]]:
        """Write the whole answer as one block of headers ("Trailers-Only")."""
        return [
            (b":status", b"%d" % self.http_status),
            (b"content-type", CONTENT_TYPE),
            *status_headers(self.status, self.message),
        ]


def request_problem(headers: Headers) -> Refusal | None:
    """Check the headers of a request as grpc-go's server does; None means it is acceptable.

    ``te: trailers`` is not required, and ``grpc-accept-encoding`` is ignored: we never compress.
    """
    fields = dict(headers)
    kind, method = fields.get(b"content-type", b""), fields.get(b":method", b"")
    if not _CONTENT_TYPE.fullmatch(kind):
        text = f"invalid gRPC request content-type {shown(kind)}"
        return Refusal(http_status=415, status=Status.INVALID_ARGUMENT, message=text)
    if method != b"POST":
        text = f"the :method is {shown(method)} and should be POST"
        return Refusal(http_status=405, status=Status.INTERNAL, message=text)
    timeout = fields.get(b"grpc-timeout")
    if timeout is not None and read_timeout(timeout) is None:
        text = f"malformed grpc-timeout {shown(timeout)}"
        return Refusal(http_status=400, status=Status.INTERNAL, message=text)
    encoding = fields.get(b"grpc-encoding", b"identity")
    if encoding not in (b"identity", b""):
        text = f"grpc-encoding {shown(encoding)} is not supported"
        return Refusal(http_status=200, status=Status.UNIMPLEMENTED, message=text)
    return None


def response_problem(headers: Headers) -> tuple[Status, str] | None:
    """Check the headers of a response; None means it is gRPC, possibly with a status in it."""
    fields = dict(headers)
    http_status = fields.get(b":status", b"")
    kind = fields.get(b"content-type", b"")
    is_grpc = _CONTENT_TYPE.fullmatch(kind) is not None
    if is_grpc and (http_status == b"200" or b"grpc-status" in fields):
        return None
    if http_status == b"200":
        return Status.UNKNOWN, f"the response has content-type {shown(kind)}, not gRPC's"
    known = http_status.isdigit() and len(http_status) == 3
    status = status_of_http(int(http_status)) if known else Status.UNKNOWN
    return status, f"the response has HTTP status {shown(http_status)}"


def read_timeout(value: bytes) -> float | None:
    """Read a ``grpc-timeout`` ("Timeout": at most eight digits and a unit) in seconds.

    None means malformed.
    """
    found = _TIMEOUT.fullmatch(value)
    return int(found[1]) * _UNIT_S[found[2]] if found else None
