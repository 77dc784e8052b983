"""What a TLS client offers in its ClientHello, and how to refuse it before there is any TLS.

Nothing is decrypted or checked beyond what it takes to find the server's name (RFC 6066) and the
ALPN names (RFC 7301); TLS itself reads the same bytes afterwards and has the last word on them.
Whoever sends them has proved nothing yet: what is dearer to read than a real hello is not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from isthmus.errors import ProtocolError
from isthmus.text.text_limits import MAX_ALPN_NAMES, MAX_SERVER_NAME_BYTES

#: A larger one is not looked at; post-quantum key shares make one of about 2 KiB.
MAX_HELLO_BYTES = 16 * 1024
# Real ones come in one record, or in two; browsers have some twenty extensions.
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
# An alert before the handshake is a record of two bytes (RFC 8446 §5.1, §6); every version's
# client takes the number of TLS 1.2 there.
_RECORD = b"\x15\x03\x03\x00\x02"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHello:
    """What a hello says: ``random``, which no other connection has, and the protocols it offers.

    ``alpn`` is in the client's order, and empty for one that offers none. Names are bytes
    (RFC 7301 §3.1) and come as Latin-1. ``server_name`` is the host that the client wants, as it
    is written there; empty without one.
    """

    random: bytes = b""
    alpn: tuple[str, ...] = ()
    server_name: str = ""


def hello_in(data: bytes, *, max_records: int = MAX_RECORDS) -> ClientHello | int:
    """Read the ClientHello at the front of the data; what follows it is not looked at.

    When not all of it is here, how many bytes it takes at least until there is more to say.

    Raises:
        ProtocolError: it is no ClientHello, or one of more than 16 KiB, so many records, 64
            extensions or 16 ALPN names.
    """
    message = _message(data[:MAX_HELLO_BYTES], max_records)
    if isinstance(message, int):
        if len(data) >= MAX_HELLO_BYTES:
            raise ProtocolError(f"TLS: a ClientHello of more than {MAX_HELLO_BYTES} bytes")
        return min(message, MAX_HELLO_BYTES)
    if len(message) < _FIXED_BYTES:
        raise ProtocolError("TLS: the ClientHello is cut short")
    # A view: slices of bytes would copy the rest for each extension and name.
    found = _extensions(memoryview(message)[_FIXED_BYTES:])
    return ClientHello(
        random=message[_VERSION_BYTES:_FIXED_BYTES],
        alpn=_names(found.get(_ALPN_EXTENSION, _NOTHING)),
        server_name=_server_name(found.get(_SERVER_NAME_EXTENSION)),
    )


def _message(data: bytes, max_records: int) -> bytes | int:
    """The body of the first handshake message, gathered from its records (RFC 8446 §5.1).

    Or how many bytes it takes to go on: the next one within a header, else all that is announced.
    """
    body = bytearray()
    at = 0
    for _ in range(max_records):
        record = data[at : at + _RECORD_HEADER]
        # Each byte is judged as soon as it is here: what is no TLS need not be waited for.
        if record[:1] not in (b"", b"\x16") or record[1:2] not in (b"", b"\x03"):
            raise ProtocolError("TLS: no handshake record")
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
    """How long the message is with its header; None before that is known."""
    if body and body[0] != _CLIENT_HELLO:
        raise ProtocolError("TLS: the first message is no ClientHello")
    if len(body) < _HANDSHAKE_HEADER:
        return None
    size = _HANDSHAKE_HEADER + int.from_bytes(body[1:4], "big")
    if size > MAX_HELLO_BYTES:
        raise ProtocolError(f"TLS: a ClientHello of {size} bytes, at most {MAX_HELLO_BYTES}")
    return size


def _extensions(fields: memoryview) -> dict[int, memoryview]:
    """The contents of the two that matter here. The fields are those after the random."""
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
            if kind in found:  # RFC 8446 §4.2; who reads the other one would be led elsewhere
                raise ProtocolError("TLS: an extension is there twice")
            found[kind] = content
    if extensions:
        raise ProtocolError(f"TLS: a ClientHello with more than {_MAX_EXTENSIONS} extensions")
    return found


def _server_name(content: memoryview | None) -> str:
    """The host name of the list, of which there is one at most (RFC 6066 §3)."""
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
            raise ProtocolError("TLS: a server name of another kind, or a second one")
        found = _ascii(name)
    return found


def _ascii(name: memoryview) -> str:
    if not 0 < len(name) <= MAX_SERVER_NAME_BYTES or any(not 0x20 < byte < 0x7F for byte in name):
        raise ProtocolError("TLS: the server name is no host name")
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
    """Cut a vector behind its length off the front; the vector, and what follows it."""
    end = width + int.from_bytes(data[:width], "big")
    if len(data) < end:
        raise ProtocolError("TLS: the ClientHello is cut short")
    return data[width:end], data[end:]


class TlsAlert(IntEnum):
    """Alerts in the clear: the descriptions that say why a router refuses (RFC 8446 §6.2)."""

    ACCESS_DENIED = 49
    INTERNAL_ERROR = 80
    UNRECOGNIZED_NAME = 112
    NO_APPLICATION_PROTOCOL = 120

    def to_bytes_fatal(self) -> bytes:
        """Write the record; nothing may follow it but the end of file."""
        return _RECORD + bytes((_FATAL, self.value))
