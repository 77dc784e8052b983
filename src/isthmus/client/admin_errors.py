"""Why an admin port did not give what it was asked for: as data, and as one sentence.

Who asks is admin.py.
"""

from __future__ import annotations

import http.client
import ssl
from enum import Enum

from isthmus.errors import ConfigError

_SHOWN_CHARS = 200


class Trouble(Enum):
    """Why an admin port did not give what it was asked for."""

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
    """An admin port did not give what it was asked for: one sentence, and why as data.

    ``status`` is the HTTP status, 0 when there was none.
    """

    def __init__(self, message: str, why: Trouble, *, status: int = 0) -> None:
        super().__init__(message)
        self.why = why
        self.status = status


def explain(exc: Exception, *, https: bool) -> tuple[Trouble, str]:
    """Say why there was no answer; ``https`` is what was tried."""
    match exc:
        case ssl.SSLCertVerificationError():
            said = first_line(exc.verify_message).removesuffix(".")
            return Trouble.TLS, f"its certificate is not trusted: {said}; see --cacert"
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError():
            # Without its alert, where we were still writing when it closed.
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
    """Cut out the first line of what a peer said, cut and safe for a terminal."""
    line = next(iter(text.strip().splitlines()), "")[:_SHOWN_CHARS]
    return "".join(char if char.isprintable() else "�" for char in line).removesuffix(".")
