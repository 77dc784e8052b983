"""The ClientHello, built by hand from RFC 8446 §4.1.2, RFC 6066 §3 and RFC 7301 §3.1."""

from __future__ import annotations

import pytest

from isthmus.errors import ProtocolError
from isthmus.wire.client_hello import MAX_HELLO_BYTES, ClientHello, hello_in


def vector(width: int, data: bytes) -> bytes:
    return len(data).to_bytes(width, "big") + data


def alpn(*names: bytes) -> bytes:
    return b"\x00\x10" + vector(2, vector(2, b"".join(vector(1, name) for name in names)))


# server_name "a.b" (RFC 6066 §3) and supported_versions TLS 1.3 (RFC 8446 §4.2.1).
SERVER_NAME = bytes.fromhex("0000 0008 0006 00 0003 612e62")
VERSIONS = bytes.fromhex("002b 0003 02 0304")


def hello(extensions: bytes | None, session: bytes = b"") -> bytes:
    body = b"\x03\x03" + bytes(range(32)) + vector(1, session)
    body += vector(2, b"\x13\x01") + vector(1, b"\x00")
    if extensions is not None:
        body += vector(2, extensions)
    return b"\x01" + vector(3, body)


def records(message: bytes, *sizes: int) -> bytes:
    """A handshake message in records of these sizes, and the rest in one more."""
    parts, at = [], 0
    for size in sizes:
        parts.append(message[at : at + size])
        at += size
    parts.append(message[at:])
    return b"".join(b"\x16\x03\x01" + vector(2, part) for part in parts if part)


def alpn_in(data: bytes) -> tuple[str, ...] | None:
    """What is offered, or None when not all of the hello is here."""
    found = hello_in(data)
    return found.alpn if isinstance(found, ClientHello) else None


OFFER = alpn(b"isthmus/1@b", b"isthmus/1", b"h2")
NAMES = ("isthmus/1@b", "isthmus/1", "h2")


@pytest.mark.parametrize(
    ("extensions", "names"),
    [
        (OFFER, NAMES),
        (SERVER_NAME + OFFER + VERSIONS, NAMES),
        (SERVER_NAME + VERSIONS, ()),
        (b"", ()),
        (None, ()),
        (b"\x00\x10" + vector(2, b""), ()),
        (alpn(b"\x0a\x0a", b"h2"), ("\n\n", "h2")),  # GREASE, RFC 8701 §3.1
        (alpn(b"x" * 255), ("x" * 255,)),
        (alpn(*[b"h2"] * 16), ("h2",) * 16),
        (b"\xff\xff\x00\x00" * 63 + OFFER, NAMES),
        (b"\xff\xff\x00\x00" * 64, ()),
    ],
)
def test_what_is_offered(extensions: bytes | None, names: tuple[str, ...]) -> None:
    data = records(hello(extensions, session=bytes(32)))
    assert alpn_in(data) == names
    assert alpn_in(data + b"whatever follows") == names


def test_a_hello_that_is_not_all_here_says_nothing() -> None:
    data = records(hello(SERVER_NAME + OFFER))
    assert [alpn_in(data[:size]) for size in range(len(data))] == [None] * len(data)


def test_its_random_tells_it_from_all_others() -> None:
    found = hello_in(records(hello(OFFER)))
    assert found == ClientHello(random=bytes(range(32)), alpn=NAMES)


def test_it_is_not_read_again_before_all_that_is_announced_is_here() -> None:
    message = hello(SERVER_NAME + OFFER)
    data = records(message)
    # Within its two headers each byte is judged; then nothing before the last.
    assert [hello_in(data[:size]) for size in range(8)] == list(range(1, 9))
    assert {hello_in(data[:size]) for size in range(9, len(data))} == {len(data)}
    # In two records: the end of the first, the header of the second, and the end of the message.
    data = records(message, 60) + b"what follows"
    end = 5 + 60 + 5 + len(message) - 60
    assert {hello_in(data[:size]) for size in range(9, 65)} == {65}
    assert [hello_in(data[:size]) for size in range(65, 70)] == list(range(66, 71))
    assert {hello_in(data[:size]) for size in range(70, end)} == {end}
    assert isinstance(hello_in(data[:end]), ClientHello)


