"""Contexts in real handshakes, and their reload from real files."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from isthmus.errors import ConfigError
from isthmus.net.contexts import (
    HotContext,
    TlsFiles,
    client_context,
    peer_identity,
    server_context,
    watch,
)
from isthmus.tools.pki import making as pki
from isthmus.values import ANONYMOUS, Identity

# Taken when tests are collected: an hour on, every certificate is valid however long a run takes.
NOW = datetime.now(UTC).timestamp() + 3600
TLS12, TLS13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


@dataclass
class Pair:
    """Both ends of one TLS connection in memory."""

    server: ssl.SSLObject
    client: ssl.SSLObject
    to_server: ssl.MemoryBIO
    to_client: ssl.MemoryBIO


def connect(
    server: ssl.SSLContext,
    client: ssl.SSLContext,
    *,
    name: str = "localhost",
    session: ssl.SSLSession | None = None,
) -> Pair:
    """Shake hands, both sides to the end; raises what either side raises."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    pair = Pair(
        server.wrap_bio(up, down, server_side=True),
        client.wrap_bio(down, up, server_hostname=name, session=session),
        up,
        down,
    )
    waiting = [pair.client, pair.server]
    while waiting:
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                assert up.pending or down.pending, "both sides wait"
    # What TLS 1.3 says after the handshake (tickets, alerts) is read with the first byte.
    pair.server.write(b"!")
    assert pair.client.read(1) == b"!"
    return pair


def of_server(files: pki.PkiFiles, ca: Path | str | None = None) -> TlsFiles:
    return TlsFiles(
        str(files.server_cert), str(files.server_key), str(files.ca_cert if ca is None else ca)
    )


def of_client(files: pki.PkiFiles, ca: Path | None = None) -> TlsFiles:
    return TlsFiles(str(files.client_cert), str(files.client_key), str(ca or files.ca_cert))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    return pki.init(tmp_path_factory.mktemp("one"), one_ca=True)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    return pki.init(tmp_path_factory.mktemp("two"), one_ca=True)


@pytest.fixture
def live(one: pki.PkiFiles, tmp_path: Path) -> pki.PkiFiles:
    """A copy of the first PKI that a test may change."""
    shutil.copytree(one.directory, tmp_path / "live")
    return pki.PkiFiles.in_directory(tmp_path / "live")


def replace(target: Path, source: Path) -> None:
    """Put a file in place as a careful program does: whole, under a new inode."""
    beside = target.with_name(target.name + ".new")
    shutil.copyfile(source, beside)
    os.replace(beside, target)


def serial(pair: Pair) -> object:
    certificate = pair.client.getpeercert()
    assert certificate is not None
    return certificate["serialNumber"]


# Handshakes


def test_mutual_tls_names_both_sides(one: pki.PkiFiles) -> None:
    pair = connect(server_context(of_server(one)), client_context(of_client(one)))
    assert pair.server.version() == "TLSv1.3"
    assert peer_identity(pair.server) == Identity("isthmus-client", ("isthmus:clients",))
    assert peer_identity(pair.client) == Identity("isthmus-server", ("isthmus:servers",))


@pytest.mark.parametrize("newest", [TLS12, TLS13])
def test_a_client_without_certificate_is_refused(one: pki.PkiFiles, newest: ssl.TLSVersion) -> None:
    client = client_context(TlsFiles("", "", str(one.ca_cert)))
    client.maximum_version = newest
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        connect(server_context(of_server(one)), client)


def test_without_a_ca_anyone_gets_in_and_is_anonymous(one: pki.PkiFiles) -> None:
    pair = connect(server_context(of_server(one, ca="")), client_context(of_client(one)))
    assert peer_identity(pair.server) is ANONYMOUS


def test_a_client_of_another_ca_is_refused(one: pki.PkiFiles, two: pki.PkiFiles) -> None:
    # Both CAs carry the same name: only the key tells them apart.
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(server_context(of_server(one)), client_context(of_client(two, ca=one.ca_cert)))


