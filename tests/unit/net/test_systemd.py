"""Sockets that systemd passes, and what it is told: every kind of variable and descriptor."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pytest

from isthmus.errors import ConfigError
from isthmus.net.systemd import NAMES, Notifier, PassedSockets

#: Adopts what it was started with, and says what each flag gets: FLAG HOST PORT, or FLAG PATH.
CHILD = """
import os, sys
from isthmus.errors import ConfigError
from isthmus.net.systemd import PassedSockets
passed = PassedSockets()
try:
    os.environ["LISTEN_PID"] = os.environ["LISTEN_PID"].replace("self", str(os.getpid()))
    passed.adopt(os.environ, pid=os.getpid())
    assert not [name for name in os.environ if name.startswith("LISTEN_")]
    for wanted in sys.argv[1:]:
        flag, *rest = wanted.split(" ")
        if len(rest) == 2:
            found = passed.take_tcp(flag, lambda: (rest[0], int(rest[1])))
        else:
            one = passed.take_uds(flag, rest[0])
            found = [one] if one else []
        assert not any(it.get_inheritable() or it.getblocking() for it in found)
        print(flag, *(it.fileno() for it in found))
    passed.check_taken()
except ConfigError as error:
    print(error)
"""


def adopt(
    sockets: Sequence[socket.socket | BinaryIO], *wanted: str, names: str | None = None,
    pid: str = "self", count: str = "",
) -> list[str]:  # fmt: skip
    """Start a process with these as its descriptors from 3 on; what it printed."""
    environment = {
        **os.environ, "LISTEN_PID": pid, "LISTEN_FDS": count or str(len(sockets)),
        **({"LISTEN_FDNAMES": names} if names is not None else {}),
    }  # fmt: skip
    kept = [os.dup(it.fileno()) for it in sockets]
    # High numbers first: a descriptor that is in the way of another would be lost.
    high = [os.dup2(it, 200 + index, inheritable=True) for index, it in enumerate(kept)]
    moves = "".join(f"os.dup2({it}, {3 + index});" for index, it in enumerate(high))
    program = f"import os;{moves}os.closerange(200, 300)\n{CHILD}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, *wanted], env=environment, pass_fds=high,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    finally:
        for number in (*kept, *high):
            os.close(number)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def tcp() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


@pytest.fixture
def uds(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "s.sock"))
        sock.listen()
        yield sock


def port_of(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


def test_by_name_whatever_the_address(tcp: socket.socket, uds: socket.socket) -> None:
    said = adopt(
        [tcp, uds], "--agent-port 10.0.0.1 8091", "--server-port 127.0.0.1 1", "--uds-name /other",
        names="agents:frontend",
    )  # fmt: skip
    assert said == ["--agent-port 3", "--server-port", "--uds-name 4"]


@pytest.mark.parametrize("names", [None, "", "isthmus-server.socket:unknown", "x:y:z"])
def test_by_address_without_a_name_of_ours(
    names: str | None, tcp: socket.socket, uds: socket.socket
) -> None:
    wanted = [f"--agent-port 127.0.0.1 {port_of(tcp)}", f"--uds-name {uds.getsockname()}"]
    said = adopt([uds, tcp], "--admin-port 127.0.0.1 1", *wanted, names=names)
    assert said == ["--admin-port", "--agent-port 4", "--uds-name 3"]


def test_every_address_is_an_empty_host() -> None:
    with socket.create_server(("0.0.0.0", 0)) as four:
        number = port_of(four)
        assert adopt([four], f"--listen  {number}") == ["--listen 3"]
        left = adopt([four], f"--listen 127.0.0.1 {number}")
        assert left[1].startswith("systemd passed a socket with an unknown name at 0.0.0.0:")


def test_several_of_one_name_go_to_their_addresses(tcp: socket.socket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        wanted = [f"--listen 127.0.0.1 {port_of(it)}" for it in (other, tcp)]
        assert adopt([tcp, other], *wanted, names="frontend:frontend") == [
            "--listen 4", "--listen 3",
        ]  # fmt: skip
        assert adopt([tcp, other], "--listen 127.0.0.1 1", names="frontend:frontend") == [
            "--listen 3 4"
        ]


def test_a_name_of_another_flag_is_not_taken_by_address(tcp: socket.socket) -> None:
    number = port_of(tcp)
    assert adopt([tcp], f"--agent-port 127.0.0.1 {number}", names="admin") == [
        "--agent-port",
        f"systemd passed a socket named admin at 127.0.0.1:{number}, and no flag of this program"
        " has this address (--admin-port or --admin-server-port): it would not be served",
    ]


def test_what_is_for_another_process_is_left_alone(tcp: socket.socket) -> None:
    assert adopt([tcp], "--listen 127.0.0.1 1", names="frontend", pid="1") == ["--listen"]
    assert adopt([tcp], "--listen 127.0.0.1 1", names="frontend", pid="") == ["--listen"]


@pytest.mark.parametrize("count", ["-1", "many", "65", "1.0", "³"])
def test_a_count_that_is_none(count: str, tcp: socket.socket) -> None:
    assert adopt([tcp], count=count) == [f"LISTEN_FDS={count}: not a number of sockets up to 64"]


def test_wrong_kinds(tmp_path: Path, tcp: socket.socket) -> None:
    datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
    packets = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one, other = socket.socketpair()
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0isthmus-{os.getpid()}")
    abstract.listen()
    expected = {
        datagram: "is a datagram socket: its unit needs ListenStream=",
        netlink: "is neither a TCP nor a UNIX socket",
        packets: "is a sequential packet socket: its unit needs ListenStream=",
        one: "does not listen: its unit must not say Accept=yes",
        abstract: "has an abstract address, which every user may connect to: give it a path",
    }
    with datagram, netlink, packets, one, other, abstract:
        for sock, why in expected.items():
            assert adopt([tcp, sock], names="frontend:x") == [f"descriptor 4 of systemd (x) {why}"]
            assert adopt([sock]) == [f"descriptor 3 of systemd {why}"]
    with (tmp_path / "file").open("wb") as file:
        assert adopt([file]) == ["descriptor 3 of systemd is not a socket"]
    assert adopt([tcp], count="2") == ["descriptor 4 of systemd: Bad file descriptor"]


def test_nothing_without_variables() -> None:
    passed = PassedSockets()
    passed.adopt({}, pid=os.getpid())
    passed.check_taken()
    assert len(passed) == 0
    assert passed.take_tcp("--listen", lambda: ("", 1)) == []


def test_every_name_is_one_that_systemd_takes() -> None:
    # sd_listen_fds_with_names(3): no control character, no colon, at most 255 characters.
    assert all(name.isascii() and name.isprintable() and ":" not in name for name in NAMES.values())


# What systemd is told.


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """What NOTIFY_SOCKET says, and where it leads."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(10)
        if request.param == "path":
            sock.bind(str(tmp_path / "notify"))
            yield str(tmp_path / "notify"), sock
        else:
            sock.bind(f"\0isthmus-notify-{os.getpid()}")
            yield f"@isthmus-notify-{os.getpid()}", sock


