"""Running nft: what it says is read, and it is never waited for without end."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.programs.node_proxy.kernel.backend import ApplyError
from isthmus.programs.node_proxy.kernel.nftables import (
    CrashError,
    NftablesBackend,
    NftProgram,
    crashes_on_later_sets,
    refusal,
    version_of,
)
from isthmus.programs.node_proxy.rules.model import IpFamily, ServiceView, Update
from isthmus.programs.node_proxy.rules.settings import RuleSettings

TEXT = "add table ip x\nadd chain ip x y\nadd rule ip x y goto nowhere\n"


def test_the_line_is_shown() -> None:
    said = (
        "/dev/stdin:3:18-29: Error: Could not process rule: No such file or directory\n"
        "add rule ip x y goto nowhere\n                 ^^^^^^^^^^^^\n"
    )
    error = refusal(said, TEXT)
    assert error.rule == "add rule ip x y goto nowhere"
    assert "No such file or directory: add rule ip x y goto nowhere" in str(error)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("Error: Could not process rule: Operation not permitted\n", "Operation not permitted"),
        ("netlink: Error: cache initialization failed: Operation not permitted\n", "cache init"),
        ("\n\n", "no reason"),
        ("Segmentation fault\n", "Segmentation fault"),
        ("/dev/stdin:999:1-2: Error: beyond the end\n", "beyond the end"),
    ],
)
def test_whatever_it_says_is_one_sentence(said: str, reason: str) -> None:
    error = refusal(said, TEXT)
    assert reason in str(error)
    assert "\n" not in str(error)
    assert error.rule == ""


def test_of_a_long_line_the_place_is_shown() -> None:
    line = "add rule " + " ".join(str(each) for each in range(10_000))
    place = line.index(" 5000 ") + 1
    error = refusal(f"/dev/stdin:1:{place + 1}-{place + 4}: Error: bad\n", line)
    assert " 5000 " in error.rule
    assert len(error.rule) < 400


def fake(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Be a program nft."""
    program = directory / "nft"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


def test_without_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ApplyError, match="nft is not installed"):
        NftProgram().apply(TEXT)


def test_a_program_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, "exec sleep 1000")
    with pytest.raises(ApplyError, match=r"0\.1 s"):
        NftProgram(limit_s=0.1).apply(TEXT)


def test_one_that_talks_much_is_read_a_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, monkeypatch, "cat >/dev/null; yes 'Error: no' | head -c 10000000 >&2; exit 1")
    with pytest.raises(ApplyError) as raised:
        NftProgram().apply(TEXT)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("signal", ["SEGV", "ABRT", "KILL"])
def test_a_crash_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signal: str) -> None:
    fake(tmp_path, monkeypatch, f"kill -{signal} $$")
    for work in (lambda: NftProgram().apply(TEXT), NftProgram().lists_sets):
        with pytest.raises(CrashError, match=f"nft was killed by SIG{signal}; .*update nft"):
            work()
    with pytest.raises(ApplyError, match=f"killed by SIG{signal}"):
        NftProgram().version()


def test_an_old_program_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, "echo 'nftables v0.9.8 (E.D.S.)'")
    update = Update(view=ServiceView(family=IpFamily.IPV4, ports={}))
    with pytest.raises(ApplyError, match=r"nft 1\.0\.1 or later, not nftables v0\.9\.8"):
        NftablesBackend(IpFamily.IPV4, always_nft=True).sync(
            update, RuleSettings(family=IpFamily.IPV4), full=True
        )


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("nftables v1.0.6 (Lester Gooch #5)", (1, 0, 6)),
        ("nftables v1.0.6.1 (Lester Gooch #5)", (1, 0, 6, 1)),
        ("6.18.44-fc", (6, 18, 44)),
        ("nothing", ()),
    ],
)
def test_versions_are_read(said: str, version: tuple[int, ...]) -> None:
    assert version_of(said) == version


@pytest.mark.parametrize(
    ("version", "bad"),
    [
        ("nftables v1.0.2", True),
        ("nftables v1.0.6 (Lester Gooch #5)", True),
        ("nftables v1.0.6.1 (Lester Gooch #5)", False),
        ("nftables v1.0.9", True),
        ("nftables v1.1.1", True),
        ("nftables v1.1.2", False),
        ("nftables v1.1.3 (Commodore Bullmoose #4)", False),
        ("", False),
    ],
)
def test_versions_that_crash_are_known(version: str, bad: bool) -> None:
    assert crashes_on_later_sets(version) is bad
