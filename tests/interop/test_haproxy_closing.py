"""What README says of a haproxy pair: which ends of a connection get through it as they were."""

from __future__ import annotations

import contextlib
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from stack import wait_until

from isthmus.tools.pki import making as pki

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[2]
CONFIGURATIONS = ROOT / "bench" / "haproxy"
LIMIT_S = 20.0
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing is resetting


class Pair:
    """Two haproxies with TLS between them, as the bench has them, and their target.

    Clients come by TCP: a UNIX socket cannot be told to reset.
    """

    def __init__(self, port: int, target: socket.socket) -> None:
        self._port = port
        self._target = target

    @contextlib.contextmanager
    def connected(self) -> Iterator[tuple[socket.socket, socket.socket]]:
        """A client and what the target accepted for it, after a byte went through."""
        with socket.create_connection(("127.0.0.1", self._port), LIMIT_S) as client:
            client.sendall(b"x")
            with self._accepted() as far:
                yield client, far

    def _accepted(self) -> socket.socket:
        while True:
            far, _ = self._target.accept()
            far.settimeout(LIMIT_S)
            with contextlib.suppress(ConnectionResetError):
                if far.recv(1) == b"x":
                    return far
            far.close()  # somebody who only looked whether the pair listens


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    haproxy = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin")
    if haproxy is None:
        pytest.skip("there is no haproxy")
    files = pki.init(tmp_path / "pki", server_names=("localhost",), days=1, one_ca=True)
    pems = {"server": files.server_cert, "client": files.agent_cert}
    for name, cert in pems.items():
        key = cert.with_suffix(".key")
        (tmp_path / f"{name}.pem").write_text(cert.read_text() + key.read_text())
    with socket.create_server(("127.0.0.1", 0)) as target, contextlib.ExitStack() as stack:
        target.settimeout(LIMIT_S)
        port, tls_port = free_port(), free_port()
        given = {
            "unix@{uds}": f"127.0.0.1:{port}",
            "{tls_port}": str(tls_port),
            "{ca}": str(files.ca_cert),
            "{server_pem}": str(tmp_path / "server.pem"),
            "{client_pem}": str(tmp_path / "client.pem"),
            "{target}": f"127.0.0.1:{target.getsockname()[1]}",
        }
        for name in ("exit", "entry"):
            text = (CONFIGURATIONS / f"{name}.cfg").read_text()
            for hole, value in given.items():
                text = text.replace(hole, value)
            (tmp_path / f"{name}.cfg").write_text(text)
            argv = [haproxy, "-db", "-f", str(tmp_path / f"{name}.cfg")]
            running = stack.enter_context(subprocess.Popen(argv, stderr=subprocess.DEVNULL))
            stack.callback(running.terminate)
        wait_until(lambda: listens(tls_port), "the second haproxy listens")
        wait_until(lambda: listens(port), "the first haproxy listens")
        yield Pair(port, target)


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), LIMIT_S):
        return True
    return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()


def test_a_half_close_gets_through(pair: Pair) -> None:
    with pair.connected() as (client, far):
        client.shutdown(socket.SHUT_WR)
        assert far.recv(1) == b""
        far.sendall(b"late")
        assert client.recv(4) == b"late"


def test_a_targets_reset_arrives_as_a_clean_end(pair: Pair) -> None:
    with pair.connected() as (client, far):
        reset(far)
        assert client.recv(1) == b""


def test_a_clients_reset_arrives_as_one(pair: Pair) -> None:
    with pair.connected() as (client, far):
        reset(client)
        with pytest.raises(ConnectionResetError):
            far.recv(1)
