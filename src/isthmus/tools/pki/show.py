"""Describes certificate files for people and programs; shows no secret and changes no file.

making.py creates certificates.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID

from isthmus.errors import ConfigError, unreadable
from isthmus.net.rules_expiry import Standing, standing

_SUFFIXES = (".crt", ".pem", ".cer")
_PRIVATE = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_USAGES = {
    ExtendedKeyUsageOID.SERVER_AUTH: "server",
    ExtendedKeyUsageOID.CLIENT_AUTH: "client",
    ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE: "any",
}


class KeyState(Enum):
    """What is known about the private key of a certificate."""

    MATCHES = "matches"
    DIFFERS = "does not match"
    MISSING = "missing"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateInfo:
    """One certificate of a file. ``days_left`` is negative after it has expired."""

    path: Path
    subject: str
    issuer: str
    names: tuple[str, ...]
    usages: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    days_left: int
    standing: Standing
    fingerprint_sha256: str
    key: KeyState

    def to_json(self) -> dict[str, object]:
        """The certificate as a JSON object."""
        return {
            "path": str(self.path),
            "subject": self.subject,
            "issuer": self.issuer,
            "names": list(self.names),
            "usages": list(self.usages),
            "notBefore": self.not_before.isoformat(),
            "notAfter": self.not_after.isoformat(),
            "daysLeft": self.days_left,
            "standing": self.standing.value,
            "fingerprintSha256": self.fingerprint_sha256,
            "key": self.key.value,
        }


def show(
    paths: Sequence[str | os.PathLike[str]], *, now: datetime | None = None
) -> list[CertificateInfo]:
    """Describe every certificate in the files, and in the certificate files of the directories.

    Raises:
        ConfigError: a path cannot be read or has no certificate.
    """
    now = now or datetime.now(UTC)
    found: list[CertificateInfo] = []
    for path in map(Path, paths):
        infos = _in_directory(path, now) if path.is_dir() else _in_file(path, _read(path), now)
        if not infos:
            raise ConfigError(f"{path}: contains no PEM certificate")
        found += infos
    return found


def _in_directory(directory: Path, now: datetime) -> list[CertificateInfo]:
    try:
        files = sorted(path for path in directory.iterdir() if path.suffix in _SUFFIXES)
    except OSError as exc:
        raise ConfigError(f"{directory}: {(exc.strerror or str(exc)).lower()}") from exc
    return [info for file in files for info in _in_file(file, _read(file), now)]


def _in_file(path: Path, content: bytes, now: datetime) -> list[CertificateInfo]:
    if b"CERTIFICATE-----" not in content:
        return []
    try:
        certificates = x509.load_pem_x509_certificates(content)
        # The key belongs to the first; the others are its chain, or a bundle of CAs.
        keys = [_key_state(path, content, certificates[0])]
        keys += [KeyState.MISSING] * (len(certificates) - 1)
        return [_describe(path, *pair, now) for pair in zip(certificates, keys, strict=True)]
    except ValueError as exc:
        raise ConfigError(f"{path}: contains a damaged certificate") from exc


def _describe(
    path: Path, certificate: x509.Certificate, key: KeyState, now: datetime
) -> CertificateInfo:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return CertificateInfo(
        path=path,
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        names=names_of(certificate),
        usages=_usages(certificate),
        not_before=start,
        not_after=end,
        days_left=(end - now).days,
        standing=standing(not_before=start, not_after=end, now=now),
        fingerprint_sha256=certificate.fingerprint(hashes.SHA256()).hex(":").upper(),
        key=key,
    )


def names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """The subject alternative names of the certificate."""
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return ()
    return tuple(
        name.value.rfc4514_string() if isinstance(name, x509.DirectoryName) else str(name.value)
        for name in extension.value
    )


def _usages(certificate: x509.Certificate) -> tuple[str, ...]:
    extensions = {extension.oid: extension.value for extension in certificate.extensions}
    found = []
    constraints = extensions.get(ExtensionOID.BASIC_CONSTRAINTS)
    if isinstance(constraints, x509.BasicConstraints) and constraints.ca:
        found.append("CA")
    usages = extensions.get(ExtensionOID.EXTENDED_KEY_USAGE)
    if isinstance(usages, x509.ExtendedKeyUsage):
        found += [_USAGES.get(oid, oid.dotted_string) for oid in usages]
    return tuple(found)


def _key_state(path: Path, content: bytes, certificate: x509.Certificate) -> KeyState:
    for candidate in (path, path.with_suffix(".key"), path.with_name(f"{path.stem}-key.pem")):
        try:
            text = content if candidate == path else candidate.read_bytes()
            if candidate == path and not _PRIVATE.search(text):
                continue
            key = serialization.load_pem_private_key(text, password=None)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError):
            return KeyState.UNREADABLE
        same = key.public_key() == certificate.public_key()
        return KeyState.MATCHES if same else KeyState.DIFFERS
    return KeyState.MISSING


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise unreadable(str(path), exc) from exc
