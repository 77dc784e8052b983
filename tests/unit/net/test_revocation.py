"""Lists of revoked certificates: what counts, what is refused, and what real handshakes do."""

from __future__ import annotations

import logging
import ssl
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from isthmus.errors import ConfigError
from isthmus.net.contexts import TlsFiles, client_context, server_context
from isthmus.net.revocation import REVOKED, CrlFiles, Revocations, read_lists
from isthmus.tools.pki import making as pki
from isthmus.tools.pki.making import PkiFiles, revoke

NOW = datetime.now(UTC)


@pytest.fixture
def one(tmp_path: Path) -> PkiFiles:
    return pki.init(tmp_path / "one", one_ca=True)


@pytest.fixture
def two(tmp_path: Path) -> PkiFiles:
    """Another authority, of the same name."""
    return pki.init(tmp_path / "two", one_ca=True)


def followed(crl: Path, ca: Path) -> Revocations:
    return Revocations(CrlFiles(crl=str(crl), ca=str(ca), label="--crl-file", ca_label="--ca-cert"))


def both_authorities(one: PkiFiles, two: PkiFiles, at: Path) -> Path:
    at.write_bytes(one.ca_cert.read_bytes() + two.ca_cert.read_bytes())
    return at


def shake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """A whole handshake in memory; raises what the first side raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
    ]
    waiting = list(ends)
    while waiting:
        for end in list(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)


def shake_with(
    revocations: Revocations | None,
    server: PkiFiles,
    client: PkiFiles,
    ca: Path,
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
) -> None:
    """A client's certificate is looked at by a server."""
    theirs = ssl.create_default_context(cafile=str(ca))
    theirs.load_cert_chain(client.client_cert, client.client_key)
    theirs.maximum_version = version
    files = TlsFiles(cert=str(server.server_cert), key=str(server.server_key), ca=str(ca))
    shake(server_context(files, revocations=revocations), theirs)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_revoked_client_is_refused_and_others_are_not(
    one: PkiFiles, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    crl = revoke([one.agent_cert], directory=one.directory).path
    lists = followed(crl, one.ca_cert)
    shake_with(lists, one, one, one.ca_cert, version)
    revoke([one.client_cert], directory=one.directory)
    assert lists.check(time.time())
    with pytest.raises(ssl.SSLCertVerificationError) as caught:
        shake_with(lists, one, one, one.ca_cert, version)
    assert caught.value.reason == REVOKED


def test_a_revoked_server_is_refused(one: PkiFiles) -> None:
    lists = followed(revoke([], directory=one.directory).path, one.ca_cert)
    ours = client_context(TlsFiles(cert="", key="", ca=str(one.ca_cert)), revocations=lists)
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(one.server_cert, one.server_key)
    shake(theirs, ours)
    revoke([one.server_cert], directory=one.directory)
    assert lists.check(time.time())
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(theirs, ours)


def test_an_authority_without_a_list_is_as_good_as_before(
    one: PkiFiles, two: PkiFiles, tmp_path: Path
) -> None:
    # OpenSSL's own check (VERIFY_CRL_CHECK_LEAF) would refuse every certificate of the second.
    ca = both_authorities(one, two, tmp_path / "both.crt")
    lists = followed(revoke([one.client_cert], directory=one.directory).path, ca)
    shake_with(lists, one, two, ca)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_with(lists, one, one, ca)
    openssl = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    openssl.load_cert_chain(one.server_cert, one.server_key)
    openssl.verify_mode = ssl.CERT_REQUIRED
    openssl.load_verify_locations(cafile=str(two.ca_cert))
    openssl.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    theirs = ssl.create_default_context(cafile=str(ca))
    theirs.load_cert_chain(two.client_cert, two.client_key)
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get certificate CRL"):
        shake(openssl, theirs)


def test_lists_of_several_authorities_in_one_file(
    one: PkiFiles, two: PkiFiles, tmp_path: Path
) -> None:
    ca = both_authorities(one, two, tmp_path / "both.crt")
    lists = tmp_path / "both.crl"
    crls = [revoke([it.client_cert], directory=it.directory).path for it in (one, two)]
    lists.write_bytes(b"".join(it.read_bytes() for it in crls))
    followed_ = followed(lists, ca)
    for client in (one, two):
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_with(followed_, one, client, ca)


def test_of_two_lists_of_an_authority_the_newer_counts(one: PkiFiles, tmp_path: Path) -> None:
    old = revoke([one.agent_cert], directory=one.directory, now=NOW - timedelta(days=2))
    both = old.path.read_bytes()
    both = revoke([one.client_cert], directory=one.directory, now=NOW).path.read_bytes() + both
    (tmp_path / "both.crl").write_bytes(both)
    lists = followed(tmp_path / "both.crl", one.ca_cert)
    assert len(lists.lists) == 2
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_with(lists, one, one, one.ca_cert)


def test_der(one: PkiFiles, tmp_path: Path) -> None:
    crl = revoke([one.client_cert], directory=one.directory).path
    der = x509.load_pem_x509_crl(crl.read_bytes()).public_bytes(serialization.Encoding.DER)
    (tmp_path / "list.der").write_bytes(der)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_with(followed(tmp_path / "list.der", one.ca_cert), one, one, one.ca_cert)


def test_a_list_that_is_late_counts_and_warns_once(
    one: PkiFiles, caplog: pytest.LogCaptureFixture
) -> None:
    made = revoke([one.client_cert], directory=one.directory, now=NOW - timedelta(days=9), days=1)
    with caplog.at_level(logging.WARNING, "isthmus.tls"):
        lists = followed(made.path, one.ca_cert)
        lists.check(time.time())
        lists.check(time.time())
    assert [it.getMessage() for it in caplog.records] == [
        f"--crl-file {made.path}: a newer list was due on"
        f" {made.next_update:%Y-%m-%d %H:%M} UTC; this one still applies"
    ]
    assert lists.lists.next_update == made.next_update.timestamp()
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_with(lists, one, one, one.ca_cert)


def test_a_file_that_goes_bad_keeps_the_old_list(
    one: PkiFiles, two: PkiFiles, caplog: pytest.LogCaptureFixture
) -> None:
    crl = revoke([one.client_cert], directory=one.directory).path
    lists = followed(crl, one.ca_cert)
    good = crl.read_bytes()
    # Of the same name, and signed with another key.
    forged = revoke([], directory=two.directory).path.read_bytes()
    for bad, words in ((b"nonsense", "not a list of revoked"), (forged, "is not signed by")):
        crl.write_bytes(bad)
        with caplog.at_level(logging.WARNING, "isthmus.tls"):
            before = lists.failures
            for _ in range(4):
                assert not lists.check(time.time())
            assert lists.failures == before + 1
            assert words in caplog.records[-1].getMessage()
        with pytest.raises(ssl.SSLCertVerificationError):
            shake_with(lists, one, one, one.ca_cert)
    crl.write_bytes(good)
    assert lists.check(time.time())
    crl.unlink()
    assert not lists.check(time.time())
    assert lists.has(_key(one.client_cert))


def _key(path: Path) -> tuple[x509.Name, int]:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    return certificate.issuer, certificate.serial_number


def test_what_is_wrong_at_the_start(one: PkiFiles, two: PkiFiles, tmp_path: Path) -> None:
    crl = revoke([one.client_cert], directory=one.directory).path
    with pytest.raises(ConfigError, match=r"^cannot read --crl-file .*no\.crl: no such file"):
        followed(tmp_path / "no.crl", one.ca_cert)
    with pytest.raises(ConfigError, match="is not signed by that authority"):
        followed(crl, two.ca_cert)
    with pytest.raises(ConfigError, match="not a list of revoked certificates in PEM or DER"):
        followed(one.ca_cert, one.ca_cert)
    with pytest.raises(ConfigError, match=r"^--ca-cert .* contains no PEM certificate"):
        followed(crl, one.ca_key)


def test_a_damaged_list_is_one_sentence_wherever_the_damage_is(
    one: PkiFiles, tmp_path: Path
) -> None:
    """Some of it is seen as late as when a name or a date is asked for."""
    pem = revoke([one.client_cert], directory=one.directory).path.read_bytes()
    der = x509.load_pem_x509_crl(pem).public_bytes(serialization.Encoding.DER)
    path = tmp_path / "list.crl"
    path.write_bytes(der)
    revocations = followed(path, one.ca_cert)
    said = set()
    for at in range(len(der)):
        for wrong in (0x00, 0x1B, 0x80, 0xFF, der[at] ^ 1):
            path.write_bytes(der[:at] + bytes([wrong]) + der[at + 1 :])
            try:
                read_lists(revocations.files)
            except ConfigError as error:
                assert str(error).isprintable()
                said.add(str(error).partition(": ")[2][:20])
    assert "the list is damaged" in said
    path.write_bytes(der.replace(b"isthmus", b"isth\xffus"))
    assert not revocations.check(time.time())  # and the old one counts
    assert len(revocations.lists) == 1


def test_a_certificate_that_cannot_be_read_is_not_admitted(one: PkiFiles) -> None:
    crl = revoke([one.client_cert], directory=one.directory).path
    with pytest.raises(ssl.SSLCertVerificationError, match="cannot be read"):
        followed(crl, one.ca_cert).admit(b"\x30\x03\x02\x01\x05")


def _list_of(files: PkiFiles, path: Path, name: str, *extra: x509.ExtensionType) -> Path:
    key = serialization.load_pem_private_key(files.ca_key.read_bytes(), None)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
        .last_update(NOW)
        .next_update(NOW + timedelta(days=1))
    )
    for extension in extra:
        builder = builder.add_extension(extension, critical=True)
    crl = builder.sign(key, hashes.SHA256())  # type: ignore[arg-type]  # of the kind we make
    path.write_bytes(crl.public_bytes(serialization.Encoding.PEM))
    return path


