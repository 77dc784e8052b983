"""Certificates with a foreign key, authority, name, usage or date: each is found."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from doctor_bed import agent, by_check, only, patient, running, server

from isthmus.frame.finding import Asked, CheckId, CheckState
from isthmus.programs.server.settings import ServerSettings
from isthmus.tools.doctor.certificates import judge_expiry, see_certificates, see_roles
from isthmus.tools.pki import making as pki
from isthmus.tools.pki.making import PkiFiles

NOW = datetime(2026, 11, 16, tzinfo=UTC)
DAY = timedelta(days=1)


def test_good_certificates_are_well(certificates: PkiFiles) -> None:
    for program, settings in (("agent", agent(certificates)), ("server", server(certificates))):
        findings = list(see_certificates(patient(program, settings)))
        assert {one.state for one in findings} == {CheckState.OK}
        wanted = {CheckId.KEY_PAIR, CheckId.CHAIN, CheckId.USAGE, CheckId.EXPIRY}
        assert wanted <= {one.check for one in findings}


def test_files_are_called_what_the_program_calls_them(
    certificates: PkiFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(certificates.directory)
    typed = {"agent_cert": "agent.crt", "agent_key": "agent.key", "ca_cert": "ca.crt"}
    who = running("agent", agent(certificates, **typed), pid=os.getpid())
    findings = list(see_certificates(who))
    assert {one.state for one in findings} == {CheckState.OK}
    names = {"--agent-cert agent.crt", "--agent-key agent.key", "--ca-cert ca.crt"}
    assert {one.about for one in findings} == names


def test_a_certificate_that_other_servers_are_shown_is_for_clients(certificates: PkiFiles) -> None:
    asks = {"peer_relay": True, "peer_server": ("cp-2=10.0.0.2:8091",)}
    findings = list(see_certificates(patient("server", server(certificates, **asks))))
    usage = [one for one in findings if one.check is CheckId.USAGE]
    assert [one.state for one in usage] == [CheckState.OK, CheckState.FAILED]
    assert "not for a client" in usage[1].seen


def frontend(files: PkiFiles, ca: Path, **more: Any) -> ServerSettings:
    pair = {"server_cert": str(files.server_cert), "server_key": str(files.server_key)}
    return server(files, uds_name="", **pair, server_ca_cert=str(ca), **more)


def test_a_frontend_whose_clients_have_another_authority_is_well(certificates: PkiFiles) -> None:
    settings = frontend(certificates, certificates.client_ca_cert)
    findings = list(see_certificates(patient("server", settings)))
    assert {one.state for one in findings} == {CheckState.OK}
    chains = [one.seen for one in findings if one.check is CheckId.CHAIN]
    assert any("these are for clients" in seen for seen in chains)


def test_one_authority_for_agents_and_clients_is_found(
    certificates: PkiFiles, tmp_path: Path
) -> None:
    apart = frontend(certificates, certificates.client_ca_cert)
    assert only(see_roles(patient("server", apart)), CheckId.ROLES).state is CheckState.OK
    copied = tmp_path / "another-name.crt"
    copied.write_bytes(certificates.ca_cert.read_bytes())
    finding = only(see_roles(patient("server", frontend(certificates, copied))), CheckId.ROLES)
    assert finding.state is CheckState.WARNING
    assert "an agent's certificate opens the frontend" in finding.seen
    assert "docs/pki.md" in finding.todo and "docs/pki.md" not in finding.seen
    named = frontend(certificates, copied, agent_names=("edge-*",), client_names=("apiserver",))
    assert only(see_roles(patient("server", named)), CheckId.ROLES).state is CheckState.OK


def test_a_key_of_another_certificate_is_found(certificates: PkiFiles, others: PkiFiles) -> None:
    settings = agent(certificates, agent_key=str(others.agent_key))
    finding = only(see_certificates(patient("agent", settings)), CheckId.KEY_PAIR)
    assert finding.state is CheckState.FAILED
    assert finding.seen.startswith("key does not match the certificate"), "the flag is said once"


def test_a_key_with_a_passphrase_is_found(certificates: PkiFiles, tmp_path: Path) -> None:
    key = serialization.load_pem_private_key(certificates.agent_key.read_bytes(), None)
    locked = tmp_path / "agent.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    settings = agent(certificates, agent_key=str(locked))
    finding = only(see_certificates(patient("agent", settings)), CheckId.KEY_PAIR)
    assert finding.state is CheckState.FAILED
    assert "encrypted" in finding.seen


@pytest.mark.parametrize("program", ["agent", "server"])
def test_a_foreign_authority_is_found(
    certificates: PkiFiles, others: PkiFiles, program: str
) -> None:
    settings = (
        agent(certificates, ca_cert=str(others.ca_cert))
        if program == "agent"
        else server(certificates, cluster_ca_cert=str(others.ca_cert))
    )
    finding = only(see_certificates(patient(program, settings)), CheckId.CHAIN)
    assert finding.state is CheckState.WARNING
    assert "not signed by these" in finding.seen


def test_a_certificate_for_the_other_side_is_found(certificates: PkiFiles) -> None:
    settings = agent(
        certificates,
        agent_cert=str(certificates.server_cert),
        agent_key=str(certificates.server_key),
    )
    finding = only(see_certificates(patient("agent", settings)), CheckId.USAGE)
    assert finding.state is CheckState.FAILED
    assert "not for a client" in finding.seen


def test_a_name_that_agents_dial_and_is_missing_is_found(certificates: PkiFiles) -> None:
    for address, state in (("10.9.9.9:8091", CheckState.FAILED), ("127.0.0.1:8091", CheckState.OK)):
        settings = server(
            certificates, enable_lease_controller=True, advertise_agent_address=address
        )
        findings = by_check(see_certificates(patient("server", settings)))[CheckId.NAMES]
        assert [one.state for one in findings] == [CheckState.OK, state]


def test_a_certificate_without_names_is_found(tmp_path: Path, certificates: PkiFiles) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - DAY).not_valid_after(now + 300 * DAY)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    (tmp_path / "c").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (tmp_path / "k").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    settings = server(
        certificates, cluster_cert=str(tmp_path / "c"), cluster_key=str(tmp_path / "k")
    )
    finding = only(see_certificates(patient("server", settings)), CheckId.NAMES)
    assert finding.state is CheckState.FAILED


@pytest.mark.parametrize(
    ("born_days", "seen", "state"),
    [
        (-400, "expired on", CheckState.FAILED),
        (-360, "days left", CheckState.FAILED),
        (-345, "days left", CheckState.WARNING),
        (-300, "days left", CheckState.OK),
        (+10, "not valid before", CheckState.FAILED),
    ],
)
def test_dates_are_looked_at(tmp_path: Path, born_days: int, seen: str, state: CheckState) -> None:
    """Made on another day, and looked at today."""
    files = pki.init(tmp_path, now=datetime.now(UTC) + born_days * DAY, days=365)
    findings = by_check(see_certificates(patient("agent", agent(files))))[CheckId.EXPIRY]
    finding = next(one for one in findings if "--agent-cert" in one.about)
    assert finding.state is state
    assert seen in finding.seen


@pytest.mark.parametrize(
    ("life_days", "left_days", "state"),
    [
        (1, 0.9, CheckState.OK),  # renewed every few hours
        (1, 0.3, CheckState.WARNING),
        (1, 0.05, CheckState.FAILED),
        (365, 31, CheckState.OK),
        (365, 29, CheckState.WARNING),
        (365, 8, CheckState.WARNING),
        (365, 7, CheckState.FAILED),
    ],
)
def test_a_short_life_is_judged_by_its_share(
    life_days: float, left_days: float, state: CheckState
) -> None:
    end = NOW + timedelta(days=left_days)
    asked = Asked(CheckId.EXPIRY, "it", "read")
    finding = judge_expiry(asked, end - timedelta(days=life_days), end, NOW)
    assert finding.state is state
    left = f"{left_days:.0f} days" if left_days >= 2 else f"{int(left_days * 24)} hour"
    assert finding.seen.startswith(left)


def test_an_expired_authority_beside_a_good_one_is_well(tmp_path: Path) -> None:
    """That is how authorities are replaced."""
    old = pki.init(tmp_path / "old", now=datetime.now(UTC) - 5000 * DAY)
    new = pki.init(tmp_path / "new")
    both = tmp_path / "both.crt"
    both.write_text(old.ca_cert.read_text() + new.ca_cert.read_text())
    findings = by_check(see_certificates(patient("agent", agent(new, ca_cert=str(both)))))
    assert {one.state for one in findings[CheckId.EXPIRY]} == {CheckState.OK}
    alone = by_check(see_certificates(patient("agent", agent(new, ca_cert=str(old.ca_cert)))))
    assert CheckState.FAILED in {one.state for one in alone[CheckId.EXPIRY]}
