"""A client of the admin ports, for the terminal tools, doctor and the merged dashboard.

It uses http.client, so that a command starts fast, and no proxy: an admin port is reached directly
or not at all. Each request opens its own connection, so one client serves several threads.
docs/admin-port.md describes the paths.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol
from urllib.parse import urlsplit

from isthmus import __version__
from isthmus.errors import ConfigError, unreadable
from isthmus.text.addresses import is_loopback

__all__ = ["AdminClient", "AdminError", "Answer", "Reach", "Trouble", "read_token"]

MOST_BYTES = 64 * 1024 * 1024
_PIECE_BYTES = 256 * 1024
_MOST_TOKEN_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of an admin port, with any status."""

    status: int
    text: str


class Reach(Protocol):
    """Another way to an admin port than the network, such as a port-forward to a pod."""

    @property
    def address(self) -> str:
        """The host and port to show, which distinguish programs."""

    def connect(self) -> socket.socket:
        """Open a connection, with its own timeout; ``release`` follows when it is closed.

        Raises:
            OSError: connecting failed; the text is the reason.
        """

    def release(self) -> None:
        """Report that a connection is closed."""

    def complaint(self) -> str:
        """The reason why an open connection failed; empty if unknown."""

    def at(self, port: int) -> Reach:
        """The way to another port of the same program."""


