"""A server beside kube-apiserver, and its agents: files read by a person, and promises.

ISTHMUS_REGENERATE=1 writes the files anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.cli.main import main
from isthmus.dial.rules_connectivity import NetworkProtocol
from isthmus.dial.settings_connectivity import read

GOLDEN = Path(__file__).parents[2] / "golden" / "hosted_manifests"
IMAGE = "--image=registry.example.com/isthmus:1.0"
NAMESPACE = "--namespace=clusters-a"
UDS = "--uds-name=/run/konnectivity/server.sock"
AGENT = (
    "--image=registry.example.com/isthmus:1.0", "--ca-config-map=konnectivity-ca-bundle",
    "--secret=konnectivity-agent", "--ca-cert=/etc/konnectivity/ca/ca.crt",
    "--agent-cert=/etc/konnectivity/agent/tls.crt", "--agent-key=/etc/konnectivity/agent/tls.key",
    "--name=konnectivity-agent",
)  # fmt: skip
CASES: dict[str, tuple[str, ...]] = {
    "server-patch.yaml": ("server", IMAGE, NAMESPACE, "--server-count=3"),
    "server-pod-spec.yaml": ("server", IMAGE, "--part=pod-spec", "--server-count=1"),
    "server-uds.yaml": (
        "server", IMAGE, "--part=pod-spec", UDS, "--mode=grpc", "--run-as=1001", "--pre-stop=0s",
        "--server-id=$(POD_NAME)", "--readiness=/healthz", "--server-count=2",
    ),
    "server-tokens.yaml": (
        "server", IMAGE, "--part=pod-spec", "--agent-namespace=kube-system",
        "--agent-service-account=agent", "--authentication-audience=system:konnectivity-server",
        "--kubeconfig=/etc/isthmus/kubeconfig", "--agent-identity-binding=/etc/isthmus/rules.yaml",
        "--secret=server-files", "--enable-lease-controller",
        "--cluster-cert=/pki/agents/server.pem", "--cluster-key=/pki/agents/server-key.pem",
    ),
    "server-services.yaml": ("server", NAMESPACE, "--part=services"),
    "server-config-map.yaml": ("server", NAMESPACE, "--part=config-map"),
    "server-egress-selector-uds.yaml": ("server", "--part=egress-selector", UDS, "--mode=grpc"),
    "server-agents-control-plane.yaml": (
        "agent", "--as=deployment", NAMESPACE, *AGENT, "--proxy-server-host=konnectivity-server",
        "--stand-for=172.30.1.2,fd00::1:2", "--stand-for=api.openshift-apiserver.svc",
        "--stand-for=10.1.0.0/16",
    ),
    "server-agents-nodes.yaml": (
        "agent", "--as=daemonset", *AGENT, "--proxy-server-host=konnectivity.example.com",
        "--agent-identifiers=default-route=true", "--dns-policy=Default",
        "--health-server-host=127.0.0.1", "--https-proxy=http://proxy.guest:3128",
        "--no-proxy=.svc,10.0.0.0/8",
    ),
}  # fmt: skip


def written(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["manifest", *args]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["manifest", *args]) == 2
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
    assert {path.name for path in GOLDEN.glob("server-*")} == CASES.keys()


def container(name: str) -> dict[str, Any]:
    found = yaml.safe_load((GOLDEN / name).read_text())
    spec = found["spec"]["template"]["spec"] if "spec" in found else found
    (server,) = [each for each in spec["containers"] if each["name"] == "konnectivity-server"]
    return {**server, "spec": spec}


def test_it_has_the_flags_of_hypershift_and_authenticates_agents() -> None:
    args = set(container("server-patch.yaml")["args"])
    assert {
        "--server-port=8090", "--agent-port=8091", "--health-port=2041", "--admin-port=8093",
        "--mode=http-connect", "--proxy-strategies=destHost,defaultRoute", "--keepalive-time=30s",
        "--frontend-keepalive-time=30s", "--server-count=3",
        "--cluster-ca-cert=/etc/konnectivity/ca/ca.crt",
    } < args  # fmt: skip


def test_readiness_needs_an_agent_and_liveness_does_not() -> None:
    found = container("server-patch.yaml")
    assert found["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 2041}
    assert found["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": 2041}
    services = yaml.safe_load_all((GOLDEN / "server-services.yaml").read_text())
    early = {each["metadata"]["name"]: each["spec"] for each in services}
    # Else nobody could make the first server ready.
    assert early["konnectivity-server"]["publishNotReadyAddresses"] is True
    assert "publishNotReadyAddresses" not in early["konnectivity-server-local"]


def test_it_outlives_kube_apiserver() -> None:
    found = container("server-patch.yaml")
    assert found["lifecycle"] == {"preStop": {"sleep": {"seconds": 70}}}
    assert found["spec"]["terminationGracePeriodSeconds"] == 70 + 25


def test_kube_apiserver_reads_the_egress_selector() -> None:
    data = yaml.safe_load((GOLDEN / "server-config-map.yaml").read_text())["data"]
    config = read(data["config.yaml"], name="config.yaml")
    assert {each.name: each.connection.protocol for each in config.networks.values()} == {
        "controlplane": NetworkProtocol.DIRECT,
        "etcd": NetworkProtocol.DIRECT,
        "cluster": NetworkProtocol.HTTP_CONNECT,
    }
    way = config.networks["cluster"].connection
    assert str(way.tcp) == "konnectivity-server-local:8090"
    assert way.tls is not None and way.tls.client_cert
    # Both files are where its container has them mounted.
    spec = container("server-patch.yaml")["spec"]
    mounts = {each["mountPath"] for each in spec["containers"][0]["volumeMounts"]}
    assert {str(Path(way.tls.client_cert).parent), str(Path(way.tls.ca_bundle).parent)} < mounts


def test_a_socket_is_where_both_have_it() -> None:
    spec = container("server-uds.yaml")["spec"]
    for each in spec["containers"]:
        assert "/run/konnectivity" in {mount["mountPath"] for mount in each["volumeMounts"]}
    assert not any("konnectivity-client" in each["name"] for each in spec["volumes"])


def agent_args(text: str) -> list[str]:
    (agent,) = [each for each in yaml.safe_load_all(text) if "template" in each.get("spec", ())]
    args: list[str] = agent["spec"]["template"]["spec"]["containers"][0]["args"]
    return args


def test_an_agent_stands_for_addresses_of_each_family(capsys: pytest.CaptureFixture[str]) -> None:
    """HyperShift writes ipv4= for both."""
    args = agent_args((GOLDEN / "server-agents-control-plane.yaml").read_text())
    assert (
        "--agent-identifiers=ipv4=172.30.1.2&ipv6=fd00::1:2&host=api.openshift-apiserver.svc"
        "&cidr=10.1.0.0/16" in args
    )
    flags = (*AGENT, "--as=deployment", "--agent-identifiers=default-route=true")
    args = agent_args(written(capsys, "agent", *flags, "--stand-for=::1,::01"))
    assert "--agent-identifiers=default-route=true&ipv6=::1" in args


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("server", "--mode=grpc"), "kube-apiserver supports grpc only over a UNIX socket: use"),
        (("server", "--server-port=0"), "--server-port must not be 0 in a manifest"),
        (("server", "--agent-port=0"), "--agent-port must not be 0 in a manifest"),
        (("server", "--health-port=0"), "--health-port must not be 0 in a manifest"),
        (("server", "--part=json"), "--part must be patch or pod-spec or egress-selector"),
        (("server", "--server-cert=/a/b/c"), "--server-key /etc/konnectivity/server/tls.key is"),
        (("server", "--server-cert=c.crt"), "--server-cert c.crt: a manifest needs an absolute"),
        (("server", "--cluster-cert="), "--cluster-cert is missing: the agent port is always TLS"),
        (("server", "--kubeconfig=/etc/i/k"), "--kubeconfig needs --secret, the Secret with"),
        (("server", "--selector=app"), "--selector takes LABEL=VALUE, not 'app'"),
        (("server", "--readiness=/"), "--readiness must be /readyz or /healthz"),
        (("server", "--pre-stop=-1s"), "--pre-stop must not be negative"),
        (("server", "--egress-host=a b"), "--egress-host:"),
        (("server", "--egress-client-cert=a"), "--egress-client-cert a: a manifest needs an"),
        (("server", "--uds-name=/run/a.sock"), "--uds-name /run/a.sock: /run would be mounted"),
        (("server", "--server-secret="), "--server-secret takes the name of an object"),
        (("server", "--run-as=-2"), "--run-as must be from 1"),
        (("server", "--proxy-strategies=x"), "--proxy-strategies must be default or destHost or"),
        (
            ("agent", "--as=deployment", *AGENT, "--stand-for=a b"),
            "--stand-for takes an address, a network or a host, not 'a b'",
        ),
        (
            ("agent", "--as=deployment", *AGENT, "--stand-for=a&default-route=true"),
            "--stand-for takes an address, a network or a host, not",
        ),
        (("agent", "--as=daemonset", *AGENT, "--no-proxy=a"), "--no-proxy needs --https-proxy"),
        (("agent", "--as=daemonset", *AGENT, "--dns-policy=x"), "--dns-policy must be Default or"),
        (
            ("agent", "--as=daemonset", *AGENT, "--ca-cert=/etc/konnectivity/agent/ca.crt"),
            "--agent-cert /etc/konnectivity/agent/tls.crt: the directory of the ConfigMap",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(
    args: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, *args).startswith(sentence)


def test_what_may_not_be_meant_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifest", "server"]) == 0
    said = capsys.readouterr().err
    assert "--egress-selector-config-file=/etc/kubernetes/egress-selector/config.yaml" in said
    assert "without --server-count" in said
    assert "publishNotReadyAddresses" in said
    assert "an agent's certificate opens the frontend" in said
    flags = (
        "--readiness=/healthz",
        "--server-count=2",
        "--client-ca-config-map=clients",
        "--image=x",
    )
    assert main(["manifest", "server", "--image=x", *flags]) == 0
    assert capsys.readouterr().err.count("\n") == 1
