"""What a TLS client offers in its ClientHello, read before anybody has answered it.

Nothing is decrypted or checked beyond what it takes to find the ALPN names (RFC 7301); TLS itself
reads the same bytes afterwards and has the last word on them. Whoever sends them has proved
nothing yet: what is dearer to read than a real hello is not read.
"""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.errors import ProtocolError

#: A larger one is not looked at; post-quantum key shares make one of about 2 KiB.
MAX_HELLO_BYTES = 16 * 1024
# Real ones come in one record, or in two; browsers have some twenty extensions.
_MAX_RECORDS = 4
_MAX_EXTENSIONS = 64
_MAX_NAMES = 16
_RECORD_HEADER = 5
_HANDSHAKE_HEADER = 4
_MAX_FRAGMENT_BYTES = 1 << 14
_CLIENT_HELLO = 1
_ALPN_EXTENSION = 16
_VERSION_BYTES = 2
_RANDOM_BYTES = 32
_FIXED_BYTES = _VERSION_BYTES + _RANDOM_BYTES  # RFC 8446 §4.1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHello:
    """What a hello says: ``random``, which no other connection has, and the protocols it offers.

    ``alpn`` is in the client's order, and empty for one that offers none. Names are bytes
    (RFC 7301 §3.1) and come as Latin-1.
    """

    random: bytes = b""
    alpn: tuple[str, ...] = ()


def hello_in(data: bytes) -> ClientHello | int:
    """Read the ClientHello at the front of the data; what follows it is not looked at.

    When not all of it is here, how many bytes it takes at least until there is more to say.

    Raises:
        ProtocolError: it is no ClientHello, or one of more than 16 KiB, 4 records, 64 extensions
            or 16 ALPN names.
    """
    message = _message(data[:MAX_HELLO_BYTES])
    if isinstance(message, int):
        if len(data) >= MAX_HELLO_BYTES:
            raise ProtocolError(f"TLS: a ClientHello of more than {MAX_HELLO_BYTES} bytes")
        return min(message, MAX_HELLO_BYTES)
    if len(message) < _FIXED_BYTES:
        raise ProtocolError("TLS: the ClientHello is cut short")
    # A view: slices of bytes would copy the rest for each extension and name.
    names = _names(_extension(memoryview(message)[_FIXED_BYTES:], _ALPN_EXTENSION))
    return ClientHello(random=message[_VERSION_BYTES:_FIXED_BYTES], alpn=names)


def _message(data: bytes) -> bytes | int:
    """The body of the first handshake message, gathered from its records (RFC 8446 §5.1).

    Or how many bytes it takes to go on: the next one within a header, else all that is announced.
    """
    body = bytearray()
    at = 0
    for _ in range(_MAX_RECORDS):
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
    raise ProtocolError(f"TLS: a ClientHello in more than {_MAX_RECORDS} records")


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


def _extension(fields: memoryview, kind: int) -> memoryview:
    """The content of one extension; empty without it. The fields are those after the random."""
    _session, rest = _vector(fields, 1)
    _suites, rest = _vector(rest, 2)
    _compression, rest = _vector(rest, 1)
    if not rest:
        return rest  # TLS 1.2 and before may have no extensions at all
    extensions, rest = _vector(rest, 2)
    if rest:
        raise ProtocolError("TLS: bytes after the extensions")
    for _ in range(_MAX_EXTENSIONS):
        if not extensions:
            return extensions
        if len(extensions) < 2:
            raise ProtocolError("TLS: the ClientHello is cut short")
        found = int.from_bytes(extensions[:2], "big")
        content, extensions = _vector(extensions[2:], 2)
        if found == kind:
            return content
    if extensions:
        raise ProtocolError(f"TLS: a ClientHello with more than {_MAX_EXTENSIONS} extensions")
    return extensions


def _names(content: memoryview) -> tuple[str, ...]:
    if not content:
        return ()
    names, rest = _vector(content, 2)
    if rest:
        raise ProtocolError("TLS: bytes after the ALPN names")
    found: list[str] = []
    while names:
        if len(found) == _MAX_NAMES:
            raise ProtocolError(f"TLS: more than {_MAX_NAMES} ALPN names")
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
