"""Each thing that can be wrong with a TLS file, and the sentence that says so."""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from isthmus.errors import ConfigError
from isthmus.net.certificates import Purpose, TlsFiles, check_files
from isthmus.tools.pki import making as pki

LABELS = ("--server-cert", "--server-key", "--server-ca-cert")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    return pki.init(tmp_path_factory.mktemp("pki"))


def server_files(files: pki.PkiFiles, **changes: Path | str) -> TlsFiles:
    paths = {"cert": files.server_cert, "key": files.server_key, "ca": files.ca_cert} | changes
    return TlsFiles(str(paths["cert"]), str(paths["key"]), str(paths["ca"]), labels=LABELS)


def sentence(files: TlsFiles, purpose: Purpose = "server", now: datetime | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        check_files(files, purpose=purpose, now=now.timestamp() if now else None)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_good_files_give_their_expiries(made: pki.PkiFiles) -> None:
    expiries = check_files(server_files(made), purpose="server")
    infos = pki.show([made.server_cert, made.ca_cert])
    assert expiries == {
        str(info.path): (info.not_before.timestamp(), info.not_after.timestamp()) for info in infos
    }


def test_a_client_needs_no_files_at_all() -> None:
    assert check_files(TlsFiles("", "", ""), purpose="client") == {}


def test_a_file_that_is_not_there(made: pki.PkiFiles, tmp_path: Path) -> None:
    gone = tmp_path / "gone.pem"
    flags = dict(zip(("cert", "key", "ca"), LABELS, strict=True))
    for name, flag in flags.items():
        text = sentence(server_files(made, **{name: gone}))
        assert text == (
            f'cannot read {flag} {gone}: no such file; create one with "isthmus pki init"'
        )


def test_a_directory_a_pipe_and_a_huge_file(made: pki.PkiFiles, tmp_path: Path) -> None:
    text = sentence(server_files(made, key=tmp_path))
    assert text == f"cannot read --server-key {tmp_path}: is a directory"
    os.mkfifo(tmp_path / "pipe")
    assert sentence(server_files(made, ca=tmp_path / "pipe")).endswith("is a pipe, not a file")
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(1 << 30)
    assert sentence(server_files(made, cert=tmp_path / "huge")).endswith("too large for a PEM file")


def test_a_file_that_may_not_be_read(made: pki.PkiFiles, tmp_path: Path) -> None:
    closed = tmp_path / "closed.key"
    closed.write_bytes(made.server_key.read_bytes())
    closed.chmod(0)
    # Root may read anything; the directories above are closed to another user too.
    was_root = os.geteuid() == 0
    cert = tmp_path / "cert.crt"
    cert.write_bytes(made.server_cert.read_bytes())
    if was_root:
        os.seteuid(65534)
    try:
        text = sentence(server_files(made, cert=cert if was_root else made.server_cert, key=closed))
    finally:
        if was_root:
            os.seteuid(0)
    assert (
        text
        == f"cannot read {LABELS[0] if was_root else LABELS[1]} {cert if was_root else closed}"
        + (": permission denied")
    )


def test_what_is_not_pem(made: pki.PkiFiles, tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.write_bytes(b"\x30\x82\x00\xff not PEM")
    assert sentence(server_files(made, cert=junk)) == (
        f"--server-cert {junk}: contains no PEM certificate"
    )
    assert sentence(server_files(made, key=junk)) == f"--server-key {junk}: not a PEM private key"
    assert sentence(server_files(made, ca=junk)) == (
        f"--server-ca-cert {junk}: contains no PEM certificate"
    )
    # A certificate where a key belongs, and the other way round.
    assert "not a PEM private key" in sentence(server_files(made, key=made.server_cert))
    assert "contains no PEM certificate" in sentence(server_files(made, ca=made.ca_key))


def test_every_damaged_certificate_is_a_sentence(made: pki.PkiFiles, tmp_path: Path) -> None:
    der = x509.load_pem_x509_certificate(made.ca_cert.read_bytes()).public_bytes(
        serialization.Encoding.DER
    )
    broken = tmp_path / "broken.crt"
    for size in range(len(der)):
        pem = as_pem(der[:size])
        broken.write_text(pem)
        assert sentence(server_files(made, ca=broken)) in (
            f"--server-ca-cert {broken}: contains a damaged certificate",
            f"--server-ca-cert {broken}: contains no PEM certificate",
        )


def as_pem(der: bytes) -> str:
    text = base64.encodebytes(der).decode()
    return f"-----BEGIN CERTIFICATE-----\n{text}-----END CERTIFICATE-----\n"


def test_a_key_of_another_certificate(made: pki.PkiFiles) -> None:
    assert sentence(server_files(made, key=made.agent_key)) == (
        f"--server-key {made.agent_key}: key does not match the certificate in {made.server_cert}"
    )


def test_an_encrypted_key_does_not_ask_for_its_passphrase(
    made: pki.PkiFiles, tmp_path: Path
) -> None:
    locked = tmp_path / "locked.key"
    key = serialization.load_pem_private_key(made.server_key.read_bytes(), None)
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    assert "key is encrypted" in sentence(server_files(made, key=locked))


def test_an_expired_and_a_future_certificate(tmp_path: Path) -> None:
    made_at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    files = server_files(pki.init(tmp_path, days=1, now=made_at))
    check_files(files, purpose="server", now=(made_at + timedelta(hours=23)).timestamp())
    assert sentence(files, now=made_at + timedelta(days=2)) == (
        f"--server-cert {files.cert}: certificate expired on 2026-01-02"
    )
    assert sentence(files, now=made_at - timedelta(days=2)) == (
        f"--server-cert {files.cert}: certificate is not valid before 2026-01-01"
    )


def test_an_expired_ca_beside_a_good_one_is_a_rotation(made: pki.PkiFiles, tmp_path: Path) -> None:
    old = pki.init(tmp_path / "old", days=1, now=datetime(2001, 1, 1, tzinfo=UTC))
    assert sentence(server_files(made, ca=old.ca_cert)) == (
        f"--server-ca-cert {old.ca_cert}: certificate expired on 2010-12-30"
    )
    bundle = tmp_path / "bundle.crt"
    bundle.write_bytes(old.ca_cert.read_bytes() + b"# text\n" + made.ca_cert.read_bytes())
    expiries = check_files(server_files(made, ca=bundle), purpose="server")
    (good,) = pki.show([made.ca_cert])
    assert expiries[str(bundle)].not_after == good.not_after.timestamp()


def test_a_future_ca(made: pki.PkiFiles, tmp_path: Path) -> None:
    future = pki.init(tmp_path, now=datetime(2099, 5, 6, 12, tzinfo=UTC))
    assert sentence(server_files(made, ca=future.ca_cert)) == (
        f"--server-ca-cert {future.ca_cert}: certificate is not valid before 2099-05-06"
    )


def test_a_certificate_for_the_other_side(made: pki.PkiFiles) -> None:
    agent = server_files(made, cert=made.agent_cert, key=made.agent_key)
    assert "certificate cannot be used for a TLS server" in sentence(agent)
    check_files(agent, purpose="client")
    assert "certificate cannot be used for a TLS client" in sentence(server_files(made), "client")


def test_half_a_pair_and_no_pair(made: pki.PkiFiles) -> None:
    assert sentence(server_files(made, key="")) == (
        f"--server-cert {made.server_cert}: given without a --server-key"
    )
    assert sentence(TlsFiles("", str(made.agent_key), ""), "client") == (
        f"key file {made.agent_key}: given without a certificate"
    )
    assert sentence(server_files(made, cert="", key="")).startswith("--server-cert: required")


Change = Callable[[x509.CertificateBuilder], x509.CertificateBuilder]


def issue(path: Path, start: datetime, end: datetime, change: Change) -> TlsFiles:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, start, end)
    certificate = change(builder).sign(key, hashes.SHA256())
    (path / "c").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (path / "k").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return TlsFiles(str(path / "c"), str(path / "k"), "")


@pytest.mark.parametrize("year", [1950, 1999, 2049, 2050, 2120, 9999])
def test_dates_of_both_centuries_and_encodings(tmp_path: Path, year: int) -> None:
    # RFC 5280 §4.1.2.5: UTCTime through 2049, GeneralizedTime from 2050 on.
    end = datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC)
    files = issue(tmp_path, datetime(1950, 1, 1, tzinfo=UTC), end, lambda builder: builder)
    moment = (end - timedelta(seconds=1)).timestamp()
    found = check_files(files, purpose="server", now=moment)
    assert {path: it.not_after for path, it in found.items()} == {files.cert: end.timestamp()}


