"""Parse a TLS ClientHello, and write the alert that refuses it before any TLS.

Only the server name (RFC 6066) and the ALPN names (RFC 7301) are read, and nothing else is
checked; TLS reads the same bytes afterwards and decides. The sender is not authenticated yet, so
input that costs more to parse than a real hello is rejected.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from isthmus.errors import ProtocolError
from isthmus.text.text_limits import MAX_ALPN_NAMES, MAX_SERVER_NAME_BYTES

#: A larger hello is rejected; post-quantum key shares make one of about 2 KiB.
MAX_HELLO_BYTES = 16 * 1024
# Real hellos use one or two records; browsers send about twenty extensions.
MAX_RECORDS = 4
_MAX_EXTENSIONS = 64
_RECORD_HEADER = 5
_HANDSHAKE_HEADER = 4
_MAX_FRAGMENT_BYTES = 1 << 14
_CLIENT_HELLO = 1
_SERVER_NAME_EXTENSION = 0
_ALPN_EXTENSION = 16
_HOST_NAME = 0
_VERSION_BYTES = 2
_RANDOM_BYTES = 32
_FIXED_BYTES = _VERSION_BYTES + _RANDOM_BYTES  # RFC 8446 §4.1.2
_LOOKED_AT = (_SERVER_NAME_EXTENSION, _ALPN_EXTENSION)
_NOTHING = memoryview(b"")
_FATAL = 2
# An alert before the handshake is a record of two bytes (RFC 8446 §5.1, §6); clients of every
# version accept TLS 1.2's number there.
_RECORD = b"\x15\x03\x03\x00\x02"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHello:
    """The contents of a hello: ``random``, unique to the connection, and the offered protocols.

    ``alpn`` is in the client's order, and empty if the client offers none. Names are bytes
    (RFC 7301 §3.1), decoded as Latin-1. ``server_name`` is the requested host as the client wrote
    it; empty without one.
    """

    random: bytes = b""
    alpn: tuple[str, ...] = ()
    server_name: str = ""


def hello_in(data: bytes, *, max_records: int = MAX_RECORDS) -> ClientHello | int:
    """Read the ClientHello at the front of the data; bytes after it are ignored.

    If it is incomplete, return the number of bytes needed before calling again.

    Raises:
        ProtocolError: not a ClientHello, or more than 16 KiB, ``max_records`` records, 64
            extensions or 16 ALPN names.
    """
    message = _message(data[:MAX_HELLO_BYTES], max_records)
    if isinstance(message, int):
        if len(data) >= MAX_HELLO_BYTES:
            raise ProtocolError(f"TLS: a ClientHello of more than {MAX_HELLO_BYTES} bytes")
        return min(message, MAX_HELLO_BYTES)
    if len(message) < _FIXED_BYTES:
        raise ProtocolError("TLS: the ClientHello is cut short")
    # A memoryview, because slices of bytes would copy the rest for each extension and name.
    found = _extensions(memoryview(message)[_FIXED_BYTES:])
    return ClientHello(
        random=message[_VERSION_BYTES:_FIXED_BYTES],
        alpn=_names(found.get(_ALPN_EXTENSION, _NOTHING)),
        server_name=_server_name(found.get(_SERVER_NAME_EXTENSION)),
    )


def _message(data: bytes, max_records: int) -> bytes | int:
    """The body of the first handshake message, gathered from its records (RFC 8446 §5.1).

    Or the number of bytes needed next: one more inside a header, else the announced length.
    """
    body = bytearray()
    at = 0
    for _ in range(max_records):
        record = data[at : at + _RECORD_HEADER]
        # Each byte is checked as soon as it arrives: non-TLS input is rejected without waiting.
        if record[:1] not in (b"", b"\x16") or record[1:2] not in (b"", b"\x03"):
            raise ProtocolError("TLS: not a handshake record")
        if len(record) < _RECORD_HEADER:
            return len(data) + 1
        size = int.from_bytes(record[3:5], "big")
        if not 0 < size <= _MAX_FRAGMENT_BYTES:
            raise ProtocolError(f"TLS: a handshake record of {size} bytes")
        at += _RECORD_HEADER
        before = len(body)
        body += data[at : at + size]
        wanted = _size_of(body)
        if wanted is not None and len(body) >= wanted:
            return bytes(body[_HANDSHAKE_HEADER:wanted])
        if at + size > len(data):
            return len(data) + 1 if wanted is None else at + min(size, wanted - before)
        at += size
    raise ProtocolError(f"TLS: a ClientHello in more than {max_records} records")


def _size_of(body: bytearray) -> int | None:
    """The length of the message with its header; None if not known yet."""
    if body and body[0] != _CLIENT_HELLO:
        raise ProtocolError("TLS: the first message is not a ClientHello")
    if len(body) < _HANDSHAKE_HEADER:
        return None
    size = _HANDSHAKE_HEADER + int.from_bytes(body[1:4], "big")
    if size > MAX_HELLO_BYTES:
        raise ProtocolError(f"TLS: a ClientHello of {size} bytes, at most {MAX_HELLO_BYTES}")
    return size


def _extensions(fields: memoryview) -> dict[int, memoryview]:
    """The contents of the two relevant extensions. ``fields`` starts after the random."""
    found: dict[int, memoryview] = {}
    _session, rest = _vector(fields, 1)
    _suites, rest = _vector(rest, 2)
    _compression, rest = _vector(rest, 1)
    if not rest:
        return found  # TLS 1.2 and before may have no extensions at all
    extensions, rest = _vector(rest, 2)
    if rest:
        raise ProtocolError("TLS: bytes after the extensions")
    for _ in range(_MAX_EXTENSIONS):
        if not extensions:
            return found
        if len(extensions) < 2:
            raise ProtocolError("TLS: the ClientHello is cut short")
        kind = int.from_bytes(extensions[:2], "big")
        content, extensions = _vector(extensions[2:], 2)
        if kind in _LOOKED_AT:
            if kind in found:  # RFC 8446 §4.2; another reader might use the other one
                raise ProtocolError("TLS: duplicate extension")
            found[kind] = content
    if extensions:
        raise ProtocolError(f"TLS: a ClientHello with more than {_MAX_EXTENSIONS} extensions")
    return found


def _server_name(content: memoryview | None) -> str:
    """The host name in the list, at most one (RFC 6066 §3)."""
    if content is None:
        return ""
    names, rest = _vector(content, 2)
    if rest or not names:
        raise ProtocolError("TLS: not a list of server names")
    found = ""
    while names:
        kind = names[0]
        name, names = _vector(names[1:], 2)
        if kind != _HOST_NAME or found:
            raise ProtocolError("TLS: a server name that is not a host name, or a second one")
        found = _ascii(name)
    return found


def _ascii(name: memoryview) -> str:
    if not 0 < len(name) <= MAX_SERVER_NAME_BYTES or any(not 0x20 < byte < 0x7F for byte in name):
        raise ProtocolError("TLS: the server name is not a host name")
    return bytes(name).decode("ascii")


def _names(content: memoryview) -> tuple[str, ...]:
    if not content:
        return ()
    names, rest = _vector(content, 2)
    if rest:
        raise ProtocolError("TLS: bytes after the ALPN names")
    found: list[str] = []
    while names:
        if len(found) == MAX_ALPN_NAMES:
            raise ProtocolError(f"TLS: more than {MAX_ALPN_NAMES} ALPN names")
        name, names = _vector(names, 1)
        if not name:
            raise ProtocolError("TLS: an empty ALPN name")
        found.append(bytes(name).decode("latin-1"))
    return tuple(found)


def _vector(data: memoryview, width: int) -> tuple[memoryview, memoryview]:
    """Split off a length-prefixed vector; return the vector and the rest."""
    end = width + int.from_bytes(data[:width], "big")
    if len(data) < end:
        raise ProtocolError("TLS: the ClientHello is cut short")
    return data[width:end], data[end:]


class TlsAlert(IntEnum):
    """Unencrypted alerts with which a router refuses a client (RFC 8446 §6.2)."""

    ACCESS_DENIED = 49
    INTERNAL_ERROR = 80
    UNRECOGNIZED_NAME = 112
    NO_APPLICATION_PROTOCOL = 120

    def to_bytes_fatal(self) -> bytes:
        """Write a fatal alert record; only end of file may follow."""
        return _RECORD + bytes((_FATAL, self.value))