def test_lists_of_others_and_parts_of_lists_are_refused(one: PkiFiles, tmp_path: Path) -> None:
    path = tmp_path / "list.crl"
    make = partial(_list_of, one, path)
    with pytest.raises(ConfigError, match="the list is issued by CN=somebody, which is not in"):
        followed(make("somebody"), one.ca_cert)
    with pytest.raises(ConfigError, match="partial and delta lists are not supported"):
        followed(make("isthmus-ca", x509.DeltaCRLIndicator(1)), one.ca_cert)
    assert len(followed(make("isthmus-ca"), one.ca_cert).lists) == 0


def test_an_authority_with_a_key_of_no_known_kind_is_one_sentence(
    one: PkiFiles, tmp_path: Path
) -> None:
    # While the program runs, anything else that is raised there would end it.
    crl = revoke([one.client_cert], directory=one.directory).path
    ca = tmp_path / "ca.crt"
    ca.write_bytes(one.ca_cert.read_bytes())
    lists = followed(crl, ca)
    der = ssl.PEM_cert_to_DER_cert(ca.read_text())
    kind = bytes.fromhex("2a8648ce3d0201")  # id-ecPublicKey, RFC 5480 §2.1.1
    assert kind in der
    ca.write_text(ssl.DER_cert_to_PEM_cert(der.replace(kind, kind[:-1] + b"\x7f")))
    assert not lists.check(time.time())
    assert len(lists.lists) == 1  # what was read before stays
    with pytest.raises(ConfigError, match="is not signed by that authority"):
        followed(crl, ca)
