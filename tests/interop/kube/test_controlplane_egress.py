"""What kube-apiserver asks beside itself: webhooks by URL, of admission and of its own three kinds.

With Direct they need no tunnel, whatever happens to it. With HTTPConnect they go through a second
server and only through that one: the servers asked are then behind the firewall.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kube.api import Api, CallFailedError, write_kubeconfig
from kube.cluster import Cluster, count
from kube.controlplane import VISITOR_TOKEN
from kube.ground import CONTROL_PLANE, NODE
from kube.objects import CORE, HOOKS_PORT, by_url, create_admission
from kube.programs import Program, wait_until
from kube.tunnels import DIRECT, HTTP_UDS, Tunnel

pytestmark = pytest.mark.interop

Ask = Callable[[Api, Program], None]
_numbers = itertools.count(1)


def _fresh() -> str:
    """A name that no cache has heard of."""
    return f"n{next(_numbers)}"


def admission(api: Api, _: Program) -> None:
    """A new object comes back with what the webhook put into it."""
    made = api.call("POST", f"{CORE}/configmaps", {"metadata": {"name": _fresh()}})
    assert made["metadata"]["labels"] == {"isthmus.dev/mutated": "yes"}


def authentication(api: Api, _: Program) -> None:
    """A token that only the webhook knows."""
    assert api.call("GET", "/livez", token=f"hook-{_fresh()}") == "ok"


def authorization(api: Api, hooks: Program) -> None:
    """A user of whom only the webhook knows what they may do: here, read what is not there."""
    name = _fresh()
    with pytest.raises(CallFailedError) as refused:
        api.call("GET", f"{CORE}/secrets/{name}", token=VISITOR_TOKEN)
    if refused.value.status != 404:
        raise refused.value
    assert count(hooks, hook="authorize", name=name) == 1


def audit(api: Api, hooks: Program) -> None:
    """An event of a request that was just made, or the apiserver counts it as lost."""
    path = f"{CORE}/secrets?limit=1&fieldSelector=metadata.name={_fresh()}"
    lost = _events_lost(api)
    api.get(path)
    wait_until(
        lambda: count(hooks, hook="audit", uri=path) > 0 or _events_lost(api) > lost,
        "the event is told or lost",
    )
    if not count(hooks, hook="audit", uri=path):
        raise CallFailedError("the event was lost")


def _events_lost(api: Api) -> float:
    lines = api.get("/metrics").splitlines()
    found = [line for line in lines if line.startswith("apiserver_audit_error_total{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


KINDS: tuple[Ask, ...] = (admission, authentication, authorization, audit)


def webhook_flags(directory: Path, ca_cert: Path, url: str) -> list[str]:
    """Have an apiserver ask webhooks who is who and who may what, and tell one what was done."""
    directory.mkdir()
    files = {
        path: write_kubeconfig(directory / path, f"{url}/{path}", ca_cert)
        for path in ("authenticate", "authorize", "audit")
    }
    rules = [
        {"level": "Metadata", "resources": [{"group": "", "resources": ["secrets"]}]},
        {"level": "None"},
    ]
    policy = directory / "policy"
    policy.write_text(
        json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules})
    )
    return [
        f"--authentication-token-webhook-config-file={files['authenticate']}",
        "--authentication-token-webhook-version=v1",
        "--authorization-mode=Webhook",
        f"--authorization-webhook-config-file={files['authorize']}",
        "--authorization-webhook-version=v1",
        f"--audit-webhook-config-file={files['audit']}", f"--audit-policy-file={policy}",
        "--audit-webhook-batch-max-wait=50ms", "--audit-webhook-initial-backoff=50ms",
    ]  # fmt: skip


Running = tuple[Tunnel, Tunnel, Api]


@pytest.fixture(scope="module")
def direct(the_cluster: Cluster) -> Iterator[tuple[Tunnel, Api, Program]]:
    """Webhook servers in the control plane, and a tunnel that is for the cluster only."""
    url = f"https://{CONTROL_PLANE}:{HOOKS_PORT}"
    ca_cert = the_cluster.files.ca_cert
    tunnel = the_cluster.tunnel(HTTP_UDS)
    selector = [
        {"name": "cluster", "connection": tunnel.connection},
        {"name": "controlplane", "connection": DIRECT},
    ]
    flags = webhook_flags(the_cluster.directory / "direct", ca_cert, url)
    with (
        the_cluster.hooks_here() as hooks,
        tunnel.up(),
        the_cluster.control_plane.apiserver(*flags, selector=selector) as api,
    ):
        create_admission(api, by_url(ca_cert, f"{url}/mutate"))
        yield tunnel, api, hooks


@pytest.fixture(scope="module")
def tunnelled(the_cluster: Cluster) -> Iterator[Running]:
    """Webhook servers behind the firewall, and one tunnel for them beside the cluster's own."""
    url = f"https://{NODE}:{HOOKS_PORT}"
    ca_cert = the_cluster.files.ca_cert
    first, second = the_cluster.tunnel(HTTP_UDS), the_cluster.tunnel(HTTP_UDS)
    selector = [
        {"name": "cluster", "connection": first.connection},
        {"name": "controlplane", "connection": second.connection},
    ]
    flags = webhook_flags(the_cluster.directory / "tunnelled", ca_cert, url)
    with (
        first.up(),
        second.up(),
        the_cluster.control_plane.apiserver(*flags, selector=selector) as api,
    ):
        create_admission(api, by_url(ca_cert, f"{url}/mutate"))
        yield first, second, api


@pytest.mark.parametrize("ask", KINDS)
def test_direct_needs_neither_agent_nor_server(
    direct: tuple[Tunnel, Api, Program], ask: Ask
) -> None:
    tunnel, api, hooks = direct
    ask(api, hooks)
    with tunnel.agent.down():
        tunnel.wait_unlinked()
        ask(api, hooks)
        assert tunnel.dials == 0
    with tunnel.server.down():
        ask(api, hooks)
    tunnel.wait_linked()


@pytest.mark.parametrize("ask", KINDS)
def test_httpconnect_takes_the_second_server(
    the_cluster: Cluster, tunnelled: Running, ask: Ask
) -> None:
    first, second, api = tunnelled
    with second.without_server():
        with pytest.raises(CallFailedError):
            ask(api, the_cluster.node)
        assert api.is_ready()
    before = second.dials  # a new life, so what follows is dialed anew
    ask(api, the_cluster.node)
    assert second.dials > before
    assert first.dials == 0
