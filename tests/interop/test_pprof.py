"""Our profiles in the hands of the real ``go tool pprof``, fetched by it and read from files."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import LIMIT_S, tunnel
from clients import Target as Echoes
from gobuild import BUILD_TIMEOUT_S
from programs import Program, Programs

from isthmus.tools.pki import making as pki

pytestmark = pytest.mark.interop


@pytest.fixture
def programs(certificates: pki.PkiFiles, tmp_path: Path) -> Iterator[Programs]:
    """Starts servers and agents as processes, and ends them."""
    with Programs(certificates, tmp_path) as started:
        yield started


class Pprof:
    """``go tool pprof``, which is built when it is first used."""

    def __init__(self, scratch: Path) -> None:
        go = shutil.which("go")
        if go is None:
            pytest.skip("no go in PATH: go tool pprof cannot be run")
        self._go = go
        self._environment = {
            **os.environ, "PPROF_TMPDIR": str(scratch), "NO_PROXY": "*", "no_proxy": "*",
        }  # fmt: skip

    def __call__(self, *args: str) -> str:
        """Run it; what it wrote."""
        ended = subprocess.run(
            [self._go, "tool", "pprof", *args],
            capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, env=self._environment,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


@pytest.fixture
def pprof(tmp_path: Path) -> Pprof:
    return Pprof(tmp_path)


@contextlib.contextmanager
def traffic(programs: Programs) -> Iterator[None]:
    """Questions and answers through a tunnel for as long as the block lasts."""
    over = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with (
                Echoes() as target,
                tunnel(programs.connect_uds(), target.name) as client,
                target.accept() as far,
            ):
                while not over.is_set():
                    client.send(b"x" * 20_000)
                    assert len(far.read_exactly(20_000)) == 20_000
                    far.send(b"answer")
                    assert client.read_exactly(6) == b"answer"
        except BaseException as exc:
            failures.append(exc)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LIMIT_S)
    assert not failures


def test_the_cpu_profile_of_a_busy_server_and_agent(programs: Programs, pprof: Pprof) -> None:
    server = programs.server("--enable-profiling")
    agent = programs.agent(server, "--enable-profiling")
    pprof("-help")  # built before anything is measured
    with traffic(programs):
        for program in (server, agent):
            url = f"http://127.0.0.1:{program.port('admin_port')}/debug/pprof/profile?seconds=2"
            top = pprof("-top", "-nodecount=200", url)
            assert "Type: cpu" in top and "Duration: 2" in top
            # The data path itself, by its names, and not only where the interpreter lock is free.
            for name in ("isthmus.net.poller.Poller._ready", "isthmus.tunnel."):
                assert name in top, top


def test_the_heap_and_the_goroutines(programs: Programs, pprof: Pprof, tmp_path: Path) -> None:
    server = programs.server("--enable-profiling")
    programs.agent(server)
    base = f"http://127.0.0.1:{server.port('admin_port')}/debug/pprof"
    with traffic(programs):
        every = ("-top", "-nodefraction=0", "-nodecount=10000")
        top = pprof(*every, "-sample_index=inuse_objects", f"{base}/heap")
        assert "Type: inuse_objects" in top and "isthmus.links.server_side.AgentLink" in top
        traced = pprof("-top", "-sample_index=inuse_space", f"{base}/heap?seconds=1")
        assert "Type: inuse_space" in traced and "isthmus." in traced
        traces = pprof("-traces", f"{base}/goroutine")
        assert "Type: goroutine" in traces and "isthmus.frame.lifecycle.Lifecycle.watch" in traces
        assert "name:  reload" in traces
    # Downloaded first, as it is done from another machine.
    file = tmp_path / "goroutine.pb.gz"
    with urllib.request.urlopen(f"{base}/goroutine", timeout=LIMIT_S) as reply:
        file.write_bytes(reply.read())
    assert "isthmus.net.contexts.watch" in pprof("-top", "-nodecount=100", str(file))
    lines = pprof("-list", "isthmus.net.contexts.watch", str(file))
    assert "src/isthmus/net/contexts.py" in lines


def test_over_mutual_tls(programs: Programs, pprof: Pprof, tmp_path: Path) -> None:
    """``go tool pprof`` knows no client certificates: curl fetches what it then reads."""
    files = programs.files
    server = programs.server(
        "--enable-profiling", f"--admin-cert={files.server_cert}",
        f"--admin-key={files.server_key}", f"--admin-client-ca={files.client_ca_cert}",
    )  # fmt: skip
    file = tmp_path / "goroutine.pb.gz"
    fetched = subprocess.run(
        [
            "curl", "--silent", "--show-error", "--fail", "--noproxy", "*", "--output", str(file),
            "--cacert", str(files.ca_cert), "--cert", str(files.client_cert),
            "--key", str(files.client_key),
            f"https://localhost:{server.port('admin_port')}/debug/pprof/goroutine",
        ],
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert fetched.returncode == 0, fetched.stderr
    assert "Type: goroutine" in pprof("-top", str(file))


def test_an_idle_program_has_an_empty_profile(programs: Programs, pprof: Pprof) -> None:
    server: Program = programs.server("--enable-profiling")
    url = f"http://127.0.0.1:{server.port('admin_port')}/debug/pprof/profile?seconds=1"
    assert "Type: cpu" in pprof("-top", url)
    assert server.process.poll() is None
