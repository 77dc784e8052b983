"""The ports of kube-proxy and isthmus node-proxy compared: metrics, health, settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest
from kube.api import Api
from kube.node_proxy_ground import NODE_IPS, NODE_NAME, Nodes
from kube.node_proxy_objects import marker
from kube.node_proxy_programs import Kind, Proxy, proxy
from kube.node_proxy_writing import write
from kube.programs import wait_until
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.interop

HEALTHZ_PORT = 10256
Shape = dict[str, tuple[str, str, frozenset[frozenset[str]], frozenset[str]]]


@pytest.fixture(scope="module")
def api(ground: Nodes) -> Iterator[Api]:
    """An API with one Service and the Node."""
    with ground.apiserver() as running:
        objects, _ = marker(1)
        write(running, objects.services, objects.slices)
        spec = {"podCIDR": "10.7.0.0/24", "podCIDRs": ["10.7.0.0/24", "fd00:7::/64"]}
        running.create("/api/v1/nodes", {"metadata": {"name": NODE_NAME}, "spec": spec})
        addresses = [{"type": "InternalIP", "address": address} for address in NODE_IPS]
        running.call(
            "PATCH", f"/api/v1/nodes/{NODE_NAME}/status", {"status": {"addresses": addresses}}
        )
        yield running


def shape(one: Proxy) -> Shape:
    """The metrics by name: type, help, the sets of labels that samples have, and buckets."""
    found = {}
    for family in text_string_to_metric_families(one.page("/metrics")):
        if not family.name.startswith("kubeproxy_"):
            continue
        samples = [each for each in family.samples if not each.name.endswith("_created")]
        found[family.name] = (
            family.type,
            # How stable kube-proxy's promise is; ours is none.
            family.documentation.removeprefix("[ALPHA] "),
            frozenset(frozenset(each.labels) - {"le"} for each in samples),
            frozenset(f"{float(e.labels['le']):g}" for e in samples if "le" in e.labels),
        )
    return found


def both_synced(one: Proxy) -> bool:
    name = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
    return sum(each.startswith(name) for each in one.metrics()) == 2


@pytest.mark.parametrize("mode", ["iptables", "nftables"])
def test_metrics_have_the_names_types_texts_labels_and_buckets_of_kube_proxy(
    ground: Nodes, api: Api, mode: str
) -> None:
    _, shown = marker(1)
    shapes = {}
    pages = {}
    for kind in Kind:
        with proxy(ground, api, kind, mode, ()) as one:
            one.wait_shows(mode, *shown)
            # The first answer counts itself; a sync is counted after its rules are there.
            one.page("/healthz", HEALTHZ_PORT)
            one.page("/livez", HEALTHZ_PORT)
            wait_until(partial(both_synced, one), "both families are synced")
            shapes[kind] = shape(one)
            pages[kind] = {
                path: json.loads(one.page(path, HEALTHZ_PORT)) for path in ("/healthz", "/livez")
            }
            assert one.page("/proxyMode") == mode
    theirs, ours = shapes[Kind.KUBE_PROXY], shapes[Kind.ISTHMUS]
    assert {name: (ours.get(name), wanted) for name, wanted in theirs.items()
            if ours.get(name) != wanted} == {}  # fmt: skip
    for path, wanted in pages[Kind.KUBE_PROXY].items():
        got = pages[Kind.ISTHMUS][path]
        assert got.keys() == wanted.keys(), path
        assert got["status"].keys() == wanted["status"].keys()
        assert got["healthy"] is wanted["healthy"] is True
