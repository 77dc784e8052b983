"""Creates and revokes the certificates of a small private PKI: CAs, leaves, CRLs.

One CA signs for servers and agents, the other for clients: an agent's certificate is not valid for
a client. The organization of each leaf is its role (settings/rules_roles.py). A directory made by
an older version has one CA, which then signs all.

For trying Isthmus out and for clusters without a certificate authority of their own.
net/certificates.py checks files for a running server, net/revocation.py applies a CRL in servers
and agents, show.py describes certificates, and command.py has the command.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from isthmus.errors import ConfigError, unreadable
from isthmus.settings.rules_roles import Role
from isthmus.tools.pki.show import CertificateInfo, KeyState, show

__all__ = ["CertificateInfo", "KeyState", "OtherNames", "PkiFiles", "init", "renew", "show"]

#: The files of the CA for clients, without their endings.
CLIENT_CA = "client-ca"
DEFAULT_SERVER_NAMES = ("localhost", "127.0.0.1", "::1")
DEFAULT_DAYS = 365
MAX_DAYS = 36_500
CA_DAYS = 3_650

# Clocks differ: a new certificate has to be valid at once on the other machine too.
_CLOCK_SKEW = timedelta(minutes=5)
_LABEL = r"(?!-)[a-z0-9-]{1,63}(?<!-)"
_DNS_NAME = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*", re.IGNORECASE)
_MAX_NAME_CHARS = 253
_Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True, slots=True, kw_only=True)
class PkiFiles:
    """Where the files of one PKI directory are.

    ``ca`` signs for servers and agents, ``client_ca`` for clients; in a directory that has one CA
    they are the same. ``relay`` exists only on request.
    """

    directory: Path
    ca_cert: Path
    ca_key: Path
    client_ca_cert: Path
    client_ca_key: Path
    server_cert: Path
    server_key: Path
    agent_cert: Path
    agent_key: Path
    client_cert: Path
    client_key: Path
    relay_cert: Path
    relay_key: Path

    @classmethod
    def in_directory(cls, directory: str | os.PathLike[str]) -> PkiFiles:
        """The paths of a directory's files; none has to exist."""
        base = Path(directory)
        one = (base / "ca.crt").exists() and not (base / f"{CLIENT_CA}.crt").exists()
        return cls._named(base, "ca" if one else CLIENT_CA)

    @classmethod
    def _named(cls, base: Path, client_ca: str) -> PkiFiles:
        return cls(
            directory=base,
            ca_cert=base / "ca.crt",
            ca_key=base / "ca.key",
            client_ca_cert=base / f"{client_ca}.crt",
            client_ca_key=base / f"{client_ca}.key",
            server_cert=base / "server.crt",
            server_key=base / "server.key",
            agent_cert=base / "agent.crt",
            agent_key=base / "agent.key",
            client_cert=base / "client.crt",
            client_key=base / "client.key",
            relay_cert=base / "relay.crt",
            relay_key=base / "relay.key",
        )

    @property
    def has_one_ca(self) -> bool:
        """One CA signs for agents and clients."""
        return self.client_ca_cert == self.ca_cert


class Signed(NamedTuple):
    """A certificate and its key."""

    certificate: x509.Certificate
    key: _Key


class _Leaf(NamedTuple):
    kind: str
    role: Role
    usage: ObjectIdentifier
    names: Sequence[x509.GeneralName]


class _NewFile(NamedTuple):
    path: Path
    content: bytes
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherNames:
    """DNS names and IP addresses in certificates other than the server's.

    ``relay`` adds a certificate that servers show to other servers.
    """

    agent: Sequence[str] = ()
    client: Sequence[str] = ()
    relay: Sequence[str] = ()


def init(
    directory: str | os.PathLike[str],
    *,
    server_names: Sequence[str] = (),
    other_names: OtherNames = OtherNames(),
    days: int = DEFAULT_DAYS,
    force: bool = False,
    one_ca: bool = False,
    now: datetime | None = None,
) -> PkiFiles:
    """Create CAs and certificates for server, agent and client, valid for ``days``.

    A server without any name is localhost; with ``one_ca`` one CA signs for clients, too. Existing
    files are replaced only with ``force``; everything is checked before anything is written.

    Raises:
        ConfigError: a name or a file is wrong, or a file exists.
    """
    now = now or datetime.now(UTC)
    files = PkiFiles._named(Path(directory), "ca" if one_ca else CLIENT_CA)
    leaves = _leaves(server_names, other_names, days)
    made = ["ca"] if one_ca else ["ca", CLIENT_CA]
    _check_targets(files.directory, [*made, *(leaf.kind for leaf in leaves)], force=force)
    authorities = {kind: _new_authority(kind, now, days) for kind in made}
    new = [file for kind in made for file in _pair(files.directory, kind, authorities[kind])]
    _write(files.directory, [*new, *_signed(leaves, authorities, files, now, days)], force=force)
    return files


