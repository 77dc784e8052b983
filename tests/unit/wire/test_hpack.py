"""Header blocks: bytes typed from RFC 7541, and the hpack package as a second opinion."""

from __future__ import annotations

import hpack as reference
import pytest
from hpack.table import HeaderTable

from isthmus.text.text_limits import MAX_HEADERS
from isthmus.wire import hpack
from isthmus.wire.hpack import BlockError, BlockTooLong, Decoder, Headers, encode

# RFC 7541 C.3: three requests of one connection without Huffman coding; C.5: responses whose
# entries do not all fit into a table of 256 bytes.
C_3_1 = bytes.fromhex("828684410f7777772e6578616d706c652e636f6d")
C_3_2 = bytes.fromhex("828684be58086e6f2d6361636865")
C_3_3 = bytes.fromhex("828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565")
# C.6: the same responses with Huffman coding.
C_6_1 = bytes.fromhex(
    "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97"
    "c8e9ae82ae43d3"
)
C_6_2 = bytes.fromhex("4883640effc1c0bf")


def test_the_static_table_is_the_rfcs() -> None:
    assert hpack.STATIC[1:] == HeaderTable.STATIC_TABLE and len(hpack.STATIC) == 62


def test_requests_without_huffman() -> None:
    decoder = Decoder(16384)
    get = ((b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"))
    host = (b":authority", b"www.example.com")
    assert decoder.decode(C_3_1) == (*get, host)
    assert decoder.decode(C_3_2) == (*get, host, (b"cache-control", b"no-cache"))
    assert decoder.decode(C_3_3) == (
        (b":method", b"GET"),
        (b":scheme", b"https"),
        (b":path", b"/index.html"),
        host,
        (b"custom-key", b"custom-value"),
    )


def test_entries_leave_a_small_table() -> None:
    decoder = Decoder(16384)
    decoder.decode(b"\x3f\xe1\x01")  # §6.3: 256 bytes
    first = decoder.decode(C_6_1)
    assert first[0] == (b":status", b"302") and first[3][0] == b"location"
    # The new :status took the place of the first one; the others moved by one.
    assert decoder.decode(C_6_2) == ((b":status", b"307"), *first[1:])
    with pytest.raises(BlockError):
        decoder.decode(b"\xc2")  # index 66: there is no fifth entry


def test_what_is_written() -> None:
    assert encode(((b":status", b"200"),)) == b"\x88"
    assert encode(((b":status", b"418"),)) == b"\x18\x03418"
    assert encode(((b"content-type", b"application/grpc"),)) == b"\x1f\x10\x10application/grpc"
    assert encode(((b"x", b"y" * 127),)) == b"\x10\x01x\x7f\x00" + b"y" * 127
    assert encode(((b"x", b"y" * 300),)) == b"\x10\x01x\x7f\xad\x01" + b"y" * 300


def test_nothing_that_is_written_is_huffman_coded_or_enters_a_table() -> None:
    headers: Headers = ((b":path", b"/" + b"a" * 5000), (b"grpc-message", b"%EF" * 900), (b"", b""))
    block = encode(headers)
    assert b"a" * 5000 in block and b"%EF" * 900 in block
    decoder = reference.Decoder(max_header_list_size=2**20)
    assert tuple(decoder.decode(block, raw=True)) == headers
    assert not decoder.header_table.dynamic_entries


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # §6.1: the index 0
        b"\xbe",  # an entry that is not there
        b"\xff\x80\x80\x80\x80\x80\x00",  # an integer of too many bytes
        b"\x40",  # cut off
        b"\x40\x85a",
        b"\x00\x01a\x7f\xff\xff\xff\x7f",  # a length past the end
        b"\x82\x20",  # a change of size behind a header
        b"\x3f\xe2\x1f",  # a table of 4097 bytes
        b"\x00\x01a\x84\xff\xff\xff\xff",  # §5.2: EOS in a Huffman string
        b"\x00\x01a\x81\x1e",  # padding that is not all ones
    ],
)
def test_broken_blocks(block: bytes) -> None:
    with pytest.raises(BlockError):
        Decoder(16384).decode(block)


def test_a_list_has_so_many_headers_at_most() -> None:
    assert len(Decoder(2**20).decode(b"\x88" * MAX_HEADERS)) == MAX_HEADERS
    with pytest.raises(BlockTooLong):
        Decoder(2**20).decode(b"\x88" * (MAX_HEADERS + 1))


def test_a_list_has_so_many_bytes_at_most() -> None:
    one = b"\x00\x01a\x7f\x91\x06" + b"v" * 912  # 945 bytes with the 32 of the RFC
    assert len(Decoder(945).decode(one)) == 1
    with pytest.raises(BlockTooLong):
        Decoder(944).decode(one)


def test_a_huffman_string_without_room_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(raw: bytes) -> bytes:
        pytest.fail(f"decoded {len(raw)} bytes")

    monkeypatch.setattr(hpack, "decode_huffman", unwanted)
    with pytest.raises(BlockTooLong):
        Decoder(1000).decode(b"\x00\x01a\xff\x81\x7f" + b"\xff" * 16384)


def test_an_entry_larger_than_the_table_empties_it() -> None:
    decoder = Decoder(2**20)
    decoder.decode(b"\x40\x01a\x01b")
    assert decoder.decode(b"\xbe") == ((b"a", b"b"),)
    decoder.decode(b"\x40\x01a\x7f\xa1\x1f" + b"v" * 4128)
    with pytest.raises(BlockError):
        decoder.decode(b"\xbe")
