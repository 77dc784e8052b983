"""Tokens as files have them: whether it is one, of which kind, and whether it is over.

Nothing here proves anything: whose a token is, only kube-apiserver can tell.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from datetime import UTC, datetime

#: Longer than any token that anybody makes, and shorter than a file given by mistake.
MOST_CHARS = 16 * 1024
_BOOTSTRAP = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}", re.ASCII)
_ALMOST = re.compile(r"[A-Za-z0-9]{1,10}\.[A-Za-z0-9]{1,40}", re.ASCII)
_JWT = re.compile(r"[A-Za-z0-9_-]+\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]*", re.ASCII)
_PLAIN = re.compile(r"[!-~]+", re.ASCII)


def take_token(text: str, *, now: datetime) -> str:
    """The token of a file: one word; a bootstrap token, a signed one, or of any other kind.

    Raises:
        ValueError: it is none, or it expired; the message never shows it.
    """
    token = text.strip()
    if not token:
        raise ValueError("there is no token in it")
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
    """When a JSON web token expires (RFC 7519 §4.1.4); None when it does not say, or is none."""
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
