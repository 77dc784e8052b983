"""The list of a small private PKI: who is in it, and that OpenSSL reads it."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from isthmus.cli.main import main
from isthmus.errors import ConfigError
from isthmus.tools.pki import making as pki
from isthmus.tools.pki.making import revoke, revoke_all

NOW = datetime.now(UTC).replace(microsecond=0)


def serials(path: Path) -> set[int]:
    return {it.serial_number for it in x509.load_pem_x509_crl(path.read_bytes())}


def serial(path: Path) -> int:
    return x509.load_pem_x509_certificate(path.read_bytes()).serial_number


def test_certificates_are_added_and_stay(tmp_path: Path) -> None:
    files = pki.init(tmp_path, one_ca=True)
    first = revoke([files.agent_cert], directory=tmp_path, now=NOW)
    assert (first.total, first.added) == (1, ("CN=isthmus-agent,O=isthmus:agents",))
    assert first.next_update == NOW + timedelta(days=30)
    later = NOW + timedelta(hours=1)
    second = revoke([files.agent_cert, files.client_cert], directory=tmp_path, now=later, days=1)
    assert (second.total, second.added) == (2, ("CN=isthmus-client,O=isthmus:clients",))
    assert serials(tmp_path / "ca.crl") == {serial(files.agent_cert), serial(files.client_cert)}
    crl = x509.load_pem_x509_crl((tmp_path / "ca.crl").read_bytes())
    since = {it.serial_number: it.revocation_date_utc for it in crl}
    assert since[serial(files.agent_cert)] == NOW
    assert crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number == 2
    assert sorted(path.name for path in tmp_path.glob("ca.*")) == ["ca.crl", "ca.crt", "ca.key"]


def test_openssl_reads_it(tmp_path: Path) -> None:
    files = pki.init(tmp_path, one_ca=True)
    crl = revoke([files.agent_cert], directory=tmp_path).path

    def verify(certificate: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["openssl", "verify", "-crl_check", "-CAfile", files.ca_cert, "-CRLfile", crl,
             certificate],
            capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip

    assert verify(files.client_cert).returncode == 0
    refused = verify(files.agent_cert)
    assert refused.returncode != 0 and "certificate revoked" in refused.stderr


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = pki.init(tmp_path)
    assert main(["pki", "revoke", str(files.agent_cert)]) == 0
    assert capsys.readouterr().out.startswith(
        "revoked CN=isthmus-agent,O=isthmus:agents\n"
        f"{tmp_path}/ca.crl: 1 revoked, the next list is due on 20"
    )
    assert main(["pki", "revoke", "--ca", str(tmp_path), "--days", "90"]) == 0
    assert "1 revoked" in capsys.readouterr().out


def test_each_certificate_goes_to_the_list_of_its_own_authority(tmp_path: Path) -> None:
    files = pki.init(tmp_path)
    made = revoke_all([files.client_cert, files.agent_cert], directory=tmp_path)
    assert {it.path.name: it.total for it in made} == {"client-ca.crl": 1, "ca.crl": 1}
    assert serials(tmp_path / "ca.crl") == {serial(files.agent_cert)}
    assert serials(tmp_path / "client-ca.crl") == {serial(files.client_cert)}
    assert [it.total for it in revoke_all([], directory=tmp_path)] == [1, 1]


def test_what_is_wrong(tmp_path: Path) -> None:
    files = pki.init(tmp_path / "one")
    other = pki.init(tmp_path / "other")
    with pytest.raises(
        ConfigError, match="the certificate is not of CN=isthmus-ca or CN=isthmus-client-ca"
    ):
        revoke([other.agent_cert], directory=files.directory)
    with pytest.raises(ConfigError, match="contains no PEM certificate"):
        revoke([files.agent_key], directory=files.directory)
    with pytest.raises(ConfigError, match="no such file"):
        revoke([tmp_path / "no.crt"], directory=files.directory)
    with pytest.raises(ConfigError, match="days must be between"):
        revoke([], directory=files.directory, days=0)
    assert not (files.directory / "ca.crl").exists()
    (files.directory / "ca.crl").write_text("nonsense")
    with pytest.raises(ConfigError, match="no list of revoked certificates in it"):
        revoke([files.agent_cert], directory=files.directory)
