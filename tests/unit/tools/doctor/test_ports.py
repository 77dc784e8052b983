"""Ports that are taken, need a privilege or an address; sockets that cannot be: each is found."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from doctor_bed import agent, patient, running, server, states

from isthmus.frame.finding import Asked, CheckId, CheckState
from isthmus.frame.layout import ListeningPort, SocketFile
from isthmus.tools.doctor import ports
from isthmus.tools.doctor.ports import (
    holders,
    holds,
    judge_free,
    judge_socket,
    see_ports,
    see_sockets,
    try_port,
)
from isthmus.tools.pki.making import PkiFiles

ASKED = Asked(CheckId.PORTS, "--agent-port", "tried")


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_a_port_that_somebody_has_is_found_and_who(certificates: PkiFiles, taken: int) -> None:
    settings = agent(certificates, health_server_host="127.0.0.1", health_server_port=taken)
    findings = list(see_ports(patient("agent", settings)))
    finding = next(one for one in findings if "--health-server-port" in one.about)
    assert finding.state is CheckState.FAILED
    assert f"process {os.getpid()} (" in finding.seen


def test_who_cannot_be_seen_is_said_how_to_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "holders", lambda port: [])
    listener = ListeningPort(flag="--agent-port", host="", port=8091)
    for user, how in ((65532, "run as root"), (0, "run outside of this container")):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        finding = judge_free(ASKED, listener, errno.EADDRINUSE, "server")
        assert finding.seen == f"a process that is not visible ({how}) has it"


def test_a_free_port_is_well(certificates: PkiFiles) -> None:
    settings = agent(certificates, health_server_port=0, admin_server_port=0)
    assert states(see_ports(patient("agent", settings)), CheckId.PORTS) == [
        CheckState.OK,
        CheckState.OK,
    ]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    assert try_port(ListeningPort(flag="--x", host="127.0.0.1", port=port)) == 0
    assert try_port(ListeningPort(flag="--x", host="", port=port)) == 0


def test_an_address_that_nobody_has_is_found() -> None:
    foreign = ListeningPort(flag="--agent-port", host="192.0.2.1", port=8091)
    number = try_port(foreign)
    assert number == errno.EADDRNOTAVAIL
    finding = judge_free(ASKED, foreign, number, "server")
    assert finding.state is CheckState.FAILED
    assert "192.0.2.1" in finding.seen
    brought = ListeningPort(flag="--target", host="192.0.2.1", port=8091, brought=True)
    assert judge_free(ASKED, brought, number, "agent").state is CheckState.OK


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_port_that_needs_a_privilege_is_found() -> None:
    program = (
        "import os, socket\n"
        "os.setuid(65534)\n"
        "s = socket.socket()\n"
        "try:\n    s.bind(('127.0.0.1', 1))\nexcept OSError as e:\n    print(e.errno)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=True
    )
    privileged = ListeningPort(flag="--agent-port", host="127.0.0.1", port=1)
    finding = judge_free(ASKED, privileged, int(done.stdout), "server")
    assert finding.state is CheckState.FAILED
    assert "CAP_NET_BIND_SERVICE" in finding.todo


def test_of_a_running_program_the_port_has_to_be_its_own(
    certificates: PkiFiles, taken: int
) -> None:
    settings = server(certificates, agent_bind_address="127.0.0.1", agent_port=taken)
    for pid, state in ((os.getpid(), CheckState.OK), (os.getppid(), CheckState.FAILED)):
        findings = list(see_ports(running("server", settings, pid=pid)))
        finding = next(one for one in findings if "--agent-port" in one.about)
        assert finding.state is state, finding


def test_a_port_that_a_running_program_closed_is_found(certificates: PkiFiles) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    settings = server(certificates, agent_port=port)
    findings = list(see_ports(running("server", settings, pid=os.getpid())))
    finding = next(one for one in findings if "--agent-port" in one.about)
    assert finding.state is CheckState.FAILED
    assert finding.seen == "no process does"


def test_holders_are_found_by_proc(taken: int) -> None:
    assert [one.pid for one in holders(taken)] == [os.getpid()]
    assert holds(os.getpid(), taken)
    assert not holders(0)


def socket_of(path: Path, *, ours: bool = True) -> SocketFile:
    return SocketFile(flag="--uds-name", path=str(path), ours=ours)


def judged(path: Path, *, ours: bool = True, alive: bool = False) -> tuple[CheckState, str]:
    asked = Asked(CheckId.SOCKETS, str(path), "looked")
    finding = judge_socket(asked, socket_of(path, ours=ours), running=alive)
    return finding.state, finding.seen


def test_a_socket_that_can_be_made_is_well(tmp_path: Path, certificates: PkiFiles) -> None:
    settings = server(certificates, uds_name=str(tmp_path / "s"))
    assert states(see_sockets(patient("server", settings)), CheckId.SOCKETS) == [CheckState.OK]


def test_a_path_too_long_is_found(tmp_path: Path) -> None:
    state, seen = judged(tmp_path / ("s" * 100))
    assert state is CheckState.FAILED
    assert "107" in seen


def test_a_missing_directory_is_found(tmp_path: Path) -> None:
    state, seen = judged(tmp_path / "none" / "s")
    assert state is CheckState.FAILED
    assert "does not exist" in seen


def test_a_directory_that_everybody_may_write_to_is_found(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d").chmod(0o777)
    state, seen = judged(tmp_path / "d" / "s")
    assert state is CheckState.FAILED
    assert "every user may write" in seen


def test_what_is_no_socket_is_found(tmp_path: Path) -> None:
    (tmp_path / "s").touch()
    assert judged(tmp_path / "s")[0] is CheckState.FAILED


def test_a_socket_that_is_not_there_is_found(tmp_path: Path) -> None:
    assert judged(tmp_path / "s", alive=True)[0] is CheckState.FAILED
    assert judged(tmp_path / "s", ours=False)[0] is CheckState.FAILED
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "s"))
        assert judged(tmp_path / "s", ours=False)[0] is CheckState.OK