@pytest.mark.parametrize("sizes", [(1,), (3, 1), (4,), (5, 60), (1, 1, 1)])
def test_a_hello_in_several_records(sizes: tuple[int, ...]) -> None:
    data = records(hello(SERVER_NAME + OFFER), *sizes)
    assert all(alpn_in(data[:size]) is None for size in range(len(data)))
    assert alpn_in(data) == NAMES


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"G", "not a handshake record"),
        (b"\x80\x2e\x01", "not a handshake record"),  # SSL 2
        (b"\x15\x03\x01\x00\x02\x01\x00", "not a handshake record"),  # an alert
        (b"\x16\x02", "not a handshake record"),
        (b"\x16\x03\x01\x00\x00", "a handshake record of 0 bytes"),
        (b"\x16\x03\x01\x40\x01", "a handshake record of 16385 bytes"),
        (records(b"\x02" + bytes(40)), "not a ClientHello"),
        (records(b"\x01\x00\x3f\xfd"), "a ClientHello of 16385 bytes"),
        (records(b"\x01" + vector(3, bytes(33))), "cut short"),
        (records(hello(OFFER), *(1,) * 4), "more than 4 records"),
        (records(hello(b"\xff\xff\x00\x00" * 65)), "more than 64 extensions"),
        (records(hello(b"\xff\xff\x00\x00" * 64 + OFFER)), "more than 64 extensions"),
        (records(hello(alpn(*[b"h2"] * 17))), "more than 16 ALPN names"),
        (records(b"\x01" + vector(3, bytes(34) + b"\x21")), "cut short"),
        (records(hello(b"\x00")), "cut short"),
        (records(hello(b"\x00\x10\x00\x05\x00")), "cut short"),
        (records(hello(alpn(b""))), "an empty ALPN name"),
        (records(hello(b"\x00\x10" + vector(2, b"\x00\x03\x02h2!"))), "after the ALPN names"),
        (records(hello(b"\x00\x10" + vector(2, b"\x00\x03\x03h2"))), "cut short"),
    ],
)
def test_what_is_no_hello(data: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        alpn_in(data)


def test_bytes_after_the_extensions_are_wrong() -> None:
    body = hello(OFFER)[4:] + b"!"
    with pytest.raises(ProtocolError, match="after the extensions"):
        alpn_in(records(b"\x01" + vector(3, body)))


def test_the_bound_holds_for_all_of_it() -> None:
    room = MAX_HELLO_BYTES - 5
    fits = hello(OFFER + b"\xff\xff" + vector(2, bytes(room - len(hello(OFFER)) - 4)))
    assert len(records(fits)) == MAX_HELLO_BYTES
    assert alpn_in(records(fits)) == NAMES
    # One more record, and its header is too much.
    data = records(fits, 10)
    assert alpn_in(data[: MAX_HELLO_BYTES - 1]) is None
    with pytest.raises(ProtocolError, match="more than 16384 bytes"):
        alpn_in(data)


def server_names(*entries: bytes) -> bytes:
    return b"\x00\x00" + vector(2, vector(2, b"".join(entries)))


def host(name: bytes) -> bytes:
    return b"\x00" + vector(2, name)


@pytest.mark.parametrize(
    ("extensions", "name"),
    [
        (SERVER_NAME, "a.b"),
        (OFFER + SERVER_NAME, "a.b"),
        (b"\x2a\x2a\x00\x00" + VERSIONS + SERVER_NAME, "a.b"),
        (server_names(host(b"X." * 127 + b"y")), "X." * 127 + "y"),
        (OFFER, ""),
        (None, ""),
    ],
)
def test_whom_the_client_wants(extensions: bytes | None, name: str) -> None:
    found = hello_in(records(hello(extensions)))
    assert isinstance(found, ClientHello)
    assert found.server_name == name


@pytest.mark.parametrize(
    ("extensions", "why"),
    [
        (SERVER_NAME + OFFER + SERVER_NAME, "duplicate extension"),
        (OFFER + OFFER, "duplicate extension"),
        (server_names(), "not a list of server names"),
        (b"\x00\x00\x00\x00", "cut short"),
        (b"\x00\x00" + vector(2, vector(2, host(b"a")) + b"!"), "not a list of server names"),
        (server_names(host(b"a"), host(b"b")), "a second one"),
        (server_names(b"\x01" + vector(2, b"a")), "that is not a host name"),
        (server_names(host(b"")), "is not a host name"),
        (server_names(host(b"a" * 256)), "is not a host name"),
        (server_names(host(b"a b")), "is not a host name"),
        (server_names(host(b"a\x00.b")), "is not a host name"),
        (server_names(host("ü.b".encode())), "is not a host name"),
        (server_names(b"\x00\x00"), "cut short"),
        (server_names(b"\x00\x00\x02a"), "cut short"),
    ],
)
def test_what_is_no_server_name(extensions: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        hello_in(records(hello(extensions)))


def test_more_records_where_they_are_allowed() -> None:
    data = records(hello(OFFER), *(1,) * 31)
    assert isinstance(hello_in(data, max_records=32), ClientHello)
    with pytest.raises(ProtocolError, match="more than 31 records"):
        hello_in(data, max_records=31)
