"""A proxy's answer to CONNECT: the verdict depends on its bytes alone, and is bounded."""

from cutting import knobs, same, whole_and_cut

from isthmus.errors import ProtocolError
from isthmus.values import HostPort
from isthmus.wire.connect_answer import MAX_ANSWER_BYTES, ConnectAsking

_TARGET = HostPort("example.test", 443)


def _read(pieces: list[bytes], keep_early: bool) -> tuple[object, ...]:
    asking = ConnectAsking(_TARGET, keep_early=keep_early)
    size = 0
    for at, piece in enumerate(pieces):
        size += len(piece)
        try:
            answer = asking.receive(piece)
        except ProtocolError as error:
            return "refused", type(error).__name__
        if answer is not None:
            assert answer.line.isprintable()
            rest = b"".join(pieces[at + 1 :])
            if answer.connected:
                return "connected", answer.line, asking.early + rest
            said = asking.receive_refusal()
            for more in pieces[at + 1 :]:
                said = said if said is not None else asking.receive_refusal(more)
            said = said if said is not None else asking.receive_refusal(end=True)
            assert said is not None and said.isprintable() and len(said) < 16384
            return "not connected", answer.line
        assert size <= MAX_ANSWER_BYTES
    return ("waits",)


def check(data: bytes) -> None:
    """Read an answer, of a target that may speak first or may not."""
    sizes, raw = knobs(data)
    one, *others = [_read(pieces, True) for pieces in whole_and_cut(raw, sizes)]
    same([one, *others])
    for pieces in whole_and_cut(raw, sizes):
        _read(pieces, False)
