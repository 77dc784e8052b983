"""Takes certificates of a small private PKI back: writes the lists that its CAs sign (CRLs).

Making the certificates is making.py; what servers and agents do with the list is
net/revocation.py, and the command is command.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization

from isthmus.errors import ConfigError
from isthmus.tools.pki.making import (
    MAX_DAYS,
    PkiFiles,
    Signed,
    authority_key_id,
    read_authority,
    read_certificate,
    read_file,
    replace_file,
)

DEFAULT_DAYS = 30


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
    """As ``revoke_all``, of certificates that one CA signed; without any, its list of ``ca``."""
    return revoke_all(certificates, directory=directory, days=days, now=now)[0]


def revoke_all(
    certificates: Sequence[str | os.PathLike[str]],
    *,
    directory: str | os.PathLike[str],
    days: int = DEFAULT_DAYS,
    now: datetime | None = None,
) -> tuple[Revoked, ...]:
    """Add certificates to the lists of the CAs in ``directory`` that signed them, signed anew.

    A list is beside its CA: ``ca.crl``, ``client-ca.crl``. What is in it stays there; without any
    certificate every list is only made anew, for ``days``.

    Raises:
        ConfigError: a file cannot be read, or a certificate is of none of these CAs.
    """
    if not 0 < days <= MAX_DAYS:
        raise ConfigError(f"days must be between 1 and {MAX_DAYS}, not {days}")
    now = (now or datetime.now(UTC)).replace(microsecond=0)
    files = PkiFiles.in_directory(directory)
    pairs = {files.ca_cert: files.ca_key, files.client_ca_cert: files.client_ca_key}
    known = {cert: read_certificate(cert) for cert in pairs}
    found: dict[Path, list[x509.Certificate]] = {} if certificates else {cert: [] for cert in pairs}
    for file in certificates:
        certificate = read_certificate(Path(file))
        found.setdefault(_signer(Path(file), certificate, known), []).append(certificate)
    authorities = {cert: read_authority(cert, pairs[cert], now) for cert in found}
    return tuple(
        _sign(cert.with_suffix(".crl"), authorities[cert], found[cert], now, days) for cert in found
    )


def _sign(
    path: Path,
    authority: Signed,
    certificates: Sequence[x509.Certificate],
    now: datetime,
    days: int,
) -> Revoked:
    number, entries = _read_list(path, authority.certificate)
    added = []
    for certificate in certificates:
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


def _signer(
    path: Path, certificate: x509.Certificate, authorities: Mapping[Path, x509.Certificate]
) -> Path:
    """Which of the authorities signed it, by their files."""
    for cert, authority in authorities.items():
        with suppress(ValueError, TypeError, InvalidSignature):
            certificate.verify_directly_issued_by(authority)
            return cert
    names = " or ".join(it.subject.rfc4514_string() for it in authorities.values())
    raise ConfigError(f"{path}: the certificate is not of {names}")


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
