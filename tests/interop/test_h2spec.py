"""The gRPC frontend against h2spec, over TCP bridged to its UNIX socket."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
from konnpeers import Peers

pytestmark = pytest.mark.interop

# What may fail, each with the reason from the RFC; five at most.
ALLOWED: dict[str, str] = {}
SECTIONS = ("generic", "http2", "hpack")


@contextlib.contextmanager
def bridge(uds: str) -> Iterator[int]:
    """A TCP port that leads to a UNIX socket, closes and resets included."""
    listener = socket.create_server(("127.0.0.1", 0))
    open_: set[socket.socket] = set()

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                sink.sendall(chunk)
        # HTTP/2 has no half-closed connection: one side's end is the other's.
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def serve(near: socket.socket) -> None:
        far = socket.socket(socket.AF_UNIX)
        open_.update((near, far))
        far.connect(uds)
        back = threading.Thread(target=pump, args=(far, near), daemon=True)
        back.start()
        pump(near, far)
        back.join()
        for sock in (near, far):
            open_.discard(sock)
            sock.close()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                threading.Thread(target=serve, args=(near,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()
        for sock in list(open_):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def failures(report: Path) -> tuple[int, dict[str, str]]:
    """How many tests ran, and what those that failed say, by section and title."""
    found = {}
    cases = list(ET.parse(report).getroot().iter("testcase"))
    for case in cases:
        for kind in ("failure", "error"):
            fault = case.find(kind)
            if fault is not None:
                name = f"{case.get('package')}: {case.get('classname')}"
                found[name] = " ".join("".join(fault.itertext()).split())
    return len(cases), found


def test_h2spec(h2spec: Path, peers: Peers, tmp_path: Path) -> None:
    peers.agent(peers.server("--mode=grpc"))
    report = tmp_path / "report.xml"
    with bridge(peers.uds) as port:
        done = subprocess.run(
            [
                str(h2spec),
                *SECTIONS,
                "--host=127.0.0.1",
                f"--port={port}",
                "--path=/ProxyService/Proxy",
                f"--junit-report={report}",
                "--timeout=10",
            ],
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert report.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    ran, failed = failures(report)
    assert ran > 100, done.stdout[-2000:]
    assert len(ALLOWED) <= 5
    surprises = {name: why for name, why in failed.items() if name not in ALLOWED}
    assert not surprises, "\n".join(f"{name}\n    {why}" for name, why in surprises.items())
    peers.check("echo", "echo", "--n=5")
