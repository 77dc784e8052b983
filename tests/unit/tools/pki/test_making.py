"""The PKI on real files, held against the openssl command."""

from __future__ import annotations

import os
import re
import resource
import signal
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from isthmus.errors import ConfigError
from isthmus.tools.pki import making as pki
from isthmus.tools.pki.making import KeyState

KINDS = ("agent", "ca", "client-ca", "client", "server")
NAMES = [f"{kind}.{ext}" for kind in KINDS for ext in ("crt", "key")]


def openssl(*args: str | Path) -> str:
    done = subprocess.run(["openssl", *map(str, args)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_directory_has_ten_files_and_keys_are_private(tmp_path: Path) -> None:
    old_mask = os.umask(0)
    try:
        files = pki.init(tmp_path / "deep" / "pki")
    finally:
        os.umask(old_mask)
    assert sorted(contents(files.directory)) == NAMES
    assert mode(files.directory) == 0o700
    for path in files.directory.glob("*.key"):
        assert mode(path) == 0o600
    for path in files.directory.glob("*.crt"):
        assert mode(path) == 0o644


def test_an_existing_directory_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    pki.init(tmp_path)
    assert mode(tmp_path) == 0o755


@pytest.mark.parametrize(
    ("kind", "purpose"), [("server", "sslserver"), ("agent", "sslclient"), ("client", "sslclient")]
)
def test_openssl_accepts_the_chain_for_its_purpose_only(
    tmp_path: Path, kind: str, purpose: str
) -> None:
    pki.init(tmp_path)
    authority = "client-ca.crt" if kind == "client" else "ca.crt"
    chain = ("-CAfile", tmp_path / authority, tmp_path / f"{kind}.crt")
    assert "OK" in openssl("verify", "-x509_strict", "-purpose", purpose, *chain)
    other = {"sslserver": "sslclient", "sslclient": "sslserver"}[purpose]
    with pytest.raises(AssertionError, match="unsuitable certificate purpose"):
        openssl("verify", "-purpose", other, *chain)


def test_openssl_reads_usages_names_and_subject(tmp_path: Path) -> None:
    pki.init(
        tmp_path,
        server_names=["proxy.example.com", "*.example.org", "192.0.2.10", "2001:db8::1"],
        other_names=pki.OtherNames(agent=["node-1"]),
    )
    server = openssl("x509", "-in", tmp_path / "server.crt", "-noout", "-text")
    assert "Subject: O = isthmus:servers, CN = isthmus-server" in server
    assert "id-ecPublicKey" in server
    assert "prime256v1" in server
    assert "CA:FALSE" in server
    assert re.search(r"X509v3 Key Usage: critical\n\s+Digital Signature\n", server)
    assert re.search(r"X509v3 Extended Key Usage: ?\n\s+TLS Web Server Authentication\n", server)
    assert (
        "DNS:proxy.example.com, DNS:*.example.org,"
        " IP Address:192.0.2.10, IP Address:2001:DB8:0:0:0:0:0:1\n"
    ) in server
    agent = openssl("x509", "-in", tmp_path / "agent.crt", "-noout", "-text")
    assert "Subject: O = isthmus:agents, CN = isthmus-agent" in agent
    assert re.search(r"X509v3 Extended Key Usage: ?\n\s+TLS Web Client Authentication\n", agent)
    assert "DNS:node-1" in agent
    client = openssl("x509", "-in", tmp_path / "client.crt", "-noout", "-text")
    assert "Subject: O = isthmus:clients, CN = isthmus-client" in client
    assert "Subject Alternative Name" not in client
    authority = openssl("x509", "-in", tmp_path / "ca.crt", "-noout", "-text")
    assert "CA:TRUE, pathlen:0" in authority
    assert re.search(r"X509v3 Key Usage: critical\n\s+Certificate Sign, CRL Sign\n", authority)


def test_a_server_without_names_is_localhost(tmp_path: Path) -> None:
    files = pki.init(tmp_path)
    (info,) = pki.show([files.server_cert])
    assert info.names == ("localhost", "127.0.0.1", "::1")


def test_days_are_those_asked_for_and_the_ca_lasts_longer(tmp_path: Path) -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    files = pki.init(tmp_path, days=30, now=now)
    leaf, authority = pki.show([files.server_cert, files.ca_cert], now=now)
    assert leaf.not_after == datetime(2030, 1, 31, tzinfo=UTC)
    assert leaf.not_before < now
    assert leaf.days_left == 30
    assert authority.not_after == now + timedelta(days=3650)


@pytest.mark.parametrize("days", [0, -1, 36_501])
def test_days_out_of_range_write_nothing(tmp_path: Path, days: int) -> None:
    with pytest.raises(ConfigError, match=r"days must be between 1 and 36500"):
        pki.init(tmp_path / "pki", days=days)
    assert not (tmp_path / "pki").exists()


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "a b", "host:443", "https://host", "[::1]", "10.0.0.256", "1.2.3", "-a.example"),
        *("a-.example", "a..b", "host.", ".host", "a.*.b", "*", "*.", "fe80::1%eth0", "bücher.de"),
        *("a" * 64, ".".join(["a" * 50] * 6), "a/b", "a\n", "a\x00"),
    ],
)
def test_a_name_that_is_none_writes_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="not a DNS name or an IP address") as caught:
        pki.init(tmp_path / "pki", server_names=["good.example", name])
    assert repr(name) in str(caught.value)
    assert not (tmp_path / "pki").exists()


