"""The SNI router in a cluster: files read by a person, and promises.

ISTHMUS_REGENERATE=1 writes the files anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.cli.main import main
from isthmus.manifests import chart_values
from isthmus.manifests.installation import VALUES, installation

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "hosted_manifests"
IMAGE = "--image=registry.example.com/isthmus:1.0"
ROUTES = f"--routes={ROOT / 'examples/sni-router/routes.yaml'}"
CASES: dict[str, tuple[str, ...]] = {
    "sni-router.yaml": (IMAGE, "--config-map=shared-routes"),
    "sni-router-by-tlv.yaml": (
        IMAGE, ROUTES, "--listen-proxy=:6443", "--listen-proxy=:7443", "--replicas=3",
        "--proxy-from=10.0.0.0/24", "--service-type=NodePort", "--service-port=6444",
    ),
    "sni-router-bare.yaml": (
        IMAGE, "--name=front", "--namespace=edge", "--replicas=1", "--run-as=1001",
        "--config=/etc/front/all.yaml", "--listen=:9443", "--service-type=ClusterIP",
        "--accept-proxy", "--proxy-from=10.0.0.0/24", "--network-policy=false",
        "--admin-cert=/etc/front-admin/tls.crt", "--admin-key=/etc/front-admin/tls.key",
        "--admin-client-ca=/etc/front-admin/ca.crt", "--admin-bind-address=0.0.0.0",
        "--graceful-shutdown-timeout=1m", "--secret=admin",
    ),
}  # fmt: skip


def written(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["manifest", "sni-router", *args]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_somebody_has_read(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = written(capsys, *CASES[name])
    if os.environ.get("ISTHMUS_REGENERATE"):
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()


@pytest.mark.parametrize("name", CASES)
def test_it_has_no_rights_and_no_more_ports_than_it_needs(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = list(yaml.safe_load_all(written(capsys, *CASES[name])))
    found: dict[str, Any] = {each["kind"]: each for each in objects}
    assert not found.keys() & {"ServiceAccount", "Role", "ClusterRole", "RoleBinding"}
    spec = found["Deployment"]["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False and "hostNetwork" not in spec
    (container,) = spec["containers"]
    security = container["securityContext"]
    assert security["runAsNonRoot"] and security["readOnlyRootFilesystem"]
    assert security["capabilities"] == {"drop": ["ALL"]} and security["runAsUser"] > 0
    assert all(each["readOnly"] for each in container["volumeMounts"])
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert {each["targetPort"] for each in found["Service"]["spec"]["ports"]} == (
        ports.keys() - {"health"}
    )
    if "NetworkPolicy" in found:
        (rule,) = found["NetworkPolicy"]["spec"]["ingress"]
        assert {each["port"] for each in rule["ports"]} == set(ports.values())
    if found["Service"]["spec"]["type"] != "ClusterIP":
        assert found["Service"]["spec"]["externalTrafficPolicy"] == "Local"


def test_the_chart_makes_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    values = chart_values.defaults(VALUES)
    values["server"]["enabled"] = values["agent"]["enabled"] = False
    values["sniRouter"] |= {"enabled": True, "proxyFrom": ["10.0.0.0/24"]}
    values["sniRouter"]["proxied"]["enabled"] = True
    flags = ("--listen-proxy=:6443", "--proxy-from=10.0.0.0/24")
    said = written(capsys, *flags, "--graceful-shutdown-timeout=25s", "--namespace=edge")
    ours = {each["kind"]: each for each in yaml.safe_load_all(said)}
    charts = {each["kind"]: each for each in installation(values, "edge")}
    assert charts.keys() == ours.keys()
    assert charts["Service"]["spec"] == ours["Service"]["spec"]
    assert charts["PodDisruptionBudget"]["spec"] == ours["PodDisruptionBudget"]["spec"]
    pods = [each["Deployment"]["spec"]["template"]["spec"] for each in (ours, charts)]
    for pod in pods:
        (container,) = pod["containers"]
        container["args"] = sorted(
            set(container["args"]) - {"--health-port=8096", "--admin-port=8097"}
        )
        container["ports"].sort(key=lambda each: str(each["name"]))
    assert pods[0] == pods[1]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ("--listen=:443",),
            "--listen :443:",
        ),
        (("--listen=:0",), "--listen needs a port in a manifest: the Service"),
        (
            ("--listen-proxy=:6443", "--service-port=6443"),
            "--service-port 6443",
        ),
        (
            ("--health-port=0",),
            "--health-port must not be 0 in a manifest:",
        ),
        (
            ("--health-bind-address=127.0.0.1",),
            "--health-bind-address 127.0.0.1:",
        ),
        (
            ("--listen=[::1]:8443",),
            "--listen [::1]:8443: the Service",
        ),
        (
            ("--listen-proxy=:8096",),
            "--listen-proxy :8096",
        ),
        (
            ("--config=routes.yaml",),
            "--config routes.yaml: a manifest needs an absolute path, such as"
            " /etc/isthmus/routes.yaml",
        ),
        (("--routes=/nowhere",), "cannot read --routes /nowhere: no such file"),
        (("--accept-proxy",), "--accept-proxy needs --proxy-from"),
        (("--replicas=0",), "--replicas must be at least 1, not 0"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    args: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["manifest", "sni-router", *args]) == 2
    found = capsys.readouterr()
    assert not found.out and found.err.startswith(f"isthmus: {said}")
    assert found.err.count("\n") == 1


def test_wrong_routes_are_found_before_a_cluster_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("kind: SNIRoutes\nroutes: []\n")
    assert main(["manifest", "sni-router", f"--routes={path}"]) == 2
    assert capsys.readouterr().err == f"isthmus: {path}:1:1: apiVersion: is missing\n"


def test_what_is_to_be_known_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifest", "sni-router", IMAGE, "--service-type=ClusterIP"]) == 0
    routes, source = capsys.readouterr().err.splitlines()
    assert "ConfigMap isthmus-sni-router-routes" in routes and "--routes=FILE" in routes
    assert "ClusterIP" in source and "--proxy-from" in source
