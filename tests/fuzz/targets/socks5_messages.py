"""SOCKS5: each message of both sides, taken, refused or not all here; written back the same."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cutting import knobs, same, taken, whole_and_cut

from isthmus.wire import socks5
from isthmus.wire.socks5 import Request, SocksError

_TAKERS: tuple[Callable[[bytearray], Any], ...] = (
    socks5.take_greeting,
    socks5.take_login,
    socks5.take_request,
    socks5.take_choice,
    socks5.take_login_answer,
    socks5.take_reply,
)


def check(data: bytes) -> None:
    """Read messages of one kind."""
    sizes, raw = knobs(data)
    take = _TAKERS[sizes[0] % len(_TAKERS)]
    found, _, rest = same([taken(take, pieces) for pieces in whole_and_cut(raw, sizes)])
    assert isinstance(found, tuple) and isinstance(rest, bytes)
    assert len(rest) < 1024, "waits for more than a message can have"
    for message in found:
        again = take(bytearray(message.to_bytes()))
        assert again == message
        if isinstance(message, Request):
            with suppress(SocksError):
                str(message.target)
