"""What publishes a hosted control plane, as kube-apiserver takes it, each field checked.

Routes are OpenShift's own and unknown here; everything else has to be as it is written.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube.api import Api, CallFailedError
from kube.documents import contains, make_namespace

from isthmus.hosting.document import read
from isthmus.hosting.model import PublishPlan
from isthmus.hosting.own_parts import own_parts
from isthmus.hosting.plan import make_plan
from tests.unit.hosting.every_plan import every_plan

pytestmark = pytest.mark.interop

EXAMPLES = Path(__file__).parents[3] / "examples" / "publishing"
NAMES = sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.yaml"))
STRICT = ("apply", "--dry-run=server", "--validate=strict", "-o=json", "-f", "-")
WHOLE = (
    "konnectivity-agent.yaml",
    "konnectivity-egress.yaml",
    "konnectivity-local.yaml",
    "kube-apiserver-proxy.yaml",
)


def plan(name: str) -> PublishPlan:
    return make_plan(read((EXAMPLES / name).read_text(), name))


def apply(api: Api, documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the API would make of the documents, in their order."""
    for namespace in {each["metadata"]["namespace"] for each in documents}:
        make_namespace(api, namespace)
    text = "\n---\n".join(map(json.dumps, documents))
    taken = json.loads(api.kubectl(*STRICT, stdin=text.encode()))
    return list(taken["items"]) if taken["kind"] == "List" else [taken]


@pytest.mark.parametrize("name", NAMES)
def test_the_api_accepts_what_is_published(kube_api: Api, name: str) -> None:
    ours = [dict(each) for each in plan(name).objects if each["kind"] != "Route"]
    assert {each["kind"] for each in ours} == {"Service", "NetworkPolicy"}
    for one, theirs in zip(ours, apply(kube_api, ours), strict=True):
        assert contains(theirs, one), json.dumps(theirs)


def test_the_api_accepts_what_keeps_sources(kube_api: Api) -> None:
    cluster = read((EXAMPLES / NAMES[0]).read_text(), NAMES[0])
    made = make_plan(replace(cluster, allowed_cidrs=("198.51.100.0/24",)), keep_sources=True)
    ours = [dict(each) for each in made.objects]
    assert any("externalTrafficPolicy" in each["spec"] for each in ours)
    for one, theirs in zip(ours, apply(kube_api, ours), strict=True):
        assert contains(theirs, one), json.dumps(theirs)


@pytest.mark.parametrize("part", WHOLE)
@pytest.mark.parametrize("name", NAMES)
def test_the_api_accepts_our_own_parts(kube_api: Api, name: str, part: str) -> None:
    ours = list(yaml.safe_load_all(own_parts(plan(name)).files[part]))
    for one, theirs in zip(ours, apply(kube_api, ours), strict=True):
        assert contains(theirs, one), json.dumps(theirs)


def test_the_api_accepts_the_router(kube_api: Api) -> None:
    ours = list(yaml.safe_load_all(own_parts(plan("private-route.yaml")).files["router.yaml"]))
    for one, theirs in zip(ours, apply(kube_api, ours), strict=True):
        assert contains(theirs, one), json.dumps(theirs)


def test_the_api_accepts_every_platform_and_topology(kube_api: Api) -> None:
    blocks = ("198.51.100.0/24", "2001:db8::/32")
    made = (
        make_plan(replace(each.cluster, allowed_cidrs=allowed), keep_sources=bool(allowed))
        for each in every_plan().values()
        for allowed in ((), blocks)
    )
    different = {
        json.dumps(each): dict(each)
        for one in made
        for each in one.objects
        if each["kind"] != "Route"
    }
    ours = list(different.values())
    assert len(ours) > 40
    for one, theirs in zip(ours, apply(kube_api, ours), strict=True):
        assert contains(theirs, one), json.dumps(theirs)


def test_a_field_that_is_none_is_not_accepted(kube_api: Api) -> None:
    ours = [dict(each) for each in plan(NAMES[0]).objects if each["kind"] == "Service"]
    ours[0] = {**ours[0], "spec": {**ours[0]["spec"], "nodePorts": []}}
    with pytest.raises(CallFailedError, match="nodePorts"):
        apply(kube_api, ours)
