"""SOCKS5's messages: any split reads alike, what is written is read again, garbage is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.wire import socks5
from isthmus.wire.socks5 import (
    MAX_MESSAGE_BYTES,
    Choice,
    Greeting,
    Login,
    LoginAnswer,
    Reply,
    Request,
    SocksError,
)

BYTE = st.integers(0, 255)
PORT = st.integers(0, 65535)
NAME = st.text(st.characters(max_codepoint=255, exclude_categories=()), max_size=255)
HOST = st.one_of(st.ip_addresses().map(str), NAME.filter(lambda text: not _is_address(text)))
SHORT = st.binary(max_size=255)
TAKES = {
    Greeting: socks5.take_greeting,
    Choice: socks5.take_choice,
    Login: socks5.take_login,
    LoginAnswer: socks5.take_login_answer,
    Request: socks5.take_request,
    Reply: socks5.take_reply,
}
MESSAGES = st.one_of(
    st.builds(Greeting, SHORT),
    st.builds(Choice, BYTE),
    st.builds(Login, SHORT, SHORT),
    st.builds(LoginAnswer, st.booleans()),
    st.builds(Request, BYTE, HOST, PORT),
    st.builds(Reply, BYTE, HOST, PORT),
)


def _is_address(text: str) -> bool:
    from ipaddress import ip_address

    try:
        ip_address(text)
    except ValueError:
        return False
    return True


@given(MESSAGES, st.binary(max_size=20), st.data())
def test_whatever_the_split_it_is_read_again(
    message: Any, behind: bytes, data: st.DataObject
) -> None:
    raw = message.to_bytes()
    assert len(raw) <= MAX_MESSAGE_BYTES
    take = TAKES[type(message)]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw) - 1), max_size=5)))
    buffer = bytearray()
    for start, stop in zip([0, *cuts], [*cuts, None], strict=True):
        if start:
            assert take(buffer) is None
        buffer += raw[start:stop]
    buffer += behind
    assert take(buffer) == message
    assert buffer == behind


@pytest.mark.parametrize("take", TAKES.values())
@given(raw=st.binary(max_size=600))
def test_garbage_is_a_message_an_error_or_unfinished(
    take: Callable[[bytearray], Any], raw: bytes
) -> None:
    buffer = bytearray(raw)
    try:
        found = take(buffer)
    except SocksError as error:
        assert error.reason
        assert buffer == raw
        return
    if found is None:
        assert buffer == raw
        assert len(raw) < MAX_MESSAGE_BYTES  # nobody waits for more than fits into a message
        return
    size = len(raw) - len(buffer)
    assert raw[size:] == buffer
    if isinstance(found, Request):
        try:
            assert found.target.host == found.host
        except SocksError as error:
            assert error.answer


@given(st.binary(min_size=1, max_size=600))
def test_the_verdict_on_a_request_does_not_depend_on_the_pieces(raw: bytes) -> None:
    def outcome(pieces: list[bytes]) -> object:
        buffer = bytearray()
        for piece in pieces:
            buffer += piece
            try:
                found = socks5.take_request(buffer)
            except SocksError as error:
                return error.reason
            if found is not None:
                return found
        return None

    assert outcome([raw]) == outcome([raw[i : i + 1] for i in range(len(raw))])
