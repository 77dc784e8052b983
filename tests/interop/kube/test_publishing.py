"""What publishes a hosted control plane, as kube-apiserver takes it, each field checked.

Routes are OpenShift's own: foreign_kinds.py has their shape. Every object of every file is there,
for every platform and topology; a patch is taken as the Deployment that it makes.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube.api import Api, CallFailedError
from kube.documents import contains, make_namespace
from kube.foreign_kinds import define

from isthmus.hosting.document import read
from isthmus.hosting.model import HostedCluster, ManagementNetwork, Platform, PublishPlan
from isthmus.hosting.models import V1ALPHA1
from isthmus.hosting.own_parts import OBJECTS, own_parts
from isthmus.hosting.plan import make_plan
from tests.unit.hosting.every_plan import every_plan

pytestmark = pytest.mark.interop

EXAMPLES = Path(__file__).parents[3] / "examples" / "publishing"
NAMES = sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.yaml"))
STRICT = ("apply", "--dry-run=server", "--validate=strict", "-o=json", "-f", "-")
AT_ONCE = 60
#: Configurations of ours, which no API knows.
OURS = ("isthmus.", "sni-routes.", "apiserver-proxy.yaml", "names.yaml")


@pytest.fixture(scope="module")
def api(kube_api: Api) -> Api:
    define(kube_api, "route.openshift.io")
    return kube_api


def plan(name: str) -> PublishPlan:
    return make_plan(read((EXAMPLES / name).read_text(), name))


def rendered(made: PublishPlan) -> Iterator[dict[str, Any]]:
    """Every object of every file that a plan is written into."""
    yield from map(dict, made.objects)
    for name, text in own_parts(made).files.items():
        if name == OBJECTS or name.startswith(OURS):
            continue
        for document in yaml.safe_load_all(text):
            yield whole(document) if name.endswith(".patch.yaml") else document


def whole(patch: dict[str, Any]) -> dict[str, Any]:
    """A Deployment that has nothing but what the patch adds, and what every one needs."""
    made = copy.deepcopy(patch)
    labels = {"app": made["metadata"]["name"]}
    made["spec"]["selector"] = {"matchLabels": labels}
    made["spec"]["template"]["metadata"] = {"labels": labels}
    made["spec"]["template"]["spec"]["containers"][0]["image"] = "kube-apiserver"
    return made


def check(api: Api, documents: list[dict[str, Any]]) -> None:
    """The API takes each, and makes of it what it says."""
    for namespace in {each["metadata"]["namespace"] for each in documents}:
        make_namespace(api, namespace)
    for start in range(0, len(documents), AT_ONCE):
        ours = documents[start : start + AT_ONCE]
        text = "\n---\n".join(map(json.dumps, ours))
        taken = json.loads(api.kubectl(*STRICT, stdin=text.encode()))
        found = taken["items"] if taken["kind"] == "List" else [taken]
        for one, theirs in zip(ours, found, strict=True):
            assert contains(theirs, one), json.dumps(theirs)


@pytest.mark.parametrize("name", NAMES)
def test_the_api_accepts_all_of_an_example(api: Api, name: str) -> None:
    ours = list(rendered(plan(name)))
    assert {"Service", "NetworkPolicy", "ConfigMap", "Deployment"} <= {
        each["kind"] for each in ours
    }
    check(api, ours)


KNOWN = ManagementNetwork(api=("10.0.0.1", "fd00:1::1"), ranges=("10.128.0.0/14", "fd00:2::/48"))
BLOCKS = ("198.51.100.0/24", "2001:db8::/32")


def variants(cluster: HostedCluster) -> Iterator[PublishPlan]:
    """As it is; with everything that can be added to it."""
    yield make_plan(cluster)
    if cluster.model is V1ALPHA1:  # which has none of it
        return
    more = replace(
        cluster,
        allowed_cidrs=BLOCKS,
        management=KNOWN,
        management_platform=Platform.AZURE,
        forwards_metrics=True,
        api_dns_name="k8s.example.net",
    )
    yield make_plan(more)
    yield make_plan(more, keep_sources=True)


def test_the_api_accepts_every_platform_and_topology(api: Api) -> None:
    """Files are written once for each of them: strategies change the objects alone."""
    files: dict[tuple[str, ...], PublishPlan] = {}
    different: dict[str, dict[str, Any]] = {}
    for one in every_plan().values():
        cluster = one.cluster
        for made in variants(cluster):
            different |= {json.dumps(each): dict(each) for each in made.objects}
            files[cluster.model.version, cluster.platform.value, cluster.access.value] = made
    for made in files.values():
        different |= {json.dumps(each): each for each in rendered(made)}
    kinds = {each["kind"] for each in different.values()}
    assert {"Service", "NetworkPolicy", "Route", "ConfigMap", "Deployment", "DaemonSet"} <= kinds
    assert len(different) > 100
    check(api, list(different.values()))


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("Service", {"nodePorts": []}),
        ("NetworkPolicy", {"egresses": []}),
        ("Route", {"hosts": ["a.example.com"]}),
        ("Route", {"host": "-a.example.com"}),
    ],
)
def test_what_the_kind_does_not_have_is_not_accepted(
    api: Api, kind: str, wrong: dict[str, Any]
) -> None:
    one = next(each for each in rendered(plan("private-route.yaml")) if each["kind"] == kind)
    bad = {**one, "spec": {**one["spec"], **wrong}}
    with pytest.raises(CallFailedError, match=next(iter(wrong))):
        check(api, [bad])
