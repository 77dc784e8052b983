"""Whatever is planned: nothing is promised that nothing makes, and changes lead there."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from isthmus.hosting.changes import ChangeKind, apply_steps, changes, claims
from isthmus.hosting.explain import explain
from isthmus.hosting.model import (
    ControlPlaneService,
    EndpointAccess,
    HostedCluster,
    Platform,
    Publishing,
    PublishPlan,
    Strategy,
    Viewpoint,
)
from isthmus.hosting.models import V1ALPHA1, V1BETA1
from isthmus.hosting.objects import purposes
from isthmus.hosting.plan import make_plan
from isthmus.hosting.shapes import Manifest, key
from isthmus.hosting.visibility import BUCKET, is_published

USED = (
    ControlPlaneService.API_SERVER,
    ControlPlaneService.OAUTH_SERVER,
    ControlPlaneService.KONNECTIVITY,
    ControlPlaneService.IGNITION,
)
HOSTS = ["a.example.com", "b.example.com", "c.example.com", "d.example.com", "e.example.com"]
PORTS = [30001, 30002, 30003, 30004, 30005]
ADDRESSES = ["10.9.0.1", "8.8.8.8", "2001:4860:4860::8888", "nodes.example.com"]
PUBLIC = EndpointAccess.PUBLIC
CLOUDS = (Platform.AWS, Platform.AZURE, Platform.GCP)


@st.composite
def entries(draw: st.DrawFn, platform: Platform) -> tuple[Publishing, ...]:
    """Services by strategies that the platform takes; names and node ports each once."""
    hosts, ports = draw(st.permutations(HOSTS)), draw(st.permutations(PORTS))
    found = []
    for service, host, port in zip(USED, hosts, ports, strict=False):
        strategies = list(V1BETA1.possible(service, platform))
        if (
            platform in (Platform.AWS, Platform.AZURE)
            and service is not ControlPlaneService.API_SERVER
        ):
            oauth = service is ControlPlaneService.OAUTH_SERVER and platform is Platform.AZURE
            strategies = [Strategy.ROUTE, *([Strategy.LOAD_BALANCER] if oauth else [])]
        elif platform is Platform.AWS:
            strategies.remove(Strategy.NODE_PORT)
        strategy = draw(st.sampled_from(strategies))
        named = service is ControlPlaneService.API_SERVER or draw(st.booleans())
        balanced = strategy is not Strategy.NODE_PORT
        found.append(
            Publishing(
                service=service,
                strategy=strategy,
                hostname=host if balanced and named else "",
                node_address="" if balanced else draw(st.sampled_from(ADDRESSES)),
                node_port=0 if balanced else draw(st.sampled_from([0, port])),
                has=frozenset() if balanced else frozenset({"nodePort"}),
            )
        )
    return tuple(found)


@st.composite
def clusters(draw: st.DrawFn, platform: Platform | None = None) -> HostedCluster:
    """A cluster that breaks no rule."""
    on = platform or draw(st.sampled_from(Platform))
    access = draw(st.sampled_from(EndpointAccess)) if on in CLOUDS else EndpointAccess.PUBLIC
    if on is Platform.GCP and access is EndpointAccess.PUBLIC:
        access = EndpointAccess.PRIVATE
    shared = on is Platform.AZURE and draw(st.booleans())
    return HostedCluster(
        model=V1BETA1,
        name="demo",
        namespace="clusters",
        control_plane="clusters-demo",
        platform=on,
        access=access,
        services=draw(entries(on)),
        service_cidrs=("172.31.0.0/16",),
        cluster_cidrs=("10.132.0.0/14",),
        machine_cidrs=("10.0.0.0/16",),
        advertise_address="172.20.0.1",
        allowed_cidrs=tuple(draw(st.sets(st.sampled_from(["203.0.113.0/24", "192.0.2.7/32"])))),
        azure_workload_identities=on is Platform.AZURE,
        azure_private_type="" if access is EndpointAccess.PUBLIC else "PrivateLink",
        shared_ingress=shared,
        swift=shared and draw(st.booleans()),
    )


@st.composite
def seeds(draw: st.DrawFn, platform: Platform | None = None) -> HostedCluster:
    """A cluster of v1alpha1 that breaks no rule, with OVN's database and perhaps a bucket."""
    on = platform or draw(st.sampled_from(sorted(V1ALPHA1.platforms, key=str)))
    known = draw(clusters(on if on in V1ALPHA1.platforms else Platform.AWS))
    services = [each for each in known.services if not _unknown_then(each)]
    missing = set(USED) - {each.service for each in services}
    missing.add(ControlPlaneService.OVN_SB_DB)
    for number, service in enumerate(sorted(missing, key=str)):
        host = draw(st.sampled_from(["", f"more{number}.example.com"]))
        services.append(Publishing(service=service, strategy=Strategy.ROUTE, hostname=host))
    if known.platform is Platform.AWS and draw(st.booleans()):
        services.append(Publishing(service=ControlPlaneService.OIDC, strategy=Strategy.S3))
    access = draw(st.sampled_from(EndpointAccess)) if known.platform is Platform.AWS else PUBLIC
    url = draw(st.sampled_from(["", "https://bucket.example.com/a"]))
    return replace(
        known,
        model=V1ALPHA1,
        access=access,
        services=tuple(services),
        issuer_url=url,
        swift=False,
        shared_ingress=False,
        azure_private_type="",
    )


