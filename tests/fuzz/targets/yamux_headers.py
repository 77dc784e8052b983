"""Yamux headers: taken, refused or not all here, whatever the cut; and written back the same."""

from cutting import knobs, same, taken, whole_and_cut

from isthmus.wire.yamux import Header, take_header


def check(data: bytes) -> None:
    """Read headers one behind the other."""
    sizes, raw = knobs(data)
    found, _, _ = same([taken(take_header, pieces) for pieces in whole_and_cut(raw, sizes)])
    assert isinstance(found, tuple)
    written = b"".join(header.to_bytes() for header in found if isinstance(header, Header))
    assert raw.startswith(written)
