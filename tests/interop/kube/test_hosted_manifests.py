"""Manifests of hosted control planes, as kube-apiserver takes them: dry runs that check each field.

Patches are merged into a Deployment that is really there, because a patch of nothing is nothing.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube.api import Api, CallFailedError
from kube.documents import contains, make_namespace

pytestmark = pytest.mark.interop

GOLDEN = Path(__file__).parents[2] / "golden" / "hosted_manifests"
STRICT = ("apply", "--dry-run=server", "--validate=strict", "-o=json", "-f", "-")
IMAGE = "registry.example.com/component:1.0"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((GOLDEN / name).read_text()))


def is_patch(document: dict[str, Any]) -> bool:
    return document.get("kind") == "Deployment" and "selector" not in document["spec"]


NAMES = sorted(path.name for path in GOLDEN.glob("*.yaml"))
PATCHES = [name for name in NAMES if is_patch(documents(name)[0])]
POD_SPECS = [name for name in NAMES if "containers" in documents(name)[0]]
WHOLE = [
    name for name in NAMES if name not in (*PATCHES, *POD_SPECS) and "egress-selector" not in name
]


def test_every_kind_is_there() -> None:
    assert len(PATCHES) > 8 and len(POD_SPECS) > 2 and len(WHOLE) > 5


@pytest.mark.parametrize("name", WHOLE)
def test_the_api_accepts_the_manifest(kube_api: Api, name: str) -> None:
    ours = documents(name)
    for namespace in {each["metadata"]["namespace"] for each in ours}:
        make_namespace(kube_api, namespace)
    taken = json.loads(kube_api.kubectl(*STRICT, stdin=(GOLDEN / name).read_bytes()))
    found = taken["items"] if taken["kind"] == "List" else [taken]
    for one, theirs in zip(ours, found, strict=True):
        assert contains(theirs, one), json.dumps(theirs)


def as_pod(spec: dict[str, Any]) -> dict[str, Any]:
    """A part of a pod's spec, with what its author has besides."""
    spec = copy.deepcopy(spec)
    known = {each["name"] for each in spec["volumes"]}
    wanted = {m["name"] for each in spec["containers"] for m in each.get("volumeMounts", ())}
    spec["volumes"] += [{"name": each, "emptyDir": {}} for each in sorted(wanted - known)]
    for each in spec["containers"]:
        each.setdefault("image", IMAGE)
    metadata = {"name": "part", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("name", [*PATCHES, *POD_SPECS])
def test_every_field_of_a_part_is_known(kube_api: Api, name: str) -> None:
    (part,) = documents(name)
    spec = part["spec"]["template"]["spec"] if name in PATCHES else part
    pod = as_pod(spec)
    # The tests' apiserver makes no service accounts; without one a pod needs none.
    pod["spec"]["automountServiceAccountToken"] = False
    taken = json.loads(kube_api.kubectl(*STRICT, stdin=json.dumps(pod).encode()))
    assert contains(taken["spec"]["containers"], pod["spec"]["containers"]), json.dumps(taken)
    pod["spec"]["containers"][-1]["volumeMount"] = []
    with pytest.raises(CallFailedError, match="volumeMount"):
        kube_api.kubectl(*STRICT, stdin=json.dumps(pod).encode())


@contextmanager
def workload(api: Api, patch: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The Deployment that a patch is for, with what the patch counts on; its name and namespace."""
    name, namespace = patch["metadata"]["name"], patch["metadata"]["namespace"]
    make_namespace(api, namespace)
    pod = patch["spec"]["template"]["spec"]
    main = {
        "name": pod["containers"][0]["name"],
        "image": IMAGE,
        "args": ["--one", "--two"],
        "env": [{"name": "NO_PROXY", "value": "before"}, {"name": "OTHER", "value": "stays"}],
    }
    own = {each["name"] for each in pod["volumes"]}
    volumes = {"kubeconfig", "admin-kubeconfig", "hosted-etc-kube"} - own
    labels = {"app": name}
    body = {
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [main],
                    "volumes": [{"name": each, "emptyDir": {}} for each in sorted(volumes)],
                },
            },
        },
    }
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    api.create(path, body)
    try:
        yield name, namespace
    finally:
        api.call("DELETE", f"{path}/{name}")


@pytest.mark.parametrize("name", PATCHES)
def test_a_patch_adds_and_takes_nothing_away(kube_api: Api, name: str) -> None:
    (patch,) = documents(name)
    if patch["metadata"]["name"] == "my-operator":
        patch["metadata"]["name"] = name.removesuffix(".yaml")
    with workload(kube_api, patch) as (deployment, namespace):
        args = (f"--namespace={namespace}", "--type=strategic", "--dry-run=server", "-o=json")
        text = f"--patch={json.dumps(patch)}"
        taken = json.loads(kube_api.kubectl("patch", "deployment", deployment, *args, text))
    pod = taken["spec"]["template"]["spec"]
    found = {each["name"]: each for each in pod["containers"]}
    first, *added = patch["spec"]["template"]["spec"]["containers"]
    assert list(found) == [first["name"], *(each["name"] for each in added)]
    main = found[first["name"]]
    assert main["args"] == ["--one", "--two"]
    env = {each["name"]: each["value"] for each in main["env"]}
    wanted = {each["name"]: each["value"] for each in first.get("env", ())}
    assert env == {"OTHER": "stays", "NO_PROXY": "before", **wanted}
    for each in added:
        assert contains(found[each["name"]], each), json.dumps(taken)
    volumes = {each["name"] for each in pod["volumes"]}
    assert volumes >= {each["name"] for each in patch["spec"]["template"]["spec"]["volumes"]}
