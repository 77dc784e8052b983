"""SOCKS5 as bytes and values: RFC 1928, and RFC 1929 for user names and passwords.

Each message has a ``take_*`` that reads it off a buffer, however its bytes were split, and a
``to_bytes`` that is the inverse. No message is larger than 513 bytes, so no other limit is
needed. The sidecar's frontend decides whom to serve and maps failures to codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address, ip_address

from isthmus.errors import ProtocolError
from isthmus.values import HostPort
from isthmus.wire.http_connect import reply as http_reply

VERSION = 5
LOGIN_VERSION = 1
#: A user name of 255 bytes and a password of 255 bytes.
MAX_MESSAGE_BYTES = 3 + 255 + 255

_IPV4, _NAME, _IPV6 = 1, 3, 4
_SIZES = {_IPV4: 4, _IPV6: 16}
_SOCKS4 = 4
_TLS_HANDSHAKE = 0x16
# SOCKS4's own "request rejected or failed".
_SOCKS4_REJECTED = bytes([0, 91, 0, 0, 0, 0, 0, 0])


class Method(IntEnum):
    """Authentication methods (RFC 1928 §3)."""

    NONE = 0
    PASSWORD = 2
    NO_ACCEPTABLE = 0xFF


class Command(IntEnum):
    """Commands of a client (RFC 1928 §4)."""

    CONNECT = 1
    BIND = 2
    UDP_ASSOCIATE = 3


class Code(IntEnum):
    """Reply codes of a server (RFC 1928 §6)."""

    SUCCEEDED = 0
    FAILURE = 1
    NOT_ALLOWED = 2
    NETWORK_UNREACHABLE = 3
    HOST_UNREACHABLE = 4
    REFUSED = 5
    TTL_EXPIRED = 6
    COMMAND_NOT_SUPPORTED = 7
    ADDRESS_TYPE_NOT_SUPPORTED = 8


class SocksError(ProtocolError):
    """A message violates a rule; ``answer`` is the reply that the protocol prescribes."""

    def __init__(self, reason: str, answer: bytes = b"") -> None:
        super().__init__(reason)
        self.reason = reason
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Greeting:
    """A client's first message: the methods that it supports."""

    methods: bytes

    def __post_init__(self) -> None:
        if len(self.methods) > 255:
            raise ValueError("more than 255 methods")

    def to_bytes(self) -> bytes:
        return bytes([VERSION, len(self.methods)]) + self.methods


@dataclass(frozen=True, slots=True)
class Choice:
    """The server's answer to a greeting; a number that is not in Method is unknown."""

    method: int

    def to_bytes(self) -> bytes:
        return bytes([VERSION, self.method])


@dataclass(frozen=True, slots=True)
class Login:
    """A client's user name and password (RFC 1929 §2); ``repr()`` shows no secret."""

    username: bytes
    password: bytes

    def __post_init__(self) -> None:
        if len(self.username) > 255 or len(self.password) > 255:
            raise ValueError("a user name or password is longer than 255 bytes")

    def __repr__(self) -> str:
        return f"Login({self.username!r})"

    def to_bytes(self) -> bytes:
        return b"%c%c%b%c%b" % (
            LOGIN_VERSION,
            len(self.username),
            self.username,
            len(self.password),
            self.password,
        )


@dataclass(frozen=True, slots=True)
class LoginAnswer:
    """Whether the server accepts a login."""

    accepted: bool

    def to_bytes(self) -> bytes:
        return bytes([LOGIN_VERSION, 0 if self.accepted else 1])


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request: a command and its address.

    Not a HostPort: BIND and UDP ASSOCIATE may leave the address open, as 0.0.0.0 and port 0.
    """

    command: int
    host: str
    port: int

    def to_bytes(self) -> bytes:
        return bytes([VERSION, self.command, 0]) + _address_bytes(self.host, self.port)

    @property
    def target(self) -> HostPort:
        """The target of a CONNECT.

        Raises:
            SocksError: not a valid target.
        """
        try:
            return HostPort(self.host, self.port)
        except ValueError as exc:
            raise SocksError(f"bad destination: {exc}", Reply(Code.FAILURE).to_bytes()) from exc


@dataclass(frozen=True, slots=True)
class Reply:
    """The server's answer to a request; the address is that of its own connection to the target."""

    code: int
    host: str = "0.0.0.0"
    port: int = 0

    def to_bytes(self) -> bytes:
        return bytes([VERSION, self.code, 0]) + _address_bytes(self.host, self.port)


def take_greeting(buffer: bytearray) -> Greeting | None:
    """Take a greeting off the buffer; None while it is incomplete.

    Raises:
        SocksError: not a greeting; the message names the protocol that it looks like.
    """
    if buffer and buffer[0] != VERSION:
        raise _not_socks5(bytes(buffer[:1]))
    if len(buffer) < 2 or len(buffer) < 2 + buffer[1]:
        return None
    return Greeting(_take(buffer, 2 + buffer[1])[2:])


