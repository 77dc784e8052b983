"""The head of CONNECT: the verdict depends on the bytes alone, and every refusal is one reply.

Reads are fed as the frontend does: the head is looked for again with each.
"""

from cutting import knobs, same, whole_and_cut

from isthmus.wire.http_connect import BadRequest, ConnectRequest, take_connect

MOST = 1024


def _take(pieces: list[bytes]) -> tuple[object, ...]:
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        before = bytes(buffer)
        try:
            request = take_connect(buffer, max_head_bytes=MOST)
        except BadRequest as error:
            assert bytes(buffer) == before
            reply = error.to_bytes()
            assert reply.startswith(b"HTTP/1.1 %d " % error.status)
            head, _, body = reply.partition(b"\r\n\r\n")
            assert b"Content-Length: %d" % len(body) in head and body.count(b"\n") == 1
            return "refused", reply
        if request is not None:
            return "taken", request, before[: len(before) - len(buffer)]
        assert bytes(buffer) == before and len(buffer) < MOST
    return ("waits",)


def check(data: bytes) -> None:
    """Read a request."""
    sizes, raw = knobs(data)
    outcome = same([_take(pieces) for pieces in whole_and_cut(raw, sizes)])
    if outcome[0] == "taken":
        request = outcome[1]
        assert isinstance(request, ConnectRequest)
        str(request.target)
        _ = request.asking, request.half_closes
        for name, value in request.headers:
            assert name == name.lower() and b"\n" not in name and b"\n" not in value
