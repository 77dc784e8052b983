"""What a kube-apiserver does towards a cluster, one call each: it works, or it says why not."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from kube.api import Api, CallFailedError
from kube.cluster import Cluster
from kube.objects import AGGREGATED, CORE, GROUP, PLAIN, SOCKETS
from kube.programs import connect, wait_until

FOLLOWED_LINES = 20
BULK_BYTES = 4 * 1024 * 1024
ECHO_PORT = 7
SPDY = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false", "KUBECTL_PORT_FORWARD_WEBSOCKETS": "false"}
WEBSOCKET = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "true", "KUBECTL_PORT_FORWARD_WEBSOCKETS": "true"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """How kubectl asks for streams, of which pod, and what the kubelet must see of it."""

    name: str
    pod: str
    variables: dict[str, str]
    upgrade: str


STREAMS = (
    Streams(name="spdy", pod=PLAIN, variables=SPDY, upgrade="spdy/3.1"),
    Streams(name="websocket", pod=PLAIN, variables=WEBSOCKET, upgrade="spdy/3.1"),
    Streams(name="websocket-to-kubelet", pod=SOCKETS, variables=WEBSOCKET, upgrade="websocket"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One kind of call; ``run`` raises CallFailedError when the apiserver says that it failed.

    Where the apiserver may keep the reason to itself, ``instead`` is what it says then.
    """

    name: str
    run: Callable[[Cluster, Api], None]
    instead: str | None = None

    def __str__(self) -> str:
        return self.name


def node_proxy(_: Cluster, api: Api) -> None:
    """Two requests to the kubelet's own pages."""
    assert api.kubectl("get", "--raw", f"/api/v1/nodes/{PLAIN}/proxy/healthz") == b"ok"
    assert b"PodList" in api.kubectl("get", "--raw", f"/api/v1/nodes/{PLAIN}/proxy/pods")


def pod_proxy(_: Cluster, api: Api) -> None:
    """A request to a pod's web server."""
    path = f"{CORE}/pods/{PLAIN}:8080/proxy/hello"
    assert api.kubectl("get", "--raw", path) == b"pod says GET /hello\n"


def service_proxy(_: Cluster, api: Api) -> None:
    """A request to a service's web server."""
    path = f"{CORE}/services/web:main/proxy/there"
    assert api.kubectl("get", "--raw", path) == b"pod says GET /there\n"


def logs(cluster: Cluster, api: Api) -> None:
    """Logs followed for two seconds, and the kubelet hears when nobody follows them any more."""
    ended = cluster.seen(**{"log ended": PLAIN})
    # kubectl tries again and again for as long as it would wait for a pod to run.
    args = ("logs", "--follow", "--pod-running-timeout=1s", PLAIN)
    with api.kubectl_running(*args) as process:
        assert process.stdout is not None
        for number in range(FOLLOWED_LINES):
            line = process.stdout.readline()
            if not line:
                raise CallFailedError(_errors(process))
            assert line == f"line {number} of {PLAIN}\n".encode()
    wait_until(lambda: cluster.seen(**{"log ended": PLAIN}) > ended, "the kubelet stopped")


