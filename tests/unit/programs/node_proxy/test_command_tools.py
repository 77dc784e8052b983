"""``isthmus node-proxy render``, ``explain`` and ``diff``: whole outputs, refusals, exit codes.

Run with UPDATE_GOLDEN=1 to write what is expected anew, and read the difference.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from isthmus.cli.main import main
from isthmus.programs.node_proxy.rules.explaining import Reason

GOLDEN = Path(__file__).parents[3] / "golden" / "node_proxy"
BEFORE, AFTER = GOLDEN / "before.yaml", GOLDEN / "after.yaml"
MANIFESTS = f"--manifests={BEFORE}"
NODE_CIDR = "--detect-local=node-cidr"


def ran(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["node-proxy", *args])
    out, err = capsys.readouterr()
    return code, out, err


def matches_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("mode", ["iptables", "nftables", "ipvs"])
def test_rules_are_rendered(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = ran(capsys, "render", MANIFESTS, NODE_CIDR, f"--proxy-mode={mode}")
    assert (code, err) == (0, "")
    matches_golden(f"render-{mode}.txt", out)


def test_one_family_has_no_headline(capsys: pytest.CaptureFixture[str]) -> None:
    _, both, _ = ran(capsys, "render", MANIFESTS)
    _, four, _ = ran(capsys, "render", MANIFESTS, "--family=IPv4")
    _, six, _ = ran(capsys, "render", MANIFESTS, "--family", "IPv6")
    assert both == f"# IPv4\n{four}# IPv6\n{six}"


def test_flags_shape_the_rules(capsys: pytest.CaptureFixture[str]) -> None:
    """Each of them changes what is rendered."""
    _, plain, _ = ran(capsys, "render", MANIFESTS, "--cluster-cidr=10.180.0.0/16")
    seen = {plain}
    for flags in (
        ("--masquerade-all",),
        ("--iptables-masquerade-bit=3",),
        ("--iptables-localhost-nodeports=false",),
        ("--nodeport-addresses=primary",),
        ("--bind-address=203.0.113.1",),
        ("--hostname-override=node-1", "--detect-local=node-cidr"),
        ("--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cbr0"),
        ("--proxy-mode=ipvs", "--ipvs-scheduler=lc"),
        ("--proxy-mode=nftables", "--nftables-masquerade-bit=3"),
    ):
        code, out, _ = ran(capsys, "render", MANIFESTS, "--cluster-cidr=10.180.0.0/16", *flags)
        assert code == 0
        assert out not in seen, flags
        seen.add(out)


def test_a_file_of_kube_proxy_shapes_them_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
        "mode: nftables\nclusterCIDR: 10.180.0.0/16\n"
    )
    code, out, _ = ran(capsys, "render", MANIFESTS, f"--config={config}", "--family=IPv4")
    assert code == 0
    assert out.startswith("add table ip kube-proxy\n")
    assert "ip saddr != 10.180.0.0/16" in out


EXPLAINED = {
    "outside-to-balancer": ("203.0.113.4", "198.51.100.20:80", NODE_CIDR),
    "outside-dropped": ("192.0.2.99", "198.51.100.20:80", NODE_CIDR),
    "pod-to-itself-nftables": (
        "10.180.0.5", "10.96.0.20:80", "--detect-local=bridge", "--proxy-mode=nftables",
    ),
    "node-to-dns": ("node", "10.96.0.10:53/udp", NODE_CIDR),
    "nobody": ("10.180.0.5", "10.180.1.6:8080", NODE_CIDR),
    "refused": ("2001:db8::1", "[fd00:96::10]:53/udp", NODE_CIDR),
    "node-to-dns-ipvs": ("node", "10.96.0.10:53/udp", NODE_CIDR, "--proxy-mode=ipvs"),
    "health-check-ipvs": ("203.0.113.7", "192.0.2.1:31000", NODE_CIDR, "--proxy-mode=ipvs"),
    "localhost-nftables": (
        "node", "127.0.0.1:30080", NODE_CIDR, "--proxy-mode=nftables",
        "--nftables-localhost-nodeports",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPLAINED)
def test_packets_are_explained(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    code, out, err = ran(capsys, "explain", *EXPLAINED[name], MANIFESTS)
    assert (code, err) == (0, "")
    matches_golden(
        f"explain-{name}.txt", "".join(f"{line.rstrip()}\n" for line in out.splitlines())
    )


def explained(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    code, out, _ = ran(capsys, "explain", *args, MANIFESTS, "-o", "json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    return found


def test_json_has_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = explained(capsys, "10.180.0.7", "10.96.0.10:53/udp", NODE_CIDR)
    assert found["packet"] == {
        "source": "10.180.0.7", "destination": "10.96.0.10:53", "protocol": "udp",
        "from": "pod", "interface": "", "bridgePort": "",
    }  # fmt: skip
    assert (found["service"], found["reachedBy"]) == ("kube-system/dns:dns", "cluster IP")
    assert found["verdict"] == "translated"
    assert [(each["destination"], each["chance"]) for each in found["outcomes"]] == [
        ("10.180.0.9:53", 0.5),
        ("10.180.1.9:53", 0.5),
    ]
    assert {tuple(each["why"]) for each in found["outcomes"]} == {(Reason.POD.value,)}
    (note,) = found["notes"]
    assert "10800 s" in note
    assert found["steps"][0]["chain"] == "PREROUTING"
    assert found["outcomes"][0]["steps"][-1]["does"] == "return"


@pytest.mark.parametrize(
    ("how", "masqueraded"),
    [
        ((), True),
        (("--from-pod",), False),
        (("--in-interface=veth7",), False),
        (("--in-interface=eth0",), True),
    ],
)
def test_interfaces_can_be_said(
    how: tuple[str, ...], masqueraded: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = ("--detect-local=pod-interface-prefix", "--pod-interface-prefix=veth")
    found = explained(capsys, "198.18.0.1", "10.96.0.20:80", *prefix, *how)
    assert {each["masqueraded"] for each in found["outcomes"]} == {masqueraded}


def test_a_bridge_port_can_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("198.18.0.1", "10.96.0.20:80", "--detect-local=bridge", "--pod-interface-prefix=veth")
    for port, masqueraded in (("veth3", False), ("tap3", True)):
        for mode in ("iptables", "nftables"):
            found = explained(capsys, *asked, f"--bridge-port={port}", f"--proxy-mode={mode}")
            assert {each["masqueraded"] for each in found["outcomes"]} == {masqueraded}


def test_a_detector_that_sees_it_otherwise_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    pod = explained(capsys, "198.18.0.1", "10.96.0.20:80", NODE_CIDR, "--from-pod")
    assert ["does not count" in note for note in pod["notes"]] == [True]
    other = explained(capsys, "10.180.9.1", "10.96.0.20:80", "--cluster-cidr=10.180.0.0/16")
    assert ["counts" in note for note in other["notes"]] == [True]


@pytest.mark.parametrize("mode", ["iptables", "nftables", "ipvs"])
def test_differences(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    args = ("diff", str(BEFORE), str(AFTER), NODE_CIDR, f"--proxy-mode={mode}")
    code, out, err = ran(capsys, *args)
    assert (code, err) == (1, "")
    assert "\x1b" not in out
    matches_golden(f"diff-{mode}.txt", out)


def test_no_difference(capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(capsys, "diff", str(BEFORE), str(BEFORE), NODE_CIDR) == (0, "", "")


def test_differences_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ran(capsys, "diff", str(BEFORE), str(AFTER), NODE_CIDR, "-o", "json")
    assert code == 1
    four = json.loads(out)["IPv4"]
    assert {(each["port"], each["what"]) for each in four["ports"]} == {
        ("shop/new", "added"),
        ("shop/web:http", "changed"),
    }
    chain = next(each for each in four["rules"] if each["place"] == "nat KUBE-NODEPORTS")
    assert ["--dport 30080" in line for line in chain["removed"]] == [True]
    assert ["--dport 30081" in line for line in chain["added"]] == [True]


@pytest.mark.parametrize(
    "name",
    ["explain-pod-to-itself-nftables.txt", "explain-health-check-ipvs.txt", "diff-nftables.txt"],
)
def test_the_documentation_shows_what_is_printed(name: str) -> None:
    page = Path(__file__).parents[4] / "docs" / "how-to" / "node-proxy-explain.md"
    assert (GOLDEN / name).read_text() in page.read_text()


WRONG = {
    ("explain", "10.0.0.1.2", "10.96.0.20:80"): "SRC: '10.0.0.1.2' ",
    ("explain", "node", "10.96.0.20"): "DST: no port in '10.96.0.20'",
    ("explain", "node", "web:80"): "DST: 'web' ",
    ("explain", "node", "10.96.0.20:80/icmp"): "DST: unknown protocol 'icmp'",
    ("explain", "::1", "10.96.0.20:80"): "SRC ::1 and DST 10.96.0.20 ",
    ("explain", "192.0.2.1", "10.96.0.20:80", "--from-pod"): "--from-pod: 192.0.2.1 ",
    ("explain", "node", "10.96.0.20:80", "--in-interface="): "--in-interface is empty",
    ("render", "--detect-local=bride"): (
        "--detect-local must be cluster-cidr, node-cidr, pod-interface-prefix or bridge, not"
        " 'bride', did you mean bridge?"
    ),
    ("render", "--hostname-override=other"): f"{BEFORE}: no Node other",
    ("render", "--manifest=x"): "",
}  # fmt: skip


@pytest.mark.parametrize("args", WRONG)
def test_what_is_wrong_is_one_sentence(
    args: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ran(capsys, *args, MANIFESTS)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith(f"isthmus: {WRONG[args]}")


def test_without_files_or_a_kubeconfig(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ran(capsys, "render")
    assert code == 2
    assert "--manifests" in err and "--kubeconfig" in err and err.count("\n") == 1


def test_flags_before_the_command_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ran(capsys, "--proxy-mode=nftables", "render", MANIFESTS)
    assert code == 2
    assert "node-proxy render" in err and err.count("\n") == 1


def test_a_node_without_ranges_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "node.yaml").write_text("apiVersion: v1\nkind: Node\nmetadata: {name: bare}\n")
    code, _, err = ran(capsys, "render", f"--manifests={tmp_path}", NODE_CIDR)
    assert code == 2
    assert "Node bare" in err and "--node-cidr" in err and err.count("\n") == 1


def test_several_nodes_need_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [f"apiVersion: v1\nkind: Node\nmetadata: {{name: n{each}}}\n" for each in range(2)]
    (tmp_path / "nodes.yaml").write_text("---\n".join(nodes))
    code, _, err = ran(capsys, "render", f"--manifests={tmp_path}")
    assert code == 2
    assert err.startswith(f"isthmus: {tmp_path}: ") and err.count("\n") == 1
    assert "n0, n1" in err and "--hostname-override" in err
    code, _, _ = ran(capsys, "render", f"--manifests={tmp_path}", "--hostname-override=n1")
    assert code == 0
