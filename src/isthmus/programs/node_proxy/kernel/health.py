"""Whether the proxy keeps up with what it is told, and the health check node ports of Services.

``ProxyHealth`` answers ``/healthz`` and ``/livez``, as values; ports.py serves them. A change that
waits longer than the timeout for the kernel makes the proxy unhealthy; ``/healthz`` also says
whether load balancers should send anything to this node.

Load balancers ask at the health check node ports whether this node has endpoints: one port for
every Service of type LoadBalancer with external traffic policy Local. One HTTP server answers on
all of them, and tells them apart by the port that was asked.
"""

from __future__ import annotations

import errno
import json
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from aiohttp import web

from isthmus.dial.rules_service_names import ServiceName
from isthmus.logs import log
from isthmus.net.http_site import BACKLOG, HttpSite, Visitors
from isthmus.programs.node_proxy.rules.model import IpFamily, NodeObject

#: Set on a node by the cluster autoscaler before it takes the node away.
TO_BE_DELETED = "ToBeDeletedByClusterAutoscaler"
_NEVER = "0001-01-01T00:00:00Z"  # how Go writes a time that was not set


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What a probe is told: an HTTP status, a JSON body and more headers, if any."""

    status: int
    body: str
    headers: Mapping[str, str] | None = None


class ProxyHealth:
    """Remembers, per family, when the kernel was last brought up to date and what waits since.

    ``clock`` never goes back and is compared with; ``wall`` is the time of day, and only shown.
    """

    def __init__(
        self,
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._wall = wall
        self._updated: dict[IpFamily, float] = {}
        self._waiting: dict[IpFamily, float] = {}
        self._eligible = False

    def queued(self, family: IpFamily) -> None:
        """Note that something waits to be written; the oldest that waits is what counts."""
        self._waiting.setdefault(family, self._clock())
        # kube-proxy begins with "up to date now", so that a family that never gets there is seen.
        self._updated.setdefault(family, self._wall())

    def synced(self, family: IpFamily) -> None:
        self._waiting.pop(family, None)
        self._updated[family] = self._wall()

    def node(self, node: NodeObject | None) -> None:
        """Take the node as the API has it; None means that it is gone.

        Until this is called the node is none that may have traffic: whoever does not reach the
        API knows no Service either.
        """
        self._eligible = node is not None and not node.deleting and TO_BE_DELETED not in node.taints

    @property
    def healthy(self) -> bool:
        """No family has had a change waiting for too long."""
        return all(self._in_time(family) for family in self._updated)

    def healthz(self) -> ProbeAnswer:
        """Answer ``/healthz``: 200 if the proxy keeps up and the node is to stay, else 503."""
        return self._answer(self.healthy and self._eligible, node=True)

    def livez(self) -> ProbeAnswer:
        return self._answer(self.healthy, node=False)

    def _in_time(self, family: IpFamily) -> bool:
        since = self._waiting.get(family)
        return since is None or self._clock() - since < self._timeout_s

    def _answer(self, well: bool, *, node: bool) -> ProbeAnswer:
        now = self._wall()
        last = max(self._updated.values(), default=None)
        body: dict[str, object] = {
            # As in kube-proxy: "recent" as long as all is well, whether or not anything changed.
            "lastUpdated": _written(now if well else last),
            "currentTime": _written(now),
        }
        if node:
            body["nodeEligible"] = self._eligible
        body["healthy"] = self.healthy
        if self._updated:
            body["status"] = {
                family.value: {
                    "lastUpdated": _written(self._updated[family]),
                    "healthy": self._in_time(family),
                }
                for family in sorted(self._updated, key=lambda each: each.value)
            }
        return ProbeAnswer(200 if well else 503, json.dumps(body, separators=(",", ":")))


def _written(when: float | None) -> str:
    if when is None:
        return _NEVER
    return datetime.fromtimestamp(when, UTC).isoformat().replace("+00:00", "Z")


EVERY_ADDRESS = ("0.0.0.0", "::")
WEIGHT_HEADER = "X-Load-Balancing-Endpoint-Weight"
IDLE_S = 60.0
SHUTDOWN_S = 2.0
MAX_LINE_BYTES = 8190
_log = logging.getLogger("isthmus.nodeproxy")
#: A machine without IPv6 has no address "::"; the others will do.
_NO_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


class ServiceHealthPorts:
    """Listens on the health check node ports of Services and answers from the last ``sync``.

    Needs a running loop from ``sync`` on, and ``close`` at the end.
    """

    def __init__(self, health: ProxyHealth) -> None:
        self._health = health
        self._services: dict[int, ServiceName] = {}
        self._local_ready: Mapping[ServiceName, int] = {}
        self._open: dict[tuple[str, int], HttpSite] = {}
        self._visitors = Visitors()  # of all ports together
        self._failed: dict[tuple[str, int], str] = {}
        self._server: web.Server | None = None

    def __repr__(self) -> str:
        return f"<ServiceHealthPorts {sorted({port for _, port in self._open})}>"

    @property
    def failed(self) -> Mapping[tuple[str, int], str]:
        """The addresses and ports that could not be opened, and why; the next sync tries again."""
        return self._failed

    async def sync(
        self,
        ports: Mapping[ServiceName, int],
        local_ready: Mapping[ServiceName, int],
        *,
        addresses: Sequence[str] = EVERY_ADDRESS,
    ) -> None:
        """Open and close ports so that every Service given has its own, on these addresses.

        ``local_ready`` are the ready endpoints on this node; a Service that is not in it has
        none. A port that cannot be opened is said once, and tried again at every call.
        """
        self._services = {port: service for service, port in ports.items()}
        self._local_ready = dict(local_ready)
        wanted = {(address, port) for address in addresses for port in self._services}
        for place in [place for place in self._open if place not in wanted]:
            await self._open.pop(place).close()
        for place in [place for place in self._failed if place not in wanted]:
            del self._failed[place]
        for place in sorted(wanted - self._open.keys()):
            self._listen(*place)

    async def close(self) -> None:
        for listener in self._open.values():
            await listener.close()
        self._open.clear()
        self._services = {}
        if self._server is not None:
            await self._server.shutdown(SHUTDOWN_S)
            self._server = None

    def answer(self, service: ServiceName) -> ProbeAnswer:
        """Answer for a Service: 200 if the node has endpoints of it and the proxy keeps up."""
        count, healthy = self._local_ready.get(service, 0), self._health.healthy
        body = {
            "service": {"namespace": service.namespace, "name": service.name},
            "localEndpoints": count,
            "serviceProxyHealthy": healthy,
        }
        return ProbeAnswer(
            200 if count and healthy else 503,
            json.dumps(body, indent="\t"),
            {WEIGHT_HEADER: str(count)},
        )

    def _listen(self, address: str, port: int) -> None:
        try:
            sock = _bound(address, port)
        except OSError as exc:
            self._say(address, port, exc)
            return
        self._open[address, port] = HttpSite(sock, self._server_of(), visitors=self._visitors)
        if self._failed.pop((address, port), None) is not None:
            log(_log, logging.INFO, "health check node port is open now", address=address,
                port=port, service=str(self._services[port]))  # fmt: skip

    def _server_of(self) -> web.Server:
        if self._server is None:
            self._server = web.Server(
                self._handle,
                access_log=None,
                keepalive_timeout=IDLE_S,
                max_line_size=MAX_LINE_BYTES,
                max_field_size=MAX_LINE_BYTES,
            )
        return self._server

    def _say(self, address: str, port: int, exc: OSError) -> None:
        if exc.errno in _NO_FAMILY and address == "::":
            return
        reason = exc.strerror or str(exc)
        if self._failed.get((address, port)) != reason:
            log(_log, logging.ERROR, "health check node port cannot be opened; it is tried again",
                address=address, port=port, service=str(self._services[port]),
                error=reason)  # fmt: skip
        self._failed[address, port] = reason

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        transport = request.transport
        port = transport.get_extra_info("sockname")[1] if transport is not None else 0
        service = self._services.get(port)
        if service is None:  # the connection is older than the end of its port
            response = web.Response(status=404, text="404 page not found\n")
            response.force_close()
            return response
        answer = self.answer(service)
        return web.Response(
            status=answer.status,
            text=answer.body,
            content_type="application/json",
            headers={"X-Content-Type-Options": "nosniff", **(answer.headers or {})},
        )


def _bound(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # create_server() makes IPv6 sockets IPv6-only, so that 0.0.0.0 and :: go together.
    sock = socket.create_server((address, port), family=family, backlog=BACKLOG)
    sock.setblocking(False)
    return sock
