"""The chart at a real kube-apiserver: every field checked; installed, upgraded, rolled back, gone.

The apiserver is alone: nobody makes pods of what is installed. That the pods would run is tested
with the programs themselves, in tests/integration/test_manifest_programs.py.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube.api import Api, CallFailedError
from kube.build import Binaries
from kube.documents import contains, make_namespace
from kube.foreign_kinds import define
from kube.helm_cases import every_case
from kube.helm_chart import CHART, NAMESPACE, RELEASE, Helm, HelmError, Key, by_python

from isthmus.cli.main import main

pytestmark = pytest.mark.interop

STRICT = ("apply", "--dry-run=server", "--validate=strict", "-o=json", "-f", "-")
GOLDEN = Path(__file__).parents[2] / "golden"
WHERE = f"--namespace={NAMESPACE}"


@pytest.fixture(scope="module")
def api(kube_api: Api) -> Api:
    """An apiserver that knows the Prometheus operator's objects, and our namespaces."""
    for namespace in (NAMESPACE, "leases", "monitoring"):
        make_namespace(kube_api, namespace)
    define(kube_api, "monitoring.coreos.com")
    return kube_api


@pytest.fixture
def helm(kube_binaries: Binaries, tmp_path: Path, api: Api) -> Helm:
    return Helm(kube_binaries.helm, tmp_path, api)


