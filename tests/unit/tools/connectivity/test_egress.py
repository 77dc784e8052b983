"""``isthmus egress explain``: as a table, as JSON, and with mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.cli.main import main
from isthmus.dial.settings_egress_selector import KINDS

SELECTOR = """\
apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: GRPC
    transport: {uds: {udsName: /run/server.sock}}
"""
SERVICE = """\
apiVersion: connectivityservice.k8s.io/v1alpha1
kind: ConnectivityServiceConfiguration
connectionService:
  name: Cluster
  connection: {type: grpc, url: "unix:///run/server.sock"}
  cidrs: [10.0.0.0/8]
"""


@pytest.fixture
def selector(tmp_path: Path) -> str:
    path = tmp_path / "egress.yaml"
    path.write_text(SELECTOR)
    return str(path)


@pytest.fixture
def service(tmp_path: Path) -> str:
    path = tmp_path / "service.yaml"
    path.write_text(SERVICE)
    return str(path)


def explained(capsys: pytest.CaptureFixture[str], *args: str) -> list[dict[str, object]]:
    assert main(["egress", "explain", *args, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, list)
    return found


def test_every_kind(selector: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = explained(capsys, "--config", selector)
    assert [one["kind"] for one in found] == [kind.name for kind in KINDS]


def test_one_kind(selector: str, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = explained(capsys, "--config", selector, "pods/exec")
    assert found == {
        "kind": "pods/exec",
        "network": "cluster",
        "configured": True,
        "protocol": "GRPC",
        "socket": "unix:/run/server.sock",
        "where": found["where"],
        "kubeApiserver": "cluster, by GRPC at unix:/run/server.sock",
        "note": "",
    }
    assert str(found["where"]).startswith(f"{selector}:")


def test_a_network_that_is_not_configured(
    selector: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = explained(capsys, "--config", selector, "etcd")
    assert (found["configured"], found["protocol"]) == (False, None)
    assert found["kubeApiserver"] == "directly: etcd is not configured"


def test_a_table(selector: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "egress",
                "explain",
                "--config",
                selector,
                "kms",
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "not configured" in printed and "the endpoint is a UNIX socket" in printed


@pytest.mark.parametrize(
    ("destination", "network"), [("10.1.2.3:443", "cluster"), ("192.0.2.1:443", None)]
)
def test_a_destination(
    service: str, destination: str, network: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = explained(capsys, "--config", service, "--destination", destination)
    assert found["network"] == network
    assert found["configured"] is (network is not None)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["pods/exce"], "pods/exce: no such kind of request, did you mean pods/exec?"),
        (["--destination", "10.0.0.1"], "--destination=10.0.0.1: no port in '10.0.0.1'"),
        (["--destination", ""], "--destination=: no port in ''"),
        (["kms", "--destination", "a:1"], "give a kind (kms) or --destination, not both"),
    ],
)
def test_mistakes(
    selector: str, args: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["egress", "explain", "--config", selector, *args]) == 2
    printed = capsys.readouterr().err
    assert said in printed and printed.count("\n") == 1


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["egress", "explain", "--config", "/nowhere.yaml"]) == 2
    assert capsys.readouterr().err == "isthmus: cannot read /nowhere.yaml: no such file\n"
    assert main(["egress", "explain", "--config", ""]) == 2
    assert capsys.readouterr().err == "isthmus: --config is empty\n"


def test_a_file_that_never_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["egress", "explain", "--config", "/dev/zero"]) == 2
    assert "longer than" in capsys.readouterr().err


def test_a_destination_in_an_egress_selector(
    selector: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = explained(capsys, "--config", selector, "--destination", "10.1.2.3:443")
    assert [(one["network"], one["socket"]) for one in found] == [
        ("controlplane", None),
        ("cluster", "unix:/run/server.sock"),
        ("etcd", None),
    ]
    args = ["egress", "explain", "--config", selector, "--destination", "10.1.2.3:443"]
    assert (
        main(
            [
                *args,
            ]
        )
        == 0
    )
    assert "cluster: for pods/exec, " in capsys.readouterr().out


def test_kube_apiserver_reads_the_first_document_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(SELECTOR.replace("cluster", "etcd") + "---\n" + SELECTOR)
    (found,) = explained(capsys, "--config", str(path), "pods/exec")
    assert found["configured"] is True
    assert found["kubeApiserver"] == "directly: cluster is not configured"


def test_kube_apiserver_reads_its_own_kind_only(
    service: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = explained(capsys, "--config", service, "pods/exec")
    assert found["protocol"] == "Payload"
    assert found["kubeApiserver"] == "cluster, of an egress selector: it cannot read this file"
