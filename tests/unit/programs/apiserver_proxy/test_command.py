"""``isthmus apiserver-proxy check`` and ``convert``: what a file says, without a proxy."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.cli.main import main
from isthmus.programs.apiserver_proxy.settings_file import parse

ROOT = Path(__file__).parents[4]
EXAMPLE = str(ROOT / "examples" / "apiserver-proxy" / "apiserver-proxy.yaml")
HAPROXY = str(ROOT / "tests" / "golden" / "haproxy" / "hypershift.cfg")


def test_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apiserver-proxy", "check", EXAMPLE]) == 0
    assert capsys.readouterr().out == (
        f"{EXAMPLE}: ok: 172.20.0.1 port 6443 to api-a.example.com:6443, api-b.example.com:6443,"
        " checked by https\n"
    )


def test_everything_that_is_wrong_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("kind: APIServerProxy\nupstreams: [y]\n")
    assert main(["apiserver-proxy", "check", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"isthmus: {path}:1:1: apiVersion: is missing\n"
        f"{path}:2:13: upstreams[0]: 'y' is not HOST:PORT: no port in 'y'\n"
    )
    assert main(["apiserver-proxy", "check", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == f"isthmus: cannot read {tmp_path}/none: no such file\n"


def test_convert(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apiserver-proxy", "convert", HAPROXY, "--ca-cert=/etc/kubernetes/ca.crt"]) == 0
    said = capsys.readouterr()
    assert parse(said.out, "out").check.ca == "/etc/kubernetes/ca.crt"
    assert f"warning: {HAPROXY}:29: server controlplane has no check" in said.err


def test_convert_what_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "h.cfg"
    path.write_text("listen x\n")
    assert main(["apiserver-proxy", "convert", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"isthmus: {path}:1:1: a section listen cannot be converted\n"
        f"{path}:1:1: there is no frontend\n"
    )
    path.write_bytes(b"\xff")
    assert main(["apiserver-proxy", "convert", str(path)]) == 2
    assert "not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "--upstream is missing"),
        (["--upstream=a:1", "--retries=x"], "--retries: 'x' is not a whole number"),
        (["--upstream=a:1", "--idle-timeout=10"], "--idle-timeout: '10' is not a duration"),
        (["--upstream=a:1", "--manage-address=maybe"], "--manage-address: 'maybe' is neither"),
        (["--upstraem=a:1"], "unknown flag --upstraem, did you mean --upstream?"),
        (["--config=/nowhere"], "cannot read --config /nowhere: no such file"),
        (["--upstream=a:1", "--ca-cert=/nowhere", "--manage-address=false"],
         "--ca-cert /nowhere: "),
    ],
)  # fmt: skip
def test_what_does_not_run(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apiserver-proxy", *flags]) == 2
    assert said in capsys.readouterr().err
