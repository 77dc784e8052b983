"""The manifests of an agent: held against files that were read by a person, and by their promises.

ISTHMUS_REGENERATE=1 writes the files anew.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.cli.main import main
from isthmus.programs.agent.settings_manifest import FORMS

GOLDEN = Path(__file__).parents[2] / "golden" / "manifests"
SERVER = ("--proxy-server-host=konnectivity.example.com", "--ca-cert=/etc/isthmus/ca.crt")
PAIR = ("--agent-cert=/etc/isthmus/agent.crt", "--agent-key=/etc/isthmus/agent.key")
GATE = "--feature-gates=EnableClusterToMasterTraffic=true"
NODE = (GATE, "--bind-address=10.0.0.1", "--target=6443:localhost:6443")
OFF = ("--bind-address=10.0.0.1", "--target=6443:localhost:6443")
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
TOKEN = "--service-account-token-path=/var/run/secrets/tokens/konnectivity"
IMAGE = "--image=registry.example.com/isthmus:1.0"

CASES: dict[str, tuple[str, ...]] = {
    "static-pod-node-traffic.yaml": ("--as=static-pod", IMAGE, *SERVER, *PAIR, *NODE),
    "static-pod-gate-off.yaml": ("--as=static-pod", IMAGE, *SERVER, *PAIR, *OFF),
    "static-pod-many-files.yaml": (
        "--as=static-pod", IMAGE, "--name=agent-b", "--run-as=1000", SERVER[0],
        "--ca-cert=/srv/pki/ca.crt", "--service-account-token-path=/srv/pki/tokens/agent",
        "--kubeconfig=/etc/isthmus/kubeconfig", "--count-server-leases",
        "--health-server-host=127.0.0.1", "--health-server-port=9093",
        "--graceful-shutdown-timeout=1m", "--agent-id=$(NODE_NAME)-b",
    ),
    "systemd-node-traffic.service": (
        "--as=systemd", *SERVER, *PAIR, *NODE, "--uplink-interface=eth0,eth1",
        "--agent-id=100%-$HOME",
    ),
    "systemd-gate-off.service": ("--as=systemd", *SERVER, *PAIR, *OFF),
    "daemonset-token.yaml": (
        "--as=daemonset", IMAGE, SERVER[0], f"--ca-cert={ACCOUNT}", TOKEN,
        "--agent-identifiers=ipv4=$(NODE_IP)",
    ),
    "daemonset-secret.yaml": ("--as=daemonset", IMAGE, *SERVER, *PAIR, "--secret=agent-files"),
    "daemonset-own-network.yaml": (
        "--as=daemonset", IMAGE, *SERVER, TOKEN, "--host-network=false", "--token-audience=gate",
        "--allow-cidr=10.0.0.0/8,fd00::/8", "--proxy-server-port=443",
    ),
    "deployment-leases.yaml": (
        "--as=deployment", IMAGE, "--name=worker", "--namespace=tunnel", *SERVER, *PAIR,
        "--count-server-leases", "--lease-namespace=leases", "--network-policy=false",
    ),
    "deployment-token-and-secret.yaml": (
        "--as=deployment", IMAGE, "--replicas=3", "--namespace=isthmus", *SERVER, TOKEN,
    ),
}  # fmt: skip
STATIC = [name for name in CASES if name.startswith("static")]
UNITS = [name for name in CASES if name.startswith("systemd")]


def written(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["manifest", "agent", *args]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["manifest", "agent", *args]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("\n") == 1, found.err
    return found.err.removeprefix("isthmus: ").rstrip()


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_somebody_has_read(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = written(capsys, *CASES[name])
    if os.environ.get("ISTHMUS_REGENERATE"):
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()


def test_every_file_is_used() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == CASES.keys()


@pytest.mark.parametrize("name", STATIC)
def test_a_static_pod_needs_nothing_of_the_api(name: str) -> None:
    (pod,) = yaml.safe_load_all((GOLDEN / name).read_text())
    spec = pod["spec"]
    assert (pod["kind"], spec["hostNetwork"]) == ("Pod", True)
    assert spec["priorityClassName"] == "system-node-critical"
    assert "serviceAccountName" not in spec and not spec["automountServiceAccountToken"]
    sources = {key for volume in spec["volumes"] for key in volume} - {"name"}
    assert sources <= {"hostPath", "emptyDir"}
    text = str(pod)
    assert not any(word in text for word in ("secretName", "configMap", "secretKeyRef", "envFrom"))


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith(".yaml")])
def test_an_agent_has_no_privilege(name: str) -> None:
    for document in yaml.safe_load_all((GOLDEN / name).read_text()):
        spec = pod_spec(document)
        for container in spec.get("containers", ()):
            check_unprivileged(container["securityContext"])
            assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
            assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
            assert container["resources"]["requests"]
        for container in spec.get("initContainers", ()):
            assert container["securityContext"]["capabilities"] == {
                "drop": ["ALL"],
                "add": ["NET_ADMIN"],
            }
            assert "volumeMounts" not in container


def pod_spec(document: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = document.get("spec", {})
    return spec["template"]["spec"] if "template" in spec else spec


def check_unprivileged(context: dict[str, Any]) -> None:
    assert context["runAsNonRoot"] and context["readOnlyRootFilesystem"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def kinds(name: str) -> dict[str, dict[str, Any]]:
    documents = yaml.safe_load_all((GOLDEN / name).read_text())
    return {document["kind"]: document for document in documents}


def test_what_is_around_agents() -> None:
    leases = kinds("deployment-leases.yaml")
    assert list(leases) == [
        "ServiceAccount", "Role", "RoleBinding", "PodDisruptionBudget", "Deployment",
    ]  # fmt: skip
    assert leases["Role"]["metadata"]["namespace"] == "leases"
    assert leases["Role"]["rules"][0]["verbs"] == ["list", "watch"]
    assert leases["RoleBinding"]["subjects"][0]["namespace"] == "tunnel"
    # Nobody enforces a policy in the network of a node.
    assert list(kinds("daemonset-token.yaml")) == ["ServiceAccount", "DaemonSet"]


def test_a_policy_lets_agents_dial() -> None:
    """What goes out is what they are there for, unless networks are named."""
    policy = kinds("deployment-token-and-secret.yaml")["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress"] and "egress" not in policy
    assert policy["ingress"] == [{"ports": [{"protocol": "TCP", "port": 8093}]}]
    policy = kinds("daemonset-own-network.yaml")["NetworkPolicy"]["spec"]
    dns, servers, networks = policy["egress"]
    assert {each["port"] for each in dns["ports"]} == {53}
    assert servers == {"ports": [{"protocol": "TCP", "port": 443}]}
    assert [each["ipBlock"]["cidr"] for each in networks["to"]] == ["10.0.0.0/8", "fd00::/8"]


def test_with_the_gate_off_the_address_is_removed(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("static-pod", "systemd"):
        assert main(["manifest", "agent", f"--as={form}", *SERVER, *OFF]) == 0
        found = capsys.readouterr()
        assert "--remove" in found.out
        assert "removes the address 10.0.0.1 from the node" in found.err


@pytest.mark.parametrize("form", ["daemonset", "deployment"])
def test_with_a_target_the_kubelet_could_not_get_the_pod(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags in (NODE, OFF, ("--target=6443:localhost:6443",)):
        assert refused(capsys, f"--as={form}", *SERVER, *flags) == (
            f"an agent with --target cannot be a {form}: the kubelet gets such pods from"
            " kube-apiserver, which it reaches only through this agent (KEP-2025); use"
            " --as=static-pod or --as=systemd"
        )


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (SERVER, "--as is missing: use static-pod, systemd, daemonset or deployment"),
        (("--as=pod", *SERVER), "--as must be static-pod or systemd or daemonset or"),
        (("--as=systemd",), "--ca-cert, --agent-cert and --agent-key are missing"),
        (("--as=systemd", *SERVER, "--bind-addres=1"), "unknown flag --bind-addres, did you mean"),
        (("--as=static-pod", *SERVER, "--bind-address=127.0.0.1"), "--bind-address 127.0.0.1 is a"),
        (("--as=static-pod", "--ca-cert=ca.crt"), "--ca-cert ca.crt: a manifest needs an absolute"),
        (("--as=static-pod", "--ca-cert=/etc/ca.crt"), "--ca-cert /etc/ca.crt: /etc would be"),
        (("--as=static-pod", "--ca-cert=/a/../b/c"), "--ca-cert /a/../b/c: a manifest takes a"),
        (("--as=static-pod", f"--ca-cert={ACCOUNT}"), f"--ca-cert {ACCOUNT}: a static pod has no"),
        (("--as=systemd", f"--ca-cert={ACCOUNT}"), f"--ca-cert {ACCOUNT}: a unit has no service"),
        (("--as=systemd", "--ca-cert=/tmp/x/ca.crt"), "--ca-cert /tmp/x/ca.crt: a unit has a"),
        (("--as=systemd", *SERVER, "--agent-id=$(NODE_NAME)"), "$(NODE_NAME) is only available in"),
        (
            ("--as=static-pod", *SERVER, "--count-server-leases"),
            "--count-server-leases needs --kubeconfig here",
        ),
        (
            ("--as=daemonset", *SERVER, "--agent-cert=/a/b/c", "--agent-key=/etc/isthmus/k"),
            "--agent-cert /a/b/c is not in /etc/isthmus, where --ca-cert is",
        ),
        (
            ("--as=daemonset", *SERVER, "--service-account-token-path=/etc/isthmus/token"),
            "--ca-cert /etc/isthmus/ca.crt: the directory of the token",
        ),
        (("--as=static-pod", *SERVER, "--run-as=0"), "--run-as must be from 1"),
        (("--as=static-pod", *SERVER, "--name=A b"), "--name takes a name of at most 48"),
        (("--as=static-pod", *SERVER, "--image=a b"), "--image takes an image such as"),
        (("--as=systemd", *SERVER, "--executable=isthmus"), "--executable takes an absolute path"),
        (("--as=systemd", *SERVER, "--unit-group=a;b"), "--unit-group takes the name of a group"),
        (("--as=deployment", *SERVER, "--replicas=0"), "--replicas must be at least 1"),
        (("--as=daemonset", *SERVER, "--token-audience=a b"), "--token-audience takes an audience"),
        (("--as=daemonset", *SERVER, "--allow-cidr=10"), "--allow-cidr 10 is not a network such"),
        (("--as=systemd", *SERVER, "--health-server-port=0"), "--health-server-port must not be 0"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    args: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, *args).startswith(sentence)


@pytest.mark.parametrize("form", FORMS)
def test_the_environment_of_who_writes_it_does_not_count(
    form: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROXY_AGENT_ID", "laptop")
    assert "laptop" not in written(capsys, f"--as={form}", *SERVER)


def test_what_has_no_effect_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("--as=systemd", "--image=x", "--v=3", "--logtostderr", *SERVER)
    assert main(["manifest", "agent", *args]) == 0
    found = capsys.readouterr()
    assert "--image has no effect with --as=systemd" in found.err
    assert "left out: --logtostderr" in found.err
    assert "--logtostderr" not in found.out
    assert "--v=3" in found.out


def test_an_older_target_is_written_as_today(capsys: pytest.CaptureFixture[str]) -> None:
    flags = (GATE, "--bind-address=10.0.0.1", "--target=localhost:6443:7443")
    assert "--target=7443:localhost:6443" in written(capsys, "--as=static-pod", *SERVER, *flags)


@pytest.mark.parametrize("name", UNITS)
def test_systemd_reads_the_unit_and_finds_it_safe(name: str, tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("there is no systemd-analyze")
    unit = tmp_path / "isthmus-agent.service"
    # It looks whether the program is there.
    unit.write_text((GOLDEN / name).read_text().replace("/usr/bin/isthmus", "/usr/bin/env"))
    run = ["systemd-analyze", "--no-pager"]
    done = subprocess.run(
        [*run, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run(
        [*run, "security", "--offline=yes", "--threshold=20", str(unit)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
