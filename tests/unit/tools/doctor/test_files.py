"""Files that are missing, unreadable, empty, no PEM, or open to everybody: each is found."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from doctor_bed import agent, by_check, only, patient, server, states

from isthmus.frame.finding import Asked, CheckId, CheckState
from isthmus.frame.layout import SettingsFile
from isthmus.settings.options import compose, options_of
from isthmus.tools.doctor.configuration import see_configuration
from isthmus.tools.doctor.files import User, judge_file, judge_mode, see_files
from isthmus.tools.doctor.layout import SETTINGS, named_files
from isthmus.tools.pki.making import PkiFiles

#: Files that programs write.
WRITTEN = {"--audit-log-path", "--write-config-to"}
ASKED = Asked(CheckId.FILES, "--agent-key k", "looked")


def test_good_files_are_well(certificates: PkiFiles) -> None:
    found = by_check(see_files(patient("agent", agent(certificates))))
    assert [one.state for one in found[CheckId.FILES]] == [CheckState.OK] * 3
    assert [one.state for one in found[CheckId.MODES]] == [CheckState.OK]


@pytest.mark.parametrize("program", SETTINGS)
def test_every_flag_that_takes_a_file_is_known(program: str) -> None:
    """Else the doctor does not look at it, and what is secret in it may be in a support bundle."""
    settings = SETTINGS[program]
    flags = {
        f"--{one.flag}": one.attribute
        for one in options_of(settings)
        if not one.ignored and {"FILE", "DIR"} & {*one.takes.split("|")}
    }
    given: dict[str, Any] = {name: f"/none/{name}" for name in flags.values()}
    if program == "apiserver-proxy":  # a configuration replaces the other flags
        given |= {"config": "", "upstream": ("h:1",), "health_check": "https"}
        given |= {"http_proxy": "https://p:1"}
        del flags["--config"]
    found = {file.flag: file for file in named_files(compose(settings, **given))}
    assert flags.keys() - WRITTEN == found.keys()
    assert [file.path for file in found.values()] == [given[flags[flag]] for flag in found]
    for flag, file in found.items():
        assert file.secret == flag.endswith(("-key", "-key-path", "kubeconfig")) or (
            file.secret and flag.endswith(("-token-file", "-token-path", "--password-file"))
        ), flag


def broken(tmp_path: Path, certificates: PkiFiles, how: str) -> str:
    path = tmp_path / "agent.crt"
    match how:
        case "directory":
            path.mkdir()
        case "empty":
            path.touch()
        case "no PEM":
            path.write_text("certificate")
        case "damaged":
            path.write_text(certificates.agent_cert.read_text().replace("M", "!", 3))
        case _:
            pass  # missing
    return str(path)


@pytest.mark.parametrize(
    ("how", "seen"),
    [
        ("missing", "does not exist"),
        ("directory", "is a directory"),
        ("empty", "is empty"),
        ("no PEM", "no PEM certificate"),
        ("damaged", "damaged"),
    ],
)
def test_a_broken_file_is_found(
    tmp_path: Path, certificates: PkiFiles, how: str, seen: str
) -> None:
    settings = agent(certificates, agent_cert=broken(tmp_path, certificates, how))
    failed = [
        one for one in see_files(patient("agent", settings)) if one.state is CheckState.FAILED
    ]
    assert len(failed) == 1
    assert seen in failed[0].seen
    assert "--agent-cert" in failed[0].about
    assert failed[0].todo


def test_a_key_that_the_programs_user_may_not_read_is_found(tmp_path: Path) -> None:
    key = tmp_path / "k"
    key.write_text("x")
    key.chmod(0o600)
    file = SettingsFile(flag="--agent-key", path=str(key), secret=True)
    finding = judge_file(ASKED, file, key, User(12345, frozenset({12345})))
    assert finding.state is CheckState.FAILED
    assert "user 12345 may not read it (mode 0600" in finding.seen
    key.chmod(0o640)
    group = User(12345, frozenset({os.getegid()}))
    assert judge_file(ASKED, file, key, group).state is CheckState.OK


def test_the_user_of_a_process_is_known() -> None:
    user = User.of_process(os.getpid())
    assert user.uid == os.geteuid()
    assert os.getegid() in user.groups


def test_a_key_below_a_closed_directory_is_well(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(0o700)
    key = tmp_path / "closed" / "agent.key"
    key.write_text("x")
    key.chmod(0o644)
    finding = judge_mode(SettingsFile(flag="--agent-key", path=str(key), secret=True), key)
    assert finding.state is CheckState.OK
    assert f"may enter {key.parent}" in finding.seen


def test_an_open_key_below_open_directories_is_found() -> None:
    """/etc/passwd is what everybody may read on every machine."""
    finding = judge_mode(
        SettingsFile(flag="--agent-key", path="p", secret=True), Path("/etc/passwd")
    )
    assert finding.state is CheckState.FAILED
    assert "chmod o= /etc/passwd" in finding.todo


def test_a_secret_mounted_by_a_kubelet_is_well(tmp_path: Path) -> None:
    (tmp_path / "..2026_11_16").mkdir()
    (tmp_path / "..2026_11_16" / "tls.key").write_text("x")
    (tmp_path / "..data").symlink_to("..2026_11_16")
    (tmp_path / "tls.key").symlink_to("..data/tls.key")
    file = SettingsFile(flag="--agent-key", path="tls.key", secret=True)
    finding = judge_mode(file, tmp_path / "tls.key")
    assert finding.state is CheckState.OK
    assert "mounted by Kubernetes" in finding.seen


def test_flags_that_contradict_each_other_are_found(certificates: PkiFiles) -> None:
    finding = only(
        see_configuration(patient("agent", agent(certificates, ca_cert=""))),
        CheckId.CONFIGURATION,
    )
    assert finding.state is CheckState.FAILED
    assert "--ca-cert is missing" in finding.seen


def test_flags_that_are_hardly_meant_are_found(certificates: PkiFiles) -> None:
    settings = server(
        certificates,
        cluster_ca_cert="",
        insecure_agents=True,
        feature_gates=("EnableClusterToMasterTraffic=true",),
        allowed_destination=("localhost:6443",),
    )
    findings = list(see_configuration(patient("server", settings)))
    assert states(findings, CheckId.CONFIGURATION) == [CheckState.WARNING]
    assert "--insecure-agents" in findings[0].seen


def test_flags_without_an_effect_are_found(certificates: PkiFiles) -> None:
    given = {"sync_forever": ("true",)}
    findings = list(see_configuration(patient("agent", agent(certificates), given=given)))
    assert states(findings, CheckId.CONFIGURATION) == [CheckState.WARNING]
    assert "--sync-forever" in findings[0].seen


def test_flags_that_make_sense_are_well(certificates: PkiFiles) -> None:
    assert states(
        see_configuration(patient("agent", agent(certificates))), CheckId.CONFIGURATION
    ) == [CheckState.OK]
