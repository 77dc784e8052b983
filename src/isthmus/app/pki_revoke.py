"""Takes certificates of a small private PKI back: writes the list that its CA signs (a CRL).

Making the certificates is app/pki.py; what servers and agents do with the list is
net/revocation.py, and the command is cli/pki.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization

from isthmus.app.pki import (
    MAX_DAYS,
    PkiFiles,
    authority_key_id,
    read_authority,
    read_file,
    replace_file,
)
from isthmus.errors import ConfigError

DEFAULT_DAYS = 30
CRL_NAME = "ca.crl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """What was written: where, whom it names now, and until when another list is due."""

    path: Path
    added: tuple[str, ...]
    total: int
    next_update: datetime


def revoke(
    certificates: Sequence[str | os.PathLike[str]],
    *,
    directory: str | os.PathLike[str],
    days: int = DEFAULT_DAYS,
    now: datetime | None = None,
) -> Revoked:
    """Add certificates to the list of the CA in ``directory``, and sign it anew.

    What is in the list stays there; without any certificate it is only made anew, for ``days``.

    Raises:
        ConfigError: a file cannot be read, or a certificate is not of this CA.
    """
    if not 0 < days <= MAX_DAYS:
        raise ConfigError(f"days must be between 1 and {MAX_DAYS}, not {days}")
    now = (now or datetime.now(UTC)).replace(microsecond=0)
    files = PkiFiles.in_directory(directory)
    authority = read_authority(files, now)
    path = files.directory / CRL_NAME
    number, entries = _read_list(path, authority.certificate)
    added = []
    for file in certificates:
        certificate = _certificate(Path(file), authority.certificate)
        if certificate.serial_number not in entries:
            entries[certificate.serial_number] = now
            added.append(certificate.subject.rfc4514_string())
    due = now + timedelta(days=days)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(now)
        .next_update(due)
        .add_extension(x509.CRLNumber(number + 1), critical=False)
        .add_extension(authority_key_id(authority), critical=False)
    )
    for serial, since in entries.items():
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(since)
        builder = builder.add_revoked_certificate(entry.build())
    signed = builder.sign(authority.key, hashes.SHA256())
    replace_file(path, signed.public_bytes(serialization.Encoding.PEM), 0o644)
    return Revoked(path=path, added=tuple(added), total=len(entries), next_update=due)


def _certificate(path: Path, authority: x509.Certificate) -> x509.Certificate:
    try:
        certificate = x509.load_pem_x509_certificate(read_file(path))
    except ValueError as exc:
        raise ConfigError(f"{path}: no PEM certificate in it") from exc
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature) as exc:
        name = authority.subject.rfc4514_string()
        raise ConfigError(f"{path}: the certificate is not of {name}") from exc
    return certificate


def _read_list(path: Path, authority: x509.Certificate) -> tuple[int, dict[int, datetime]]:
    """The number of the list that is there, and whom it names since when."""
    if not path.exists():
        return 0, {}
    try:
        crl = x509.load_pem_x509_crl(read_file(path))
    except ValueError as exc:
        raise ConfigError(f"{path}: no list of revoked certificates in it") from exc
    if crl.issuer != authority.subject:
        raise ConfigError(f"{path}: the list is of {crl.issuer.rfc4514_string()}")
    try:
        number = crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except x509.ExtensionNotFound:
        number = 0
    return number, {it.serial_number: it.revocation_date_utc for it in crl}
