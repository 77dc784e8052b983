"""RSA keys instead of P-256 for bench/links.py: many clusters' own CAs use RSA."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from isthmus.tools.pki.making import PkiFiles

_BITS = 2048


def rsa_leaves(files: PkiFiles) -> None:
    """Replace the certificates of server and agents by equal ones with RSA 2048 keys."""
    authority = serialization.load_pem_private_key(files.ca_key.read_bytes(), None)
    for cert, key in ((files.server_cert, files.server_key), (files.agent_cert, files.agent_key)):
        _again(cert, key, authority)


def _again(cert: Path, key: Path, authority: object) -> None:
    old = x509.load_pem_x509_certificate(cert.read_bytes())
    made = rsa.generate_private_key(public_exponent=65537, key_size=_BITS)
    builder = x509.CertificateBuilder(
        issuer_name=old.issuer,
        subject_name=old.subject,
        public_key=made.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=old.not_valid_before_utc,
        not_valid_after=old.not_valid_after_utc,
    )
    for extension in old.extensions:
        if not isinstance(extension.value, x509.SubjectKeyIdentifier):
            builder = builder.add_extension(extension.value, extension.critical)
    signed = builder.sign(authority, hashes.SHA256())  # type: ignore[arg-type]  # of an EC key
    cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        made.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
