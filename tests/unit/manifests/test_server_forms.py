"""A server that is no sidecar: files read by a person, and what each form promises.

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
from isthmus.dial.rules_connectivity import NetworkProtocol
from isthmus.dial.settings_connectivity import read

GOLDEN = Path(__file__).parents[2] / "golden" / "server_forms"
IMAGE = "--image=registry.example.com/isthmus:1.0"
LEASES = ("--enable-lease-controller", "--advertise-agent-address=$(POD_IP):8091")
TOKENS = (
    "--agent-namespace=kube-system", "--agent-service-account=isthmus-agent",
    "--authentication-audience=system:konnectivity-server",
)  # fmt: skip
KUBECONFIG = "--kubeconfig=/etc/isthmus/kube/kubeconfig"
CASES: dict[str, tuple[str, ...]] = {
    "daemonset.yaml": ("--as=daemonset", IMAGE, *LEASES, *TOKENS),
    "daemonset-own-network.yaml": (
        "--as=daemonset", IMAGE, "--host-network=false", "--server-count=3", "--name=gate",
        "--namespace=tunnel", "--service-type=LoadBalancer",
    ),
    "deployment.yaml": (
        "--as=deployment", IMAGE, "--replicas=3", *LEASES, "--allow-cidr=10.0.0.0/8,fd00::/8",
        "--readiness=/healthz",
    ),
    "deployment-guest.yaml": (
        "--as=deployment", IMAGE, "--replicas=1", *LEASES, *TOKENS, KUBECONFIG,
        "--secret=guest-kubeconfig", "--network-policy=false", "--run-as=1001",
        "--graceful-shutdown-timeout=1m30s",
    ),
    "static-pod.yaml": ("--as=static-pod", IMAGE, *LEASES, *TOKENS, KUBECONFIG),
    "static-pod-objects.yaml": (
        "--as=static-pod", "--part=objects", *LEASES, *TOKENS, KUBECONFIG, "--kubeconfig-user=gate",
    ),
    "static-pod-both-modes.yaml": (
        "--as=static-pod", IMAGE, "--server-count=3", "--mode=grpc,http-connect",
        "--http-connect-uds-name=/run/isthmus-http/server.sock",
    ),
    "systemd.service": ("--as=systemd", "--server-count=3"),
    "systemd-elsewhere.service": (
        "--as=systemd", "--uds-name=/srv/sockets/server.sock", "--unit-group=konnectivity",
        "--server-id=100%", "--cluster-ca-cert=/home/pki/ca.crt",
    ),
    "systemd-audit-low-port.service": (
        "--as=systemd", "--server-count=1", "--agent-port=443",
        "--audit-log-path=/var/log/isthmus/audit.log",
    ),
    "systemd-objects.yaml": (
        "--as=systemd", "--part=objects", "--enable-lease-controller", KUBECONFIG,
    ),
    "egress-socket.yaml": ("--as=daemonset", "--part=egress-selector"),
    "egress-tcp.yaml": ("--as=deployment", "--part=egress-selector", "--namespace=tunnel"),
}  # fmt: skip
PODS = [name for name in CASES if "pod" in name or name.startswith("d") if "obj" not in name]
UNITS = [name for name in CASES if name.endswith(".service")]


def written(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["manifest", "server", *args]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["manifest", "server", *args]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("\n") == 1, found.err
    return found.err.removeprefix("isthmus: ").rstrip()


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((GOLDEN / name).read_text()))


def pod(name: str) -> dict[str, Any]:
    (found,) = [each["spec"] for each in documents(name) if each["kind"] in KINDS]
    spec: dict[str, Any] = found["template"]["spec"] if "template" in found else found
    return spec


KINDS = ("Pod", "DaemonSet", "Deployment")


def kinds(name: str) -> list[str]:
    return [each["kind"] for each in documents(name)]


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_somebody_has_read(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = written(capsys, *CASES[name])
    if os.environ.get("ISTHMUS_REGENERATE"):
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()


def test_every_file_is_used() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == CASES.keys()


@pytest.mark.parametrize("name", PODS)
def test_a_server_has_no_privilege_and_ends_in_time(name: str) -> None:
    spec = pod(name)
    (server,) = spec["containers"]
    context = server["securityContext"]
    assert context["runAsNonRoot"] and context["readOnlyRootFilesystem"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert server["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert server["resources"]["requests"]
    assert spec["priorityClassName"].startswith("system-")
    drain = 90 if name == "deployment-guest.yaml" else 25
    leaving = 5 if name.startswith("deployment") else 0
    assert spec["terminationGracePeriodSeconds"] == leaving + drain + 5
    # Behind a Service it goes on until nobody is sent to it any more.
    asleep = {"preStop": {"sleep": {"seconds": leaving}}} if leaving else None
    assert server.get("lifecycle") == asleep


@pytest.mark.parametrize("name", PODS)
def test_the_directory_of_a_socket_is_given_to_the_server(name: str) -> None:
    spec = pod(name)
    hosts = [each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each]
    sockets = [each for each in hosts if each.startswith("/run/")]
    assert bool(sockets) is not name.startswith("deployment")
    for setup in spec.get("initContainers", ()):
        assert setup["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["CHOWN"]}
        assert [each["mountPath"] for each in setup["volumeMounts"]] == sockets
        assert setup["args"][-1] == "--owner=65532"


def test_a_daemonset_is_on_the_nodes_of_the_control_plane() -> None:
    spec = pod("daemonset.yaml")
    label = "node-role.kubernetes.io/control-plane"
    assert spec["nodeSelector"][label] == ""
    assert {"key": label, "operator": "Exists"} in spec["tolerations"]
    assert spec["hostNetwork"] and spec["dnsPolicy"] == "ClusterFirstWithHostNet"
    # Nobody enforces a policy there, nor does a budget mean anything to a DaemonSet.
    assert "NetworkPolicy" not in kinds("daemonset.yaml")
    assert "PodDisruptionBudget" not in kinds("daemonset.yaml")
    own = pod("daemonset-own-network.yaml")
    assert "hostNetwork" not in own and "dnsPolicy" not in own
    assert "NetworkPolicy" in kinds("daemonset-own-network.yaml")


def test_servers_reach_each_other_whatever_networks_agents_are_in() -> None:
    (policy,) = [each for each in documents("deployment.yaml") if each["kind"] == "NetworkPolicy"]
    agents, _, others = policy["spec"]["ingress"]
    assert agents["ports"] == [{"protocol": "TCP", "port": 8091}]
    assert agents["from"] == [
        {"ipBlock": {"cidr": "10.0.0.0/8"}},
        {"ipBlock": {"cidr": "fd00::/8"}},
        {"podSelector": policy["spec"]["podSelector"]},
    ]
    assert "from" not in others


@pytest.mark.parametrize(
    ("flags", "peers"),
    [
        ([], [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "here"}}}]),
        (["--apiserver-cidr=192.0.2.7/32"], [{"ipBlock": {"cidr": "192.0.2.7/32"}}]),
        (
            ["--apiserver-cidr=192.0.2.7/32", "--apiserver-namespace=cp"],
            [
                {"ipBlock": {"cidr": "192.0.2.7/32"}},
                {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "cp"}}},
            ],
        ),
    ],
)
def test_the_frontend_is_open_to_the_apiserver_alone(
    flags: list[str], peers: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["manifest", "server", "--as=deployment", "--namespace=here", "--part=objects", *flags]
    assert main(args) == 0
    found = yaml.safe_load_all(capsys.readouterr().out)
    (policy,) = [each for each in found if each["kind"] == "NetworkPolicy"]
    _, front, health = policy["spec"]["ingress"]
    assert front == {"from": peers, "ports": [{"protocol": "TCP", "port": 8090}]}
    assert health == {"ports": [{"protocol": "TCP", "port": 8092}]}


@pytest.mark.parametrize("form", ["deployment", "sidecar"])
def test_clients_have_authorities_of_their_own(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["manifest", "server", f"--as={form}"]) == 0
    assert "an agent's certificate opens the frontend" in capsys.readouterr().err
    assert main(["manifest", "server", f"--as={form}", "--client-ca-config-map=clients"]) == 0
    printed = capsys.readouterr()
    assert "opens the frontend" not in printed.err
    assert "/client-ca/ca.crt" in printed.out and "name: clients" in printed.out
    names = ("--client-names=kube-apiserver", "--agent-names=node-*")
    assert main(["manifest", "server", f"--as={form}", *names]) == 0
    assert "opens the frontend" not in capsys.readouterr().err


def test_a_namespace_that_was_named_is_there_already(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--enable-lease-controller", "--lease-namespace=kube-system")
    assert main(["manifest", "server", "--as=daemonset", "--part=objects", *flags]) == 0
    found = list(yaml.safe_load_all(capsys.readouterr().out))
    assert "Namespace" not in {each["kind"] for each in found}
    (role,) = [each for each in found if each["kind"] == "Role"]
    assert role["metadata"]["namespace"] == "kube-system"


def test_a_unit_may_do_what_its_flags_need_and_no_more() -> None:
    text = (GOLDEN / "systemd-audit-low-port.service").read_text()
    assert "\nLogsDirectory=isthmus\n" in text
    assert "\nAmbientCapabilities=CAP_NET_BIND_SERVICE\n" in text
    text = (GOLDEN / "systemd.service").read_text()
    assert "LogsDirectory" not in text and "\nAmbientCapabilities=\n" in text


def test_an_audit_log_elsewhere_is_somebody_elses_directory(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = written(capsys, "--as=systemd", "--audit-log-path=/srv/audit/log")
    assert "\nReadWritePaths=/srv/audit\n" in text
    text = written(capsys, "--as=daemonset", "--audit-log-path=-")
    assert "- --audit-log-path=-\n" in text


def test_rights_are_there_when_they_are_needed_and_not_else() -> None:
    rules = {
        (each["kind"], each["metadata"].get("namespace")): each["rules"]
        for each in documents("daemonset.yaml")
        if each["kind"].endswith("Role")
    }
    assert rules == {
        ("Role", "isthmus-leases"): [
            {
                "apiGroups": ["coordination.k8s.io"],
                "resources": ["leases"],
                "verbs": ["get", "list", "watch", "create", "update", "delete"],
            }
        ],
        ("ClusterRole", None): [
            {
                "apiGroups": ["authentication.k8s.io"],
                "resources": ["tokenreviews"],
                "verbs": ["create"],
            }
        ],
    }
    assert pod("daemonset.yaml")["automountServiceAccountToken"] is True
    assert "ClusterRole" not in kinds("deployment.yaml")
    # With a kubeconfig they belong into another cluster, and to somebody else.
    assert not any("Role" in kind for kind in kinds("deployment-guest.yaml"))
    assert pod("deployment-guest.yaml")["automountServiceAccountToken"] is False
    for each in documents("static-pod-objects.yaml"):
        if each["kind"].endswith("Binding"):
            assert [(one["kind"], one["name"]) for one in each["subjects"]] == [("User", "gate")]


@pytest.mark.parametrize("name", ["daemonset.yaml", "deployment.yaml", "static-pod-objects.yaml"])
def test_agents_find_a_server_that_is_not_ready(name: str) -> None:
    services = {
        each["metadata"]["name"]: each["spec"]
        for each in documents(name)
        if each["kind"] == "Service"
    }
    assert services["isthmus-server"]["publishNotReadyAddresses"] is True
    assert services["isthmus-server"]["selector"] == {"k8s-app": "isthmus-server"}
    front = services.get("isthmus-server-frontend")
    assert (front is not None) is name.startswith("deployment")
    assert front is None or "publishNotReadyAddresses" not in front


def test_a_budget_is_for_several_pods() -> None:
    assert "PodDisruptionBudget" in kinds("deployment.yaml")
    assert "PodDisruptionBudget" not in kinds("deployment-guest.yaml")


def test_kube_apiserver_reads_the_egress_selector() -> None:
    way = read((GOLDEN / "egress-socket.yaml").read_text(), name="a").networks["cluster"].connection
    assert (way.protocol, way.uds) == (NetworkProtocol.PACKET, "/run/isthmus/server.sock")
    way = read((GOLDEN / "egress-tcp.yaml").read_text(), name="b").networks["cluster"].connection
    assert str(way.tcp) == "isthmus-server-frontend.tunnel.svc:8090"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--as=pod",), "--as must be sidecar or daemonset or deployment or static-pod or systemd"),
        (
            ("--as=daemonset", "--part=patch"),
            "--part=patch is not available with --as=daemonset",
        ),
        (("--part=all",), "--part=all is not available with --as=sidecar; use patch"),
        (("--as=static-pod", "--part=all"), "--part=all is not available with --as=static-pod"),
        (("--as=systemd", "--enable-lease-controller"), "--kubeconfig is missing: a unit has no"),
        (("--as=static-pod", *TOKENS), "--kubeconfig is missing: a static pod has no service"),
        (
            ("--as=static-pod", "--cluster-cert=/var/run/secrets/kubernetes.io/serviceaccount/x"),
            "--cluster-cert /var/run/secrets/kubernetes.io/serviceaccount/x: a static pod has no",
        ),
        (("--as=deployment", "--uds-name=/run/x/s"), "a deployment needs --server-port"),
        (("--as=deployment", "--server-port=0"), "--server-port must not be 0 in a manifest"),
        (("--as=daemonset", "--agent-port=0"), "--agent-port must not be 0 in a manifest"),
        (("--as=daemonset", "--uds-name=/run/s"), "--uds-name /run/s: /run would be mounted"),
        (("--as=systemd", "--server-id=$(NODE_NAME)"), "$(NODE_NAME) is only available in a pod"),
        (("--as=daemonset", "--name=A b"), "--name takes a name of at most 48"),
        (("--as=deployment", "--replicas=0"), "--replicas must be at least 1"),
        (("--as=daemonset", "--allow-cidr=10.0.0.1/8"), "--allow-cidr 10.0.0.1/8 has bits below"),
        (("--as=daemonset", "--service-type=None"), "--service-type must be ClusterIP or"),
        (("--as=daemonset", "--kubeconfig=/etc/i/k"), "--kubeconfig needs --secret"),
        (("--as=daemonset", "--run-as=0"), "--run-as must be from 1"),
        (("--as=systemd", "--executable=isthmus"), "--executable takes an absolute path"),
        (("--as=systemd", "--cluster-key=/tmp/a/k"), "--cluster-key /tmp/a/k: a unit has a"),
        (
            ("--as=static-pod", "--audit-log-path=/var/log/isthmus/a"),
            "--audit-log-path /var/log/isthmus/a: a pod has no place to write; use",
        ),
        (("--audit-log-path=/var/log/a",), "--audit-log-path /var/log/a: a pod has no place"),
        (("--as=systemd", "--audit-log-path=a.log"), "--audit-log-path a.log: a manifest needs"),
        (("--as=static-pod", "--kubeconfig-user="), "--kubeconfig-user requires a user name"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    args: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, *args).startswith(sentence)


def test_what_may_not_be_meant_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifest", "server", "--as=daemonset", "--replicas=3", "--workload=x"]) == 0
    said = capsys.readouterr().err
    assert "--replicas has no effect with --as=daemonset" in said
    assert "--workload has no effect with --as=daemonset" in said
    assert "kube-apiserver needs /run/isthmus of its node" in said
    assert "without --server-count" in said
    assert main(["manifest", "server", "--as=static-pod", *LEASES, KUBECONFIG]) == 0
    assert "the user system:konnectivity-server of --kubeconfig" in capsys.readouterr().err
    guest = ("--as=deployment", *LEASES, KUBECONFIG, "--secret=x")
    assert main(["manifest", "server", *guest]) == 0
    assert "needs rights in that cluster" in capsys.readouterr().err
    low = "port 443 is below 1024: in a node's network"
    for form, warned in (("static-pod", True), ("daemonset", True), ("deployment", False)):
        assert main(["manifest", "server", f"--as={form}", "--agent-port=443"]) == 0
        assert (low in capsys.readouterr().err) is warned


@pytest.mark.parametrize("name", UNITS)
def test_systemd_reads_the_unit_and_finds_it_safe(name: str, tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("there is no systemd-analyze")
    unit = tmp_path / "isthmus-server.service"
    # It looks whether the program is there.
    unit.write_text((GOLDEN / name).read_text().replace("/usr/bin/isthmus", "/usr/bin/env"))
    run = ["systemd-analyze", "--no-pager"]
    for args in (("verify", "--man=no"), ("security", "--offline=yes", "--threshold=20")):
        done = subprocess.run(
            [*run, *args, str(unit)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("namespace", ["default", "kube-system", "kube-public", "isthmus", "edge"])
def test_leases_are_in_a_namespace_of_their_own(
    capsys: pytest.CaptureFixture[str], namespace: str
) -> None:
    """Whoever may write Leases may write all of a namespace."""
    shared = namespace == "default" or namespace.startswith("kube-")
    own = "isthmus-leases" if shared else namespace
    flags = ("--as=daemonset", f"--namespace={namespace}", IMAGE, *LEASES, *TOKENS)
    found = list(yaml.safe_load_all(written(capsys, *flags)))
    roles = [it for it in found if it["kind"] == "Role"]
    assert [it["metadata"]["namespace"] for it in roles] == [own]
    made = [it["metadata"]["name"] for it in found if it["kind"] == "Namespace"]
    assert made == ([own] if shared else [])
