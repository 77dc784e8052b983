"""KEP-1281's protocol in bytes: the metadata that names a target, payloads, and statuses.

The messages are declared in kep1281.proto; kep1281_pb2.py is generated from it. A payload with
only data, which is nearly every one, is read and written here by hand, with the same result.
The read loop is in tunnel/message_reader.py; tunnel/payload.py handles the calls.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable
from functools import lru_cache

from google.protobuf.message import DecodeError

from isthmus.errors import DialFailure, ProtocolError
from isthmus.text.short_cache import short_cache
from isthmus.values import HostPort
from isthmus.wire.grpc import Status, message_head
from isthmus.wire.kep1281_pb2 import ConnectOptions, Payload

PATH = b"/ProxyService/Proxy"
#: "metadata["x-kube-net-proxy"] = base64.Encode(proto.Marshal(connectOptions))" (KEP-1281).
CONNECT_OPTIONS = b"x-kube-net-proxy"
#: The most data in one payload that we write; a message may have 4 MiB.
MOST_DATA = 64 * 1024

#: The call status for each dial failure.
STATUS_OF_FAILURE: dict[DialFailure, Status] = {
    DialFailure.REFUSED: Status.UNAVAILABLE,
    DialFailure.TIMED_OUT: Status.DEADLINE_EXCEEDED,
    DialFailure.UNREACHABLE: Status.UNAVAILABLE,
    DialFailure.UNRESOLVED: Status.NOT_FOUND,
    DialFailure.DENIED: Status.PERMISSION_DENIED,
    DialFailure.NO_AGENT: Status.UNAVAILABLE,
    DialFailure.AGENT_LOST: Status.UNAVAILABLE,
    DialFailure.TOO_MANY: Status.RESOURCE_EXHAUSTED,
    DialFailure.INTERNAL: Status.INTERNAL,
}
#: The dial failure for each status without a more precise text. Others concern the server.
FAILURE_OF_STATUS: dict[Status, DialFailure] = {
    Status.DEADLINE_EXCEEDED: DialFailure.TIMED_OUT,
    Status.NOT_FOUND: DialFailure.UNRESOLVED,
    Status.PERMISSION_DENIED: DialFailure.DENIED,
    Status.UNAUTHENTICATED: DialFailure.DENIED,
    Status.RESOURCE_EXHAUSTED: DialFailure.TOO_MANY,
}

_DATA_KEY = 0x0A  # Payload.data: number << 3 | wire type
_THREE_BYTES, _FOUR_BYTES = 1 << 14, 1 << 21
#: The key, and a length of four bytes at most: messages have 4 MiB.
MOST_PREFIX = 5
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]*={0,2}")
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
_MOST_SHOWN = 100
#: The longest possible target in base64, and the overhead of its key.
_SHORT_OPTIONS_BYTES = 512


# The metadata.


def connect_options(target: HostPort) -> bytes:
    """Write the value of CONNECT_OPTIONS for a target."""
    options = ConnectOptions(remote_addr=str(target))
    return binascii.b2a_base64(options.SerializeToString(), newline=False)


@short_cache(1024, _SHORT_OPTIONS_BYTES)
def read_connect_options(value: bytes) -> HostPort:
    """Read the target from the value of CONNECT_OPTIONS.

    Base64 in either alphabet of RFC 4648, with or without padding: Go has an encoder for each,
    and the KEP does not say which. Results are cached, because the same targets are dialed again.

    Raises:
        ProtocolError: not a ConnectOptions with a host and a port.
    """
    try:
        address = str(ConnectOptions.FromString(_base64(value)).remote_addr)
    except ValueError as exc:
        raise ProtocolError(f"metadata {_NAME}: {exc}") from exc
    except DecodeError as exc:
        raise ProtocolError(f"metadata {_NAME}: not a serialized ConnectOptions") from exc
    if not address:
        raise ProtocolError(f"metadata {_NAME}: remote_addr is empty")
    try:
        return HostPort.parse(address)
    except ValueError as exc:
        shown = repr(address[:_MOST_SHOWN])
        raise ProtocolError(f"metadata {_NAME}: remote_addr {shown}: {exc}") from exc


_NAME = CONNECT_OPTIONS.decode()


def _base64(value: bytes) -> bytes:
    bare = value.rstrip(b"=")
    padded = len(bare) != len(value)
    if not _BASE64.fullmatch(value) or len(bare) % 4 == 1 or (padded and len(value) % 4):
        raise ValueError("not base64")
    return binascii.a2b_base64(bare.translate(_TO_STANDARD) + b"=" * (-len(bare) % 4))


def names_target(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request is of this protocol: it names a target, valid or not."""
    # A loop: any() with a generator takes twice as long, and each gRPC call runs this.
    for name, _ in headers:  # noqa: SIM110
        if name == CONNECT_OPTIONS:
            return True
    return False


