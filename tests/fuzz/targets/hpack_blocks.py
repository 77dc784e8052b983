"""Header blocks of one connection: what our reader says is what a plain decoder says.

The reader decodes the first block without keeping a table, and remembers blocks of table entries;
neither may show. A list is never longer than was allowed: that is what stops an HPACK bomb.
"""

import hpack

from isthmus.wire.grpc import read_status, request_problem, response_problem
from isthmus.wire.http2 import (
    HeaderReader,
    Headers,
    Http2Error,
    request_fault,
    response_fault,
    trailer_fault,
)

MOST = 2048


def _blocks(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = data[0] if data[0] < 0xF0 else 16 * (data[0] & 0x0F)
        found.append(data[1 : 1 + size])
        data = data[1 + size :]
    return found


def _plainly(decoder: hpack.Decoder, block: bytes) -> Headers | None:
    try:
        return tuple((bytes(n), bytes(v)) for n, v in decoder.decode(block, raw=True))
    except (hpack.HPACKError, UnicodeError, IndexError, ValueError):
        return None


def check(data: bytes) -> None:
    """Read blocks one behind the other until one is broken."""
    reader, plain = HeaderReader(MOST), hpack.Decoder(max_header_list_size=MOST)
    for block in _blocks(data):
        try:
            got = reader.read(block)
        except Http2Error:
            assert _plainly(plain, block) is None, "ours refuses what is right"
            return
        assert got == _plainly(plain, block), "ours reads something else"
        assert sum(len(name) + len(value) + 32 for name, value in got) <= MOST
        for judge in (request_fault, response_fault, trailer_fault):
            assert isinstance(judge(got), str)
        request_problem(got)
        response_problem(got)
        read_status(got)
