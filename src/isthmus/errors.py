"""The exception tree, and the reasons that travel as data.

IsthmusError
├── ConfigError         a flag, file or certificate is wrong: one sentence, exit code 2
├── DialError           a target could not be reached; carries a DialFailure
├── ProtocolError       a peer broke the rules of its protocol
├── LinkError           a link to a server or agent could not be made or was refused
└── KubeError           the Kubernetes API did not do what it was asked
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isthmus.values import HostPort


class DialFailure(Enum):
    """Why a dial failed. The value is what people read; each protocol has a table from it."""

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
    """How far a link came before it failed, or how it ended."""

    CONNECT = "no connection to the server's address"
    TLS = "the TLS handshake failed"
    TIMED_OUT = "no hello or welcome in time"
    PROTOCOL = "the peer broke the protocol"
    REFUSED = "the hello was refused"
    LOST = "no byte arrived for too long, or the connection broke"


class IsthmusError(Exception):
    """The root of everything Isthmus raises."""


class ConfigError(IsthmusError):
    """A flag, file or certificate is wrong; the message is one sentence for whoever typed it."""


class ProtocolError(IsthmusError):
    """A peer broke the rules of its protocol; the connection it came by cannot go on."""


class LinkError(IsthmusError):
    """A link could not be made, was refused, or ended; ``stage`` says how far it came."""

    def __init__(self, message: str, stage: LinkStage = LinkStage.LOST) -> None:
        super().__init__(message)
        self.stage = stage


class KubeError(IsthmusError):
    """The Kubernetes API did not do what it was asked.

    ``status`` is its HTTP status, 0 when there was no answer; ``reason`` is its word for why
    ("Conflict", "Expired"), empty when it gave none.
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
