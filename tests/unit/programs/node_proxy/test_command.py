"""``isthmus node-proxy`` on the command line: its spellings, its refusals, its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.cli.main import main
from isthmus.programs.node_proxy import backends as node_proxy_backends
from isthmus.programs.node_proxy import program as node_proxy
from isthmus.programs.node_proxy.settings import NodeProxySettings

CONFIG = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
"""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[NodeProxySettings]:
    """What the program would have been started with."""
    started: list[NodeProxySettings] = []

    def start(settings: NodeProxySettings) -> int:
        started.append(settings)
        return 0

    monkeypatch.setattr(node_proxy, "main", start)
    return started


@pytest.mark.parametrize(
    ("args", "ranges"),
    [
        (("--node-cidr",), ()),
        (("--node-cidr", "--v=3"), ()),
        (("--node-cidr=",), ()),
        (("--node-cidr=10.0.0.0/24,10.1.0.0/24",), ("10.0.0.0/24", "10.1.0.0/24")),
        (("--node-cidr", "10.0.0.0/24"), ("10.0.0.0/24",)),
    ],
)
def test_a_node_cidr_may_have_no_value(
    args: tuple[str, ...], ranges: tuple[str, ...], ran: list[NodeProxySettings]
) -> None:
    assert main(["node-proxy", "--detect-local=node-cidr", *args]) == 0
    assert ran[0].node_cidr == ranges


def test_what_is_impossible_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node-proxy", "--cluster-cidr=10.0.0.0/99"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("isthmus: --cluster-cidr: '10.0.0.0/99' ") and err.count("\n") == 1


def test_flags_without_effect_are_named(
    ran: list[NodeProxySettings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["node-proxy", "--feature-gates=A=true", "--boot-id-file=x"]) == 0
    err = capsys.readouterr().err
    assert err.endswith(": --feature-gates, --boot-id-file\n") and err.count("\n") == 1


def test_a_file_of_kube_proxy(
    tmp_path: Path, ran: list[NodeProxySettings], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.conf"
    path.write_text(CONFIG)
    assert main(["node-proxy", f"--config={path}", "--proxy-mode=iptables", "--detect-local=bridge",
                 "--hostname-override=Me"]) == 0  # fmt: skip
    assert ran[0].mode == "nftables"
    assert ran[0].detector_mode == "bridge"
    assert ran[0].hostname_override == "Me"
    err = capsys.readouterr().err
    assert err.endswith(": --proxy-mode\n") and err.count("\n") == 1


def test_a_file_that_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.conf"
    path.write_text(f"{CONFIG}iptable: {{}}\n")
    assert main(["node-proxy", f"--config={path}"]) == 2
    assert capsys.readouterr().err == (
        f"isthmus: {path}:4:1: unknown key 'iptable', did you mean iptables?\n"
    )


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node-proxy", f"--config={tmp_path}/none"]) == 2
    assert f"cannot read --config {tmp_path}/none: no such file" in capsys.readouterr().err


def test_writing_the_settings_and_reading_them(
    tmp_path: Path, ran: list[NodeProxySettings]
) -> None:
    path = tmp_path / "written.yaml"
    flags = ["--proxy-mode=nftables", "--cluster-cidr=10.0.0.0/8", "--nftables-sync-period=7s"]
    assert main(["node-proxy", *flags, f"--write-config-to={path}"]) == 0
    assert not ran
    assert main(["node-proxy", f"--config={path}"]) == 0
    assert (ran[0].mode, ran[0].cluster_cidr, ran[0].sync_period_s) == (
        "nftables", ("10.0.0.0/8",), 7.0,
    )  # fmt: skip


def test_an_unknown_detector_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node-proxy", "--detect-local=brige"]) == 2
    assert capsys.readouterr().err == (
        "isthmus: --detect-local must be cluster-cidr, node-cidr, pod-interface-prefix or bridge,"
        " not 'brige', did you mean bridge?\n"
    )


@pytest.mark.parametrize("args", [["node-proxy", "cleanup"], ["node-proxy", "--cleanup"]])
@pytest.mark.parametrize(("stayed", "code"), [([], 0), (["rules in nat stay"], 1)])
def test_cleanup_says_what_stays(
    args: list[str],
    stayed: list[str],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(node_proxy_backends, "clean_all", lambda settings: stayed)
    assert main(args) == code
    assert capsys.readouterr().err == "".join(f"isthmus: {each}\n" for each in stayed)
