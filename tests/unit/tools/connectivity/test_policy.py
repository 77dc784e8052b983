"""``isthmus policy test``: the answer, why, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.cli.main import main

POLICY = """\
apiVersion: isthmus.dev/v1alpha1
kind: ConnectivityPolicy
rules:
- {name: no-ssh, effect: deny, match: {ports: [22]}}
- {name: east, effect: allow, match: {networks: [east], groups: [masters]}}
- {name: names, effect: allow, match: {hosts: ["*.example"]}}
"""
EAST = "--cluster-network=east=10.1.0.0/16"
WEST = "--cluster-network=west=10.2.0.0/16,fd00::/8;via=direct"
APISERVER = ("--requester=certificate:kube-apiserver", "--group=masters")


@pytest.fixture
def policy(tmp_path: Path) -> str:
    path = tmp_path / "p.yaml"
    path.write_text(POLICY)
    return f"--policy-file={path}"


def answer(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any]]:
    code = main(["policy", "test", "-o", "json", *args])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, found


def test_allowed(capsys: pytest.CaptureFixture[str], policy: str) -> None:
    code, found = answer(capsys, policy, EAST, WEST, *APISERVER, "--destination=10.1.2.3:443")
    assert code == 0
    assert found == {
        "allowed": True,
        "rule": "east",
        "where": f"{policy.partition('=')[2]}:5",
        "network": "east",
        "destination": "10.1.2.3:443",
        "requester": "certificate:kube-apiserver",
        "groups": ["masters"],
        "why": "rule east allows it",
    }


@pytest.mark.parametrize(
    ("args", "rule", "why"),
    [
        ((EAST, "--destination=10.1.2.3:22"), "no-ssh", "rule no-ssh denies it"),
        ((EAST, "--destination=10.1.2.3:443"), "(default)", "no rule allows it"),
        ((EAST, "--destination=10.3.0.1:443"), "(network)", "is in none of the networks east"),
        ((EAST, WEST, "--destination=db.example:1"), "(network)", "is a name, no agent stands"),
        (
            (EAST, WEST, "--destination=[fd00::1]:1", "--network=east"),
            "(network)",
            "asked for east",
        ),
    ],
)
def test_denied(
    capsys: pytest.CaptureFixture[str], policy: str, args: tuple[str, ...], rule: str, why: str
) -> None:
    code, found = answer(capsys, policy, *args)
    assert (code, found["allowed"], found["rule"]) == (1, False, rule)
    assert why in found["why"]


def test_a_name_in_a_network(capsys: pytest.CaptureFixture[str], policy: str) -> None:
    code, found = answer(capsys, policy, EAST, WEST, "--destination=db.example:1", "--network=WEST")
    assert (code, found["network"], found["rule"]) == (0, "west", "names")


def test_without_anything_all_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answer(capsys, "--destination=10.1.2.3:443")
    assert (code, found["rule"], found["why"]) == (0, "", "there is no policy")


def test_every_rule(capsys: pytest.CaptureFixture[str], policy: str) -> None:
    _, found = answer(capsys, policy, EAST, *APISERVER, "--destination=10.1.2.3:443", "--all")
    assert [(it["name"], it["matches"], it["decides"], it["why"]) for it in found["rules"]] == [
        ("no-ssh", False, False, "port 443 is not one of its ports"),
        ("east", True, True, ""),
        ("names", False, False, "10.1.2.3 is an address, and it has no cidrs"),
    ]


SHARES = """\
shares:
- {name: batch, match: {groups: [batch]}, maxTunnels: 10}
- {name: each, maxTunnels: 100, dialsPerSecond: 20}
- {name: east, per: network, match: {networks: [east]}, bytesPerSecond: 1Mi}
"""


def test_which_shares_apply(
    capsys: pytest.CaptureFixture[str], policy: str, tmp_path: Path
) -> None:
    (tmp_path / "p.yaml").write_text(POLICY + SHARES)
    asked = (policy, EAST, *APISERVER, "--destination=10.1.2.3:443")
    _, found = answer(capsys, *asked)
    assert [(it["name"], it["per"], it["of"]) for it in found["shares"]] == [
        ("each", "requester", "certificate:kube-apiserver"),
        ("east", "network", "east"),
    ]
    main(["policy", "test", *asked])
    shown = capsys.readouterr().out
    assert "each: 100 tunnels, 20.0 dials/s, of certificate:kube-apiserver" in shown
    assert "east: 1048576 bytes/s, of east" in shown
    _, denied = answer(capsys, policy, EAST, "--destination=10.1.2.3:22")
    assert denied["shares"] == []


def test_a_table(capsys: pytest.CaptureFixture[str], policy: str) -> None:
    args = ("policy", "test", policy, EAST, "--destination=10.1.2.3:22", "--all")
    assert main(args) == 1
    shown = capsys.readouterr().out
    assert "denied" in shown and "rule no-ssh denies it" in shown
    assert [line.split()[:2] for line in shown.splitlines() if "→" in line] == [["→", "no-ssh"]]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--destination=10.1.2.3",), "--destination: no port in '10.1.2.3'"),
        (("--destination=a:1", "--requester=bob"), "--requester is KIND:NAME with a kind of"),
        (("--destination=a:1", "--requester=pid:1"), "--requester is KIND:NAME with a kind of"),
        (
            ("--destination=a:1", "--policy-file=/none"),
            "cannot read --policy-file /none: no such file",
        ),
        (("--destination=a:1", EAST, "--cluster-network=b=10.0.0.0/8"), "overlap"),
        (("--destination=a:1", "--policy-file="), "--policy-file is empty"),
        (("--destination=a:1", "--cluster-network="), "--cluster-network is empty"),
        (("--destination=a:1", EAST, "--network="), "--network is empty"),
        (("--destination=a:1", "--group= "), "--group is empty"),
        (("--destination=a:1", "--policy-file=/dev/zero"), "/dev/zero: is a device, not a file"),
        ((), "--destination is missing"),
    ],
)
def test_a_wrong_question(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...], said: str
) -> None:
    assert main(["policy", "test", *args]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert said in streams.err and streams.err.count("\n") == 1


def test_the_class_of_a_dial(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "classes.yaml"
    path.write_text(
        "apiVersion: isthmus.dev/v1alpha1\nkind: ConnectivityPolicy\ndefault: allow\nrules: []\n"
        "classes:\n"
        "- {name: hooks, class: urgent, match: {ports: [443]}}\n"
        "- {name: logs, class: bulk, match: {objects: ['*/log']}}\n"
    )
    asked = (f"--policy-file={path}", *APISERVER)
    _, found = answer(capsys, *asked, "--destination=10.1.2.3:443")
    assert (found["class"], found["classRule"]) == ("urgent", "hooks")
    to_kubelet = (*asked, "--destination=10.1.2.3:10250")
    _, found = answer(capsys, *to_kubelet)
    assert (found["class"], found["classRule"]) == ("normal", "")
    _, found = answer(capsys, *to_kubelet, "--object=namespaces/shop/pods/web-0/log")
    assert (found["class"], found["classRule"]) == ("bulk", "logs")
