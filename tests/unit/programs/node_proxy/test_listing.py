"""Render and explain without manifests: an API server is asked once, and nothing is watched."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fakecluster import CIDRS, NODES, SERVICES, SLICES, FakeCluster, with_cluster

from isthmus.errors import KubeError
from isthmus.programs.node_proxy.rules.model import IpFamily
from isthmus.programs.node_proxy.settings import NodeProxySettings
from isthmus.programs.node_proxy.snapshot import look
from isthmus.settings.options import compose


def fill(api: FakeCluster) -> None:
    ports = [{"name": "p", "port": 80}]
    api.put(SERVICES, "web", {"spec": {"clusterIP": "10.96.0.1", "ports": ports}})
    api.put(
        SLICES, "web-1",
        {
            "metadata": {"labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "ports": [{"name": "p", "port": 8080}],
            "endpoints": [{"addresses": ["10.180.0.5"], "nodeName": "here"}],
        },
    )  # fmt: skip
    address = {"type": "InternalIP", "address": "192.0.2.1"}
    api.put(
        NODES, "here",
        {"spec": {"podCIDRs": ["10.180.0.0/24"]}, "status": {"addresses": [address]}},
    )  # fmt: skip
    api.put(CIDRS, "kubernetes", {"spec": {"cidrs": ["10.96.0.0/16"]}})


def settings(api: FakeCluster, **more: str) -> NodeProxySettings:
    return compose(
        NodeProxySettings, master=f"http://127.0.0.1:{api.port}", hostname_override="here", **more
    )


def test_everything_is_listed_once(tmp_path: Path) -> None:
    async def listed(api: FakeCluster) -> None:
        fill(api)
        given = settings(api, detect_local="node-cidr", proxy_mode="nftables")
        found = await asyncio.to_thread(look, given)
        text = found.rendered(IpFamily.IPV4).text
        assert "10.96.0.1 . tcp . 80 : goto service-" in text
        assert "0 : 10.180.0.5 . 8080" in text
        assert "ip saddr != 10.180.0.0/24" in text
        assert "ip daddr { 10.96.0.0/16 } drop" in text
        assert found.here == {"192.0.2.1"}
        assert len(api.lists) == 4
        assert api.watches == []

    with_cluster(tmp_path, listed)


def test_an_api_that_is_not_there_is_said(tmp_path: Path) -> None:
    async def gone(api: FakeCluster) -> None:
        given = settings(api)
        await api.close()
        with pytest.raises(KubeError):
            await asyncio.to_thread(look, given)

    with_cluster(tmp_path, gone)
