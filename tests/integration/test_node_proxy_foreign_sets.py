"""nftables mode beside sets of a later nft, which end an older nft with a segmentation fault.

What another program wrote to a table of its own must not stop the node's Services.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from node_proxy_bed import NODE, SERVICE
from own_network import needs_root, own_network
from programs import COMMAND, ENVIRONMENT, Program
from stack import wait_until

from isthmus.programs.node_proxy.kernel.backend import ApplyError
from isthmus.programs.node_proxy.kernel.nftables import NftablesBackend, NftProgram, version_of
from isthmus.programs.node_proxy.kernel.nftables_kernel import found_in, has_rules
from isthmus.programs.node_proxy.rules.detectors import (
    LocalMatch,
    LocalTrafficDetector,
    SourceRanges,
)
from isthmus.programs.node_proxy.rules.model import IpFamily, ServiceView, Update
from isthmus.programs.node_proxy.rules.settings import RuleSettings

pytestmark = [
    needs_root,
    pytest.mark.skipif(not shutil.which("nft"), reason="nft is not installed"),
]
LIMIT_S = 20.0
INET, NEW_TABLE, DELETE_TABLE, NEW_SET = 1, 0, 2, 9
# As strace shows what nft 1.1.3 sends for: add set inet others names { type ifname; }
# The user data says "typeof", of an expression that nft before 1.1.2 cannot read.
NAMES = [(3, b"\0\0\0\0"), (4, b"\0\0\0\x29"), (5, b"\0\0\0\x10"), (10, b"\0\0\0\x01"),
         (13, bytes.fromhex("000401000000030800040400000001 00"))]  # fmt: skip


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _send(*parts: tuple[int, list[tuple[int, bytes]]]) -> None:
    """Hand messages of the inet family to the kernel, as one transaction."""
    data = struct.pack("=IHHIIBB2s", 20, 0x10, 1, 0, 0, 0, 0, b"\0\x0a")
    for number, (kind, attributes) in enumerate(parts, 1):
        body = b"".join(_attribute(*each) for each in attributes)
        flags = 0x1 | (0x400 if kind == NEW_SET else 0) | (0x4 if number == len(parts) else 0)
        data += struct.pack("=IHHIIBBH", 20 + len(body), 0xA00 | kind, flags, number, 0, INET, 0, 0)
        data += body
    data += struct.pack("=IHHIIBB2s", 20, 0x11, 1, len(parts) + 1, 0, 0, 0, b"\0\x0a")
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as kernel:
        kernel.settimeout(LIMIT_S)
        kernel.bind((0, 0))
        kernel.send(data)
        assert struct.unpack_from("=i", kernel.recv(65536), 16) == (0,)


def make_foreign_set() -> None:
    table = [(1, b"others\0"), (2, b"\0\0\0\0")]
    _send((NEW_TABLE, table), (NEW_SET, [(1, b"others\0"), (2, b"names\0"), *NAMES]))


def remove_foreign_set() -> None:
    _send((DELETE_TABLE, [(1, b"others\0")]))


def nft(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["nft", *words], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def listed() -> str:
    """What our table has; only where nothing is foreign any more."""
    done = nft("list", "table", "ip", "kube-proxy")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "manifests"
    directory.mkdir()
    (directory / "node.yaml").write_text(NODE)
    (directory / "web.yaml").write_text(SERVICE)
    with own_network():
        yield directory


def start(tmp_path: Path) -> Program:
    return Program(
        [
            "node-proxy", f"--manifests={tmp_path / 'manifests'}", "--proxy-mode=nftables",
            "--nftables-sync-period=1s", "--nftables-min-sync-period=10ms",
            "--cluster-cidr=10.0.0.0/8", "--conntrack-max-per-core=0", "--oom-score-adj=0",
        ],
        tmp_path / "log",
    )  # fmt: skip


def in_table(name: str) -> bool:
    """Whether a chain of a Service has rules; asked without nft."""
    try:
        chains = [each for each in found_in("ip", "kube-proxy").chains if f"/{name}/" in each]
        return any(has_rules("ip", "kube-proxy", each) for each in chains)
    except OSError:
        return False


def wait_programmed(program: Program, name: str) -> None:
    wait_until(lambda: in_table(name) or program.process.poll() is not None, f"rules of {name}")
    assert program.process.poll() is None, program.log


@pytest.mark.parametrize("before", [True, False], ids=["there before", "comes later"])
def test_a_set_of_a_later_nft_does_not_stop_it(files: Path, tmp_path: Path, before: bool) -> None:
    if before:
        make_foreign_set()
    program = start(tmp_path)
    try:
        wait_programmed(program, "web")
        if not before:
            make_foreign_set()
        other = SERVICE.replace("web", "shop").replace("0.10", "0.11").replace("0.7", "0.9")
        (files / "shop.yaml").write_text(other)
        wait_programmed(program, "shop")
        (files / "web.yaml").unlink()
        wait_until(lambda: not in_table("web"), "the rules of web to be gone")
        assert program.process.poll() is None, program.log
        assert "failed" not in program.log
    finally:
        program.end()
    remove_foreign_set()
    assert "10.1.0.9 . 8080" in listed()


@pytest.mark.usefixtures("files")
def test_cleanup_works_beside_it() -> None:
    backend = NftablesBackend(IpFamily.IPV4)
    settings = RuleSettings(family=IpFamily.IPV4, detector=SourceRanges(("10.0.0.0/8",)))
    backend.sync(Update(view=ServiceView(family=IpFamily.IPV4, ports={})), settings, full=True)
    make_foreign_set()
    done = subprocess.run(
        [*COMMAND, "node-proxy", "cleanup"], env=ENVIRONMENT,
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert backend.cleanup() == []
    assert not has_rules("ip", "kube-proxy", "nat-prerouting")


def test_the_installed_nft_does_what_is_known_of_it() -> None:
    """The premise: should a patched nft stand here one day, nothing else of this file changes."""
    with own_network():
        make_foreign_set()
        ending = nft("list", "sets").returncode
    assert ending in (0, -signal.SIGSEGV)
    if version_of(NftProgram().version()) >= (1, 1, 2):
        assert ending == 0


@dataclass(frozen=True, slots=True)
class ByDscp:
    """What another package may say: words that only nft knows."""

    def matches(self, family: IpFamily) -> tuple[LocalMatch, ...]:
        return (
            LocalMatch(iptables=(), iptables_not=(), nft="ip dscp 10", nft_not="ip dscp != 10"),
        )

    @property
    def bridge_ports(self) -> None:
        return None


def test_an_nft_that_crashes_is_named_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Detectors of other packages still need nft: a crash of it is one failed sync."""
    detector: LocalTrafficDetector = ByDscp()
    settings = RuleSettings(family=IpFamily.IPV4, detector=detector)
    update = Update(view=ServiceView(family=IpFamily.IPV4, ports={}))
    crashing = tmp_path / "nft"
    crashing.write_text("#!/bin/sh\nkill -SEGV $$\n")
    crashing.chmod(0o755)
    with own_network():
        backend = NftablesBackend(IpFamily.IPV4)
        assert backend.sync(update, settings, full=True).full
        before = listed()
        assert "dscp" in before
        with monkeypatch.context() as patched:
            patched.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
            with pytest.raises(ApplyError, match="nft was killed by SIGSEGV"):
                backend.sync(update, settings, full=True)
        assert listed() == before
        assert backend.intact()
        assert backend.sync(update, settings, full=False).full
        assert backend.cleanup() == []
