"""Programs that a signal ends: which signal is told, and nothing else is done in their name."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.net.child_endings import ending_of
from isthmus.programs.node_proxy.kernel.backend import ApplyError
from isthmus.programs.node_proxy.kernel.commands import IptablesCommands, IptablesPrograms, run
from isthmus.programs.node_proxy.kernel.ipvs import restore_sets
from isthmus.programs.node_proxy.rules.model import IpFamily


@pytest.fixture
def crashing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every program of iptables and ipset crashes, and notes that it was started."""
    for name in ("iptables", "iptables-save", "iptables-restore", "ipset"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "$0 $*" >> {tmp_path}/started\nkill -SEGV $$\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "started"


@pytest.mark.usefixtures("crashing")
def test_iptables_that_crashes_is_named() -> None:
    commands = IptablesCommands(programs=IptablesPrograms(family=IpFamily.IPV4))
    with pytest.raises(ApplyError, match=r"^iptables-restore failed: killed by SIGSEGV$"):
        commands.restore("*nat\nCOMMIT\n")
    with pytest.raises(ApplyError, match=r"^iptables-save failed: killed by SIGSEGV$"):
        commands.save()
    with pytest.raises(ApplyError, match=r"^iptables failed: killed by SIGSEGV$"):
        commands.rules("nat", "POSTROUTING")
    assert commands.failure("-t", "nat", "-S") == "killed by SIGSEGV"


def test_ipset_that_crashes_is_named_and_nothing_is_undone(crashing: Path) -> None:
    lines = ["add KUBE-CLUSTER-IP 10.0.0.1,tcp:80", "add KUBE-CLUSTER-IP 10.0.0.2,tcp:80"]
    with pytest.raises(ApplyError, match=r"^ipset restore: killed by SIGSEGV$"):
        restore_sets(lines)
    # How far it came is not known: what it was to add may have been there before.
    assert len(crashing.read_text().splitlines()) == 1


def test_what_a_crashed_program_said_comes_after_the_signal(tmp_path: Path) -> None:
    done = run(["/bin/sh", "-c", "echo 'stack smashed' >&2; kill -ABRT $$"])
    assert done.killed
    assert done.complaint == "killed by SIGABRT: stack smashed"


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exit code 0"), (3, "exit code 3"), (-11, "killed by SIGSEGV"), (-9, "killed by SIGKILL"),
     (-99, "killed by signal 99")],
)  # fmt: skip
def test_endings_in_words(code: int, words: str) -> None:
    assert ending_of(code) == words
