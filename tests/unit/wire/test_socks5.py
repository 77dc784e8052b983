"""SOCKS5's messages, typed from RFC 1928 and RFC 1929."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from isthmus.values import HostPort
from isthmus.wire import socks5
from isthmus.wire.socks5 import (
    Choice,
    Code,
    Command,
    Greeting,
    Login,
    LoginAnswer,
    Method,
    Reply,
    Request,
    SocksError,
)

Take = Callable[[bytearray], Any]

# RFC 1928 §3 (greeting, choice), §4 (request), §5 (addresses), §6 (reply); RFC 1929 §2 (login).
VECTORS: list[tuple[Take, str, object]] = [
    (socks5.take_greeting, "05 01 00", Greeting(bytes([Method.NONE]))),
    (socks5.take_greeting, "05 02 00 02", Greeting(b"\x00\x02")),
    (socks5.take_greeting, "05 00", Greeting(b"")),
    (socks5.take_choice, "05 00", Choice(Method.NONE)),
    (socks5.take_choice, "05 02", Choice(Method.PASSWORD)),
    (socks5.take_choice, "05 ff", Choice(Method.NO_ACCEPTABLE)),
    (socks5.take_login, "01 04 75 73 65 72 02 70 77", Login(b"user", b"pw")),
    (socks5.take_login, "01 01 75 00", Login(b"u", b"")),
    (socks5.take_login_answer, "01 00", LoginAnswer(True)),
    (socks5.take_login_answer, "01 01", LoginAnswer(False)),
    (
        socks5.take_request,
        "05 01 00 01 c0 00 02 07 01 bb",
        Request(Command.CONNECT, "192.0.2.7", 443),
    ),
    (
        socks5.take_request,
        "05 01 00 03 0b 65 78 61 6d 70 6c 65 2e 63 6f 6d 00 50",
        Request(Command.CONNECT, "example.com", 80),
    ),
    (
        socks5.take_request,
        "05 01 00 04 20 01 0d b8 00 00 00 00 00 00 00 00 00 00 00 01 18 eb",
        Request(Command.CONNECT, "2001:db8::1", 6379),
    ),
    (socks5.take_request, "05 02 00 01 00 00 00 00 00 00", Request(Command.BIND, "0.0.0.0", 0)),
    (
        socks5.take_request,
        "05 03 00 01 00 00 00 00 00 00",
        Request(Command.UDP_ASSOCIATE, "0.0.0.0", 0),
    ),
    (socks5.take_request, "05 7f 00 01 00 00 00 00 00 00", Request(0x7F, "0.0.0.0", 0)),
    (
        socks5.take_reply,
        "05 00 00 01 7f 00 00 01 1f 90",
        Reply(Code.SUCCEEDED, "127.0.0.1", 8080),
    ),
    (
        socks5.take_reply,
        "05 00 00 04 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 01 1f 90",
        Reply(Code.SUCCEEDED, "::1", 8080),
    ),
    (socks5.take_reply, "05 05 00 01 00 00 00 00 00 00", Reply(Code.REFUSED)),
    (socks5.take_reply, "05 07 00 03 02 61 62 00 01", Reply(Code(7), "ab", 1)),
]


@pytest.mark.parametrize(("take", "typed", "value"), VECTORS)
def test_vectors(take: Take, typed: str, value: Any) -> None:
    raw = bytes.fromhex(typed)
    buffer = bytearray(raw)
    assert take(buffer) == value
    assert not buffer
    assert value.to_bytes() == raw


@pytest.mark.parametrize(("take", "typed", "value"), VECTORS)
def test_byte_by_byte_and_with_bytes_behind(take: Take, typed: str, value: object) -> None:
    raw = bytes.fromhex(typed)
    buffer = bytearray()
    for byte in raw[:-1]:
        buffer.append(byte)
        assert take(buffer) is None
    buffer += raw[-1:] + b"early"
    assert take(buffer) == value
    assert buffer == b"early"


def test_codes_are_the_rfcs() -> None:
    assert [code.value for code in Code] == list(range(9))


FAILURE = bytes.fromhex("05 01 00 01 00 00 00 00 00 00")


@pytest.mark.parametrize(
    ("take", "typed", "answer", "said"),
    [
        (socks5.take_greeting, "04 01 00 50", bytes([0, 91, 0, 0, 0, 0, 0, 0]), "SOCKS4"),
        (socks5.take_greeting, "16 03 01", b"\x05\xff", "TLS"),
        (socks5.take_greeting, "00", b"\x05\xff", "0x00"),
        (socks5.take_login, "05", b"\x01\x01", "0x05, not 0x01"),
        (socks5.take_login, "00 00 00", b"\x01\x01", "0x00"),
        (socks5.take_request, "04", FAILURE, "0x04, not 0x05"),
        (socks5.take_request, "05 01 01", FAILURE, "the reserved byte is 0x01"),
        (socks5.take_request, "05 01 00 02", bytes.fromhex("05 08") + FAILURE[2:], "0x02"),
        (socks5.take_request, "05 01 00 00 00", bytes.fromhex("05 08") + FAILURE[2:], "0x00"),
        (socks5.take_choice, "04 00", b"", "0x04"),
        (socks5.take_login_answer, "05 00", b"", "0x05"),
        (socks5.take_reply, "04 00", b"", "0x04"),
    ],
)
def test_wrong_messages_have_an_answer(take: Take, typed: str, answer: bytes, said: str) -> None:
    raw = bytes.fromhex(typed)
    for cut in range(1, len(raw) + 1):  # the verdict comes with the wrong byte, not before
        try:
            assert take(bytearray(raw[:cut])) is None
        except SocksError as error:
            assert error.answer == answer
            assert said in error.reason
            return
    pytest.fail("no error")


def test_http_is_answered_in_http() -> None:
    with pytest.raises(SocksError) as caught:
        socks5.take_greeting(bytearray(b"GET / HTTP/1.1\r\n"))
    assert caught.value.answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"socks5://" in caught.value.answer


def test_a_request_knows_its_target() -> None:
    assert Request(1, "Example.com", 443).target == HostPort("Example.com", 443)
    assert Request(1, "::1", 443).target == HostPort("::1", 443)


@pytest.mark.parametrize(
    ("host", "port"), [("", 80), ("example.com", 0), ("a b", 80), ("a\0b", 80), ("1.2", 80)]
)
def test_no_target_has_the_general_answer(host: str, port: int) -> None:
    with pytest.raises(SocksError) as caught:
        _ = Request(1, host, port).target
    assert caught.value.answer == FAILURE


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(Login(b"me", b"secret"))
