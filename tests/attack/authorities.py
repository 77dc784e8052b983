"""An authority of somebody else, and the certificates that it issues."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from isthmus.tools.pki import making as pki


class Pair(NamedTuple):
    """A certificate and its key; empty: none is shown."""

    cert: str = ""
    key: str = ""


class Authority:
    """A CA of somebody else, whose certificates say nothing of Isthmus and are good for all."""

    def __init__(self, files: pki.PkiFiles, directory: Path) -> None:
        self._issuer = x509.load_pem_x509_certificate(files.ca_cert.read_bytes())
        key = serialization.load_pem_private_key(files.ca_key.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key
        self._directory = directory
        directory.mkdir()

    def issue(self, name: str, *sans: x509.GeneralName) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = [x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else []
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(subject))
            .issuer_name(self._issuer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
        )
        if sans:
            builder = builder.add_extension(x509.SubjectAlternativeName(sans), critical=not name)
        pem = serialization.Encoding.PEM
        path = self._directory / f"{len(list(self._directory.iterdir()))}"
        certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(pem)
        secret = key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path.with_suffix(".crt").write_bytes(certificate)
        path.with_suffix(".key").write_bytes(secret)
        return Pair(str(path.with_suffix(".crt")), str(path.with_suffix(".key")))
