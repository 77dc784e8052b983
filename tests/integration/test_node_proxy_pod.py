"""A node proxy as its manifests run it: root with few capabilities, and a root it cannot write."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from node_proxy_bed import NODE, SERVICE, metric, page
from own_network import needs_root, own_network
from pods import Node
from stack import wait_until

from isthmus.cli.main import main

pytestmark = [
    needs_root,
    pytest.mark.skipif(
        not all(map(shutil.which, ("nft", "iptables-save", "setpriv"))),
        reason="needs nft, iptables and setpriv",
    ),
]
#: linux/capability.h
NUMBERS = {"NET_ADMIN": 12, "NET_RAW": 13, "SYS_RESOURCE": 24}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A network to program, and a Service in place of an API server."""
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "web.yaml").write_text(f"{NODE}---\n{SERVICE}")
    with own_network(), Node() as made:
        yield made


def capabilities(kind: str, pid: int) -> int:
    """The capabilities of a process, as bits."""
    found = re.search(rf"{kind}:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1], 16)


def unit_as_container(text: str) -> dict[str, Any]:
    """A unit, as if it were a container of root."""
    lines = text.replace("\\\n", " ").splitlines()
    said = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    allowed = [each.removeprefix("CAP_") for each in said["CapabilityBoundingSet"].split()]
    return {
        "command": ["isthmus"],
        "args": shlex.split(said["ExecStart"])[1:],
        "securityContext": {"runAsUser": 0, "capabilities": {"add": allowed}},
    }


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
@pytest.mark.parametrize("form", ["daemonset", "systemd"])
def test_rules_take_no_more_than_the_manifest_gives(
    form: str, mode: str, node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reach = "--api-server=api:6443" if form == "daemonset" else "--kubeconfig=/etc/k/config"
    flags = [f"--as={form}", reach, f"--proxy-mode={mode}", "--detect-local=node-cidr"]
    assert main(["manifest", "node-proxy", *flags]) == 0
    text = capsys.readouterr().out
    if form == "daemonset":
        *_, workload = yaml.safe_load_all(text)
        spec = workload["spec"]["template"]["spec"]
        (first,), (container,) = spec["initContainers"], spec["containers"]
        # What is privileged sets what would be refused to the other.
        assert main([*first["args"], "--conntrack-max-per-core=0"]) == 0
        container["volumeMounts"] = []
    else:
        container = unit_as_container(text)
    kept = [arg for arg in container["args"] if "kubeconfig" not in arg]
    container["args"] = [
        *(arg for arg in kept if "hostname-override" not in arg),
        # A machine of tests may have no SYS_RESOURCE to give, which is for the score alone.
        f"--manifests={tmp_path / 'manifests'}", "--conntrack-max-per-core=0", "--oom-score-adj=0",
    ]  # fmt: skip
    running = node.start(container, "proxy")
    running.wait_log("synced")
    wait_until(lambda: page("/readyz", 10256)[0] == 200, "ready")
    wanted = container["securityContext"]["capabilities"]["add"]
    given = sum(1 << NUMBERS[each] for each in wanted)
    assert capabilities("CapEff", running.process.pid) == given & capabilities(
        "CapBnd", os.getpid()
    )
    tool = ["nft", "list", "ruleset"] if mode == "nftables" else ["iptables-save"]
    listed = subprocess.run(tool, capture_output=True, text=True, timeout=20, check=True).stdout
    assert "10.1.0.7" in listed
    assert metric("kubeproxy_sync_proxy_rules_nftables_sync_failures_total") == 0
    complaints = [line for line in running.log.splitlines() if " W " in line or "WARN" in line]
    assert complaints == []
