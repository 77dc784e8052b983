"""The units in deploy/systemd: what ``isthmus manifest`` writes, and systemd finds safe."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from isthmus.cli.main import main

UNITS = Path(__file__).parents[3] / "deploy" / "systemd"
PKI = "/etc/isthmus"
AGENT = [
    "agent", "--as=systemd", "--proxy-server-host=server.example.com", f"--ca-cert={PKI}/ca.crt",
    f"--agent-cert={PKI}/agent.crt", f"--agent-key={PKI}/agent.key",
]  # fmt: skip
SERVER = ["server", "--as=systemd", "--server-count=1"]
PROXY = [
    "apiserver-proxy", "--as=systemd", "--upstream=api.example.com:6443", f"--ca-cert={PKI}/ca.crt",
]  # fmt: skip
NODE_PROXY = [
    "node-proxy",
    "--as=systemd",
    "--kubeconfig=/etc/kubernetes/kube-proxy.conf",
    "--proxy-mode=nftables",
    "--detect-local=node-cidr",
]
#: How each is written; ``systemd-analyze security`` scores it in tenths, and less is safer.
WRITTEN = {
    "isthmus-agent.service": (AGENT, 15),
    "isthmus-server.service": (SERVER, 15),
    "isthmus-server.socket": ([*SERVER, "--part=socket"], 0),
    "isthmus-apiserver-proxy.service": (PROXY, 20),
    "isthmus-node-proxy.service": (NODE_PROXY, 25),
}


def analyze(*args: str) -> subprocess.CompletedProcess[str]:
    if not shutil.which("systemd-analyze"):
        pytest.skip("there is no systemd-analyze")
    argv = ["systemd-analyze", "--no-pager", *args]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


def test_there_are_no_others() -> None:
    assert {path.name for path in UNITS.iterdir()} == WRITTEN.keys()


@pytest.mark.parametrize("name", WRITTEN)
def test_it_is_what_the_command_writes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifest", *WRITTEN[name][0]]) == 0
    assert (UNITS / name).read_text() == capsys.readouterr().out


@pytest.mark.parametrize("name", WRITTEN)
def test_systemd_understands_it(name: str, tmp_path: Path) -> None:
    for each in WRITTEN:  # a socket has to find its service
        # It looks whether the program is there.
        text = (UNITS / each).read_text().replace("/usr/bin/isthmus", "/usr/bin/env")
        (tmp_path / each).write_text(text)
    done = analyze("verify", "--man=no", str(tmp_path / name))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", [name for name in WRITTEN if name.endswith(".service")])
def test_systemd_finds_it_safe(name: str) -> None:
    threshold = WRITTEN[name][1]
    done = analyze("security", "--offline=yes", f"--threshold={threshold}", str(UNITS / name))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", [name for name in WRITTEN if name.endswith(".service")])
def test_systemd_hears_of_it(name: str) -> None:
    lines = (UNITS / name).read_text().splitlines()
    assert {"Type=notify", "NotifyAccess=main", "WatchdogSec=60s", "Restart=always"} <= set(lines)
