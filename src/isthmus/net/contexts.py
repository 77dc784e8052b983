"""TLS contexts: built strictly, and replaced whole when their files change.

A context is never changed after it was built: a failed ``load_cert_chain`` in place breaks every
later handshake, and CAs cannot be removed from a context. A reload creates a new one for new
connections; old connections keep theirs. certificates.py checks the files.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import cast

from isthmus.errors import ConfigError
from isthmus.net.certificates import (
    Lifetime,
    Purpose,
    TlsFiles,
    check_files,
    load_authorities,
    load_pair,
)
from isthmus.net.revocation import Revocations
from isthmus.net.settings_ciphers import OPENSSL_NAMES, TLS12, TLS13, TLS13_SUITES, openssl_ciphers
from isthmus.text.text_limits import MAX_GROUP_BYTES, MAX_GROUPS, MAX_NAME_BYTES, MAX_SANS
from isthmus.values import ANONYMOUS, Identity

__all__ = [
    "HotContext",
    "TlsFiles",
    "check_files",
    "client_context",
    "offer",
    "peer_identity",
    "server_context",
    "watch",
]

log = logging.getLogger("isthmus.tls")

MIN_VERSIONS = {
    "": ssl.TLSVersion.TLSv1_2,
    TLS12: ssl.TLSVersion.TLSv1_2,
    TLS13: ssl.TLSVersion.TLSv1_3,
}


def server_context(
    files: TlsFiles,
    *,
    alpn: tuple[str, ...] = (),
    min_version: str = TLS12,
    cipher_suites: Sequence[str] = (),
    revocations: Revocations | None = None,
) -> ssl.SSLContext:
    """Build the context of a listener; with a CA every client must present its certificate.

    With ``revocations`` the certificate must not be revoked.

    Raises:
        ConfigError: a file, the version or a cipher suite is not usable.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A client whose CA was removed must not resume an old session. The cache that Python
    # enables for TLS 1.2 session ids belongs to this context and is dropped with it on reload.
    context.num_tickets = 0
    _restrict(context, alpn, min_version, cipher_suites)
    load_pair(context, files)
    if files.ca:
        context.verify_mode = ssl.CERT_REQUIRED
        _trust(context, files)
    if revocations is not None:
        context.sslobject_class = revocations.object_class
    return context


