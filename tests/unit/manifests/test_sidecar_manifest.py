"""The sidecars of a hosted control plane: files read by a person, and what HyperShift writes.

ISTHMUS_REGENERATE=1 writes the files anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from isthmus.cli.main import main
from isthmus.manifests.command import command
from isthmus.programs.sidecar.settings_presets import PRESETS

GOLDEN = Path(__file__).parents[2] / "golden" / "hosted_manifests"
IMAGE = "--image=registry.example.com/isthmus:1.0"
NAMESPACE = "--namespace=clusters-a"
PROXY = (
    "--management-http-proxy=http://proxy.example.com:3128",
    "--management-https-proxy=http://proxy.example.com:3128",
    "--management-no-proxy=.example.com,10.0.0.0/8,kube-apiserver,.example.com",
)
CASES: dict[str, tuple[str, ...]] = {
    "sidecar-socks5.yaml": (
        "--mode=socks5", "--workload=my-operator", "--container=operator", IMAGE, NAMESPACE,
        "--kubeconfig-secret=admin-kubeconfig", "--resolve-from-guest-cluster-dns",
        "--service-cidr=172.30.0.0/16", "--main-no-proxy=etcd-client,kube-apiserver,.svc",
    ),
    "sidecar-https.yaml": (
        "--mode=https", "--workload=my-operator", IMAGE, NAMESPACE, "--run-as=1001",
        "--memory=64Mi",
        "--kubeconfig=/etc/kube/config", "--kubeconfig-volume=kube", "--kubeconfig-secret=admin",
        "--http-proxy=http://proxy.guest:3128", "--https-proxy=https://proxy.guest:3129",
        "--no-proxy=.svc,.cluster.local", "--trust-bundle=user-ca-bundle",
        "--username=me", "--password-file=/etc/isthmus/password", "--secret=sidecar-files",
        "--service-cidr=172.30.0.0/16", "--service-cidr=fd00::/112",
    ),
    "sidecar-dual-pod-spec.yaml": (
        "--mode=dual", "--workload=my-operator", IMAGE, "--part=pod-spec", "--v=4",
        "--kubeconfig-secret=admin-kubeconfig", "--socks5-arg=--resolve-from-guest-cluster-dns",
        "--https-arg=--no-proxy=a,b", "--https-arg=--connect-directly-to-cloud-apis", *PROXY,
    ),
    **{
        f"sidecar-preset-{name}.yaml": (f"--preset={name}", IMAGE, NAMESPACE, *PROXY)
        for name in PRESETS
    },
}  # fmt: skip


def written(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["manifest", "sidecar", *args]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["manifest", "sidecar", *args]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("\n") == 1, found.err
    return found.err.removeprefix("isthmus: ").rstrip()


def pod_spec(text: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text)
    return found["spec"]["template"]["spec"] if "spec" in found else found


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container.get("env", ())}


def by_name(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in spec["containers"]}


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_somebody_has_read(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = written(capsys, *CASES[name])
    if os.environ.get("ISTHMUS_REGENERATE"):
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()


def test_every_file_is_used() -> None:
    assert {path.name for path in GOLDEN.glob("sidecar-*")} == CASES.keys()


# HyperShift's table of components (support/controlplane-component and v2/*).
MAIN = {
    "openshift-apiserver": (
        {"HTTP_PROXY": "http://127.0.0.1:8090", "HTTPS_PROXY": "http://127.0.0.1:8090"},
        "audit-webhook,etcd-client,kube-apiserver",
    ),
    "openshift-oauth-apiserver": (
        {"HTTP_PROXY": "socks5://127.0.0.1:8090", "HTTPS_PROXY": "socks5://127.0.0.1:8090"},
        "audit-webhook,etcd-client,kube-apiserver",
    ),
    "oauth-openshift": (
        {
            "HTTP_PROXY": "http://127.0.0.1:8092",
            "HTTPS_PROXY": "http://127.0.0.1:8092",
            "ALL_PROXY": "socks5://127.0.0.1:8090",
        },
        "audit-webhook,kube-apiserver,oauth-openshift.clusters-a.svc.cluster.local",
    ),
    "ingress-operator": (
        {"HTTP_PROXY": "http://127.0.0.1:8090", "HTTPS_PROXY": "http://127.0.0.1:8090"},
        "kube-apiserver",
    ),
    **{
        name: (
            {"GRPC_PROXY": "socks5://127.0.0.1:8090"},
            "certified-operators,community-operators,kube-apiserver,redhat-operators",
        )
        for name in ("catalog-operator", "olm-operator", "packageserver")
    },
}
ARGS = {
    "openshift-apiserver": {"https": ["https-proxy"]},
    "openshift-oauth-apiserver": {
        "socks5": ["socks5-proxy", "--resolve-from-guest-cluster-dns=true"]
    },
    "oauth-openshift": {
        "https": ["https-proxy", "--serving-port=8092", "--connect-directly-to-cloud-apis=true"],
        "socks5": [
            "socks5-proxy",
            "--resolve-from-guest-cluster-dns=true",
            "--resolve-from-management-cluster-dns=true",
        ],
    },
    "ingress-operator": {"https": ["https-proxy", "--connect-directly-to-cloud-apis=true"]},
    "cluster-network-operator": {"socks5": ["socks5-proxy", "--disable-resolver=true"]},
    "catalog-operator": {"socks5": ["socks5-proxy"]},
    "olm-operator": {"socks5": ["socks5-proxy"]},
    "packageserver": {"socks5": ["socks5-proxy"]},
}
MANAGEMENT = {
    "HTTP_PROXY": "http://proxy.example.com:3128",
    "HTTPS_PROXY": "http://proxy.example.com:3128",
    "NO_PROXY": ".example.com,10.0.0.0/8,kube-apiserver",
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_what_hypershift_does(name: str) -> None:
    spec = pod_spec((GOLDEN / f"sidecar-preset-{name}.yaml").read_text())
    found = by_name(spec)
    main_container = found.pop(name)
    if name == "cluster-network-operator":
        # It hands the management cluster's proxy on, and does not use it.
        prefixed = {f"MGMT_{key}": value for key, value in MANAGEMENT.items()}
        assert variables(main_container) == prefixed
    else:
        proxies, no_proxy = MAIN[name]
        assert variables(main_container) == {**proxies, "NO_PROXY": no_proxy}
    assert {f"konnectivity-proxy-{kind}": args for kind, args in ARGS[name].items()} == {
        each: container["args"] for each, container in found.items()
    }
    volume = {"ingress-operator": "admin-kubeconfig", "cluster-network-operator": "hosted-etc-kube"}
    for container in found.values():
        direct = "--connect-directly-to-cloud-apis=true" in container["args"]
        kubeconfig = {"KUBECONFIG": "/etc/kubernetes/secrets/kubeconfig/kubeconfig"}
        assert variables(container) == {**kubeconfig, **(MANAGEMENT if direct else {})}
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        assert mounts == {
            volume.get(name, "kubeconfig"): "/etc/kubernetes/secrets/kubeconfig",
            "konnectivity-proxy-cert": "/etc/konnectivity/proxy-client",
            "konnectivity-proxy-ca": "/etc/konnectivity/proxy-ca",
            "konnectivity-proxy-tmp": "/tmp",
        }
        assert container["resources"] == {"requests": {"cpu": "10m", "memory": "30Mi"}}
    sources = {each.pop("name"): each for each in spec["volumes"]}
    assert sources["konnectivity-proxy-cert"] == {
        "secret": {"secretName": "konnectivity-client", "defaultMode": 0o640}
    }
    assert sources["konnectivity-proxy-ca"] == {"configMap": {"name": "konnectivity-ca-bundle"}}


@pytest.mark.parametrize("name", CASES)
def test_a_sidecar_has_no_privilege_and_probes_of_its_own(name: str) -> None:
    ports = set()
    for each, container in by_name(pod_spec((GOLDEN / name).read_text())).items():
        if not each.startswith("konnectivity-proxy-"):
            assert container.keys() == {"name", "env"}
            continue
        context = container["securityContext"]
        assert context["runAsNonRoot"] and context["readOnlyRootFilesystem"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        live = container["livenessProbe"]["httpGet"]
        ready = container["readinessProbe"]["httpGet"]
        assert (live["path"], ready["path"]) == ("/livez", "/readyz")
        assert live["port"] == ready["port"] not in ports
        ports.add(live["port"])


@pytest.mark.parametrize(
    ("cidrs", "preferred"),
    [
        (("172.30.0.0/16",), True),
        (("172.30.0.0/16", "10.0.0.0/8"), True),
        (("172.30.0.0/16", "fd00::/112"), False),
        (("fd00::/112",), False),
        ((), False),
    ],
)
def test_ipv4_is_preferred_where_all_services_are(
    cidrs: tuple[str, ...], preferred: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [f"--service-cidr={each}" for each in cidrs]
    text = written(capsys, "--preset=oauth-openshift", NAMESPACE, *flags)
    assert text.count("--prefer-ipv4=true") == (2 if preferred else 0)
    flags.append("--prefer-ipv4=false")
    assert "--prefer-ipv4=true" not in written(capsys, "--preset=olm-operator", *flags)


def test_catalogs_of_the_guest_cluster_are_reached_through_the_sidecar(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = written(capsys, "--preset=packageserver", "--olm-catalogs=guest")
    assert variables(by_name(pod_spec(text))["packageserver"])["NO_PROXY"] == "kube-apiserver"


def test_no_flag_of_ours_is_one_of_the_program() -> None:
    for each in command.commands.values():
        declared = [option.attribute for option in getattr(each, "declared", ())]
        assert len(set(declared)) == len(declared), each.name


def test_what_may_not_be_meant_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifest", "sidecar", "--preset=olm-operator", *PROXY]) == 0
    said = capsys.readouterr().err
    assert "has no effect without --connect-directly-to-cloud-apis" in said
    assert "must have a volume kubeconfig" in said


def test_a_field_of_the_pod_may_stand_in_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    text = written(capsys, "--preset=olm-operator", "--konnectivity-hostname=$(NODE_NAME)")
    container = by_name(pod_spec(text))["konnectivity-proxy-socks5"]
    assert container["env"][0]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


W = ("--mode=socks5", "--workload=w")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ((), "--mode"),
        (("--mode=http",), "--mode must be socks5 or https or dual"),
        (("--mode=socks5",), "--workload"),
        (("--preset=etcd",), "--preset must be openshift-apiserver or"),
        (("--preset=oauth-openshift",), "--namespace"),
        (("--preset=olm-operator", "--mode=dual"), "--mode=dual and --preset=olm-operator, which"),
        ((*W, "--part=json"), "--part must be patch or pod-spec"),
        ((*W, "--part"), "option '--part' requires an argument"),
        ((*W, "--serving-port=99999"), "--serving-port must be from 0 to 65535"),
        ((*W, "--serving-port=0"), "--serving-port must not be 0 in a manifest"),
        ((*W, "--serving-address=0.0.0.0"), "--serving-address 0.0.0.0 would open the guest"),
        ((*W, "--https-proxy=http://a"), "--https-proxy is a flag of https-proxy, and there is no"),
        (
            ("--mode=https", "--workload=w", "--disable-resolver"),
            "--disable-resolver is a flag of socks5-proxy, and there is no socks5 sidecar here",
        ),
        (
            ("--mode=dual", "--workload=w", "--serving-port=8090"),
            "--serving-port of https and --serving-port of socks5 are both 8090:",
        ),
        (("--mode=dual", "--workload=w", "--https-arg=--health-port=8098"), "--health-port of"),
        ((*W, "--https-arg=--v=4"), "--https-arg"),
        ((*W, "--socks5-arg=--servingport=1"), "--socks5-arg: unknown flag --servingport, did you"),
        ((*W, "--socks5-arg=--serving-port"), "--socks5-arg: --serving-port needs a value"),
        ((*W, "--konnectivity-uds=/run/a"), "--konnectivity-uds: the connectivity server's socket"),
        ((*W, "--health-bind-address=127.0.0.1"), "--health-bind-address 127.0.0.1: the kubelet"),
        ((*W, "--health-port=0"), "--health-port must not be 0 in a manifest"),
        ((*W, "--tls-cert-path=/a/b/tls.crt"), "--tls-key-path /etc/konnectivity/proxy-client/"),
        ((*W, "--ca-cert-path=/etc/ca.crt"), "--ca-cert-path /etc/ca.crt: /etc would be mounted"),
        ((*W, "--ca-cert-path=ca.crt"), "--ca-cert-path ca.crt: a manifest needs an absolute"),
        (
            (*W, "--ca-cert-path=/etc/konnectivity/proxy-client/ca.crt"),
            "the volumes konnectivity-proxy-cert and konnectivity-proxy-ca would both be mounted",
        ),
        ((*W, "--admin-cert=/a/b", "--admin-key=/a/c"), "--admin-cert needs --secret: the Secret"),
        ((*W, "--service-cidr=172.30.0.1/16"), "--service-cidr: 172.30.0.1/16 has host bits set"),
        ((*W, "--memory=lots"), "--memory takes a quantity such as 64Mi"),
        ((*W, "--run-as=-1"), "--run-as must be from 1"),
        ((*W, "--image=a b"), "--image takes an image such as"),
        ((*W, "--container=A"), "--container takes a name of at most 48"),
        ((*W, "--client-secret="), "--client-secret takes the name of an object"),
        ((*W, "--management-https-proxy=ftp://x"), "--management-https-proxy: the scheme"),
        ((*W, "--management-no-proxy=a"), "--management-no-proxy needs --management-http-proxy"),
        ((*W, "--etcd-host=a b"), "--etcd-host:"),
        ((*W, "--resolve-from-guest-dns"), "unknown flag --resolve-from-guest-dns, did you mean"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    args: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, *args).startswith(sentence)
