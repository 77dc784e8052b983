"""The apiserver proxy on a node: its address is on lo, for this host alone, and goes with it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path

import pytest
from host_bed import DROPPED, REACHED, REFUSED, Bed, made
from machine import environment

from isthmus.lab.namespaces import in_namespace, inside

pytestmark = pytest.mark.lab

LIMIT_S = 20.0
ADDRESSES = {"v4": ("172.20.0.1", "/32"), "v6": ("fd00::1", "/128")}


@pytest.fixture
def bed() -> Iterator[Bed]:
    with made() as one:
        yield one


@contextmanager
def upstream(node: str) -> Iterator[int]:
    """An apiserver that echoes, at the node's loopback, for want of a longer way."""
    listener = inside(node, lambda: socket.create_server(("127.0.0.1", 0)))

    def serve() -> None:
        with suppress(OSError):
            while True:
                sock, _ = listener.accept()
                with sock:
                    sock.settimeout(LIMIT_S)
                    while data := sock.recv(1000):
                        sock.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(LIMIT_S)


@contextmanager
def proxy(
    bed: Bed, log: Path, *flags: str, by: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    argv = [*by, sys.executable, "-m", "isthmus.cli.main", "apiserver-proxy", *flags]
    argv += ["--health-port=0", "--admin-port=0", "--health-check=tcp"]
    with log.open("wb") as file, subprocess.Popen(
        in_namespace(bed.node, argv), stderr=file, env=environment()
    ) as child:  # fmt: skip
        try:
            yield child
        finally:
            if child.poll() is None:
                child.kill()


def wait_serving(child: subprocess.Popen[bytes], log: Path) -> None:
    turn = threading.Event()
    for _ in range(int(LIMIT_S / 0.05)):
        if "serving" in log.read_text() or child.poll() is not None:
            break
        turn.wait(0.05)
    assert "serving" in log.read_text(), log.read_text()


@pytest.mark.parametrize("family", ADDRESSES)
def test_its_address_is_there_as_long_as_it_runs(bed: Bed, tmp_path: Path, family: str) -> None:
    before = bed.state()
    address, prefix = ADDRESSES[family]
    listen = f"[{address}]:6443" if family == "v6" else f"{address}:6443"
    log = tmp_path / "log"
    with upstream(bed.node) as port, proxy(
        bed, log, f"--listen={listen}", f"--upstream=127.0.0.1:{port}"
    ) as child:  # fmt: skip
        wait_serving(child, log)
        shown = bed.ip(bed.node, "addr", "show", "dev", "lo")
        assert f"{address}{prefix}" in shown
        if family == "v4":
            (line,) = [line for line in shown.splitlines() if f" {address}/32 " in line]
            assert " scope host " in line
        assert bed.everybody(ip_address(address), 6443) == {
            "host": REACHED, "pod": REACHED, "neighbour": DROPPED,
        }  # fmt: skip
        child.send_signal(signal.SIGTERM)
        assert child.wait(LIMIT_S) == 0
    assert bed.state() == before
    assert bed.reach(bed.node, address, 6443) != REACHED


def test_it_may_be_left_alone(bed: Bed, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with proxy(bed, log, "--upstream=127.0.0.1:1", "--manage-address=false") as child:
        assert child.wait(LIMIT_S) == 2
    assert "cannot listen on 172.20.0.1:6443: Cannot assign requested address" in log.read_text()
    bed.ip(bed.node, "addr", "add", "172.20.0.1/32", "dev", "lo", "scope", "host")
    before = bed.state()
    log = tmp_path / "log2"
    with upstream(bed.node) as port, proxy(
        bed, log, f"--upstream=127.0.0.1:{port}", "--manage-address=false"
    ) as child:  # fmt: skip
        wait_serving(child, log)
        assert bed.reach(bed.node, "172.20.0.1", 6443) == REACHED
        assert bed.state() == before
        child.send_signal(signal.SIGTERM)
        assert child.wait(LIMIT_S) == 0
    assert bed.state() == before
    assert bed.reach(bed.node, "172.20.0.1", 6443) == REFUSED


def test_the_address_of_another_interface(bed: Bed, tmp_path: Path) -> None:
    log = tmp_path / "log"
    before = bed.state()
    with proxy(bed, log, "--listen=10.60.0.1:6443", "--upstream=127.0.0.1:1") as child:
        assert child.wait(LIMIT_S) == 2
    assert log.read_text() == (
        "isthmus: --listen 10.60.0.1 is already an address of uplink that Isthmus did not put"
        " there: choose an unused one; --manage-address=false leaves the address to you\n"
    )
    assert bed.state() == before


def test_without_the_right_to_put_it_there(bed: Bed, tmp_path: Path) -> None:
    unprivileged = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all")
    log = tmp_path / "log"
    with proxy(bed, log, "--upstream=127.0.0.1:1", by=unprivileged) as child:
        assert child.wait(LIMIT_S) == 2
    assert log.read_text().startswith("isthmus: 172.20.0.1 is on no interface of this host")
    assert "needs CAP_NET_ADMIN: give the apiserver proxy that capability;" in log.read_text()
    assert "agent" not in log.read_text()


def test_a_killed_one_is_taken_over(bed: Bed, tmp_path: Path) -> None:
    before = bed.state()
    with upstream(bed.node) as port:
        for number, how in enumerate((signal.SIGKILL, signal.SIGTERM)):
            log = tmp_path / str(number)
            with proxy(bed, log, f"--upstream=127.0.0.1:{port}") as child:
                wait_serving(child, log)
                child.send_signal(how)
                child.wait(LIMIT_S)
    assert bed.state() == before