def renew(
    directory: str | os.PathLike[str],
    *,
    server_names: Sequence[str] = (),
    other_names: OtherNames = OtherNames(),
    days: int = DEFAULT_DAYS,
    force: bool = False,
    now: datetime | None = None,
) -> PkiFiles:
    """Sign certificates with the CAs of the directory, like ``init``; none outlives its CA.

    Raises:
        ConfigError: a name or a file is wrong, or a file exists.
    """
    now = now or datetime.now(UTC)
    files = PkiFiles.in_directory(directory)
    leaves = _leaves(server_names, other_names, days)
    _check_targets(files.directory, [leaf.kind for leaf in leaves], force=force)
    pairs = {files.ca_cert: files.ca_key, files.client_ca_cert: files.client_ca_key}
    authorities = {cert.stem: read_authority(cert, key, now) for cert, key in pairs.items()}
    _write(files.directory, _signed(leaves, authorities, files, now, days), force=force)
    return files


def _leaves(server_names: Sequence[str], others: OtherNames, days: int) -> list[_Leaf]:
    if not 0 < days <= MAX_DAYS:
        raise ConfigError(f"days must be between 1 and {MAX_DAYS}, not {days}")
    server, client = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
    leaves = [
        _Leaf("server", Role.SERVER, server, _general_names(server_names or DEFAULT_SERVER_NAMES)),
        _Leaf("agent", Role.AGENT, client, _general_names(others.agent)),
        _Leaf("client", Role.CLIENT, client, _general_names(others.client)),
    ]
    if others.relay:
        leaves.append(_Leaf("relay", Role.SERVER, client, _general_names(others.relay)))
    return leaves


def _signed(
    leaves: Iterable[_Leaf],
    authorities: Mapping[str, Signed],
    files: PkiFiles,
    now: datetime,
    days: int,
) -> list[_NewFile]:
    """The files of the leaves; the keys of ``authorities`` are the names of their files."""
    new: list[_NewFile] = []
    for leaf in leaves:
        authority = authorities[files.client_ca_cert.stem if leaf.role is Role.CLIENT else "ca"]
        new += _pair(files.directory, leaf.kind, _issue(leaf, authority, now, days))
    return new


def _general_names(names: Iterable[str]) -> list[x509.GeneralName]:
    return [_general_name(name) for name in dict.fromkeys(names)]


def _general_name(name: str) -> x509.GeneralName:
    with suppress(ValueError):
        address = ip_address(name)
        if "%" not in name:  # a zone has no meaning on another machine
            return x509.IPAddress(address)
    last_label = name.rpartition(".")[2]
    if len(name) > _MAX_NAME_CHARS or last_label.isdigit() or not _DNS_NAME.fullmatch(name):
        raise ConfigError(f"not a DNS name or an IP address: {name!r}")
    return x509.DNSName(name)


def _check_targets(directory: Path, kinds: Sequence[str], *, force: bool) -> None:
    if os.path.lexists(directory) and not directory.is_dir():
        raise ConfigError(f"{directory}: is not a directory")
    for target in [directory / f"{kind}.{ext}" for kind in kinds for ext in ("crt", "key")]:
        if target.is_dir() and not target.is_symlink():
            raise ConfigError(f"{target}: is a directory, not a file")
        if not force and os.path.lexists(target):
            raise ConfigError(f"{target}: already exists; replace it with --force")


def _new_authority(kind: str, now: datetime, days: int) -> Signed:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"isthmus-{kind}")])
    certificate = (
        _builder(name, name, key.public_key(), now, now + timedelta(days=max(days, CA_DAYS)))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Signed(certificate, key)


def _issue(leaf: _Leaf, authority: Signed, now: datetime, days: int) -> Signed:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, leaf.role.value),
            x509.NameAttribute(NameOID.COMMON_NAME, f"isthmus-{leaf.kind}"),
        ]
    )
    until = min(now + timedelta(days=days), issuer.not_valid_after_utc)
    builder = (
        _builder(subject, issuer.subject, key.public_key(), now, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([leaf.usage]), critical=False)
        .add_extension(authority_key_id(authority), critical=False)
    )
    if leaf.names:
        builder = builder.add_extension(x509.SubjectAlternativeName(leaf.names), critical=False)
    return Signed(builder.sign(authority.key, hashes.SHA256()), key)


