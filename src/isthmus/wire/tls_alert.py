"""TLS alerts in the clear, for whoever refuses a connection before there is any TLS on it."""

from __future__ import annotations

from enum import IntEnum

_FATAL = 2
# An alert before the handshake is a record of two bytes (RFC 8446 §5.1, §6); every version's
# client takes the number of TLS 1.2 there.
_RECORD = b"\x15\x03\x03\x00\x02"


class Alert(IntEnum):
    """The descriptions that say why a router refuses (RFC 8446 §6.2)."""

    INTERNAL_ERROR = 80
    UNRECOGNIZED_NAME = 112
    NO_APPLICATION_PROTOCOL = 120

    def to_bytes_fatal(self) -> bytes:
        """Write the record; nothing may follow it but the end of file."""
        return _RECORD + bytes((_FATAL, self.value))
