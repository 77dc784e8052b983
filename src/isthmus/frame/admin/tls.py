"""The TLS of an admin port: its context from the flags, and what is said of who failed at it."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Sequence
from functools import partial

from isthmus.logs import OncePer
from isthmus.net.contexts import HotContext, TlsFiles, server_context
from isthmus.net.settings_ciphers import TLS12
from isthmus.settings.admin import AdminSettings

_QUIET_S = 60.0
_log = logging.getLogger("isthmus.ports")


def admin_tls(
    settings: AdminSettings, *, min_version: str = "", suites: Sequence[str] = ()
) -> HotContext | None:
    """Make the context that follows the admin port's files; None without --admin-cert.

    Raises:
        ConfigError: a file is wrong.
    """
    if not settings.cert:
        return None
    files = TlsFiles(
        cert=settings.cert,
        key=settings.key,
        ca=settings.client_ca,
        labels=("--admin-cert", "--admin-key", "--admin-client-ca"),
    )
    build = partial(
        server_context,
        alpn=("http/1.1",),
        min_version=min_version or TLS12,
        cipher_suites=suites,
    )
    return HotContext(files, build, purpose="server")


def say_refused(once: OncePer, error: OSError) -> None:
    """Log that somebody could not shake hands with the admin port, once a minute."""
    reason = error.reason if isinstance(error, ssl.SSLError) else type(error).__name__
    once.log(
        ("admin", reason), _QUIET_S, _log, logging.WARNING, "admin connection refused",
        reason=reason,
    )  # fmt: skip