def target_in(headers: Iterable[tuple[bytes, bytes]]) -> HostPort | None:
    """Find the target that a request names in its metadata; None: a call of another protocol.

    Raises:
        ProtocolError: the target is invalid, or there is more than one.
    """
    found = [value for name, value in headers if name == CONNECT_OPTIONS]
    if not found:
        return None
    if len(found) > 1:
        raise ProtocolError(f"metadata {_NAME}: given {len(found)} times")
    return read_connect_options(found[0])


# Payloads.


def find_data(buffer: bytes | memoryview, start: int, end: int) -> tuple[int, int] | None:
    """Find the data of a payload that lies between two offsets: (0, offset of the data).

    The data reaches to ``end``, which may be beyond the bytes received: the first MOST_PREFIX bytes
    suffice. None means not plainly such a payload, or too few bytes; parse() decides once it is
    complete. (The 0 is the connection; packet.py's payloads have one.)
    """
    try:
        if buffer[start] != _DATA_KEY:
            return None
        size = buffer[start + 1]
        pos = start + 2
        if size > 0x7F:
            size += (buffer[pos] << 7) - 0x80
            pos += 1
            if size >= _THREE_BYTES:
                size += (buffer[pos] << 14) - _THREE_BYTES
                pos += 1
                if size >= _FOUR_BYTES:
                    size += (buffer[pos] << 21) - _FOUR_BYTES
                    pos += 1
    except IndexError:
        return None
    # A fifth byte of the size could not pass this: messages are far smaller.
    return (0, pos) if pos + size == end and pos <= len(buffer) else None


def parse(message: bytes | memoryview) -> tuple[bytes, bool]:
    """Read any payload: its data, and whether it ends the target's data (our extension).

    Raises:
        ProtocolError: not a payload.
    """
    try:
        payload = Payload.FromString(bytes(message))
    except DecodeError as exc:
        raise ProtocolError(f"kep1281: {len(message)} bytes are not a Payload") from exc
    return payload.data, payload.isthmus_end_of_data


# Built by hand instead of protobuf, without copying the data. timeit, CPython 3.11 and protobuf 7
# (upb): 0.12 µs for a size used before, 1.2 µs for a new one;
# Payload(…).SerializeToString() takes 1.9 µs for 64 B and 5.5 µs for 32 KiB.
@lru_cache(maxsize=1024)
def payload_head(size: int) -> bytes:
    """The gRPC head and the payload up to the first byte of data of this size."""
    length, left = bytearray((_DATA_KEY,)), size
    while left > 0x7F:
        length.append(left & 0x7F | 0x80)
        left >>= 7
    length.append(left)
    return message_head(len(length) + size) + bytes(length)


def _end_of_data() -> bytes:
    body = Payload(isthmus_end_of_data=True).SerializeToString()
    return message_head(len(body)) + body


#: The message that signals the target's half-close, with its gRPC head.
END_OF_DATA = _end_of_data()