def client_context(
    files: TlsFiles,
    *,
    alpn: tuple[str, ...] = (),
    min_version: str = TLS12,
    cipher_suites: Sequence[str] = (),
    revocations: Revocations | None = None,
) -> ssl.SSLContext:
    """Build the context of a dialer, which verifies the server's chain and name.

    Without a CA file the system's CAs and those of ``besides`` are trusted; a
    certificate is presented when requested.
    With ``revocations`` a server with a revoked certificate is rejected.

    Raises:
        ConfigError: a file, the version or a cipher suite is not usable.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.hostname_checks_common_name = False  # RFC 6125 §6.4.4; Go ignores it, too
    _restrict(context, alpn, min_version, cipher_suites)
    if files.cert:
        load_pair(context, files)
    if not files.ca:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if files.ca or files.besides:
        _trust(context, files)
    if revocations is not None:
        context.sslobject_class = revocations.object_class
    return context


def offer(context: ssl.SSLContext, alpn: Sequence[str]) -> None:
    """Set the ALPN names that the next connection of a dialer's context offers.

    This is the only safe change of a context: OpenSSL copies the names into a client's connection
    at its creation (SSL_new), so pending connections keep theirs. A separate context for each offer
    would have to read its files again, possibly while they are being replaced.
    """
    context.set_alpn_protocols(list(alpn))


def _restrict(
    context: ssl.SSLContext,
    alpn: tuple[str, ...],
    min_version: str,
    cipher_suites: Sequence[str],
) -> None:
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # A truncated connection must not read as a clean end.
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    if min_version not in MIN_VERSIONS:
        known = ", ".join(name for name in MIN_VERSIONS if name)
        raise ConfigError(f"unknown TLS version {min_version!r}: use one of {known}")
    context.minimum_version = MIN_VERSIONS[min_version]
    if cipher_suites:
        _choose_ciphers(context, cipher_suites)
    if alpn:
        context.set_alpn_protocols(list(alpn))


def _choose_ciphers(context: ssl.SSLContext, names: Sequence[str]) -> None:
    for name in names:
        if name not in OPENSSL_NAMES and name not in TLS13_SUITES:
            raise ConfigError(f"unknown or unsafe TLS cipher suite {name!r}")
    chosen = openssl_ciphers(names)
    if chosen:
        context.set_ciphers(chosen)
    else:  # as in Go: no TLS 1.2 suite is left, and those of TLS 1.3 are not configurable
        context.minimum_version = ssl.TLSVersion.TLSv1_3


def _trust(context: ssl.SSLContext, files: TlsFiles) -> None:
    # As in Go, every certificate in the file is a trust anchor, including intermediate CAs.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    load_authorities(context, files)


def peer_identity(ssl_object: ssl.SSLObject) -> Identity:
    """The identity in the peer's verified certificate: CN is the name, O the groups.

    ANONYMOUS without a certificate, and as in Kubernetes without a CN, though with its other names.
    Of several CNs the last one counts, as in Go. A name or groups above the limits of
    text_limits.py give no identity, either.
    """
    certificate = ssl_object.getpeercert() or {}
    # The stubs have one type for every field; the subject is RDNs of (attribute, value) pairs.
    rdns = cast(tuple[tuple[tuple[str, str], ...], ...], certificate.get("subject", ()))
    subject = [pair for rdn in rdns for pair in rdn]
    names = [value for key, value in subject if key == "commonName"]
    found = cast(tuple[tuple[str, object], ...], certificate.get("subjectAltName", ()))
    # Rules cannot refer to other kinds.
    said = (str(v) for k, v in found if k in ("DNS", "IP Address", "URI", "email"))
    sans = tuple(islice((san for san in said if len(san) <= MAX_NAME_BYTES), MAX_SANS))
    if not names or not names[-1]:
        return replace(ANONYMOUS, sans=sans) if sans else ANONYMOUS
    groups = tuple(v for k, v in subject if k == "organizationName")
    if len(names[-1].encode()) > MAX_NAME_BYTES or len(groups) > MAX_GROUPS:
        return ANONYMOUS
    if sum(len(group.encode()) for group in groups) > MAX_GROUP_BYTES:
        return ANONYMOUS
    return Identity(names[-1], groups, sans=sans)


Build = Callable[[TlsFiles], ssl.SSLContext]
_Stamp = tuple[tuple[int, ...], ...]


class HotContext:
    """A context that follows its files: use ``current`` for each new connection.

    The first context is checked and built here, so an invalid file raises ConfigError before any
    port opens. Later, ``check`` replaces the context, or keeps it and logs the reason once.
    """

    def __init__(self, files: TlsFiles, build: Build, *, purpose: Purpose) -> None:
        self.files = files
        self._build = build
        self._purpose: Purpose = purpose
        self._loaded = _stamp(files)
        self._lifetimes: Mapping[str, Lifetime] = check_files(files, purpose=purpose)
        self.current = build(files)
        self.failures = 0  # invalid states of the files that were logged
        self._failure = ""
        self._warned: tuple[_Stamp, str] | None = None

    def __repr__(self) -> str:
        return f"HotContext({self._purpose}, {', '.join(self.files.given) or 'system CAs'})"

    def certificate_lifetimes(self) -> Mapping[str, Lifetime]:
        """The validity of each file in use, by path; reads nothing."""
        return self._lifetimes

    def check(self, now: float) -> bool:
        """Check the files; True if they changed and the new context is in place.

        Reads files, so it belongs in a thread (see ``watch``). Never raises for their contents:
        a failure keeps the old context and is retried at every check.
        """
        stamp = _stamp(self.files)
        if stamp == self._loaded:
            self._failure, self._warned = "", None
            return False
        try:
            lifetimes = check_files(self.files, purpose=self._purpose, now=now)
            context = self._build(self.files)
        except ConfigError as exc:
            self._failed(stamp, str(exc))
            return False
        if stamp != _stamp(self.files):  # replaced while reading: may be a mixture
            return False
        self.current, self._lifetimes, self._loaded = context, lifetimes, stamp
        self._failure, self._warned = "", None
        log.info("reloaded %s", ", ".join(self.files.given))
        return True

    def _failed(self, stamp: _Stamp, sentence: str) -> None:
        # During replacement a new certificate may be next to an old key, or a file half
        # written: only a failure that a second check confirms is logged.
        persists = sentence == self._failure
        self._failure = sentence
        if persists and self._warned != (stamp, sentence):
            self._warned = (stamp, sentence)
            self.failures += 1
            log.warning("%s; the previously loaded files stay in use", sentence)


def _stamp(files: TlsFiles) -> _Stamp:
    """Identify a state of the files, through symbolic links (Kubernetes's ..data)."""
    return tuple([_stamp_of(path) for path in files.given])


def _stamp_of(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError as exc:
        return (exc.errno or -1,)
    except ValueError:  # a NUL in the path
        return (-1,)
    # The change time catches a copy that keeps mtime and size, and chmod after a refused read.
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev)


def _check_all(contexts: Sequence[HotContext]) -> None:
    for context in contexts:
        context.check(time.time())


async def watch(contexts: Sequence[HotContext], interval_s: float = 1.0) -> None:
    """Check the contexts periodically, in a thread."""
    while True:
        await asyncio.sleep(interval_s)
        await asyncio.to_thread(_check_all, contexts)


def lifetimes_of(contexts: Iterable[HotContext]) -> dict[str, Lifetime]:
    """The validity of each certificate file of these contexts, by path."""
    return {path: it for hot in contexts for path, it in hot.certificate_lifetimes().items()}