@pytest.mark.parametrize("critical", [True, False])
def test_a_certificate_for_any_use_or_with_several(tmp_path: Path, critical: bool) -> None:
    day = datetime(2030, 1, 1, tzinfo=UTC)
    usages = [ExtendedKeyUsageOID.CODE_SIGNING, ExtendedKeyUsageOID.CLIENT_AUTH]
    both = [*usages, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE]
    for oids, fine in ((usages, False), (both, True)):
        files = issue(
            tmp_path,
            day,
            day + timedelta(days=2),
            lambda builder, oids=oids: builder.add_extension(  # type: ignore[misc]
                x509.ExtendedKeyUsage(oids), critical
            ),
        )
        if fine:
            check_files(files, purpose="server", now=day.timestamp() + 1)
        else:
            assert "cannot be used for a TLS server" in sentence(files, now=day + timedelta(days=1))


def test_dates_are_those_that_openssl_prints(made: pki.PkiFiles) -> None:
    done = subprocess.run(
        ["openssl", "x509", "-in", str(made.server_cert), "-noout", "-enddate"],
        capture_output=True,
        text=True,
        check=True,
    )
    printed = datetime.strptime(done.stdout.strip(), "notAfter=%b %d %H:%M:%S %Y GMT")
    expiries = check_files(server_files(made), purpose="server")
    assert expiries[str(made.server_cert)].not_after == printed.replace(tzinfo=UTC).timestamp()