class AdminClient:
    """Queries one admin port; ``url`` is like ``http://127.0.0.1:8095``, or has no scheme.

    Without a scheme it is http on loopback and https elsewhere. ``timeout_s`` bounds connecting,
    and the time from the start to the head and to the end of an answer. With a ``reach``
    connections are opened through it: the host of ``url`` is then the address that the program
    binds and its certificate names. Several threads may use one client.

    Raises:
        ConfigError: the URL, a file or the token cannot be used; nothing was sent.
    """

    def __init__(
        self,
        url: str,
        *,
        cacert: str = "",
        cert: str = "",
        key: str = "",
        token: str = "",
        timeout_s: float = 5.0,
        reach: Reach | None = None,
    ) -> None:
        self._reach = reach
        self._https, self._host, self._port, self._prefix = _read_url(url)
        host = f"[{self._host}]" if ":" in self._host else self._host
        #: host:port, the name of the program for people.
        self.address = reach.address if reach else f"{host}:{self._port}"
        self.url = f"{'https' if self._https else 'http'}://{self.address}{self._prefix}"
        self._headers = {"User-Agent": f"isthmus/{__version__}", "Accept": "application/json, */*"}
        self._timeout_s = timeout_s
        if token:
            self._headers["Authorization"] = f"Bearer {self._fit(token)}"
        self._context = _trust(cacert, cert, key) if self._https else None

    def __repr__(self) -> str:
        return f"AdminClient({self.url!r})"

    @property
    def reached(self) -> bool:
        """Whether connections go through a ``reach`` instead of the network."""
        return self._reach is not None

    def get(self, path: str) -> dict[str, Any]:
        """Request a JSON object.

        Raises:
            AdminError: there was none; ``status`` 404: the program does not know the path.
        """
        return self._object(path, self.text(path))

    def get_if_known(self, path: str) -> dict[str, Any] | None:
        """Request a JSON object; None from a program, perhaps an older one, without that path.

        Raises:
            AdminError: as ``get``, for every other reason.
        """
        try:
            return self.get(path)
        except AdminError as error:
            if error.why is Trouble.NOT_FOUND:
                return None
            raise

    def text(self, path: str) -> str:
        """Request a text.

        A redirect to another port of the same host is followed once, without any credentials: an
        agent's metrics are on its health port.

        Raises:
            AdminError: the program did not answer, or its status was not 200.
        """
        answer = self.ask(path)
        if answer.status != 200:
            raise self._status_error(path, answer)
        return answer.text

    def post(self, path: str, *, intent: str = "end") -> dict[str, Any]:
        """Request a change, with the header that confirms the intent; returns the JSON object.

        Raises:
            AdminError: the change failed, or its result is unknown: after TIMED_OUT it may have
                been made.
        """
        answer = self._exchange("POST", path, {**self._headers, "X-Isthmus-Intent": intent})[0]
        if answer.status != 200:
            raise self._status_error(path, answer)
        return self._object(path, answer.text)

    def ask(self, path: str) -> Answer:
        """Request a path; the answer may have any status.

        Raises:
            AdminError: there was no answer, or it is too large.
        """
        answer, moved = self._exchange("GET", path, self._headers)
        if answer.status in (301, 302, 307, 308) and moved:
            with contextlib.suppress(ValueError):
                to = urlsplit(moved, "http")
                if to.scheme == "http" and to.hostname == self._host and to.port:
                    host = f"[{self._host}]" if ":" in self._host else self._host
                    plain = AdminClient(
                        f"http://{host}:{to.port}",
                        timeout_s=self._timeout_s,
                        reach=self._reach and self._reach.at(to.port),
                    )
                    return plain._exchange(
                        "GET", to._replace(scheme="", netloc="").geturl(), plain._headers
                    )[0]
        return answer

    def _fit(self, token: str) -> str:
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise ConfigError("the token has characters that cannot be sent in a header")
        if not self._https and not is_loopback(self._host):
            raise ConfigError(
                f"{self.url}: a token is not sent over plain HTTP to another machine; use https://"
            )
        return token

    def _exchange(
        self, method: str, path: str, headers: dict[str, str]
    ) -> tuple[Answer, str | None]:
        opened = self._reached()
        due = time.monotonic() + self._timeout_s
        connection: http.client.HTTPConnection
        if self._context is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        else:
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout_s, context=self._context
            )
        # A socket's timeout applies to each read, and the pieces of a head can be small.
        late = threading.Timer(self._timeout_s, _hang_up, (connection,))
        late.daemon = True
        late.start()
        try:
            if opened is not None:
                opened.settimeout(self._timeout_s)
                connection.sock = opened
                if self._context is not None:
                    connection.sock = self._context.wrap_socket(opened, server_hostname=self._host)
            connection.request(
                method, self._prefix + path, headers={**headers, "Connection": "close"}
            )
            with connection.getresponse() as response:
                if time.monotonic() > due:
                    raise TimeoutError
                return Answer(response.status, self._body(response, due)), response.headers.get(
                    "Location"
                )
        except AdminError:
            raise
        except (OSError, http.client.HTTPException) as exc:
            raise self._no_answer(TimeoutError() if time.monotonic() > due else exc) from exc
        finally:
            late.cancel()
            connection.close()
            if self._reach is not None:
                self._reach.release()

    def _reached(self) -> socket.socket | None:
        try:
            return self._reach.connect() if self._reach else None
        except OSError as exc:
            text = f"{self.url}: {exc.strerror or exc}"
            raise AdminError(text, Trouble.UNREACHABLE) from exc

    def _body(self, response: http.client.HTTPResponse, due: float) -> str:
        pieces: list[bytes] = []
        size = 0
        while piece := response.read1(_PIECE_BYTES):
            pieces.append(piece)
            size += len(piece)
            if size > MOST_BYTES:
                raise AdminError(
                    f"{self.url} answers with more than {MOST_BYTES >> 20} MiB; ask for less",
                    Trouble.TOO_LARGE,
                    status=response.status,
                )
            if time.monotonic() > due:
                raise TimeoutError
        if response.length:  # the rest of Content-Length
            raise http.client.IncompleteRead(b"", response.length)
        return b"".join(pieces).decode("utf-8", "replace")

    def _object(self, path: str, text: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):  # the latter for [[[[…
            found = None
        if not isinstance(found, dict):
            raise AdminError(
                f"{self.url}{path.partition('?')[0]} does not answer with a JSON object; is it"
                " the admin port of isthmus?",
                Trouble.NOT_JSON,
                status=200,
            )
        return found

    def _status_error(self, path: str, answer: Answer) -> AdminError:
        said = first_line(answer.text)
        says = f": {said}" if said else ""
        match answer.status:
            case 401:
                why, text = Trouble.UNAUTHORIZED, f"{self.url} wants a token; give --token-file"
                if "Authorization" in self._headers:
                    text = f"{self.url} does not know the token of --token-file"
            case 403:
                why, text = Trouble.FORBIDDEN, f"{self.url} does not allow it{says}"
            case 404:
                why, text = Trouble.NOT_FOUND, f"{self.url} does not know {path}{says}"
            case status:
                why, text = Trouble.STATUS, f"{self.url} answers {path} with {status}{says}"
        return AdminError(text, why, status=answer.status)

    def _no_answer(self, exc: Exception) -> AdminError:
        why, text = explain(exc, https=self._https)
        if self._reach and (complaint := self._reach.complaint()):
            why, text = Trouble.UNREACHABLE, complaint
        return AdminError(f"{self.url}: {text}", why)


def _hang_up(connection: http.client.HTTPConnection) -> None:
    sock = connection.sock
    if sock is not None:
        with contextlib.suppress(OSError):
            # Shut down the plain socket: a reader in another thread still needs the TLS state.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)


def read_token(path: str) -> str:
    """Read a token from a file, without surrounding white space.

    Raises:
        ConfigError: the file cannot be read, or contains no token.
    """
    try:
        with open(path, "rb") as file:
            token = file.read(_MOST_TOKEN_BYTES + 1)
    except OSError as exc:
        raise unreadable(f"--token-file {path}", exc) from exc
    text = token.decode("utf-8", "replace").strip()
    if not text or len(token) > _MOST_TOKEN_BYTES:
        raise ConfigError(f"--token-file {path}: {'too large for' if text else 'has'} no token")
    return text