@pytest.mark.parametrize("existing", NAMES)
def test_nothing_is_written_when_one_file_exists(tmp_path: Path, existing: str) -> None:
    (tmp_path / existing).write_bytes(b"precious")
    with pytest.raises(ConfigError, match=rf"{existing}: already exists; replace it with --force"):
        pki.init(tmp_path)
    assert contents(tmp_path) == {existing: b"precious"}


def test_a_dangling_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "pki").mkdir()
    (tmp_path / "pki" / "ca.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"ca\.key: already exists"):
        pki.init(tmp_path / "pki")
    pki.init(tmp_path / "pki", force=True)
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "pki" / "ca.key").is_symlink()


def test_force_replaces_all_and_leaves_nothing_else(tmp_path: Path) -> None:
    before = contents(pki.init(tmp_path).directory)
    (tmp_path / "server.key").chmod(0o644)
    after = contents(pki.init(tmp_path, force=True).directory)
    assert sorted(after) == NAMES
    assert not set(before.values()) & set(after.values())
    assert mode(tmp_path / "server.key") == 0o600
    assert {info.key for info in pki.show([tmp_path])} == {KeyState.MATCHES}


def test_force_does_not_replace_a_directory(tmp_path: Path) -> None:
    (tmp_path / "client.crt").mkdir()
    with pytest.raises(ConfigError, match=r"client\.crt: is a directory, not a file"):
        pki.init(tmp_path, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["client.crt"]


def test_a_write_that_fails_midway_leaves_nothing(tmp_path: Path) -> None:
    before = contents(pki.init(tmp_path / "old").directory)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))  # a key fits, a certificate does not
    try:
        with pytest.raises(ConfigError, match="file too large"):
            pki.init(tmp_path / "new")
        with pytest.raises(ConfigError, match="file too large"):
            pki.init(tmp_path / "old", force=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert not (tmp_path / "new").exists()
    assert contents(tmp_path / "old") == before


def test_a_path_below_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file: is not a directory"):
        pki.init(tmp_path / "file")
    with pytest.raises(ConfigError, match="not a directory"):
        pki.init(tmp_path / "file" / "below")


def test_keep_ca_reissues_leaves_from_the_same_authority(tmp_path: Path) -> None:
    before = contents(pki.init(tmp_path).directory)
    with pytest.raises(ConfigError, match=r"server\.crt: already exists"):
        pki.renew(tmp_path)
    after = contents(pki.renew(tmp_path, force=True).directory)
    unchanged = {name for name in NAMES if before[name] == after[name]}
    assert unchanged == {"ca.crt", "ca.key", "client-ca.crt", "client-ca.key"}
    assert "OK" in openssl("verify", "-CAfile", tmp_path / "ca.crt", tmp_path / "server.crt")


def test_each_authority_signs_for_its_own_side(tmp_path: Path) -> None:
    files = pki.init(tmp_path, other_names=pki.OtherNames(relay=["relay.example"]))
    assert not files.has_one_ca
    issuers = {info.path.stem: info.issuer for info in pki.show([tmp_path])}
    assert {kind for kind, issuer in issuers.items() if issuer == "CN=isthmus-client-ca"} == {
        "client-ca",
        "client",
    }
    assert pki.PkiFiles.in_directory(tmp_path) == files


def test_a_directory_with_one_authority_goes_on(tmp_path: Path) -> None:
    files = pki.init(tmp_path, one_ca=True)
    assert files.has_one_ca and files.client_ca_cert == files.ca_cert
    assert pki.PkiFiles.in_directory(tmp_path) == files
    assert pki.renew(tmp_path, force=True) == files
    assert {info.issuer for info in pki.show([tmp_path])} == {"CN=isthmus-ca"}
    # Made anew, it has two.
    assert not pki.init(tmp_path, force=True).has_one_ca


def test_a_leaf_does_not_outlive_the_kept_ca(tmp_path: Path) -> None:
    made = datetime(2030, 1, 1, tzinfo=UTC)
    files = pki.init(tmp_path, now=made)
    late = made + timedelta(days=3600)
    pki.renew(tmp_path, force=True, days=365, now=late)
    leaf, authority = pki.show([files.agent_cert, files.ca_cert])
    assert leaf.not_after == authority.not_after
    with pytest.raises(ConfigError, match=r"ca\.crt: certificate expired on 2039-12-30"):
        pki.renew(tmp_path, force=True, now=made + timedelta(days=3651))


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("ca.crt", None, r"ca\.crt: no such file"),
        ("ca.key", None, r"ca\.key: no such file"),
        ("ca.crt", b"no", r"ca\.crt: contains no PEM certificate"),
        ("ca.key", b"no", r"ca\.key: not a PEM private key"),
        ("ca.key", "server.key", r"ca\.key: key does not match the certificate in .*ca\.crt"),
    ],
)
def test_a_kept_ca_must_be_whole(
    tmp_path: Path, name: str, content: bytes | str | None, sentence: str
) -> None:
    pki.init(tmp_path)
    if isinstance(content, str):
        content = (tmp_path / content).read_bytes()
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match=sentence):
        pki.renew(tmp_path, force=True)
    assert contents(tmp_path) == before


