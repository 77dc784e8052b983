"""PROXY v1 and v2: taken, refused or not all here; at most so long; written back the same."""

from functools import partial

from cutting import knobs, same, taken, whole_and_cut

from isthmus.wire.proxy_protocol import MAX_HEADER_BYTES, ProxyHeader, take_proxy_header

_VERSIONS = ((2,), (1,), (1, 2))


def check(data: bytes) -> None:
    """Read headers one behind the other."""
    sizes, raw = knobs(data)
    take = partial(take_proxy_header, versions=_VERSIONS[sizes[0] % len(_VERSIONS)])
    found, _, rest = same([taken(take, pieces) for pieces in whole_and_cut(raw, sizes)])
    assert isinstance(found, tuple) and isinstance(rest, bytes)
    assert len(rest) < MAX_HEADER_BYTES
    for header in found:
        assert isinstance(header, ProxyHeader)
        again = take_proxy_header(bytearray(header.to_bytes()))
        assert again is not None and again.source == header.source
        assert again.destination == header.destination
