"""Too few descriptors, too little memory, too little CPU: each is found."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from doctor_bed import agent, only, running

from isthmus.frame.finding import Asked, CheckId, CheckState
from isthmus.tools.doctor.limits import (
    Files,
    MemoryUse,
    files_of,
    judge_files,
    judge_memory,
    memory_of,
    read_memory,
    see_loop,
)
from isthmus.tools.pki.making import PkiFiles

MIB = 1024 * 1024
FILES = Asked(CheckId.DESCRIPTORS, "RLIMIT_NOFILE", "read")
MEMORY = Asked(CheckId.MEMORY, "memory limit", "read")


@pytest.mark.parametrize(
    ("files", "state"),
    [
        (Files(soft=1024, hard=1 << 60), CheckState.OK),
        (Files(soft=1024, hard=4096), CheckState.WARNING),
        (Files(soft=1000, hard=1000), CheckState.FAILED),
        (Files(soft=10000, hard=10000, used=8500), CheckState.WARNING),
        (Files(soft=10000, hard=10000, used=9900), CheckState.FAILED),
    ],
)
def test_descriptors_are_judged(files: Files, state: CheckState) -> None:
    assert judge_files(FILES, files).state is state


def test_the_limits_of_a_process_are_read() -> None:
    mine = files_of(os.getpid())
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert mine.soft == soft
    assert mine.used


def test_a_limit_that_is_too_small_is_found_by_the_command(certificates: PkiFiles) -> None:
    program = (
        "import resource, sys\n"
        "from isthmus.cli.main import main\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    flags = [
        f"--ca-cert={certificates.ca_cert}",
        "--proxy-server-host=127.0.0.1",
        "--proxy-server-port=1",
    ]
    done = subprocess.run(
        [sys.executable, "-c", program, "doctor", "-o", "json", "agent", *flags],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    (finding,) = (one for one in report["findings"] if one["check"] == "descriptors")
    assert finding["state"] == "failed"
    assert "512" in finding["seen"]


@pytest.mark.parametrize(
    ("memory", "state"),
    [
        (None, CheckState.OK),
        (MemoryUse(limit=512 * MIB, used=50 * MIB), CheckState.OK),
        (MemoryUse(limit=64 * MIB, used=30 * MIB), CheckState.WARNING),
        (MemoryUse(limit=512 * MIB, used=450 * MIB), CheckState.WARNING),
        (MemoryUse(limit=512 * MIB, used=510 * MIB), CheckState.FAILED),
        (MemoryUse(limit=512 * MIB, used=50 * MIB, kills=2), CheckState.FAILED),
    ],
)
def test_memory_is_judged(memory: MemoryUse | None, state: CheckState) -> None:
    assert judge_memory(MEMORY, memory).state is state


def test_the_limit_of_a_control_group_is_read(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(f"{100 * MIB}\n")
    (tmp_path / "memory.current").write_text(f"{99 * MIB}\n")
    (tmp_path / "memory.events").write_text("low 0\noom 1\noom_kill 3\n")
    wanted = MemoryUse(limit=100 * MIB, used=99 * MIB, kills=3)
    assert read_memory(tmp_path) == wanted
    assert memory_of(os.getpid(), tmp_path) == wanted  # the group that counts is above ours
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_of(os.getpid(), tmp_path) is None


def lag(prompt: int, all_of_them: int, stalls: int) -> str:
    return f"""\
# TYPE isthmus_agent_loop_lag_seconds histogram
isthmus_agent_loop_lag_seconds_bucket{{le="0.5"}} {prompt}
isthmus_agent_loop_lag_seconds_bucket{{le="+Inf"}} {all_of_them}
isthmus_agent_loop_lag_seconds_count {all_of_them}
isthmus_agent_loop_lag_seconds_sum 1.0
# TYPE isthmus_agent_loop_stalls_total counter
isthmus_agent_loop_stalls_total {stalls}
"""


@pytest.mark.parametrize(
    ("metrics", "state"),
    [
        (lag(1000, 1000, 0), CheckState.OK),
        (lag(999, 1000, 0), CheckState.OK),
        (lag(900, 1000, 0), CheckState.WARNING),
        (lag(900, 1000, 3), CheckState.FAILED),
        ("", CheckState.SKIPPED),
        ("what is this {", CheckState.SKIPPED),
    ],
)
def test_a_late_event_loop_is_found(
    certificates: PkiFiles, metrics: str, state: CheckState
) -> None:
    who = running("agent", agent(certificates), metrics=metrics)
    assert only(see_loop(who), CheckId.LOOP).state is state
