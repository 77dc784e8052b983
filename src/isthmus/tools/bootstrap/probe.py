"""Connect through an agent's listener as a kubelet does, and report how far that got.

Plain blocking code with a deadline for each wait; rules.py interprets the findings.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from isthmus.values import HostPort

# openssl/x509_vfy.h; Python has no name for it.
_NO_CHECK_TIME = 0x200000
_NAME_CODES = frozenset({62, 64})  # of a host name, of an address
_TIME_CODES = frozenset({9, 10})  # not yet valid, expired
_MOST_BYTES = 256 * 1024


class CutError(Exception):
    """The connection ended before the other side sent anything.

    ``client`` is the address and port that it came from.
    """

    def __init__(self, client: str, why: str) -> None:
        super().__init__(why)
        self.client = client


class TlsError(Exception):
    """A peer answered, and the handshake failed; ``code`` is OpenSSL's, 0 for none."""

    def __init__(self, why: str, code: int = 0) -> None:
        super().__init__(why)
        self.code = code

    @property
    def is_name(self) -> bool:
        """The certificate does not have the name."""
        return self.code in _NAME_CODES

    @property
    def is_time(self) -> bool:
        """A certificate is not valid now."""
        return self.code in _TIME_CODES


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """What a verified certificate says."""

    names: tuple[str, ...]
    not_before: datetime
    not_after: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsProbe:
    """Where to connect and whom to trust; ``ca_pem`` empty means the system's authorities."""

    at: HostPort
    ca_pem: str
    name: str
    timeout_s: float

    def accepts(self) -> str:
        """Connect, and nothing more; the reason of a failure, or an empty text."""
        with self._socket() as plain:
            try:
                plain.connect((self.at.host, self.at.port))
            except ConnectionResetError:
                return ""  # accepted, and ended before connect returned
            except OSError as exc:
                return exc.strerror or str(exc) or type(exc).__name__
        return ""

    def certificate(self) -> PeerCertificate:
        """Do a TLS handshake; only the signer of the certificate is checked.

        Raises:
            CutError: nothing came back.
            TlsError: the handshake failed.
        """
        with self._handshake(check_name=False, check_time=False) as tls:
            return _read(tls.getpeercert() or {})

    def trouble(self, *, check_name: bool, check_time: bool) -> TlsError | None:
        """Do a TLS handshake as a client that checks these as well; None if it succeeds.

        Raises:
            CutError: nothing came back.
        """
        try:
            with self._handshake(check_name=check_name, check_time=check_time):
                return None
        except TlsError as error:
            return error

    def get(self, path: str) -> tuple[int, Any]:
        """Request a path; the status, and the JSON or None.

        Raises:
            CutError: nothing came back.
            TlsError: the handshake failed, or what came is not HTTP.
        """
        with self._handshake(check_name=False, check_time=False) as tls:
            asking = http.client.HTTPConnection(self.at.host, self.at.port)
            asking.sock = tls
            try:
                asking.request("GET", path, headers={"Accept": "application/json"})
                answer = asking.getresponse()
                return answer.status, _json(answer.read(_MOST_BYTES))
            except (OSError, http.client.HTTPException) as exc:
                raise TlsError(f"the answer is not HTTP: {exc or type(exc).__name__}") from exc

    def _socket(self) -> socket.socket:
        """A socket that knows its own address, even if the peer resets the connection.

        A connection to an address of this host comes from that same address.
        """
        family = socket.AF_INET6 if ":" in self.at.host else socket.AF_INET
        plain = socket.socket(family, socket.SOCK_STREAM)
        plain.settimeout(self.timeout_s)
        with contextlib.suppress(OSError):  # not of this host: connect() reports the reason
            plain.bind((self.at.host, 0))
        return plain

    @contextlib.contextmanager
    def _handshake(self, *, check_name: bool, check_time: bool) -> Iterator[ssl.SSLSocket]:
        with self._socket() as plain:
            host, port = plain.getsockname()[:2]
            client = str(HostPort(host, port)) if port else ""
            context = self._context(check_name=check_name, check_time=check_time)
            # Before connecting: a socket that the peer has reset cannot be wrapped any more.
            with context.wrap_socket(plain, server_hostname=self.name) as tls:
                self._connect(tls, client)
                yield tls

    def _connect(self, tls: ssl.SSLSocket, client: str) -> None:
        try:
            tls.connect((self.at.host, self.at.port))
        except ssl.SSLCertVerificationError as exc:
            raise TlsError(exc.verify_message, exc.verify_code) from exc
        except ssl.SSLError as exc:
            raise TlsError(_tls_words(exc)) from exc
        except TimeoutError as exc:
            raise CutError(client, f"no answer within {self.timeout_s:g} seconds") from exc
        except OSError as exc:
            raise CutError(client, exc.strerror or str(exc)) from exc

    def _context(self, *, check_name: bool, check_time: bool) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = check_name
        context.hostname_checks_common_name = False  # Go ignores it, too
        if not check_time:
            context.verify_flags |= _NO_CHECK_TIME
        context.set_alpn_protocols(["http/1.1"])
        if self.ca_pem:
            context.load_verify_locations(cadata=self.ca_pem)
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return context


def _tls_words(exc: ssl.SSLError) -> str:
    if isinstance(exc, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "the other side ended the handshake"
    return (exc.reason or str(exc)).replace("_", " ").lower()


def _read(found: Mapping[str, Any]) -> PeerCertificate:
    return PeerCertificate(
        names=tuple(value for _, value in found.get("subjectAltName", ())),
        not_before=_time(found["notBefore"]),
        not_after=_time(found["notAfter"]),
    )


def _time(text: str) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), UTC)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None
