"""Manifests, kubeconfigs and endpoints of ``isthmus``, as kube-apiserver and kubectl take them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube.api import Api, CallFailedError
from kube.build import Binaries
from kube.cluster import plain_control_plane
from kube.documents import contains, make_namespace
from kube.programs import wait_until
from own_network import own_network
from programs import COMMAND, ENVIRONMENT, Programs

from isthmus.dial.settings_targets import parse_target
from isthmus.errors import KubeError
from isthmus.kube.kubeconfig import read_config
from isthmus.kube.resources import kubernetes_endpoints
from isthmus.tools.bootstrap.apiserver import apiserver_plan
from isthmus.tools.bootstrap.kubeconfig import KubeconfigInput, make_kubeconfig
from isthmus.tools.pki.making import PkiFiles
from isthmus.values import HostPort

pytestmark = pytest.mark.interop

GOLDEN = Path(__file__).parents[2] / "golden" / "manifests"
ADDRESS = "10.0.0.1"
SLICE = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"
ENDPOINTS = "/api/v1/namespaces/default/endpoints/kubernetes"
LIMIT_S = 20.0


# The API checks every field of a manifest, and keeps nothing of it.


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.glob("*.yaml")))
def test_the_api_accepts_the_manifest(kube_api: Api, name: str) -> None:
    text = (GOLDEN / name).read_text()
    documents = list(yaml.safe_load_all(text))
    for namespace in {each["metadata"]["namespace"] for each in documents}:
        make_namespace(kube_api, namespace)
    args = ("apply", "--dry-run=server", "--validate=strict", "-o=json", "-f", "-")
    taken = json.loads(kube_api.kubectl(*args, stdin=text.encode()))
    found = taken["items"] if taken["kind"] == "List" else [taken]
    for ours, theirs in zip(documents, found, strict=True):
        assert contains(theirs, ours), json.dumps(theirs)


def test_the_api_would_have_noticed(kube_api: Api) -> None:
    (pod,) = yaml.safe_load_all((GOLDEN / "static-pod-node-traffic.yaml").read_text())
    pod["spec"]["hostNetwrk"] = True
    args = ("apply", "--dry-run=server", "--validate=strict", "-f", "-")
    with pytest.raises(CallFailedError, match="hostNetwrk"):
        kube_api.kubectl(*args, stdin=json.dumps(pod).encode())


# A kubeconfig as kubectl reads it.


def write(directory: Path, api: Api, host: str = "127.0.0.1", **more: Any) -> Path:
    token = directory / "token"
    token.write_text(f"{api.token}\n")
    asked = KubeconfigInput(
        at=HostPort(host, api.port), ca_cert=str(api.ca_cert), token_file=str(token), **more
    )
    path = directory / "written"
    path.write_text(make_kubeconfig(asked)[0])
    return path


@pytest.mark.parametrize("more", [{}, {"by_path": True}, {"tls_server_name": "localhost"}], ids=str)
def test_kubectl_and_we_use_the_kubeconfig(
    kube_api: Api, tmp_path: Path, more: dict[str, Any]
) -> None:
    path = write(tmp_path, kube_api, **more)
    found = kube_api.kubectl(f"--kubeconfig={path}", "auth", "whoami", "-o=json")
    assert json.loads(found)["status"]["userInfo"]["username"] == "admin"
    view = json.loads(
        kube_api.kubectl(f"--kubeconfig={path}", "config", "view", "--raw", "-o=json")
    )
    cluster = view["clusters"][0]["cluster"]
    assert cluster["server"] == f"https://127.0.0.1:{kube_api.port}"
    assert cluster.get("tls-server-name", "") == more.get("tls_server_name", "")
    assert read_config(str(path)).config.cluster.server == cluster["server"]


def test_a_name_that_the_certificate_has_not_is_noticed(kube_api: Api, tmp_path: Path) -> None:
    path = write(tmp_path, kube_api, tls_server_name="elsewhere.example.com")
    with pytest.raises(CallFailedError, match=r"elsewhere\.example\.com"):
        kube_api.kubectl(f"--kubeconfig={path}", "get", "namespaces")


# Endpoints: ours where nobody else writes them, and the same as kube-apiserver's own.


def test_endpoints_by_hand(kube_api: Api) -> None:
    """The apiserver of these tests has --endpoint-reconciler-type=none."""
    plan = apiserver_plan([ip_address(ADDRESS)], parse_target("7443:localhost:6443")[0])
    assert plan.by_hand
    with pytest.raises(KubeError) as caught:
        ask(kube_api)
    assert caught.value.status == 404
    kube_api.kubectl("apply", "--validate=strict", "-f", "-", stdin=plan.manifests().encode())
    try:
        assert ask(kube_api) == (HostPort(ADDRESS, 7443),)
        kube_api.kubectl("delete", "-n", "default", "endpointslice", "kubernetes")
        assert ask(kube_api) == (HostPort(ADDRESS, 7443),)  # of the Endpoints
        # The Service is kube-apiserver's own all the same.
        assert kube_api.get("/api/v1/namespaces/default/services/kubernetes")["spec"]["ports"]
    finally:
        kube_api.kubectl("delete", "-n", "default", "endpoints", "kubernetes")


def ask(api: Api) -> tuple[HostPort, ...]:
    return asyncio.run(kubernetes_endpoints(str(api.kubeconfig), timeout_s=LIMIT_S))


@pytest.fixture(scope="module")
def advertising(kube_binaries: Binaries) -> Iterator[Api]:
    """A kube-apiserver that is told what ``isthmus bootstrap apiserver`` says."""
    flags = ("--endpoint-reconciler-type=lease", f"--advertise-address={ADDRESS}")
    with plain_control_plane(kube_binaries) as (plane, _), plane.apiserver(*flags) as api:
        yield api


def test_what_kube_apiserver_writes_is_what_we_say(advertising: Api) -> None:
    api = advertising
    plan = apiserver_plan(
        [ip_address(ADDRESS)], parse_target(f"{api.port}:localhost:{api.port}")[0]
    )
    assert [flag.text for flag in plan.flags] == [
        f"--advertise-address={ADDRESS}",
        f"--secure-port={api.port}",
    ]
    wait_until(lambda: api.has(SLICE), "kube-apiserver has written its endpoints")
    ours, theirs = plan.documents[0], api.get(SLICE)
    assert contains(theirs, ours), theirs
    assert contains(api.get(ENDPOINTS), plan.documents[1]), api.get(ENDPOINTS)
    assert ask(api) == (HostPort(ADDRESS, api.port),)


# The whole of it: kube-apiserver, server, agent, and a node that asks.


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_node_finds_kube_apiserver_through_its_agent(
    kube_binaries: Binaries, certificates: PkiFiles, tmp_path: Path
) -> None:
    flags = ("--endpoint-reconciler-type=lease", f"--advertise-address={ADDRESS}")
    with (
        own_network(),
        plain_control_plane(kube_binaries) as (plane, _),
        plane.apiserver(*flags) as api,
        Programs(certificates, tmp_path) as programs,
    ):
        gate = "--feature-gates=EnableClusterToMasterTraffic=true"
        server = programs.server(gate, f"--allowed-destination=localhost:{api.port}")
        target = f"--target={api.port}:localhost:{api.port}"
        agent = programs.agent(server, gate, f"--bind-address={ADDRESS}", target)
        agent.wait_log("accepting connections from the node")
        wait_until(lambda: api.has(SLICE), "kube-apiserver has written its endpoints")
        path = write(tmp_path, api, ADDRESS, tls_server_name="localhost")
        found = api.kubectl(f"--kubeconfig={path}", "auth", "whoami", "-o=json")
        assert json.loads(found)["status"]["userInfo"]["username"] == "admin"
        admin = f"--agent-admin=127.0.0.1:{agent.port('admin_port')}"
        done = subprocess.run(
            [*COMMAND, "bootstrap", "check", "-o", "json", f"--kubeconfig={path}", admin],
            capture_output=True, text=True, env=ENVIRONMENT, timeout=60,
        )  # fmt: skip
        steps = {step["step"]: step for step in json.loads(done.stdout)["steps"]}
        # The certificates of these tests last a day; and nobody is let in without a token.
        assert steps.pop("expiry")["state"] == "warning"
        assert steps["api"]["found"] == "kube-apiserver answers, with 401"
        assert {step["state"] for step in steps.values()} == {"ok"}, done.stdout
        assert done.returncode == 0
