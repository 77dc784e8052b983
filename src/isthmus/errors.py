"""The exception tree, and the failure reasons that are sent as data.

IsthmusError
├── ConfigError         a flag, file or certificate is invalid: one line, exit code 2
├── DialError           a target could not be reached; carries a DialFailure
├── ProtocolError       a peer violated its protocol
├── LinkError           a link to a server or agent could not be made or was refused
└── KubeError           a request to the Kubernetes API failed
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isthmus.values import HostPort


class DialFailure(Enum):
    """Why a dial failed. The value is a text for users; each protocol maps it to its codes."""

    REFUSED = "connection refused"
    TIMED_OUT = "timed out"
    UNREACHABLE = "network or host unreachable"
    UNRESOLVED = "name not resolved"
    DENIED = "denied by policy"
    NO_AGENT = "no agent available"
    AGENT_LOST = "agent lost"
    TOO_MANY = "too many open connections"
    INTERNAL = "internal error"


class LinkStage(Enum):
    """The stage at which a link failed or ended."""

    CONNECT = "no connection to the server's address"
    TLS = "the TLS handshake failed"
    TIMED_OUT = "no hello or welcome in time"
    PROTOCOL = "the peer broke the protocol"
    REFUSED = "the hello was refused"
    LOST = "no byte arrived for too long, or the connection broke"


class IsthmusError(Exception):
    """Base class of all exceptions that Isthmus raises."""


class ConfigError(IsthmusError):
    """A flag, file or certificate is invalid; the message is for the user who set it."""

    #: The exit code of a command that ends with it.
    exit_code = 2


def unreadable(what: str, error: Exception) -> ConfigError:
    """The error for a file that cannot be read; ``what`` is its flag, if it has one, and its name.

    ``error`` is the OSError, or the ValueError of a text that is not UTF-8 or of a path.
    """
    return ConfigError(f"cannot read {what}: {why_unreadable(error)}")


def why_unreadable(error: Exception) -> str:
    """Why a file cannot be read, in the words that every message has."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, UnicodeError):
        return "not UTF-8 text"
    why = getattr(error, "strerror", None) or str(error)
    return f"{why[:1].lower()}{why[1:]}"


class ProtocolError(IsthmusError):
    """A peer violated its protocol; the connection has to be closed."""


class LinkError(IsthmusError):
    """A link could not be made, was refused, or ended; ``stage`` says where."""

    def __init__(self, message: str, stage: LinkStage = LinkStage.LOST) -> None:
        super().__init__(message)
        self.stage = stage


class KubeError(IsthmusError):
    """A request to the Kubernetes API failed.

    ``status`` is the HTTP status, 0 if there was no answer; ``reason`` is the API's reason
    ("Conflict", "Expired"), empty if it gave none.
    """

    def __init__(self, message: str, *, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class DialError(IsthmusError):
    """A target could not be reached."""

    def __init__(self, reason: DialFailure, target: HostPort, detail: str = "") -> None:
        text = f"cannot dial {target}: {reason.value}"
        super().__init__(f"{text}: {detail}" if detail else text)
        self.reason = reason
        self.target = target
        self.detail = detail
