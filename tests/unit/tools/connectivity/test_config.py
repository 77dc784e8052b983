"""``isthmus config``: what it prints and how it ends."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from isthmus.cli.main import main
from isthmus.dial.dialers import custom

SERVICE = """\
apiVersion: connectivityservice.k8s.io/v1alpha1
kind: ConnectivityServiceConfiguration
connectionService:
  name: Cluster
  connection: {type: konnectivity, url: "unix:///run/x.sock"}
"""
MORE = SERVICE.replace("Cluster", "Nodes") + "  cidrs: [10.0.0.0/8]\n  hosts: [.svc]\n"
PLAIN = """\
apiVersion: connectivityservice.k8s.io/v1alpha1
kind: ConnectivityServiceConfiguration
connectionService:
  name: plain
  connection: {type: grpc, url: "grpc://a:1", caBundle: nowhere.crt}
"""
EGRESS = """\
apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: GRPC
    transport:
      uds:
        udsName: /run/x.sock
"""
CONVERTED = """\
apiVersion: connectivityservice.k8s.io/v1alpha1
kind: ConnectivityServiceConfiguration
connectionService:
  name: cluster
  connection:
    type: konnectivity
    url: unix:///run/x.sock
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"service": SERVICE, "more": MORE, "plain": PLAIN, "egress": EGRESS}
    for name, text in files.items():
        Path(f"{name}.yaml").write_text(text)


Output = tuple[int, str, str]


def run(capsys: pytest.CaptureFixture[str], line: str) -> Output:
    code = main(["config", *line.split()])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_a_line_for_each_network(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "check service.yaml more.yaml")
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["cluster", "GRPC", "unix:///run/x.sock", "service.yaml:4"],
        ["nodes", "GRPC", "unix:///run/x.sock", "10.0.0.0/8,", ".svc", "more.yaml:4"],
    ]


def test_a_table_has_it_all(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "check more.yaml")
    assert code == 0
    for word in ("Network", "nodes", "GRPC", "/run/x.sock", "10.0.0.0/8", "more.yaml:4"):
        assert word in out


def test_json_has_it_all(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "check plain.yaml more.yaml --skip-files -o json")
    assert (code, err) == (0, "")
    printed = json.loads(out)
    assert printed["warnings"] == []
    assert printed["networks"] == [
        {
            "name": "plain",
            "protocol": "Payload",
            "uds": None,
            "tcp": "a:1",
            "tls": {
                "caBundle": "nowhere.crt",
                "clientCert": None,
                "clientKey": None,
                "tlsServerName": None,
            },
            "dialer": None,
            "options": {},
            "cidrs": [],
            "hosts": [],
            "where": "plain.yaml:4",
        },
        {
            "name": "nodes",
            "protocol": "GRPC",
            "uds": "/run/x.sock",
            "tcp": None,
            "tls": None,
            "dialer": None,
            "options": {},
            "cidrs": ["10.0.0.0/8"],
            "hosts": [".svc"],
            "where": "more.yaml:4",
        },
    ]


def test_all_errors_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "check plain.yaml service.yaml egress.yaml absent.yaml")
    assert (code, out) == (2, "")
    assert err == (
        "isthmus: cannot read absent.yaml: no such file\n"
        "plain.yaml:5:57: connectionService.connection.caBundle:"
        " nowhere.crt: no such file\n"
        "egress.yaml:4:9: egressSelections[0].name:"
        " 'cluster' is defined already: cluster at service.yaml:4\n"
    )


def test_warnings_are_apart(capsys: pytest.CaptureFixture[str]) -> None:
    Path("egress.yaml").write_text(EGRESS.replace("cluster", "master"))
    code, out, err = run(capsys, "check egress.yaml")
    row = ["controlplane", "GRPC", "unix:///run/x.sock", "egress.yaml:4"]
    assert (code, out.splitlines()[1].split()) == (0, row)
    assert err == (
        "warning: egress.yaml:4: egressSelections[0].name: master is the old name of controlplane\n"
    )


def test_no_network_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    Path("egress.yaml").write_text(EGRESS.partition("egressSelections")[0])
    assert run(capsys, "check egress.yaml") == (0, "", "no network is defined\n")