def test_a_leaf_cannot_be_kept_as_ca(tmp_path: Path) -> None:
    pki.init(tmp_path)
    for ext in ("crt", "key"):
        (tmp_path / f"ca.{ext}").write_bytes((tmp_path / f"server.{ext}").read_bytes())
    with pytest.raises(ConfigError, match=r"ca\.crt: not a CA certificate"):
        pki.renew(tmp_path, force=True)


def test_show_describes_a_directory(tmp_path: Path) -> None:
    pki.init(tmp_path)
    (tmp_path / "notes.txt").write_text("not looked at")
    (tmp_path / "only-a-key.pem").write_bytes((tmp_path / "ca.key").read_bytes())
    infos = {info.path.name: info for info in pki.show([tmp_path])}
    assert sorted(infos) == [
        "agent.crt", "ca.crt", "client-ca.crt", "client.crt", "server.crt",
    ]  # fmt: skip
    server = infos["server.crt"]
    assert (server.subject, server.issuer) == (
        "CN=isthmus-server,O=isthmus:servers",
        "CN=isthmus-ca",
    )
    assert (server.usages, infos["ca.crt"].usages) == (("server",), ("CA",))
    printed = openssl("x509", "-in", server.path, "-noout", "-fingerprint", "-sha256")
    assert printed.strip().split("=")[1] == server.fingerprint_sha256


def test_show_says_what_is_wrong_with_a_key(tmp_path: Path) -> None:
    files = pki.init(tmp_path)
    files.server_key.write_bytes(files.agent_key.read_bytes())
    files.agent_key.unlink()
    files.client_key.write_bytes(b"garbage")
    states = {info.path.name: info.key for info in pki.show([tmp_path])}
    assert states == {
        "agent.crt": KeyState.MISSING,
        "ca.crt": KeyState.MATCHES,
        "client-ca.crt": KeyState.MATCHES,
        "client.crt": KeyState.UNREADABLE,
        "server.crt": KeyState.DIFFERS,
    }


def test_show_takes_a_chain_and_a_file_with_both(tmp_path: Path) -> None:
    files = pki.init(tmp_path / "pki")
    both = tmp_path / "both.pem"
    pems = (files.server_cert, files.ca_cert, files.server_key)
    both.write_bytes(b"".join(path.read_bytes() for path in pems))
    infos = pki.show([both])
    assert [(info.subject, info.key) for info in infos] == [
        ("CN=isthmus-server,O=isthmus:servers", KeyState.MATCHES),
        ("CN=isthmus-ca", KeyState.MISSING),
    ]


def test_show_counts_days_below_zero_once_expired(tmp_path: Path) -> None:
    files = pki.init(tmp_path, days=1, now=datetime(2020, 1, 1, tzinfo=UTC))
    (info,) = pki.show([files.server_cert], now=datetime(2020, 1, 4, tzinfo=UTC))
    assert info.days_left == -2


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "x.crt: no such file"),
        (b"", "x.crt: contains no PEM certificate"),
        (
            b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
            "x.crt: contains a damaged certificate",
        ),
    ],
)
def test_show_refuses_what_is_no_certificate(
    tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    if content is not None:
        (tmp_path / "x.crt").write_bytes(content)
    with pytest.raises(ConfigError, match=sentence):
        pki.show([tmp_path / "x.crt"])


def test_show_of_an_empty_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="contains no PEM certificate"):
        pki.show([tmp_path])


def test_keys_are_p256_in_pkcs8(tmp_path: Path) -> None:
    files = pki.init(tmp_path)
    key = serialization.load_pem_private_key(files.server_key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP256R1)
    certificate = x509.load_pem_x509_certificate(files.server_cert.read_bytes())
    assert certificate.public_key() == key.public_key()
