"""Running nft: what it says is read, and it is never waited for without end."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.errors import ConfigError
from isthmus.nodeproxy.backend import ApplyError
from isthmus.nodeproxy.nftables import NftablesBackend
from isthmus.nodeproxy.nftables_programs import NftProgram, refusal
from isthmus.services.model import Family

TEXT = "add table ip x\nadd chain ip x y\nadd rule ip x y goto nowhere\n"


def test_the_line_is_shown() -> None:
    said = (
        "/dev/stdin:3:18-29: Error: Could not process rule: No such file or directory\n"
        "add rule ip x y goto nowhere\n                 ^^^^^^^^^^^^\n"
    )
    error = refusal(said, TEXT)
    assert error.rule == "add rule ip x y goto nowhere"
    assert str(error) == (
        "nft refused the rules, Could not process rule: No such file or directory:"
        " add rule ip x y goto nowhere"
    )


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("Error: Could not process rule: Operation not permitted\n", "Operation not permitted"),
        ("netlink: Error: cache initialization failed: Operation not permitted\n", "cache init"),
        ("\n\n", "it did not say why"),
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
    with pytest.raises(ApplyError, match="no program nft"):
        NftProgram().apply(TEXT)
    with pytest.raises(ConfigError, match="no program nft"):
        NftablesBackend(Family.IPV4).start()


def test_a_program_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, "exec sleep 1000")
    with pytest.raises(ApplyError, match=r"within 0\.1 s"):
        NftProgram(limit_s=0.1).apply(TEXT)


def test_one_that_talks_much_is_read_a_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, monkeypatch, "cat >/dev/null; yes 'Error: no' | head -c 10000000 >&2; exit 1")
    with pytest.raises(ApplyError) as raised:
        NftProgram().apply(TEXT)
    assert len(str(raised.value)) < 200


def test_an_old_program_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, "echo 'nftables v0.9.8 (E.D.S.)'")
    with pytest.raises(ConfigError, match=r"needs nft 1\.0\.1 or later, not nftables v0\.9\.8"):
        NftablesBackend(Family.IPV4).start()
