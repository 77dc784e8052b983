"""``isthmus sni-router check`` and ``explain``: what a file says, without a router."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.cli.main import main

EXAMPLE = str(Path(__file__).parents[4] / "examples" / "sni-router" / "routes.yaml")


def test_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sni-router", "check", EXAMPLE]) == 0
    assert capsys.readouterr().out == f"{EXAMPLE}: ok: 5 routes, 5 hosts, 7 backends\n"


def test_everything_that_is_wrong_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("kind: SNIRoutes\nroutes:\n- {name: a, hosts: [x], backends: [y]}\n")
    for command in ("check", "explain"):
        assert main(["sni-router", command, str(path)]) == 2
        assert capsys.readouterr().err == (
            f"isthmus: {path}:1:1: apiVersion: is missing\n"
            f"{path}:3:36: routes[0].backends[0]: 'y' is not HOST:PORT: no port in 'y'\n"
        )
    assert main(["sni-router", "check", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == f"isthmus: {tmp_path}/none: No such file or directory\n"


def explain(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, object]]:
    code = main(["sni-router", "explain", EXAMPLE, *args])
    return code, json.loads(capsys.readouterr().out)


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = explain(capsys, "x.tenant-b.example.com")
    assert code == 0
    assert found == {
        "name": "x.tenant-b.example.com",
        "alpn": [],
        "route": "tenant-b",
        "why": "it matches *.tenant-b.example.com",
        "where": f"{EXAMPLE}:19",
        "backends": ["kube-apiserver.tenant-b.svc.cluster.local:6443"],
        "proxyProtocol": "version 2 with the server name and TLV 0xe0",
        "maxConnections": 2000,
    }
    assert explain(capsys, "api.tenant-c.example.com", "--alpn", "isthmus/1")[1]["route"] == (
        "tenant-c-agents"
    )
    code, found = explain(capsys, "api.tenant-d.example.com")
    assert (code, found["answer"]) == (1, "TLS alert 112, unrecognized_name")


def test_explain_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sni-router", "explain", EXAMPLE, "-o", "text"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "name    none",
        "alpn    none",
        "route   none",
        "why     the client sends no server name, and there is no default route",
        "answer  TLS alert 112, unrecognized_name",
    ]


def test_without_a_file_it_does_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sni-router"]) == 2
    assert capsys.readouterr().err.startswith("isthmus: --config is needed")
    assert main(["sni-router", "--config=/nowhere/r.yaml", "--listen=127.0.0.1:0"]) == 2
    assert "isthmus: --config /nowhere/r.yaml: No such file" in capsys.readouterr().err
