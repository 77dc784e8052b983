"""What a client says by headers, and trace contexts: read within bounds, and written the same."""

from isthmus.wire.request_metadata import (
    MAX_GROUPS,
    MAX_VALUE_BYTES,
    NAMES,
    headers_of,
    is_traceparent,
    is_tracestate,
    metadata_in,
    parse_traceparent,
)

_NAMES = sorted(NAMES)


def check(data: bytes) -> None:
    """Read lines as headers, each with the name that its first byte says."""
    lines = [line for line in data.split(b"\n") if line]
    headers = [(_NAMES[line[0] % len(_NAMES)], line[1:]) for line in lines]
    asking = metadata_in(headers)
    assert len(asking.groups) <= MAX_GROUPS
    for text in (asking.network, asking.user, asking.tenant, asking.object, *asking.groups):
        assert len(text.encode()) <= MAX_VALUE_BYTES and text.isprintable()
    assert metadata_in(headers_of(asking)) == asking
    parent = data.decode("latin-1")
    assert (parse_traceparent(parent) is not None) >= is_traceparent(parent)
    is_tracestate(parent)