def authority_key_id(authority: Signed) -> x509.AuthorityKeyIdentifier:
    """The identifier of a CA's key, which its certificates repeat (RFC 5280 §4.2.1.1)."""
    kind = x509.AuthorityKeyIdentifier
    try:
        known = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except x509.ExtensionNotFound:
        return kind.from_issuer_public_key(authority.key.public_key())
    return kind.from_issuer_subject_key_identifier(known.value)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: datetime,
    until: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def read_authority(cert: Path, key_file: Path, now: datetime) -> Signed:
    """Read a CA of a directory, with its key.

    Raises:
        ConfigError: a file is missing or wrong, or the certificate is not a CA or has expired.
    """
    certificate = read_certificate(cert)
    try:
        key = serialization.load_pem_private_key(read_file(key_file), password=None)
    except (ValueError, TypeError) as exc:
        raise ConfigError(f"{key_file}: not a PEM private key without passphrase") from exc
    if not isinstance(key, _Key):
        raise ConfigError(f"{key_file}: neither an ECDSA nor an RSA key")
    if key.public_key() != certificate.public_key():
        raise ConfigError(f"{key_file}: key does not match the certificate in {cert}")
    if certificate.not_valid_after_utc <= now:
        day = certificate.not_valid_after_utc.date()
        raise ConfigError(f"{cert}: certificate expired on {day}")
    if not _is_ca(certificate):
        raise ConfigError(f"{cert}: not a CA certificate")
    return Signed(certificate, key)


def read_certificate(path: Path) -> x509.Certificate:
    """Read a certificate.

    Raises:
        ConfigError: the file is missing or wrong.
    """
    try:
        return x509.load_pem_x509_certificate(read_file(path))
    except ValueError as exc:
        raise ConfigError(f"{path}: contains no PEM certificate") from exc


def _is_ca(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def read_file(path: Path) -> bytes:
    """Read a whole file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as exc:
        raise unreadable(str(path), exc) from exc


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """Write a file by rename: a reader sees the old or the new content, never a part of it.

    Raises:
        ConfigError: it cannot be written.
    """
    _write(path.parent, [_NewFile(path, content, mode)], force=True)


def _pair(directory: Path, kind: str, signed: Signed) -> list[_NewFile]:
    pem = serialization.Encoding.PEM
    secret = signed.key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return [
        _NewFile(directory / f"{kind}.key", secret, 0o600),
        _NewFile(directory / f"{kind}.crt", signed.certificate.public_bytes(pem), 0o644),
    ]


def _write(directory: Path, new: Sequence[_NewFile], *, force: bool) -> None:
    """Write all of the files or, as far as the disk permits, none.

    Raises:
        ConfigError: the directory or a file cannot be written.
    """
    written: list[Path] = []
    was_there = directory.exists()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        moves = []
        for file in new:
            # Replace by rename: a reader sees the old file or the new one, never a part of it.
            suffix = f".{secrets.token_hex(4)}.tmp" if force else ""
            path = file.path.with_name(file.path.name + suffix)
            _create(path, file, written)
            moves.append((path, file.path))
        for source, target in moves if force else ():
            os.replace(source, target)
    except OSError as exc:
        for path in written:
            path.unlink(missing_ok=True)
        if not was_there:
            with suppress(OSError):
                directory.rmdir()
        path_text = exc.filename or directory
        raise ConfigError(f"{path_text}: {(exc.strerror or str(exc)).lower()}") from exc


def _create(path: Path, file: _NewFile, written: list[Path]) -> None:
    # O_EXCL never follows a symbolic link, and the mode is right from the first moment.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, file.mode)
    written.append(path)
    with open(descriptor, "wb") as stream:
        stream.write(file.content)
        stream.flush()
        os.fsync(stream.fileno())


LIST_DAYS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """The list that was written: its path, whom it names, and when the next list is due."""

    path: Path
    added: tuple[str, ...]
    total: int
    next_update: datetime


def revoke(
    certificates: Sequence[str | os.PathLike[str]],
    *,
    directory: str | os.PathLike[str],
    days: int = LIST_DAYS,
    now: datetime | None = None,
) -> Revoked:
    """Like ``revoke_all``, for certificates of one CA; without any, rewrite the list of ``ca``."""
    return revoke_all(certificates, directory=directory, days=days, now=now)[0]


def revoke_all(
    certificates: Sequence[str | os.PathLike[str]],
    *,
    directory: str | os.PathLike[str],
    days: int = LIST_DAYS,
    now: datetime | None = None,
) -> tuple[Revoked, ...]:
    """Add certificates to the lists of the CAs in ``directory`` that signed them.

    A list is beside its CA: ``ca.crl``, ``client-ca.crl``. It keeps its entries and is signed
    again; without any certificate every list is only renewed, for ``days``.

    Raises:
        ConfigError: a file cannot be read, or none of these CAs signed a certificate.
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
    """The authority that signed the certificate, by its file."""
    for cert, authority in authorities.items():
        with suppress(ValueError, TypeError, InvalidSignature):
            certificate.verify_directly_issued_by(authority)
            return cert
    names = " or ".join(it.subject.rfc4514_string() for it in authorities.values())
    raise ConfigError(f"{path}: the certificate is not of {names}")


def _read_list(path: Path, authority: x509.Certificate) -> tuple[int, dict[int, datetime]]:
    """The number of the existing list, and its revoked certificates with their dates."""
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