def placed(documents: dict[Key, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Objects, and what is to be placed on nodes or patched into a Deployment, as one."""
    for (kind, _, name), document in documents.items():
        if kind != "ConfigMap":
            yield document
            continue
        texts = {key: yaml.safe_dump(value) for key, value in document["data"].items()}
        yield {**document, "data": texts}
        if name.endswith("-manifest"):
            yield from document["data"].values()
        if name.endswith("-patch"):
            yield patched(document["data"]["patch.yaml"])


def patched(patch: dict[str, Any]) -> dict[str, Any]:
    """A Deployment that has nothing but what the patch adds, and what every one needs."""
    whole = copy.deepcopy(patch)
    labels = {"app": whole["metadata"]["name"]}
    whole["spec"]["selector"] = {"matchLabels": labels}
    whole["spec"]["template"]["metadata"] = {"labels": labels}
    whole["spec"]["template"]["spec"]["containers"][0]["image"] = "kube-apiserver"
    return whole


def test_the_api_accepts_every_case(api: Api) -> None:
    """Each object of each case, once; the chart's are the same (test_helm_chart.py)."""
    different = {
        json.dumps(each, sort_keys=True): each
        for changes in every_case().values()
        for each in placed(by_python(changes))
    }
    ours = list(different.values())
    assert len(ours) > 40
    for start in range(0, len(ours), 60):
        some = ours[start : start + 60]
        text = "\n---\n".join(map(json.dumps, some))
        taken = json.loads(api.kubectl(*STRICT, stdin=text.encode()))
        for one, theirs in zip(some, taken["items"], strict=True):
            assert contains(theirs, one), json.dumps(theirs)


def test_the_api_accepts_what_flags_say(api: Api) -> None:
    """Manifests of one program each, as the unit tests have them."""
    for namespace in ("tunnel", "isthmus", "isthmus-leases"):
        make_namespace(api, namespace)
    ours = [
        each
        for directory in ("server_forms", "manifests", "node_proxy_manifests")
        for path in sorted((GOLDEN / directory).glob("*.yaml"))
        for each in yaml.safe_load_all(path.read_text())
        if each["kind"] != "EgressSelectorConfiguration"
    ]
    assert len(ours) > 40
    text = "\n---\n".join(map(json.dumps, ours))
    taken = json.loads(api.kubectl(*STRICT, stdin=text.encode()))
    for one, theirs in zip(ours, taken["items"], strict=True):
        assert contains(theirs, one), json.dumps(theirs)


def test_the_api_accepts_the_rules_for_an_operator(
    api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["manifest", "monitoring", "--part=prometheus-rule"]) == 0
    text = capsys.readouterr().out
    taken = json.loads(api.kubectl(*STRICT, stdin=text.encode()))
    assert contains(taken, yaml.safe_load(text)), json.dumps(taken)
    wrong = text.replace("expr:", "query:")
    with pytest.raises(CallFailedError, match="query"):
        api.kubectl(*STRICT, stdin=wrong.encode())


def test_a_field_that_is_none_is_not_accepted(api: Api) -> None:
    found = by_python({})
    (one,) = [each for (kind, _, name), each in found.items() if (kind, name) == SERVER]
    one["spec"]["template"]["spec"]["hostNetworks"] = True
    with pytest.raises(CallFailedError, match="hostNetworks"):
        api.kubectl(*STRICT, stdin=json.dumps(one).encode())


SERVER = ("DaemonSet", "isthmus-server")
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/isthmus-server"
DAEMON_SET = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/isthmus-server"
ROLE = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{NAMESPACE}-isthmus-server-tokens"


def there(api: Api, path: str) -> bool:
    try:
        return bool(api.get(path))
    except CallFailedError as exc:
        assert exc.status == 404
        return False


def image(api: Api, path: str) -> str:
    (container,) = api.get(path)["spec"]["template"]["spec"]["containers"]
    return str(container["image"])


@pytest.mark.parametrize("kind", ["daemonset", "deployment", "staticPod", "sidecar"])
def test_the_api_would_take_it_and_notes_say_what_to_do(helm: Helm, kind: str) -> None:
    changes = {"server.kind": kind, "server.kubeconfig.secret": "k" if kind == "sidecar" else ""}
    said = helm.run("install", "trial", str(CHART), "--dry-run=server", helm.values(changes), WHERE)
    notes = said.partition("NOTES:")[2]
    assert "ConfigMap isthmus-ca (ca.crt)" in notes
    wanted = {
        "daemonset": 'udsName: "/run/isthmus/server.sock"',
        "deployment": f'url: "https://isthmus-server-frontend.{NAMESPACE}.svc:8090"',
        "staticPod": "/etc/kubernetes/manifests/isthmus-server.yaml",
        "sidecar": "patch deployment kube-apiserver --patch-file=patch.yaml",
    }
    assert wanted[kind] in notes
    assert "nil" not in notes and "%!" not in notes


def test_install_upgrade_rollback_uninstall(helm: Helm, api: Api, tmp_path: Path) -> None:
    helm.run("package", str(CHART), f"--destination={tmp_path}")
    (packed,) = tmp_path.glob("isthmus-*.tgz")
    release = (RELEASE, str(packed), WHERE)
    helm.run("install", *release, helm.values({"image.tag": "1"}))
    assert image(api, DAEMON_SET) == "isthmus:1" and there(api, ROLE)
    helm.run("upgrade", *release, helm.values({"image.tag": "2"}))
    assert image(api, DAEMON_SET) == "isthmus:2"
    changes = {"server.kind": "deployment", "auth.mode": "certificate", "image.tag": "3"}
    helm.run("upgrade", *release, helm.values(changes))
    assert image(api, DEPLOYMENT) == "isthmus:3"
    assert not there(api, DAEMON_SET) and not there(api, ROLE)
    with pytest.raises(HelmError, match="extraArgs"):
        helm.run("upgrade", *release, helm.values({"agent.extraArgs": ["--target=1:a:1"]}))
    helm.run("rollback", RELEASE, "1", WHERE)
    assert image(api, DAEMON_SET) == "isthmus:1" and there(api, ROLE)
    assert not there(api, DEPLOYMENT)
    helm.run("uninstall", RELEASE, WHERE)
    assert not there(api, DAEMON_SET) and not there(api, ROLE)
    left = api.kubectl("get", "all,secret,configmap,role,rolebinding", "-o=name", WHERE).decode()
    assert "isthmus" not in left


def test_the_same_without_helm(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # and again: nothing is in the way of itself
        assert main(["manifest", "all", WHERE]) == 0
        found = capsys.readouterr()
        apply = ("apply", "--server-side", "--validate=strict", "-f", "-")
        said = api.kubectl(*apply, stdin=found.out.encode()).decode()
    assert said.count("serverside-applied") == found.out.count("\nkind: ")
    assert "needs the Secret isthmus-server with tls.crt and tls.key" in found.err
    assert image(api, DAEMON_SET).startswith("isthmus:")
    api.kubectl("delete", "--wait=false", "-f", "-", stdin=found.out.encode())
    assert not there(api, DAEMON_SET)