def _unknown_then(entry: Publishing) -> bool:
    oauth = entry.service is ControlPlaneService.OAUTH_SERVER
    return oauth and entry.strategy is Strategy.LOAD_BALANCER


def valid(cluster: HostedCluster, *, keep_sources: bool = False) -> PublishPlan:
    plan = make_plan(cluster, keep_sources=keep_sources)
    assert not plan.errors, plan.errors
    return plan


@given(clusters() | seeds(), st.booleans())
def test_every_endpoint_has_an_object_that_makes_it(
    cluster: HostedCluster, keep_sources: bool
) -> None:
    plan = valid(cluster, keep_sources=keep_sources)
    names = {key(each) for each in plan.objects}
    assert len(names) == len(plan.objects)
    for each in plan.endpoints:
        assert each.by in (names if each.strategy is not Strategy.S3 else {BUCKET})
        if each.through.startswith("Service/"):
            assert each.through in names
        assert each.address or each.strategy is not Strategy.NODE_PORT
    assert len({each.name for each in plan.endpoints}) == len(plan.endpoints)


@given(clusters() | seeds(), st.booleans())
def test_every_object_has_a_purpose(cluster: HostedCluster, keep_sources: bool) -> None:
    plan = valid(cluster, keep_sources=keep_sources)
    found = purposes(cluster, keep_sources=keep_sources)
    assert list(found) == [key(each) for each in plan.objects]
    assert all(found.values())


@given(clusters() | seeds())
def test_nodes_reach_what_they_need(cluster: HostedCluster) -> None:
    seen = {
        each.service
        for each in valid(cluster).endpoints
        if Viewpoint.GUEST_VPC in each.visible_from
    }
    # The bucket is for clouds, which are on the internet.
    needed = {*USED, *({ControlPlaneService.OVN_SB_DB} if cluster.model is V1ALPHA1 else ())}
    assert seen - {ControlPlaneService.OIDC} == needed


@given(clusters() | seeds())
def test_every_endpoint_is_held_or_warned_of(cluster: HostedCluster) -> None:
    plan = valid(cluster)
    bare = [each for each in plan.endpoints if is_published(each) and not each.restricted]
    bare = [each for each in bare if each.by != BUCKET]  # which is for everybody
    warned = [each for each in plan.findings if each.rule == "cidrs-not-here"]
    assert len(warned) == (len(bare) if cluster.allowed_cidrs else 0)


@given(clusters() | seeds())
def test_nothing_changes_into_itself(cluster: HostedCluster) -> None:
    assert changes(valid(cluster), valid(cluster)) == ()


@given(st.data(), st.sampled_from(Platform))
def test_changes_lead_from_one_plan_to_the_other(data: st.DataObject, platform: Platform) -> None:
    either = clusters(platform) | seeds(platform)
    old = valid(data.draw(either))
    new = valid(data.draw(either), keep_sources=data.draw(st.booleans()))
    objects: tuple[Manifest, ...] = old.objects
    for step in changes(old, new):
        if step.act in (ChangeKind.CREATE, ChangeKind.UPDATE, ChangeKind.DELETE):
            there = step.what in {key(each) for each in objects}
            assert there is (step.act is not ChangeKind.CREATE)
        objects = apply_steps(objects, [step])
        held = [claim for each in objects for claim in claims(each)]
        assert len(held) == len(set(held)), step
    assert sorted(objects, key=key) == sorted(new.objects, key=key)


@given(clusters() | seeds())
def test_every_endpoint_is_explained(cluster: HostedCluster) -> None:
    plan = valid(cluster)
    text = explain(plan)
    for each in plan.endpoints:
        assert each.by in text
        assert each.address in text
