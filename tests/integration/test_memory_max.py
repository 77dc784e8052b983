"""The limit of a unit or a pod: what passes it is ended by the kernel, alone, and starts again."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import LIMIT_S, MIB
from programs import Program, Programs
from stack import http_get, wait_until

MOUNT = Path("/sys/fs/cgroup/memory")
UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
#: What a client may have sent of a head that is not whole.
HEAD = b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n" + b"X: " + b"y" * 8000


@pytest.fixture
def group() -> Iterator[Path]:
    """A memory cgroup of this test's own."""
    if not os.access(MOUNT / "memory.limit_in_bytes", os.W_OK):
        pytest.skip("no memory cgroup (version 1) that this user may change")
    path = MOUNT / f"isthmus-{uuid.uuid4()}"
    path.mkdir()
    yield path
    wait_until(lambda: not (path / "cgroup.procs").read_text(), "the cgroup is empty")
    path.rmdir()


def limit(program: Program, group: Path, more: int) -> None:
    """Limit a program to a number of bytes above what it uses now, as MemoryMax does."""
    pid = program.process.pid
    with contextlib.suppress(PermissionError):  # not in every container
        Path(f"/proc/{pid}/oom_score_adj").write_text("-999")
    (group / "cgroup.procs").write_text(str(pid))
    # What it had before it came is not counted here.
    most = int((group / "memory.usage_in_bytes").read_text()) + more
    (group / "memory.limit_in_bytes").write_text(str(most))


def test_past_its_limit_a_program_is_ended_and_nothing_else(
    programs: Programs, group: Path
) -> None:
    # A budget that is larger than the limit: what nobody would set.
    flags = ("--memory-budget=1Gi",)
    server, other = programs.server(*flags), programs.server("--uds-name=", *flags)
    limit(server, group, 2 * MIB)
    with contextlib.ExitStack() as clients:
        for _ in range(2000):
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.settimeout(LIMIT_S)
            with contextlib.suppress(OSError):
                client.connect(programs.uds)
                client.sendall(HEAD)
            if server.process.poll() is not None:
                break
        assert server.wait_exit() == -signal.SIGKILL, server.log
    assert http_get(other.port("health_port"), "/livez")[0] == 200
    again = programs.server(*flags)  # as Restart=always does
    assert http_get(again.port("health_port"), "/livez")[0] == 200


@pytest.mark.parametrize(
    ("name", "most", "score"),
    [("server", "2G", "-999"), ("agent", "512M", "-999"), ("apiserver-proxy", "512M", "-999")],
)
def test_units_have_a_limit_and_start_again(name: str, most: str, score: str) -> None:
    lines = (UNITS / f"isthmus-{name}.service").read_text().splitlines()
    wanted = {f"MemoryMax={most}", f"OOMScoreAdjust={score}", "Restart=always"}
    assert wanted <= set(lines)
    assert "StartLimitIntervalSec=0" in lines, "or it would stay ended after a few times"