def test_a_server_certificate_is_no_client_certificate(one: pki.PkiFiles) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="unsuitable certificate purpose"):
        connect(server_context(of_server(one)), client_context(of_server(one)))


def test_a_client_refuses_a_wrong_name_and_a_wrong_ca(one: pki.PkiFiles, two: pki.PkiFiles) -> None:
    server = server_context(of_server(one))
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        connect(server, client_context(of_client(one)), name="elsewhere.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(server, client_context(of_client(one, ca=two.ca_cert)))
    with pytest.raises(ssl.SSLCertVerificationError):  # the system's CAs do not know it either
        connect(server, client_context(TlsFiles("", "", "")))


def test_the_common_name_is_no_host_name(one: pki.PkiFiles, tmp_path: Path) -> None:
    made = pki.init(tmp_path, server_names=["192.0.2.1"], one_ca=True)  # its CN is isthmus-server
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        connect(
            server_context(of_server(made, ca="")),
            client_context(of_client(made)),
            name="isthmus-server",
        )


def test_an_address_is_a_name_too(one: pki.PkiFiles) -> None:
    for name in ("127.0.0.1", "::1"):
        connect(server_context(of_server(one)), client_context(of_client(one)), name=name)


def test_an_intermediate_ca_is_anchor_enough(tmp_path: Path) -> None:
    root, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, cn)]) for cn in ("r", "i")]
    start, end = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)
    certificate = (
        x509.CertificateBuilder(names[0], names[1], key.public_key(), 7, start, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(root, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (tmp_path / "ca.crt").write_bytes(certificate.public_bytes(pem))
    (tmp_path / "ca.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    made = pki.renew(tmp_path)
    connect(server_context(of_server(made)), client_context(of_client(made)))


def test_alpn_is_the_servers_choice_and_none_is_fine(one: pki.PkiFiles) -> None:
    server = server_context(of_server(one), alpn=("isthmus/1", "h2"))
    for offered, chosen in (
        (("h2", "isthmus/1"), "isthmus/1"),
        (("h2",), "h2"),
        (("http/1.1",), None),
        ((), None),
    ):
        pair = connect(server, client_context(of_client(one), alpn=offered))
        assert pair.server.selected_alpn_protocol() == chosen


def test_a_connection_cut_short_is_no_clean_end(one: pki.PkiFiles) -> None:
    for newest in (TLS12, TLS13):
        client = client_context(of_client(one))
        client.maximum_version = newest
        pair = connect(server_context(of_server(one)), client)
        pair.to_server.write_eof()
        with pytest.raises(ssl.SSLEOFError):
            pair.server.read(1)


def test_versions(one: pki.PkiFiles) -> None:
    old = client_context(of_client(one))
    old.maximum_version = TLS12
    pair = connect(server_context(of_server(one), min_version=""), old)
    assert pair.server.version() == "TLSv1.2"
    with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
        connect(server_context(of_server(one), min_version="VersionTLS13"), old)
    with pytest.raises(ConfigError, match="unknown TLS version 'VersionTLS09'"):
        server_context(of_server(one), min_version="VersionTLS09")


def test_cipher_suites_by_their_iana_names(one: pki.PkiFiles) -> None:
    chosen = ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
    server = server_context(of_server(one), cipher_suites=chosen)
    old = client_context(of_client(one))
    old.maximum_version = TLS12
    cipher = connect(server, old).server.cipher()
    assert cipher is not None
    assert cipher[0] == "ECDHE-ECDSA-CHACHA20-POLY1305"
    assert connect(server, client_context(of_client(one))).server.version() == "TLSv1.3"
    with pytest.raises(ConfigError, match="cipher suite 'TLS_RSA_WITH_RC4_128_SHA'"):
        server_context(of_server(one), cipher_suites=("TLS_RSA_WITH_RC4_128_SHA",))


def test_only_tls13_suites_leave_tls12_none(one: pki.PkiFiles) -> None:
    server = server_context(of_server(one), cipher_suites=("TLS_AES_256_GCM_SHA384",))
    old = client_context(of_client(one))
    old.maximum_version = TLS12
    with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
        connect(server, old)
    connect(server, client_context(of_client(one)))


def test_options_that_cannot_be_seen_in_a_handshake(one: pki.PkiFiles) -> None:
    for context in (server_context(of_server(one)), client_context(of_client(one))):
        for option in (ssl.OP_NO_TICKET, ssl.OP_NO_RENEGOTIATION, ssl.OP_NO_COMPRESSION):
            assert context.options & option


def test_no_session_of_tls13_and_no_ticket_of_tls12(one: pki.PkiFiles) -> None:
    server, client = server_context(of_server(one)), client_context(of_client(one))
    client.options &= ~ssl.OP_NO_TICKET  # the client would take one
    for newest in (TLS12, TLS13):
        client.maximum_version = newest
        first = connect(server, client)
        assert first.client.session is not None
        assert not first.client.session.has_ticket
    again = connect(server, client, session=first.client.session)
    assert not again.server.session_reused
    assert server.session_stats()["hits"] == 0


def test_a_builder_alone_says_it_in_a_sentence_too(one: pki.PkiFiles) -> None:
    cert, key = str(one.server_cert), str(one.server_key)
    for files in (TlsFiles("/gone", key, ""), TlsFiles(cert, key, "/gone")):
        with pytest.raises(ConfigError, match="/gone: "):
            server_context(files)


# Reload


def hot_server(files: pki.PkiFiles) -> HotContext:
    return HotContext(of_server(files), server_context, purpose="server")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_wrong_file_at_the_start_raises(live: pki.PkiFiles) -> None:
    live.server_key.write_bytes(live.agent_key.read_bytes())
    with pytest.raises(ConfigError, match="key does not match the certificate"):
        hot_server(live)


def test_nothing_changed_is_nothing_done(live: pki.PkiFiles) -> None:
    hot = hot_server(live)
    before = hot.current
    assert not hot.check(NOW)
    assert hot.current is before


def test_a_new_certificate_serves_new_connections_only(live: pki.PkiFiles) -> None:
    hot, client = hot_server(live), client_context(of_client(live))
    old = connect(hot.current, client)
    lifetimes = hot.certificate_lifetimes()
    pki.renew(live.directory, force=True, days=9)
    assert hot.check(NOW)
    assert not hot.check(NOW)
    new = connect(hot.current, client)
    assert serial(new) != serial(old)
    old.client.write(b"still here")
    assert old.server.read(100) == b"still here"
    cert = str(live.server_cert)
    assert hot.certificate_lifetimes()[cert].not_after < lifetimes[cert].not_after
    assert hot.certificate_lifetimes()[cert].not_after == pki.show([cert])[0].not_after.timestamp()


def test_a_client_context_follows_its_files_too(live: pki.PkiFiles, two: pki.PkiFiles) -> None:
    hot = HotContext(
        of_client(live), lambda files: client_context(files, alpn=("h2",)), purpose="client"
    )
    server = server_context(of_server(two))
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(server, hot.current)
    for name in ("client_cert", "client_key", "ca_cert"):
        replace(getattr(live, name), getattr(two, name))
    assert hot.check(NOW)
    assert peer_identity(connect(server, hot.current).server) == Identity(
        "isthmus-client", ("isthmus:clients",)
    )


@pytest.mark.parametrize("newest", [TLS12, TLS13])
def test_a_client_of_a_removed_ca_is_refused_even_when_it_resumes(
    live: pki.PkiFiles, two: pki.PkiFiles, newest: ssl.TLSVersion
) -> None:
    hot, client = hot_server(live), client_context(of_client(live))
    client.maximum_version = newest
    client.options &= ~ssl.OP_NO_TICKET
    first = connect(hot.current, client)
    if newest is TLS12:  # by session id this really resumes, as long as the context is the same
        assert connect(hot.current, client, session=first.client.session).server.session_reused

    rotated = live.ca_cert.read_bytes() + two.ca_cert.read_bytes()
    live.ca_cert.write_bytes(rotated)
    assert hot.check(NOW)
    newcomer = client_context(of_client(two, ca=live.ca_cert))
    connect(hot.current, client, session=first.client.session)
    connect(hot.current, newcomer)

    replace(live.ca_cert, two.ca_cert)
    assert hot.check(NOW)
    for session in (None, first.client.session):
        with pytest.raises(ssl.SSLCertVerificationError):
            connect(hot.current, client, session=session)
    connect(hot.current, newcomer)
    first.client.write(b"not dropped")
    assert first.server.read(100) == b"not dropped"


def unlink_and_mkdir(path: Path) -> None:
    path.unlink()
    path.mkdir()


def serve_agent_certificate(files: pki.PkiFiles) -> None:
    replace(files.server_cert, files.agent_cert)
    replace(files.server_key, files.agent_key)


Damage = Callable[[pki.PkiFiles], object]
DAMAGES: dict[str, tuple[Damage, str]] = {
    "garbage": (lambda f: f.server_cert.write_bytes(b"garbage"), "contains no PEM certificate"),
    "empty": (lambda f: f.server_key.write_bytes(b""), "not a PEM private key"),
    "gone": (lambda f: f.ca_cert.unlink(), "no such file"),
    "directory": (lambda f: unlink_and_mkdir(f.ca_cert), "is a directory"),
    "mismatch": (lambda f: replace(f.server_key, f.agent_key), "key does not match"),
    "expired": (
        lambda f: pki.init(
            f.directory, force=True, one_ca=True, days=1, now=datetime(2020, 1, 1, tzinfo=UTC)
        ),
        "certificate expired on 2020-01-02",
    ),
    "wrong side": (serve_agent_certificate, "cannot be used for a TLS server"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_bad_new_file_keeps_the_old_and_is_one_line(
    live: pki.PkiFiles, one: pki.PkiFiles, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    hot, client = hot_server(live), client_context(of_client(one))
    before, lifetimes = hot.current, hot.certificate_lifetimes()
    spoil, words = DAMAGES[damage]
    spoil(live)
    for _ in range(5):
        assert not hot.check(NOW)
    (line,) = warnings_of(caplog)
    assert words in line
    assert str(live.directory) in line
    assert hot.current is before
    assert hot.certificate_lifetimes() == lifetimes
    connect(hot.current, client)

    if live.ca_cert.is_dir():
        live.ca_cert.rmdir()
    for name in ("server_cert", "server_key", "ca_cert"):
        replace(getattr(live, name), getattr(one, name))
    assert hot.check(NOW)
    connect(hot.current, client)
    assert len(warnings_of(caplog)) == 1


def test_each_bad_state_has_a_line_of_its_own(
    live: pki.PkiFiles, caplog: pytest.LogCaptureFixture
) -> None:
    hot = hot_server(live)
    good = live.server_cert.rename(live.directory / "aside")
    for content in (b"bad", b"still bad"):
        live.server_cert.write_bytes(content)
        for _ in range(3):
            hot.check(NOW)
    assert len(warnings_of(caplog)) == 2
    live.server_cert.unlink()
    for _ in range(3):
        hot.check(NOW)
    assert len(warnings_of(caplog)) == 3
    replace(live.server_cert, good)
    assert hot.check(NOW)
    live.server_cert.unlink()
    for _ in range(3):
        hot.check(NOW)
    assert len(warnings_of(caplog)) == 4


def test_a_certificate_whose_key_comes_a_moment_later_is_no_line(
    live: pki.PkiFiles, two: pki.PkiFiles, caplog: pytest.LogCaptureFixture
) -> None:
    hot = hot_server(live)
    before = hot.current
    replace(live.server_cert, two.server_cert)
    assert not hot.check(NOW)
    assert hot.current is before
    replace(live.server_key, two.server_key)
    assert hot.check(NOW)
    assert hot.current is not before
    assert warnings_of(caplog) == []


def test_the_swap_of_a_kubernetes_volume(
    one: pki.PkiFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    volume = tmp_path / "volume"
    shutil.copytree(one.directory, volume / "..1")
    (volume / "..data").symlink_to("..1")
    for path in (volume / "..1").iterdir():
        (volume / path.name).symlink_to(f"..data/{path.name}")
    files = pki.PkiFiles.in_directory(volume)
    hot, client = hot_server(files), client_context(of_client(one))
    old = connect(hot.current, client)

    shutil.copytree(volume / "..1", volume / "..2")
    pki.renew(volume / "..2", force=True)
    (volume / "..data_tmp").symlink_to("..2")
    os.replace(volume / "..data_tmp", volume / "..data")
    shutil.rmtree(volume / "..1")
    assert hot.check(NOW)
    assert serial(connect(hot.current, client)) != serial(old)
    assert warnings_of(caplog) == []


def test_a_copy_that_keeps_size_and_time_is_seen(live: pki.PkiFiles, two: pki.PkiFiles) -> None:
    live.ca_cert.write_bytes(live.ca_cert.read_bytes().ljust(4096, b"\n"))
    hot = hot_server(live)
    status = live.ca_cert.stat()
    content = two.ca_cert.read_bytes()
    with open(live.ca_cert, "r+b") as file:  # in place: the inode stays
        file.write(content.ljust(status.st_size, b"\n"))
    os.utime(live.ca_cert, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert hot.check(NOW)


def test_files_replaced_while_they_are_read_are_read_again(
    live: pki.PkiFiles, two: pki.PkiFiles
) -> None:
    interrupted: list[str] = []

    def build(files: TlsFiles) -> ssl.SSLContext:
        context = server_context(files)
        if interrupted:
            interrupted.pop()
            replace(live.ca_cert, two.ca_cert)
        return context

    hot = HotContext(of_server(live), build, purpose="server")
    before = hot.current
    pki.renew(live.directory, force=True)
    interrupted.append("once")
    assert not hot.check(NOW)
    assert hot.current is before
    assert hot.check(NOW)
    trusted = hot.current.get_ca_certs()
    assert [entry["serialNumber"] for entry in trusted] == [
        ca["serialNumber"] for ca in server_context(of_server(two)).get_ca_certs()
    ]


def test_a_certificate_that_becomes_valid_is_taken_without_a_new_change(
    live: pki.PkiFiles, caplog: pytest.LogCaptureFixture
) -> None:
    hot = hot_server(live)
    future = datetime(2090, 1, 1, tzinfo=UTC)
    pki.init(live.directory, force=True, one_ca=True, now=future)
    assert not hot.check(NOW)
    assert not hot.check(NOW)
    assert "certificate is not valid before 2089-12-31" in warnings_of(caplog)[0]
    assert hot.check(future.timestamp())


def test_a_context_without_files_stays() -> None:
    hot = HotContext(TlsFiles("", "", ""), client_context, purpose="client")
    assert not hot.check(NOW)
    assert hot.certificate_lifetimes() == {}
    assert repr(hot) == "HotContext(client, system CAs)"


def test_watch_replaces(live: pki.PkiFiles, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        hot = hot_server(live)
        other = HotContext(TlsFiles("", "", ""), client_context, purpose="client")
        before = hot.current
        task = asyncio.create_task(watch([hot, other], 0.001))
        pki.renew(live.directory, force=True)
        async with asyncio.timeout(30):
            while hot.current is before:
                await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