def test_it_is_told_and_children_are_not_asked(manager: tuple[str, socket.socket]) -> None:
    address, sock = manager
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "2000000", "HOME": "/"}
    notifier = Notifier.from_environment(environment, pid=7)
    assert notifier is not None and notifier.watchdog_s == 2.0
    assert environment == {"HOME": "/"}
    notifier.tell(READY=1, STATUS="3 agents, 120 tunnels")
    assert sock.recv(4096) == b"READY=1\nSTATUS=3 agents, 120 tunnels\n"
    notifier.close()


def test_the_watchdog_of_another_process_is_not_ours() -> None:
    given = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "8"}
    notifier = Notifier.from_environment(dict(given), pid=7)
    assert notifier is not None and notifier.watchdog_s == 0
    notifier.close()
    notifier = Notifier.from_environment({**given, "WATCHDOG_PID": "7"}, pid=7)
    assert notifier is not None and notifier.watchdog_s == 2
    notifier.close()


@pytest.mark.parametrize(
    "given",
    [
        {"NOTIFY_SOCKET": "relative"},
        {"NOTIFY_SOCKET": "@"},
        {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "9" * 40},
    ],
)
def test_variables_that_make_no_sense(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=list(given)[-1]):
        Notifier.from_environment(given, pid=1)


def test_without_a_variable_there_is_nobody_to_tell() -> None:
    assert Notifier.from_environment({"WATCHDOG_USEC": "1"}, pid=1) is None


def test_a_manager_that_is_gone_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Notifier(str(tmp_path / "nobody"))
    notifier.tell(READY=1)
    notifier.tell(WATCHDOG=1)
    assert [record.getMessage() for record in caplog.records] == [
        "cannot notify systemd: No such file or directory"
    ]
    notifier.close()
