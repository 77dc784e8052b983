"""Bad starts: exit code 2, one sentence on standard error, nothing opened and nothing left."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import uvloop
from clients import Target, free_port, tunnel
from programs import COMMAND, ENVIRONMENT, Programs

from isthmus.cli.main import main
from isthmus.tools.pki import making as pki


@pytest.fixture(autouse=True)
def process_state() -> Iterator[None]:
    """Starting in this process changes its umask and its log; put them back."""
    before = os.umask(0o022)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    os.umask(before)
    root.handlers[:], root.level = handlers, level


@pytest.fixture(autouse=True, scope="module")
def loop_before() -> None:
    """Have libuv open what it keeps open for as long as a process lives: no test is to blame."""
    uvloop.run(asyncio.sleep(0))


@pytest.fixture
def files(tmp_path: Path, certificates: pki.PkiFiles) -> pki.PkiFiles:
    """Files of a test's own, to spoil."""
    shutil.copytree(certificates.directory, tmp_path / "pki")
    return pki.PkiFiles.in_directory(tmp_path / "pki")


def fails(capfd: pytest.CaptureFixture[str], *args: str) -> str:
    """Start here, which must fail; the sentence, with every descriptor given back."""
    before = set(os.listdir("/proc/self/fd"))
    assert main(args) == 2
    assert set(os.listdir("/proc/self/fd")) == before
    out, err = capfd.readouterr()
    assert out == ""
    (sentence,) = err.splitlines()
    assert sentence.startswith("isthmus: ") and len(sentence) < 300
    assert "Traceback" not in sentence and "Errno" not in sentence
    return sentence


def server_flags(files: pki.PkiFiles, uds: Path, **changed: str) -> list[str]:
    flags = {
        "mode": "http-connect",
        "uds-name": str(uds),
        "server-port": "0",
        "server-cert": str(files.server_cert),
        "server-key": str(files.server_key),
        "server-ca-cert": str(files.client_ca_cert),
        "agent-port": "0",
        "cluster-cert": str(files.server_cert),
        "cluster-key": str(files.server_key),
        "cluster-ca-cert": str(files.ca_cert),
        "health-port": "0",
        "admin-port": "0",
    }
    flags |= {name.replace("_", "-"): value for name, value in changed.items()}
    return ["server", *(f"--{name}={value}" for name, value in flags.items())]


def agent_flags(files: pki.PkiFiles, **changed: str) -> list[str]:
    flags = {
        "ca-cert": str(files.ca_cert),
        "agent-cert": str(files.agent_cert),
        "agent-key": str(files.agent_key),
        "health-server-port": "0",
        "admin-server-port": "0",
    }
    flags |= {name.replace("_", "-"): value for name, value in changed.items()}
    return ["agent", *(f"--{name}={value}" for name, value in flags.items())]


WRONG_FLAGS = [
    ("server", {"uds_nam": "x"}, "unknown flag --uds-nam"),
    ("server", {"agent_port": "65536"}, "--agent-port"),
    ("server", {"agent_port": "-1"}, "--agent-port"),
    ("server", {"agent_port": "http"}, "--agent-port"),
    ("server", {"compat": "konnectivity", "server_port": "80"}, "--compat=konnectivity"),
    ("server", {"cluster_ca_cert": ""}, "--insecure-agents"),
    ("server", {"backend_dial_timeout": "soon"}, "--backend-dial-timeout"),
    ("agent", {"agent_prt": "1"}, "unknown flag --agent-prt"),
    ("agent", {"proxy_server_port": "70000"}, "--proxy-server-port"),
    ("agent", {"agent_key": ""}, "--agent-key"),
]


@pytest.mark.parametrize(("program", "changed", "said"), WRONG_FLAGS)
def test_wrong_flags(
    files: pki.PkiFiles,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    program: str,
    changed: dict[str, str],
    said: str,
) -> None:
    uds = tmp_path / "s.sock"
    flags = server_flags(files, uds, **changed) if program == "server" else agent_flags(
        files, **changed
    )  # fmt: skip
    assert said in fails(capfd, *flags)
    assert not uds.exists()


def spoil_missing(path: Path) -> None:
    path.unlink()


def spoil_garbage(path: Path) -> None:
    path.write_text("not PEM\n")


def spoil_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("spoil", [spoil_missing, spoil_garbage, spoil_directory])
@pytest.mark.parametrize("name", ["server_cert", "server_key", "ca_cert", "agent_cert"])
def test_spoiled_files(
    files: pki.PkiFiles,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    name: str,
    spoil: object,
) -> None:
    path: Path = getattr(files, name)
    assert callable(spoil)
    spoil(path)
    uds = tmp_path / "s.sock"
    flags = agent_flags(files) if name == "agent_cert" else server_flags(files, uds)
    assert str(path) in fails(capfd, *flags)
    assert not uds.exists()