def test_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(EGRESS))
    code, out, err = run(capsys, "check -")
    assert (code, err) == (0, "")
    assert out.splitlines()[1].split() == ["cluster", "GRPC", "unix:///run/x.sock", "<stdin>:4"]


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        ("convert egress.yaml", CONVERTED),
        ("convert egress.yaml --to connectivity-service", CONVERTED),
        ("convert service.yaml", EGRESS),
        ("convert service.yaml --version v1alpha1", EGRESS.replace("v1beta1", "v1alpha1")),
        ("convert egress.yaml --to egress-selector", EGRESS),
        ("convert egress.yaml --version v1alpha1", EGRESS.replace("v1beta1", "v1alpha1")),
    ],
)
def test_converted(line: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, line)
    assert (code, err) == (0, "")
    assert out == printed


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "convert more.yaml",
            "cannot be written as EgressSelectorConfiguration without losing something:\n"
            "more.yaml:4: network nodes: there are no networks but controlplane, cluster and etcd\n"
            "more.yaml:4: network nodes: there are no cidrs (10.0.0.0/8)\n"
            "more.yaml:4: network nodes: there are no hosts (.svc)",
        ),
        (
            "convert more.yaml egress.yaml",
            "the files are of both kinds: give --to connectivity-service or --to egress-selector",
        ),
        (
            "convert egress.yaml --to connectivity-service --version v1beta1",
            "--version is for --to egress-selector; the other kind has one version",
        ),
        (
            "explain connectionService.connection.ulr",
            "there is no field 'connectionService.connection.ulr',"
            " did you mean connectionService.connection.url?",
        ),
        ("check", "FILE is missing, see isthmus config check -h"),
    ],
)
def test_refused(line: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, line) == (2, "", f"isthmus: {sentence}\n")


@pytest.mark.parametrize(
    ("args", "what"),
    [(("check", ""), "FILE"), (("convert", "a", " "), "FILE"), (("explain", ""), "FIELD")],
)
def test_what_is_empty(
    args: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", *args]) == 2
    assert capsys.readouterr().err == f"isthmus: {what} is empty\n"


def test_what_a_terminal_would_obey_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    Path("odd.yaml").write_text(EGRESS.replace("/run/x.sock", r'"/run/\e[31m\né.sock"'))
    row = ["cluster", "GRPC", r"unix:///run/\x1b[31m\né.sock", "odd.yaml:4"]
    assert run(capsys, "check odd.yaml")[1].splitlines()[1].split() == row


@pytest.mark.parametrize("output", ["text", "json", "yaml"])
def test_what_cannot_be_printed_is_refused(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("odd.yaml").write_text(EGRESS.replace("/run/x.sock", r'"/run/\ud800.sock"'))
    code, out, err = run(capsys, f"check odd.yaml -o {output}")
    assert (code, out) == (2, "")
    assert r"udsName: '/run/\ud800.sock' has half a character" in err


def test_explained(capsys: pytest.CaptureFixture[str]) -> None:
    path = "egressSelections.connection.transport.tcp.url"
    code, out, err = run(capsys, f"explain {path}")
    assert (code, err) == (0, "")
    assert out == (
        "KIND:     EgressSelectorConfiguration\n"
        "VERSION:  apiserver.k8s.io/v1beta1, apiserver.k8s.io/v1alpha1\n"
        "\n"
        f"FIELD:    {path} <string>, required\n"
        "\n"
        "DESCRIPTION:\n"
        "    https://HOST:PORT. kube-apiserver takes http:// and a URL without a port as well,"
        " but\n"
        "    neither can work there, so both are refused here.\n"
    )


CUSTOM = """\
apiVersion: connectivityservice.k8s.io/v1alpha1
kind: ConnectivityServiceConfiguration
connectionService:
  name: guests
  connection:
    type: custom
    dialer: jumpp
"""


class _Point:
    name, value = "jump", "jump_dialer:JumpDialer"


@pytest.mark.parametrize(
    ("there", "said"), [((), "none is installed"), ((_Point(),), "installed are jump")]
)
def test_a_dialer_that_is_not_installed_is_an_error(
    there: tuple[_Point, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(custom, "entry_points", lambda group: there)
    Path("custom.yaml").write_text(CUSTOM)
    assert main(["config", "check", "custom.yaml"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("isthmus: custom.yaml:7:13: connectionService.connection: dialer")
    assert f"dialer 'jumpp' is not installed: install the package that offers it ({said}" in told
    assert ("did you mean jump?" in told) is bool(there)
    # What is written can still be checked where the package is not.
    assert main(["config", "check", "--skip-files", "custom.yaml"]) == 0


def test_a_dialer_that_is_installed_passes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(custom, "entry_points", lambda group: (_Point(),))
    Path("custom.yaml").write_text(CUSTOM.replace("jumpp", "jump"))
    assert main(["config", "check", "custom.yaml"]) == 0
    assert "guests" in capsys.readouterr().out
