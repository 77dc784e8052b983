"""gRPC: heads of messages, statuses and timeouts from any bytes."""

from contextlib import suppress

from isthmus.errors import ProtocolError
from isthmus.wire.grpc import (
    MAX_MESSAGE_BYTES,
    MESSAGE_HEAD,
    Status,
    message_head,
    message_size,
    read_status,
    read_timeout,
    request_problem,
    response_problem,
    status_headers,
)


def check(data: bytes) -> None:
    """Read the bytes as a head, and as values of headers."""
    if len(data) >= MESSAGE_HEAD:
        with suppress(ProtocolError):
            size = message_size(data[:MESSAGE_HEAD])
            assert size <= MAX_MESSAGE_BYTES
            assert message_head(size) == data[:MESSAGE_HEAD]
    number, _, text = data.partition(b"\0")
    status, message = read_status(((b"grpc-status", number), (b"grpc-message", text)))
    assert isinstance(status, Status)
    again = tuple(status_headers(status, message))
    assert read_status(again) == (status, message), "a message that does not survive"
    seconds = read_timeout(number)
    assert seconds is None or 0 <= seconds < 1e12
    call = ((b":method", b"POST"), (b"content-type", number), (b"grpc-timeout", text))
    refusal = request_problem(call)
    if refusal is not None:
        for _, value in refusal.to_headers():
            assert value.isascii() and b"\n" not in value and b"\r" not in value
    response_problem(((b":status", number), (b"content-type", text)))