def take_choice(buffer: bytearray) -> Choice | None:
    """Take a server's choice off the buffer; None while it is incomplete.

    Raises:
        SocksError: not a choice.
    """
    _check_version(buffer, VERSION, b"")
    return Choice(_take(buffer, 2)[1]) if len(buffer) >= 2 else None


def take_login(buffer: bytearray) -> Login | None:
    """Take a user name and a password off the buffer; None while they are incomplete.

    Raises:
        SocksError: not a login.
    """
    _check_version(buffer, LOGIN_VERSION, LoginAnswer(False).to_bytes())
    if len(buffer) < 2 or len(buffer) < 3 + buffer[1]:
        return None
    middle = 2 + buffer[1]
    size = middle + 1 + buffer[middle]
    if len(buffer) < size:
        return None
    message = _take(buffer, size)
    return Login(message[2:middle], message[middle + 1 :])


def take_login_answer(buffer: bytearray) -> LoginAnswer | None:
    """Take a server's answer to a login off the buffer; None while it is incomplete.

    Raises:
        SocksError: not such an answer.
    """
    _check_version(buffer, LOGIN_VERSION, b"")
    return LoginAnswer(_take(buffer, 2)[1] == 0) if len(buffer) >= 2 else None


def take_request(buffer: bytearray) -> Request | None:
    """Take a request off the buffer; None while it is incomplete.

    The command may be unknown: the protocol has a reply for that.

    Raises:
        SocksError: not a request, or its address type is unknown.
    """
    _check_version(buffer, VERSION, Reply(Code.FAILURE).to_bytes())
    found = _take_addressed(buffer)
    return Request(*found) if found is not None else None


def take_reply(buffer: bytearray) -> Reply | None:
    """Take a reply off the buffer; None while it is incomplete.

    Raises:
        SocksError: not a reply.
    """
    _check_version(buffer, VERSION, b"")
    found = _take_addressed(buffer)
    return Reply(*found) if found is not None else None


def _take_addressed(buffer: bytearray) -> tuple[int, str, int] | None:
    """Take VER, a number, RSV, ATYP, an address and a port: the shape of requests and replies."""
    if len(buffer) >= 3 and buffer[2]:
        # RFC 1928 §4: reserved, and 0.
        raise SocksError(f"the reserved byte is {buffer[2]:#04x}", Reply(Code.FAILURE).to_bytes())
    if len(buffer) < 5:
        size = 5
        if len(buffer) == 4:
            _check_kind(buffer[3])
    else:
        _check_kind(buffer[3])
        named = buffer[3] == _NAME
        start = 5 if named else 4
        size = start + (buffer[4] if named else _SIZES[buffer[3]]) + 2
    if len(buffer) < size:
        return None
    message = _take(buffer, size)
    port = int.from_bytes(message[-2:], "big")
    return message[1], _host(message[3], message[start:-2]), port


def _check_kind(kind: int) -> None:
    if kind not in (_IPV4, _NAME, _IPV6):
        raise SocksError(
            f"unknown address type: {kind:#04x}",
            Reply(Code.ADDRESS_TYPE_NOT_SUPPORTED).to_bytes(),
        )


def _host(kind: int, raw: bytes) -> str:
    if kind == _IPV4:
        return str(IPv4Address(raw))
    if kind == _IPV6:
        return str(IPv6Address(raw))
    # Latin-1 decodes every byte; HostPort checks whether it is a name.
    return raw.decode("latin-1")


def _address_bytes(host: str, port: int) -> bytes:
    try:
        address = ip_address(host)
    except ValueError:
        raw = host.encode("latin-1")
        if len(raw) > 255:
            raise ValueError("a name is longer than 255 bytes") from None
        return bytes([_NAME, len(raw)]) + raw + port.to_bytes(2, "big")
    kind = _IPV4 if address.version == 4 else _IPV6
    return bytes([kind]) + address.packed + port.to_bytes(2, "big")


def _take(buffer: bytearray, size: int) -> bytes:
    message = bytes(buffer[:size])
    del buffer[:size]
    return message


def _check_version(buffer: bytearray, version: int, answer: bytes) -> None:
    if buffer and buffer[0] != version:
        raise SocksError(f"the version is {buffer[0]:#04x}, not {version:#04x}", answer)


def _not_socks5(first: bytes) -> SocksError:
    if first[0] == _SOCKS4:
        return SocksError("it looks like SOCKS4, but this port serves SOCKS5", _SOCKS4_REJECTED)
    if first.isalpha():  # HTTP methods are words; no other protocol starts with a letter
        reason = "it looks like HTTP, but this port serves SOCKS5: use socks5:// or socks5h://"
        return SocksError(reason, http_reply(400, reason))
    seen = "TLS" if first[0] == _TLS_HANDSHAKE else f"the byte {first[0]:#04x}"
    return SocksError(
        f"it starts with {seen}, but this port serves SOCKS5",
        Choice(Method.NO_ACCEPTABLE).to_bytes(),
    )
