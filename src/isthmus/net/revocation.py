"""Revoked certificates: the CRLs of authorities, read again when they change.

OpenSSL's own check is not used: it fails every handshake of an authority without a list, and
of one whose list is past its time, so that one late or missing file would disconnect a whole
cluster. Here a certificate is refused only if a list signed by its own authority contains it.
The check is the last step of the handshake, in the class that contexts use for their TLS
objects, so no connection is used without it.

``cryptography`` reads the lists; it is imported only if there is one.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from isthmus.errors import ConfigError, unreadable
from isthmus.net.certificates import pem_places
from isthmus.net.files import TooLargeError, read_bytes, stamp_of

if TYPE_CHECKING:
    from cryptography import x509

log = logging.getLogger("isthmus.tls")

#: The ``reason`` of such handshake errors, besides those of OpenSSL.
REVOKED = "CERTIFICATE_REVOKED"
UNREADABLE = "CERTIFICATE_UNREADABLE"
# A list of a million certificates has about 40 MB.
_MAX_FILE_BYTES = 128 * 1024 * 1024
_BEGIN = re.compile(rb"-----BEGIN X509 CRL-----")
_END = re.compile(rb"-----END X509 CRL-----")
_LOOK_S = 1.0
_Stamp = tuple[tuple[int, ...], ...]
#: Issuer and serial number, which identify a certificate.
Key = tuple["x509.Name", int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CrlFiles:
    """A CRL file, and the authorities that may have signed it; labels are the flags."""

    crl: str
    ca: str
    label: str = field(default="CRL file", compare=False)
    ca_label: str = field(default="CA file", compare=False)

    def __str__(self) -> str:
        return f"{self.label} {self.crl}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationLists:
    """The contents of a CRL file; ``next_update`` is when the first list is due, or None."""

    serials: dict[x509.Name, frozenset[int]]
    next_update: float | None

    def __len__(self) -> int:
        return sum(map(len, self.serials.values()))


class Revocations:
    """The lists of a file, followed as it changes.

    They are first read here, so an invalid file raises ConfigError before any port opens. Later,
    ``check`` replaces them, or keeps them and logs the reason once. A list past its time still
    applies: its contents were true, and a warning says that a newer one is due.
    """

    def __init__(self, files: CrlFiles, *, on_refused: Callable[[str], None] | None = None) -> None:
        """Read the file; ``on_refused`` is called with a text for each refused certificate.

        Raises:
            ConfigError: one line that names the file and the problem.
        """
        self.files = files
        self._on_refused = on_refused
        self._stamp = _stamp(files)
        self.lists = read_lists(files)
        self.failures = 0  # invalid states of the file that were logged
        self._failure = ""
        self._warned: tuple[_Stamp, str] | None = None
        self._late = False
        self._warn_late(time.time())

    def __repr__(self) -> str:
        return f"<Revocations {self.files.crl}, {len(self.lists)} certificates>"

    @property
    def object_class(self) -> type[ssl.SSLObject]:
        """The class of a context's TLS objects; see ``sslobject_class`` of ssl.SSLContext."""
        revocations = self

        class Checked(ssl.SSLObject):
            certificate_key: Key | None = None

            def do_handshake(self) -> None:
                """Shake hands, and refuse a certificate that is revoked."""
                super().do_handshake()
                self.certificate_key = revocations.admit(self.getpeercert(binary_form=True))

        return Checked

    def admit(self, der: bytes | None) -> Key | None:
        """Return the key of a verified certificate that is not revoked; None without a certificate.

        Raises:
            ssl.SSLCertVerificationError: it is revoked, or cannot be read.
        """
        try:
            key = key_of(der) if der else None
        except Exception as exc:  # InvalidVersion is a direct subclass of Exception
            # OpenSSL accepts more than this reader, and an unreadable certificate may be revoked.
            error = ssl.SSLCertVerificationError(1, "the certificate cannot be read")
            error.reason = UNREADABLE
            raise error from exc
        if key is None or not self.has(key):
            return key
        if self._on_refused is not None:
            self._on_refused(_named(der or b""))
        error = ssl.SSLCertVerificationError(1, "the certificate is revoked")
        error.reason = REVOKED
        raise error

    def has(self, key: Key) -> bool:
        """Whether a list of its own authority contains the certificate."""
        serials = self.lists.serials.get(key[0])
        return serials is not None and key[1] in serials

    def is_cut(self, tls: object) -> bool:
        """Whether an open connection was made with a certificate that is now revoked."""
        key = getattr(tls, "certificate_key", None)
        return key is not None and self.has(key)

    def check(self, now: float) -> bool:
        """Check the files; True if they changed and the new lists apply.

        Reads files, so it belongs in a thread. Never raises for their contents.
        """
        stamp = _stamp(self.files)
        changed = False
        if stamp == self._stamp:
            self._failure, self._warned = "", None
        else:
            try:
                lists = read_lists(self.files)
            except ConfigError as exc:
                self._failed(stamp, str(exc))
            else:
                if stamp == _stamp(self.files):  # otherwise replaced while reading
                    self.lists, self._stamp, self._late = lists, stamp, False
                    self._failure, self._warned = "", None
                    changed = True
                    log.info("reloaded %s: %d certificates are revoked", self.files, len(lists))
        self._warn_late(now)
        return changed

    def _warn_late(self, now: float) -> None:
        due = self.lists.next_update
        if due is not None and now > due and not self._late:
            self._late = True
            day = datetime.fromtimestamp(due, UTC).strftime("%Y-%m-%d %H:%M UTC")
            log.warning("%s: a newer list was due on %s; this one still applies", self.files, day)

    def _failed(self, stamp: _Stamp, sentence: str) -> None:
        # A file may be half written while it is replaced; see contexts.py.
        persists = sentence == self._failure
        self._failure = sentence
        if persists and self._warned != (stamp, sentence):
            self._warned = (stamp, sentence)
            self.failures += 1
            log.warning("%s; the previously loaded lists stay in use", sentence)


