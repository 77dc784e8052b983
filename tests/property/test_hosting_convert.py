"""A document goes to the other version and back, and keeps what both know; or it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import ConfigError
from isthmus.hosting.convert import convert
from isthmus.hosting.models import MODELS, V1ALPHA1, V1BETA1

NAME = "c.yaml"
EXAMPLES = Path(__file__).parents[2] / "examples" / "publishing"
TEXTS = [path.read_text() for path in sorted(EXAMPLES.rglob("*.yaml"))]
OVN = "OVNSbDb"
CIDRS = {
    "machine": ("machineCIDR", "10.0.0.0/16"),
    "cluster": ("podCIDR", "10.132.0.0/14"),
    "service": ("serviceCIDR", "172.31.0.0/16"),
}
WORDS = ["Route", "None", "S3", "GCP", "v1alpha1", "fd00::/64"]
WORDS += ["&a", "*a", "!!str x", "|", "{", "["]


@st.composite
def entries(draw: st.DrawFn, platform: str, *, ovn: bool) -> list[dict[str, Any]]:
    """Services as both versions take them; OIDC and OVNSbDb as it comes."""
    found = []
    names = ["APIServer", "OAuthServer", "Konnectivity", "Ignition", *([OVN] if ovn else [])]
    for number, service in enumerate(names):
        by_port = platform != "AWS" and draw(st.booleans())
        strategy: dict[str, Any] = {
            "type": "Route",
            "route": {"hostname": f"s{number}.example.com"},
        }
        if by_port:
            address = draw(st.sampled_from(["192.0.2.1", "2001:db8::1", "nodes.example.com"]))
            port = {"address": address, "port": 30000 + number}
            strategy = {"type": "NodePort", "nodePort": port}
        found.append({"service": service, "servicePublishingStrategy": strategy})
    if draw(st.booleans()):
        hidden = "S3" if platform == "AWS" and draw(st.booleans()) else "None"
        found.append({"service": "OIDC", "servicePublishingStrategy": {"type": hidden}})
    return draw(st.permutations(found))


@st.composite
def documents(draw: st.DrawFn, version: str) -> dict[str, Any]:
    """A document without errors, with fields that both versions have."""
    platform = draw(st.sampled_from(["AWS", "Agent", "None", "PowerVS"]))
    kind = draw(st.sampled_from(["OVNKubernetes", "Calico"]))
    networking: dict[str, Any] = {"networkType": kind}
    for name, (single, cidr) in CIDRS.items():
        if version == "v1alpha1" and draw(st.booleans()):
            networking[single] = cidr
        elif draw(st.booleans()):
            networking[f"{name}Network"] = [{"cidr": cidr}]
    if draw(st.booleans()):
        networking["apiServer"] = {"allowedCIDRBlocks": ["192.0.2.0/24"], "port": 6443}
    spec: dict[str, Any] = {"platform": {"type": platform}, "networking": networking}
    if platform == "AWS":
        access = draw(st.sampled_from(["Public", "PublicAndPrivate", "Private"]))
        spec["platform"]["aws"] = {"region": "x", "endpointAccess": access}
    if platform == "Agent":
        spec["platform"]["agent"] = {"agentNamespace": "agents"}
    ovn = (version == "v1alpha1" and kind == "OVNKubernetes") or draw(st.booleans())
    spec["services"] = draw(entries(platform, ovn=ovn))
    spec |= draw(st.fixed_dictionaries({}, optional={"fips": st.booleans(), "dns": st.just({})}))
    metadata = {"name": "a", "annotations": {"é": draw(st.text("aé🦆:#-", max_size=5))}}
    return {
        "kind": "HostedCluster",
        "metadata": metadata,
        "spec": spec,
        "apiVersion": f"hypershift.openshift.io/{version}",
    }


def written(draw: st.DataObject, document: dict[str, Any]) -> str:
    style = draw.draw(st.sampled_from([None, False, True]))
    text = yaml.safe_dump(
        document, default_flow_style=style, sort_keys=False, allow_unicode=draw.draw(st.booleans())
    )
    before = draw.draw(st.sampled_from(["", "# a comment: é🦆\n", "kind: Namespace\n---\n"]))
    return before + text


def plain(text: str) -> dict[str, Any]:
    """The document as data: single ranges as lists, without the version and OVN's entry."""
    (found,) = [each for each in yaml.safe_load_all(text) if each["kind"] == "HostedCluster"]
    networking = found["spec"]["networking"]
    for name, (single, _) in CIDRS.items():
        if single in networking:
            networking[f"{name}Network"] = [{"cidr": networking.pop(single)}]
    services = found["spec"]["services"]
    found["spec"]["services"] = [each for each in services if each["service"] != OVN]
    return {name: value for name, value in found.items() if name != "apiVersion"}


@given(st.data(), st.sampled_from(list(MODELS.values())))
def test_there_and_back_keeps_what_both_know(data: st.DataObject, model: Any) -> None:
    text = written(data, data.draw(documents(model.version)))
    to = V1BETA1 if model is V1ALPHA1 else V1ALPHA1
    there = convert(text, NAME, to)
    assert not there.refused, there.refused
    assert there.edits
    back = convert(there.text, NAME, model)
    assert not back.refused, back.refused
    assert plain(there.text) == plain(text) == plain(back.text)
    assert f"/{model.version}" in back.text and f"/{to.version}" in there.text
    listed = OVN in text or OVN in there.text
    assert (OVN in back.text) is listed
    # Once both versions have been there, nothing is left to write but the version.
    assert convert(back.text, NAME, to).text == there.text


@given(st.data())
def test_any_example_with_something_else_in_it_is_converted_or_refused(data: st.DataObject) -> None:
    lines = data.draw(st.sampled_from(TEXTS)).splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        number = data.draw(st.integers(0, len(lines) - 1))
        key, colon, _ = lines[number].partition(":")
        said = data.draw(st.sampled_from(WORDS) | st.text(max_size=8))
        lines[number] = data.draw(st.sampled_from([f"{key}{colon} {said}", said, "", lines[0]]))
    try:
        found = convert("\n".join(lines), NAME, data.draw(st.sampled_from([V1ALPHA1, V1BETA1])))
    except ConfigError as error:
        assert all(line.startswith(f"{NAME}:") for line in str(error).splitlines())
        return
    assert bool(found.text) is not bool(found.refused)
    for each in found.refused:
        assert 0 <= each.place.line <= len(lines) and each.place.field and each.says
