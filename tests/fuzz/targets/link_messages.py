"""Messages of our own link: every kind, from any bytes, in any cut."""

from functools import partial

from cutting import knobs, same, taken, whole_and_cut

from isthmus.errors import DialFailure
from isthmus.wire.link import MAX_MESSAGE_BYTES, failure_of, take_message, to_bytes
from isthmus.wire.link_pb2 import Control, Dial, DialResult, Resume, Resumed

_KINDS = (Control, Dial, DialResult, Resume, Resumed)


def check(data: bytes) -> None:
    """Read messages of one kind."""
    sizes, raw = knobs(data)
    kind = _KINDS[sizes[0] % len(_KINDS)]
    take = partial(take_message, kind=kind)
    found, _, rest = same([taken(take, pieces) for pieces in whole_and_cut(raw, sizes)])
    assert isinstance(found, tuple) and isinstance(rest, bytes)
    assert len(rest) <= MAX_MESSAGE_BYTES + 4, "waits for more than a message can have"
    for message in found:
        assert take_message(bytearray(to_bytes(message)), kind) == message
        if isinstance(message, DialResult):
            assert failure_of(message) is None or isinstance(failure_of(message), DialFailure)
