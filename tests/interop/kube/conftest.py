"""The Kubernetes programs as fixtures; they are built before the first test, not within one.

For tests that need a real API and nothing else: ``kube_api`` is a kube-apiserver on loopback, with
``kube_api.url``, ``.kubeconfig``, ``.token``, ``.ca_cert``, ``.call(...)``, ``.kubectl(...)`` and
``.service_account_token(name, audience=...)``. For tests on both sides of a firewall: ``cluster``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from kube.api import Api
from kube.build import NO_GO, Binaries, NotBuiltError, build
from kube.cluster import Cluster, cluster, plain_control_plane
from kube.node_proxy_ground import Nodes, nodes
from kube.programs import wait_until

BINARIES = "kube_binaries"
_BUILT = pytest.StashKey[Binaries | str]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build now, when a chosen test needs it: a test's own time limit is for the test."""
    wanted = any(BINARIES in getattr(item, "fixturenames", ()) for item in session.items)
    if not wanted or session.config.option.collectonly:
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")

    def say(line: str) -> None:
        if reporter is not None:
            reporter.write_line(f"kube: {line}")

    try:
        session.config.stash[_BUILT] = build(say)
    except NotBuiltError as exc:
        session.config.stash[_BUILT] = str(exc)


@pytest.fixture(scope="session")
def kube_binaries(request: pytest.FixtureRequest) -> Binaries:
    """The programs; skips where there is no Go to build them."""
    built = request.config.stash[_BUILT]
    if built == NO_GO:
        pytest.skip(NO_GO)
    assert isinstance(built, Binaries), built
    return built


@pytest.fixture(scope="session")
def the_cluster(kube_binaries: Binaries) -> Iterator[Cluster]:
    """Namespaces, firewall, etcd and node, for all tests."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("nft"):
        pytest.skip("network namespaces need root, ip and nft")
    with cluster(kube_binaries) as running:
        yield running


@pytest.fixture(scope="session")
def kube_api(kube_binaries: Binaries) -> Iterator[Api]:
    """A kube-apiserver on loopback that any test may use, with nothing but its own in it yet."""
    with plain_control_plane(kube_binaries) as (control_plane, _), control_plane.apiserver() as api:
        own = "/api/v1/namespaces/default/services/kubernetes"  # made a moment after it is ready
        wait_until(lambda: api.has(own), "kube-apiserver has made its own Service")
        yield api


@pytest.fixture(scope="module")
def ground(kube_binaries: Binaries) -> Iterator[Nodes]:
    """Namespaces for nodes and an API, for tests that put kube-proxy beside ours."""
    tools = ("ip", "nft", "iptables-save", "ip6tables-save")
    if os.geteuid() != 0 or not all(map(shutil.which, tools)):
        pytest.skip(f"network namespaces and rules in them need root and {', '.join(tools)}")
    with nodes(kube_binaries) as made:
        yield made
