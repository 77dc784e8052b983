"""From an OpenSSL error to the reason that a metric names."""

from __future__ import annotations

import ssl

from isthmus.net.revocation import REVOKED
from isthmus.programs.server.metrics import TlsRefusal

# OpenSSL's own names of its reasons; they are stable identifiers, not sentences.
_BY_REASON = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": TlsRefusal.NO_CERTIFICATE,
    "CERTIFICATE_VERIFY_FAILED": TlsRefusal.BAD_CERTIFICATE,
    "TLSV1_ALERT_UNKNOWN_CA": TlsRefusal.BAD_CERTIFICATE,
    REVOKED: TlsRefusal.REVOKED,
    "HTTP_REQUEST": TlsRefusal.NOT_TLS,
    "WRONG_VERSION_NUMBER": TlsRefusal.NOT_TLS,
    "UNKNOWN_PROTOCOL": TlsRefusal.NOT_TLS,
    "HTTPS_PROXY_REQUEST": TlsRefusal.NOT_TLS,
}


def refusal_of(error: ssl.SSLError) -> TlsRefusal:
    """Name the reason of a failed handshake."""
    return _BY_REASON.get(error.reason or "", TlsRefusal.OTHER)
