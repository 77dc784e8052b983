"""``isthmus node-proxy`` while its API server goes and comes back: rules stay, changes arrive."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kube.api import Api
from kube.node_proxy_api_door import door
from kube.node_proxy_ground import NODE_NAME, Nodes
from kube.node_proxy_objects import marker
from kube.node_proxy_programs import Kind, Proxy, proxy
from kube.node_proxy_writing import delete, write, write_node
from kube.programs import ISTHMUS, Program, wait_until

pytestmark = pytest.mark.interop

QUICK = ("--iptables-sync-period=1s", "--iptables-min-sync-period=10ms")
_, SHOWN = marker(1)


@pytest.fixture(scope="module")
def api(ground: Nodes) -> Iterator[Api]:
    """An API with a Node and a Service."""
    with ground.apiserver() as running:
        objects, _ = marker(1)
        write(running, objects.services, objects.slices)
        write_node(running)
        yield running


def rules(one: Proxy) -> list[str]:
    """All rules of both families, without when they were listed."""
    text = "".join(one.rules("iptables").values())
    return [line for line in text.splitlines() if line.startswith("-A")]


def restart(api: Api) -> None:
    """Kill the API server, and have it again."""
    assert api.program is not None
    with api.program.down():
        pass
    api.program.wait_for(api.is_ready, "it is ready")


def test_rules_outlive_the_api_and_changes_arrive_after(ground: Nodes, api: Api) -> None:
    assert api.program is not None
    with proxy(ground, api, Kind.ISTHMUS, "iptables", QUICK) as one:
        one.wait_shows("iptables", *SHOWN)
        before = rules(one)
        with api.program.down():
            one.program.wait_for(lambda: "watching services" in one.program.log, "says so")
            assert rules(one) == before
        api.program.wait_for(api.is_ready, "it is ready")
        assert one.shows("iptables", *SHOWN)
        more, shown = marker(2)
        write(api, more.services, more.slices)
        one.wait_shows("iptables", *shown, *SHOWN)
        delete(api, more.services, more.slices)
        wait_until(lambda: not one.shows("iptables", shown[0]), "what is deleted goes")


def test_a_version_that_is_too_old_is_no_outage(ground: Nodes, api: Api) -> None:
    with ground.node("door") as node, door(api, node) as at:
        argv = [*ISTHMUS, "node-proxy", f"--master={at.url}", f"--hostname-override={NODE_NAME}",
                "--proxy-mode=iptables", *QUICK]  # fmt: skip
        with Program("door", node.namespace, argv, node.directory).up() as program:
            one = Proxy(kind=Kind.ISTHMUS, node=node, program=program)
            one.wait_shows("iptables", *SHOWN)
            # Of what happens behind the door it hears nothing, and its watches are from before.
            at.open.clear()
            more, shown = marker(3)
            restart(api)
            write(api, more.services, more.slices)
            restart(api)
            assert one.shows("iptables", *SHOWN)
            assert not one.shows("iptables", shown[0])
            at.open.set()
            one.wait_shows("iptables", *shown, *SHOWN)
            assert at.gone, "the API never said 410"
    delete(api, more.services, more.slices)