async def watch(
    all_: Sequence[Revocations], changed: Callable[[], None], interval_s: float = _LOOK_S
) -> None:
    """Check periodically, in a thread; ``changed`` is called in the loop after each reload."""
    while True:
        await asyncio.sleep(interval_s)
        found = await asyncio.to_thread(lambda: [it.check(time.time()) for it in all_])
        if any(found):
            changed()


# Reading.


def key_of(der: bytes) -> Key:
    """The issuer and serial number of a certificate."""
    from cryptography import x509

    certificate = x509.load_der_x509_certificate(der)
    return certificate.issuer, certificate.serial_number


def _named(der: bytes) -> str:
    from cryptography import x509

    certificate = x509.load_der_x509_certificate(der)
    return f"{certificate.subject.rfc4514_string()} ({certificate.serial_number:x})"


def read_lists(files: CrlFiles) -> RevocationLists:
    """Read every list of a file, in PEM or DER, and verify its signature.

    Raises:
        ConfigError: one line that names the file and the problem.
    """
    from cryptography.x509 import DuplicateExtension, InvalidVersion

    try:
        return _read_lists(files)
    except (DuplicateExtension, InvalidVersion, ValueError) as exc:
        # Names, times and numbers are decoded on access, which may be anywhere above.
        raise ConfigError(f"{files}: the list is damaged") from exc


def _read_lists(files: CrlFiles) -> RevocationLists:
    authorities = _authorities(files)
    newest: dict[tuple[x509.Name, bytes], x509.CertificateRevocationList] = {}
    for crl in _crls(files):
        signer = _signer(files, crl, authorities)
        _check_kind(files, crl)
        before = newest.get((crl.issuer, signer))
        if before is None or crl.last_update_utc > before.last_update_utc:
            newest[crl.issuer, signer] = crl
    serials: dict[x509.Name, frozenset[int]] = {}
    due = [crl.next_update_utc.timestamp() for crl in newest.values() if crl.next_update_utc]
    for (issuer, _), crl in newest.items():
        # Authorities with one name are one authority with several keys: each has its own list.
        serials[issuer] = serials.get(issuer, frozenset()) | {it.serial_number for it in crl}
    return RevocationLists(serials=serials, next_update=min(due, default=None))


def _crls(files: CrlFiles) -> list[x509.CertificateRevocationList]:
    from cryptography import x509

    content = _read(str(files), files.crl)
    blocks = pem_blocks(content)
    try:
        if blocks:
            return [x509.load_pem_x509_crl(block) for block in blocks]
        return [x509.load_der_x509_crl(content)]
    except ValueError as exc:
        raise ConfigError(f"{files}: not a list of revoked certificates in PEM or DER") from exc


def pem_blocks(content: bytes) -> list[bytes]:
    """The blocks of a file, with their first and last lines."""
    return [content[begin:end] for (begin, _), (_, end) in pem_places(content, _BEGIN, _END)]


def _authorities(files: CrlFiles) -> list[x509.Certificate]:
    from cryptography import x509

    name = f"{files.ca_label} {files.ca}"
    try:
        return x509.load_pem_x509_certificates(_read(name, files.ca))
    except ValueError as exc:
        raise ConfigError(f"{name}: contains no PEM certificate") from exc


def _signer(
    files: CrlFiles,
    crl: x509.CertificateRevocationList,
    authorities: Sequence[x509.Certificate],
) -> bytes:
    """The key of the authority that signed a list, as bytes."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    issuer = crl.issuer.rfc4514_string()
    issuer = issuer if issuer.isprintable() else repr(issuer)[1:-1]
    named = [it for it in authorities if it.subject == crl.issuer]
    if not named:
        raise ConfigError(f"{files}: the list is issued by {issuer}, which is not in {files.ca}")
    for authority in named:
        try:
            key = authority.public_key()
            good = crl.is_signature_valid(key)  # type: ignore[arg-type]  # others raise, see below
        except (
            TypeError,
            ValueError,
            UnsupportedAlgorithm,
        ):  # a kind of key that cannot sign lists
            good = False
        if good:
            return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    raise ConfigError(f"{files}: the list of {issuer} is not signed by that authority")


def _check_kind(files: CrlFiles, crl: x509.CertificateRevocationList) -> None:
    """Reject partial lists: RFC 5280 §5.2 marks all of their extensions as critical."""
    critical = [it.oid for it in crl.extensions if it.critical]
    if critical:
        what = critical[0].dotted_string
        raise ConfigError(f"{files}: partial and delta lists are not supported (extension {what})")


def _read(name: str, path: str) -> bytes:
    try:
        return read_bytes(path, most_bytes=_MAX_FILE_BYTES)
    except TooLargeError as exc:
        raise ConfigError(f"{name}: is too large") from exc
    except (OSError, ValueError) as exc:
        raise unreadable(name, exc) from exc


def _stamp(files: CrlFiles) -> _Stamp:
    return tuple(stamp_of(path) for path in (files.crl, files.ca))
