"""Tokens in files: whether a text is one, its kind, and whether it has expired.

Nothing here authenticates: only kube-apiserver knows the owner of a token.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from datetime import UTC, datetime

#: Longer than any real token, and shorter than a file given by mistake.
MOST_CHARS = 16 * 1024
_BOOTSTRAP = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}", re.ASCII)
_ALMOST = re.compile(r"[A-Za-z0-9]{1,10}\.[A-Za-z0-9]{1,40}", re.ASCII)
_JWT = re.compile(r"[A-Za-z0-9_-]+\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]*", re.ASCII)
_PLAIN = re.compile(r"[!-~]+", re.ASCII)


def take_token(text: str, *, now: datetime) -> str:
    """The token in a file: one word; a bootstrap token, a signed one, or any other kind.

    Raises:
        ValueError: not a token, or expired; the message never shows it.
    """
    token = text.strip()
    if not token:
        raise ValueError("it contains no token")
    if len(token) > MOST_CHARS:
        raise ValueError("it is too long for a token")
    if not _PLAIN.fullmatch(token):
        raise ValueError("a token is one word of ASCII")
    if _BOOTSTRAP.fullmatch(token):
        return token
    if _ALMOST.fullmatch(token):
        raise ValueError(
            "a bootstrap token is six small letters and digits, a dot, and sixteen of them"
        )
    signed = _JWT.fullmatch(token)
    expires = expiry(token) if signed else None
    if expires is not None and expires <= now:
        raise ValueError(f"the token expired on {expires:%Y-%m-%d %H:%M} UTC")
    return token


def expiry(token: str) -> datetime | None:
    """When a JSON web token expires (RFC 7519 §4.1.4); None if unknown or not such a token."""
    signed = _JWT.fullmatch(token)
    if signed is None:
        return None
    payload = signed[1]
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        at = claims.get("exp") if isinstance(claims, dict) else None
        return None if at is None else datetime.fromtimestamp(float(at), UTC)
    except (binascii.Error, ValueError, TypeError, OverflowError, OSError, RecursionError):
        return None
