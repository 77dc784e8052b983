"""The ClientHello: read, refused, or so many bytes more; and asked again at most that often."""

from cutting import knobs

from isthmus.errors import ProtocolError
from isthmus.wire.alpn import asked_for, is_askable
from isthmus.wire.client_hello import MAX_HELLO_BYTES, ClientHello, hello_in


def _outcome(data: bytes) -> object:
    try:
        return hello_in(data)
    except ProtocolError:
        return "refused"


def check(data: bytes) -> None:
    """Look at a growing buffer as net/peek.py does."""
    _, raw = knobs(data)
    whole = _outcome(raw)
    if isinstance(whole, int):
        assert len(raw) < whole <= MAX_HELLO_BYTES, "waits for what is here"
    wanted = looks = 0
    outcome: object = 1
    for size in range(1, len(raw) + 1):
        if size >= wanted:
            looks += 1
            outcome = _outcome(raw[:size])
            if not isinstance(outcome, int):
                break
            assert size < outcome, "waits for what is here"
            wanted = outcome
    # A header is looked at byte by byte, what it announces only when it is here.
    assert looks <= 64, f"{looks} looks at {len(raw)} bytes"
    if isinstance(whole, ClientHello):
        assert outcome == whole, "depends on how it was cut"
        asked = asked_for(whole.alpn)
        assert not asked or is_askable(asked)
    elif raw and isinstance(outcome, ClientHello):
        raise AssertionError("read when cut, not when whole")
