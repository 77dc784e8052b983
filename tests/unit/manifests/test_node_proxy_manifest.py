"""``isthmus manifest node-proxy``: every form, the rights that it has, and what is wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.cli.main import main

GOLDEN = Path(__file__).parents[2] / "golden" / "node_proxy_manifests"
API = "--api-server=api.example.com:6443"
NFT = ("--proxy-mode=nftables", "--detect-local=node-cidr")
KUBECONFIG = "--kubeconfig=/etc/kubernetes/kube-proxy.conf"
FORMS = {
    "daemonset": ("--as=daemonset", API, *NFT, "--take-over"),
    "daemonset-kubeadm": (
        "--as=daemonset", "--config-map=kube-proxy", "--config=/var/lib/kube-proxy/config.conf",
        "--take-over",
    ),
    "daemonset-ipvs": ("--as=daemonset", API, "--proxy-mode=ipvs"),
    "static-pod": (
        "--as=static-pod", KUBECONFIG, *NFT, "--nftables-localhost-nodeports",
    ),
}  # fmt: skip


def written(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["manifest", "node-proxy", *args]) == 0
    return capsys.readouterr().out


def by_kind(text: str) -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def pod(text: str) -> dict[str, Any]:
    found = by_kind(text)
    spec: dict[str, Any] = (
        found["DaemonSet"]["spec"]["template"]["spec"] if "DaemonSet" in found
        else found["Pod"]["spec"]
    )  # fmt: skip
    return spec


@pytest.mark.parametrize("name", FORMS)
def test_it_is_as_expected(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """UPDATE_GOLDEN=1 writes what is expected anew."""
    path = GOLDEN / f"{name}.yaml"
    text = written(capsys, *FORMS[name])
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize(
    "name", [each for each in FORMS if each.startswith(("daemonset", "static"))]
)
def test_probes_follow_the_health_port_to_https(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    at = "/etc/isthmus/health"
    flags = (f"--health-cert={at}/tls.crt", f"--health-key={at}/tls.key")
    spec = pod(written(capsys, *FORMS[name], *flags))
    (stays,) = spec["containers"]
    for probe in ("livenessProbe", "readinessProbe"):
        assert stays[probe]["httpGet"]["scheme"] == "HTTPS"
    (mount,) = [each for each in stays["volumeMounts"] if each["mountPath"] == at]
    (volume,) = [each for each in spec["volumes"] if each["name"] == mount["name"]]
    assert volume["hostPath"]["path"] == at


def test_every_file_is_used() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == FORMS.keys()


@pytest.mark.parametrize(
    ("name", "capabilities"),
    [
        ("daemonset", ["NET_ADMIN", "SYS_RESOURCE"]),
        ("daemonset-kubeadm", ["NET_ADMIN", "NET_RAW", "SYS_RESOURCE"]),
        ("static-pod", ["NET_ADMIN", "SYS_RESOURCE"]),
    ],
)
def test_what_stays_has_the_capabilities_for_rules(
    name: str, capabilities: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    spec = pod(written(capsys, *FORMS[name]))
    (stays,), (first,) = spec["containers"], spec["initContainers"]
    context = stays["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": capabilities}
    assert not context["allowPrivilegeEscalation"] and "privileged" not in context
    assert first["securityContext"]["privileged"] and first["args"][-1] == "--init-only=true"
    assert spec["dnsPolicy"] == "Default"  # the cluster's DNS is a Service
    assert "ports" not in stays  # a kube-proxy beside it may have declared the same


@pytest.mark.parametrize(("score", "needed"), [("-998", True), ("-997", False), ("0", False)])
def test_only_a_score_below_the_kubelets_needs_a_right(
    score: str, needed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = pod(written(capsys, *FORMS["daemonset"], f"--oom-score-adj={score}"))
    found = spec["containers"][0]["securityContext"]["capabilities"]["add"]
    assert ("SYS_RESOURCE" in found) == needed


@pytest.mark.parametrize(("mode", "ranges"), [("nftables", True), ("iptables", False)])
def test_rights_are_what_it_watches(
    mode: str, ranges: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    found = by_kind(written(capsys, "--as=daemonset", API, f"--proxy-mode={mode}"))
    rules = found["ClusterRole"]["rules"]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"list", "watch"}
    resources = [each for rule in rules for each in rule["resources"]]
    more = ["servicecidrs"] if ranges else []
    assert resources == ["services", "nodes", "endpointslices", *more]


def test_a_pod_reaches_the_api_without_the_service_that_it_makes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = pod(written(capsys, "--as=daemonset", "--api-server=[fd00::1]:443"))
    env = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
    assert env["KUBERNETES_SERVICE_HOST"] == "fd00::1"
    assert env["KUBERNETES_SERVICE_PORT"] == "443"


WRONG = {
    (): "--as is required: use daemonset, static-pod or systemd",
    ("--as=daemonset",): "--api-server is missing",
    ("--as=daemonset", API, KUBECONFIG): "--api-server cannot be combined with --kubeconfig",
    ("--as=daemonset", "--api-server=api"): "--api-server: no port in 'api'",
    ("--as=daemonset", "--master=https://api:6443"): "--api-server is missing",
    ("--as=daemonset", API, "--master=https://api:6443"): "--master has no credentials in a pod",
    ("--as=daemonset", API, "--config-map=x"): "--config-map requires --config or --kubeconfig",
    ("--as=static-pod",): "--kubeconfig is missing",
    ("--as=systemd",): "--kubeconfig is missing",
    ("--as=systemd", "--kubeconfig=relative"): "a manifest needs an absolute path",
    ("--as=systemd", KUBECONFIG, "--hostname-override=$(NODE_NAME)"): "$(NODE_NAME) ",
    ("--as=daemonset", API, "--init-only"): "--init-only ends the program at once",
    ("--as=daemonset", API, "--healthz-bind-address="): "--healthz-bind-address must have a port",
    ("--as=daemonset", API, "--manifests=/x"): "--manifests cannot be used",
    ("--as=static-pod",
     "--kubeconfig=/var/run/secrets/kubernetes.io/serviceaccount/kubeconfig"):
        "--kubeconfig must be a file on the node",
}  # fmt: skip


@pytest.mark.parametrize("args", WRONG, ids=" ".join)
def test_what_is_wrong_is_a_sentence(
    args: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["manifest", "node-proxy", *args]) == 2
    said = capsys.readouterr()
    assert said.out == "" and WRONG[args] in said.err


def test_what_is_not_wrong_may_be_worth_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--as=daemonset", API, "--proxy-mode=ipvs", "--executable=/x"]
    assert main(["manifest", "node-proxy", *flags]) == 0
    said = capsys.readouterr().err
    assert "--executable has no effect with --as=daemonset" in said
    assert "the container is privileged" in said
    assert "without --take-over" in said
