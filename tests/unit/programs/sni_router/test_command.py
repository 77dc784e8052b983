"""``isthmus sni-router check`` and ``explain``: what a file says, without a router."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.cli.main import main
from isthmus.programs.sni_router.rules import Miss

EXAMPLE = str(Path(__file__).parents[4] / "examples" / "sni-router" / "routes.yaml")


def test_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sni-router", "check", EXAMPLE]) == 0
    assert capsys.readouterr().out == f"{EXAMPLE}: ok: 6 routes, 5 hosts, 7 backends\n"


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
    assert capsys.readouterr().err == f"isthmus: cannot read {tmp_path}/none: no such file\n"


def explain(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, object]]:
    code = main(["sni-router", "explain", EXAMPLE, "-o", "json", *args])
    return code, json.loads(capsys.readouterr().out)


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = explain(capsys, "x.tenant-b.example.com")
    assert code == 0
    routes = found.pop("routes")
    assert isinstance(routes, list) and [one["why"] for one in routes] == [
        *["no: none of its hosts is x.tenant-b.example.com"] * 2,
        "yes: it matches *.tenant-b.example.com",
        *["no: none of its hosts is x.tenant-b.example.com"] * 2,
        "no: it is only for connections whose TLV 0x20 is '2f1c9a0e-tenant-a'",
    ]
    assert found == {
        "name": "x.tenant-b.example.com",
        "alpn": [],
        "route": "tenant-b",
        "why": "it matches *.tenant-b.example.com",
        "where": f"{EXAMPLE}:21",
        "allowedCIDRs": "every source",
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
    assert main(["sni-router", "explain", EXAMPLE]) == 1
    assert capsys.readouterr().out.splitlines()[:8] == [
        "name    none",
        "alpn    none",
        "route   none",
        f"why     {Miss.NO_NAME.value}",
        "answer  TLS alert 112, unrecognized_name",
        "",
        "routes",
        "  tenant-a-apiserver     no: it has hosts, and no name is sent",
    ]


TENANTS = """\
apiVersion: isthmus.dev/v1alpha1
kind: SNIRoutes
routes:
- {name: a, hosts: [x.y], tlv: [ida], backends: ["1.2.3.4:1"], allowedCIDRs: [192.0.2.0/24]}
- {name: b, tlv: [idb], backends: ["1.2.3.4:2"], allowedCIDRs: [10.0.0.0/8]}
- {name: c, tlv: [idb], backends: ["1.2.3.4:3"], allowedCIDRs: [10.1.0.0/16]}
"""


@pytest.mark.parametrize(
    ("args", "answer", "why"),
    [
        (
            ("x.y", "--tlv=ida", "--from=::ffff:192.0.2.7"),
            "",
            [
                "yes: its TLV is 'ida', and it is exactly x.y, and 192.0.2.0/24 is allowed",
                *["no: it is not for the TLV 'ida'"] * 2,
            ],
        ),
        (
            ("x.y", "--tlv=ida", "--from=10.1.2.3"),
            "TLS alert 49, access_denied",
            [
                "no: 10.1.2.3 is in none of its allowedCIDRs",
                *["no: it is not for the TLV 'ida'"] * 2,
            ],
        ),
        (
            ("", "--tlv=idb", "--from=10.1.2.3"),
            "",
            [
                "no: it is not for the TLV 'idb'",
                "no: the allowedCIDRs of c are more specific for 10.1.2.3",
                "yes: its TLV is 'idb', and the route is for every name, and 10.1.0.0/16 is"
                " allowed",
            ],
        ),
        (
            ("x.y",),
            "TLS alert 112, unrecognized_name",
            [
                f"no: it is only for connections whose TLV 0x20 is '{value}'"
                for value in ("ida", "idb", "idb")
            ],
        ),
        (("x.y", "--tlv=idc"), "TLS alert 112, unrecognized_name",
         ["no: it is not for the TLV 'idc'"] * 3),
    ],
)  # fmt: skip
def test_explain_says_why_of_each_route(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    answer: str,
    why: list[str],
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(TENANTS)
    assert main(["sni-router", "explain", str(path), "-o", "json", *args]) == bool(answer)
    found = json.loads(capsys.readouterr().out)
    assert found.get("answer", "") == answer
    assert [one["why"] for one in found["routes"]] == why
    assert main(["sni-router", "explain", str(path), "--from=10.0.0.0/8"]) == 2
    assert capsys.readouterr().err == (
        "isthmus: --from '10.0.0.0/8' is not an address such as 192.0.2.7 or 2001:db8::7\n"
    )


def test_without_a_file_it_does_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sni-router"]) == 2
    assert capsys.readouterr().err.startswith("isthmus: --config is missing")
    assert main(["sni-router", "--config=/nowhere/r.yaml", "--listen=127.0.0.1:0"]) == 2
    assert "isthmus: cannot read --config /nowhere/r.yaml: no such file" in capsys.readouterr().err