def _errors(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    return process.stderr.read().decode(errors="replace")


def execute(streams: Streams, cluster: Cluster, api: Api) -> None:
    """Input and output, an exit code, and enough bytes to need every window on the way."""
    path = {"kubelet": f"/exec/default/{streams.pod}/main", "upgrade": streams.upgrade}
    before = cluster.seen(**path)
    run = ("exec", "-i", streams.pod, "--")
    said = api.kubectl(*run, "upper", stdin=b"over the isthmus\n", env=streams.variables)
    assert said == b"OVER THE ISTHMUS\n"
    assert cluster.seen(**path) == before + 1
    try:
        api.kubectl(*run, "exit", "7", env=streams.variables)
    except CallFailedError as exc:
        assert exc.status == 7, exc
    else:
        raise AssertionError("an exit code was lost")
    bulk = api.kubectl("exec", streams.pod, "--", "spout", str(BULK_BYTES), env=streams.variables)
    assert len(bulk) == BULK_BYTES
    text = os.urandom(BULK_BYTES // 8).hex().encode()
    assert api.kubectl(*run, "upper", stdin=text, env=streams.variables) == text.upper()


def attach(streams: Streams, cluster: Cluster, api: Api) -> None:
    """A greeting, and what was typed comes back."""
    path = {"kubelet": f"/attach/default/{streams.pod}/main", "upgrade": streams.upgrade}
    before = cluster.seen(**path)
    said = api.kubectl("attach", "-i", streams.pod, stdin=b"hello\n", env=streams.variables)
    assert said == b"attached\nHELLO\n"
    assert cluster.seen(**path) == before + 1


def port_forward(streams: Streams, cluster: Cluster, api: Api) -> None:
    """Two connections at once to a forwarded port, and each gets its own bytes back."""
    path = {"kubelet": f"/portForward/default/{streams.pod}", "upgrade": streams.upgrade}
    before = cluster.seen(**path)
    args = ("port-forward", "--address=127.0.0.1", f"pod/{streams.pod}", f":{ECHO_PORT}")
    with api.kubectl_running(*args, env=streams.variables) as process:
        assert process.stdout is not None
        found = re.search(rb"127\.0\.0\.1:([0-9]+)", process.stdout.readline())
        if found is None:
            raise CallFailedError(_errors(process))
        address = ("127.0.0.1", int(found[1]))
        with connect(api.namespace, address) as one, connect(api.namespace, address) as two:
            for sock, text in ((one, b"first"), (two, b"second"), (one, b"third")):
                sock.sendall(text)
                assert sock.recv(len(text)) == text
    assert cluster.seen(**path) == before + 1


def admission(cluster: Cluster, api: Api) -> None:
    """A new object comes back with what the webhook put into it."""
    made = api.call("POST", f"{CORE}/configmaps", {"metadata": {"generateName": "made-"}})
    assert made["metadata"]["labels"] == {"isthmus.dev/mutated": "yes"}


def conversion(cluster: Cluster, api: Api) -> None:
    """A stored object is read in the other version."""
    found = api.get(f"/apis/{GROUP}/v2/namespaces/default/spans/golden")
    assert found["spec"] == {"metres": 42}


def aggregated(cluster: Cluster, api: Api) -> None:
    """A list from an API server that is somewhere else."""
    found = api.kubectl("get", "--raw", f"/apis/{AGGREGATED}/v1alpha1/bridges")
    assert b"corinth" in found


def aggregated_openapi(cluster: Cluster, api: Api) -> None:
    """Its description is asked of it when somebody wants to read it."""
    found = api.get(f"/openapi/v3/apis/{AGGREGATED}/v1alpha1")
    assert "dev.isthmus.test.v1alpha1.Bridge" in found["components"]["schemas"]


def _streaming(name: str, streams: Streams, run: Callable[[Streams, Cluster, Api], None]) -> Check:
    return Check(name=f"{name}-{streams.name}", run=lambda where, api: run(streams, where, api))


CHECKS = (
    Check(name="node-proxy", run=node_proxy),
    Check(name="pods-proxy", run=pod_proxy),
    Check(name="services-proxy", run=service_proxy),
    Check(name="logs", run=logs),
    *(_streaming("exec", streams, execute) for streams in STREAMS),
    *(_streaming("attach", streams, attach) for streams in STREAMS),
    *(_streaming("port-forward", streams, port_forward) for streams in STREAMS),
    Check(name="admission", run=admission),
    Check(name="conversion", run=conversion),
    Check(name="aggregated", run=aggregated, instead="unable to handle the request"),
    Check(
        name="aggregated-openapi",
        run=aggregated_openapi,
        instead="^404: $|^503: service unavailable",
    ),
)


def check_named(name: str) -> Check:
    """Find one of them."""
    return next(check for check in CHECKS if check.name == name)
