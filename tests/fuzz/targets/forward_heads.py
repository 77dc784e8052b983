"""Plain requests to a forward proxy: refused with a reply, or sent on without smuggled lines."""

import h11
from cutting import knobs

from isthmus.wire.http_connect import BadRequest
from isthmus.wire.http_forward import password_in, read_request


def check(data: bytes) -> None:
    """Read a request by h11, and write it for the next hop."""
    sizes, raw = knobs(data)
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1024)
    connection.receive_data(raw)
    try:
        event = connection.next_event()
    except h11.RemoteProtocolError:
        return
    if not isinstance(event, h11.Request):
        return
    password_in(event.headers)
    try:
        request = read_request(event)
    except BadRequest as error:
        assert error.to_bytes().startswith(b"HTTP/1.1 4")
        return
    far = h11.Connection(h11.CLIENT)
    proxy = bool(sizes[0] & 1)
    sent = far.send(request.to_send(proxy=proxy))
    assert sent is not None
    reader = h11.Connection(h11.SERVER)
    reader.receive_data(sent)
    got = reader.next_event()
    assert isinstance(got, h11.Request) and got.method == event.method
    names = [name for name, _ in got.headers]
    assert names.count(b"host") == 1 and b"proxy-authorization" not in names
    assert b"proxy-connection" not in names
    # Two readers that disagree about where a body ends are how requests are smuggled.
    assert not (b"content-length" in names and b"transfer-encoding" in names)