def test_an_unreadable_key(certificates: pki.PkiFiles, capfd: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="isthmus-") as directory:
        os.chmod(directory, 0o755)
        shutil.copytree(certificates.directory, directory, dirs_exist_ok=True)
        os.chmod(directory, 0o755)
        files = pki.PkiFiles.in_directory(directory)
        files.server_key.chmod(0)
        root = os.geteuid() == 0
        if root:  # who reads every file
            os.seteuid(65534)
        try:
            status = main(server_flags(files, Path(directory) / "s.sock"))
        finally:
            if root:
                os.seteuid(0)
    assert status == 2
    (sentence,) = capfd.readouterr().err.splitlines()
    assert f"--server-key {files.server_key}" in sentence


def test_a_key_of_another_certificate(
    files: pki.PkiFiles, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(files.agent_key, files.server_key)
    said = fails(capfd, *server_flags(files, tmp_path / "s.sock"))
    assert str(files.server_key) in said or str(files.server_cert) in said


def test_an_expired_certificate(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=100)
    files = pki.init(tmp_path / "pki", days=10, now=long_ago)
    said = fails(capfd, *server_flags(files, tmp_path / "s.sock"))
    assert str(files.server_cert) in said and "expired" in said
    assert "expired" in fails(capfd, *agent_flags(files))


def test_a_certificate_of_the_wrong_kind(
    files: pki.PkiFiles, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    client = {"cluster_cert": str(files.agent_cert), "cluster_key": str(files.agent_key)}
    said = fails(capfd, *server_flags(files, tmp_path / "s.sock", **client))
    assert str(files.agent_cert) in said


# Paths and ports in use.


def test_the_socket_of_a_live_server(
    files: pki.PkiFiles, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    uds = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(uds))
        live.listen()
        said = fails(capfd, *server_flags(files, uds))
        assert str(uds) in said and "in use by a live server" in said
        assert uds.is_socket()  # and it is still theirs


def test_a_path_that_is_a_file(
    files: pki.PkiFiles, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    uds = tmp_path / "s.sock"
    uds.write_text("precious")
    said = fails(capfd, *server_flags(files, uds))
    assert str(uds) in said and "not a socket" in said
    assert uds.read_text() == "precious"


def test_a_path_whose_directory_does_not_exist(
    files: pki.PkiFiles, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    uds = tmp_path / "nowhere" / "s.sock"
    assert str(uds) in fails(capfd, *server_flags(files, uds))


def test_a_stale_socket_that_may_not_be_removed(
    files: pki.PkiFiles, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    uds = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(uds))
    said = fails(capfd, *server_flags(files, uds, delete_existing_uds_file="false"))
    assert "--delete-existing-uds-file" in said
    assert uds.is_socket()


@pytest.mark.parametrize("name", ["agent-port", "server-port", "health-port", "admin-port"])
def test_a_port_in_use(
    files: pki.PkiFiles, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    uds = tmp_path / "s.sock"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        changed = {name: str(port), "health-bind-address": "127.0.0.1"}
        changed |= {"agent-bind-address": "127.0.0.1", "server-bind-address": "127.0.0.1"}
        said = fails(capfd, *server_flags(files, uds, **changed))
        assert f"--{name}" in said and str(port) in said and "in use" in said
    assert not uds.exists()


@pytest.mark.parametrize("name", ["health-server-port", "admin-server-port"])
def test_a_port_of_the_agent_in_use(
    files: pki.PkiFiles, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        changed = {name: str(port), "health-server-host": "127.0.0.1"}
        said = fails(capfd, *agent_flags(files, **changed))
        assert f"--{name}" in said and "in use" in said


def test_an_address_of_another_machine(
    files: pki.PkiFiles, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    changed = {"agent_bind_address": "192.0.2.1", "agent_port": str(free_port())}
    said = fails(capfd, *server_flags(files, tmp_path / "s.sock", **changed))
    assert "--agent-" in said and "192.0.2.1" in said


# The same, as processes.


def test_a_process_says_one_sentence_and_exits_with_2(
    certificates: pki.PkiFiles, tmp_path: Path
) -> None:
    for args in (
        ["server", "--no-such-flag=1"],
        server_flags(certificates, tmp_path / "s.sock", cluster_cert="/nowhere.crt"),
    ):
        ended = subprocess.run(
            [*COMMAND, *args], env=ENVIRONMENT, capture_output=True, text=True, timeout=20
        )
        assert ended.returncode == 2 and ended.stdout == ""
        assert len(ended.stderr.splitlines()) == 1, ended.stderr


def test_a_stale_socket_is_replaced_and_has_the_right_mode(programs: Programs) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(programs.uds)
    server = programs.server()
    assert stat.S_IMODE(os.stat(programs.uds).st_mode) == 0o660
    programs.agent(server)
    with ExitStack() as opened:
        target = opened.enter_context(Target())
        opened.enter_context(tunnel(programs.connect_uds(), target.name))
        opened.enter_context(target.accept())