def _read_url(text: str) -> tuple[bool, str, int, str]:
    """Whether the URL is https, its host and port, and the prefix of every path."""
    with_scheme = text if "://" in text else f"//{text}"
    try:
        url = urlsplit(with_scheme)
        host, port = url.hostname or "", url.port
    except ValueError as exc:
        raise ConfigError(f"--admin {text}: not a URL: {exc}") from exc
    if url.scheme not in ("", "http", "https"):
        raise ConfigError(f"--admin {text}: the scheme is http or https")
    if "@" in url.netloc:
        raise ConfigError("--admin: a URL with a user or a password; use --token-file")
    if not host or port is None or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigError(f"--admin {text!r}: not a URL such as http://127.0.0.1:8095")
    if url.query or url.fragment:
        raise ConfigError(f"--admin {text}: a URL without ? and #")
    https = url.scheme == "https" or (not url.scheme and not is_loopback(host))
    return https, host, port, url.path.rstrip("/")


def _trust(cacert: str, cert: str, key: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=cacert or None)
    except OSError as exc:
        raise _unusable(f"--cacert {cacert}", exc, _file_trouble(exc)) from exc
    if key and not cert:
        raise ConfigError("--key needs --cert as well")
    if cert:
        try:
            # Without a password OpenSSL would ask for one at the terminal.
            context.load_cert_chain(cert, key or None, password="")
        except OSError as exc:
            name = f"{cert} and --key {key}" if key else cert
            trouble = _file_trouble(exc)
            if not key and isinstance(exc, ssl.SSLError):
                trouble += " with a key in it; is --key missing?"
            raise _unusable(f"--cert {name}", exc, trouble) from exc
    return context


def _unusable(what: str, exc: OSError, trouble: str) -> ConfigError:
    return ConfigError(f"{what}: {trouble}") if trouble else unreadable(what, exc)


def _file_trouble(exc: OSError) -> str:
    if not isinstance(exc, ssl.SSLError):
        return ""
    if exc.reason == "KEY_VALUES_MISMATCH":
        return "the key does not belong to the certificate"
    return "cannot be read as PEM"


_SHOWN_CHARS = 200


class Trouble(Enum):
    """Why a request to an admin port failed."""

    REFUSED = "nothing listens there"
    UNREACHABLE = "cannot be reached"
    TIMED_OUT = "timed out"
    TLS = "TLS failed"
    NOT_HTTP = "no HTTP"
    UNAUTHORIZED = "who asks is not known"
    FORBIDDEN = "not allowed"
    NOT_FOUND = "no such path"
    STATUS = "another status"
    NOT_JSON = "no JSON"
    TOO_LARGE = "too large"


class AdminError(ConfigError):
    """A request to an admin port failed: a message, and the reason as data.

    ``status`` is the HTTP status, 0 when there was none.
    """

    def __init__(self, message: str, why: Trouble, *, status: int = 0) -> None:
        super().__init__(message)
        self.why = why
        self.status = status


def explain(exc: Exception, *, https: bool) -> tuple[Trouble, str]:
    """The reason why there was no answer; ``https`` is whether TLS was used."""
    match exc:
        case ssl.SSLCertVerificationError():
            said = first_line(exc.verify_message).removesuffix(".")
            return Trouble.TLS, f"its certificate is not trusted: {said}; see --cacert"
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError():
            # Without its alert, if we were still writing when it closed.
            return Trouble.TLS, "hung up without an answer; perhaps it wants a client certificate"
        case ssl.SSLError() if exc.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
            return Trouble.TLS, "does not speak TLS; use http://"
        case ssl.SSLError() if "CERTIFICATE_REQUIRED" in (exc.reason or ""):
            return Trouble.TLS, "wants a client certificate; give --cert and --key"
        case ssl.SSLError() if "ALERT" in (exc.reason or ""):
            return Trouble.TLS, f"refuses the connection: {_words(exc.reason)}"
        case ssl.SSLError():
            return Trouble.TLS, f"the TLS handshake failed: {_words(exc.reason)}"
        case ConnectionRefusedError():
            return Trouble.REFUSED, "nothing listens there (connection refused)"
        case TimeoutError():
            return Trouble.TIMED_OUT, "did not answer in time"
        case ConnectionResetError() | http.client.RemoteDisconnected():
            hint = "wants a client certificate" if https else "speaks HTTPS"
            return Trouble.NOT_HTTP, f"hung up without an answer; perhaps it {hint}"
        case http.client.IncompleteRead():
            return Trouble.NOT_HTTP, "hung up in the middle of its answer"
        case http.client.HTTPException():
            return Trouble.NOT_HTTP, f"does not answer in HTTP{'' if https else '; try https://'}"
        case OSError():
            return Trouble.UNREACHABLE, f"cannot be reached: {exc.strerror or exc}"
        case _:
            raise exc


def _words(reason: str | None) -> str:
    return (reason or "no reason given").lower().replace("_", " ")


def first_line(text: str) -> str:
    """The first line of a peer's text, shortened and safe for a terminal."""
    line = next(iter(text.strip().splitlines()), "")[:_SHOWN_CHARS]
    return "".join(char if char.isprintable() else "�" for char in line).removesuffix(".")
