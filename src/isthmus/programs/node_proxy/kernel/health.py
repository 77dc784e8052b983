"""The health of the proxy, and the health check node ports of Services.

``ProxyHealth`` computes the answers of ``/healthz`` and ``/livez``; ports.py serves them. The proxy
is unhealthy while a change has waited for the kernel longer than the timeout; ``/healthz`` also
says whether load balancers should send traffic to this node.

Load balancers ask a health check node port whether this node has endpoints: there is one port for
each Service of type LoadBalancer with external traffic policy Local. One HTTP server serves all of
these ports, and tells Services apart by the port.
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
_NEVER = "0001-01-01T00:00:00Z"  # Go's zero time


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The answer to a probe: an HTTP status, a JSON body and optional headers."""

    status: int
    body: str
    headers: Mapping[str, str] | None = None


class ProxyHealth:
    """The time of the last sync and of the oldest waiting change, per family.

    ``clock`` is monotonic and used for comparisons; ``wall`` is the time of day for display.
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
        """Note that a change waits for a sync; the oldest waiting change counts."""
        self._waiting.setdefault(family, self._clock())
        # As in kube-proxy a family starts as up to date, so one that never syncs is noticed.
        self._updated.setdefault(family, self._wall())

    def synced(self, family: IpFamily) -> None:
        self._waiting.pop(family, None)
        self._updated[family] = self._wall()

    def node(self, node: NodeObject | None) -> None:
        """Set the Node as the API has it; None if it was deleted.

        Until the first call the node is not eligible for traffic: a proxy that cannot reach the API
        does not know the Services either.
        """
        self._eligible = node is not None and not node.deleting and TO_BE_DELETED not in node.taints

    @property
    def healthy(self) -> bool:
        """Whether no family has had a change waiting for too long."""
        return all(self._in_time(family) for family in self._updated)

    def healthz(self) -> ProbeAnswer:
        """Answer ``/healthz``: 200 if the proxy is healthy and the node eligible, else 503."""
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
            # As in kube-proxy: while all is well this is the present time, even without changes.
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
#: A machine without IPv6 cannot bind "::"; other addresses still work.
_NO_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


class ServiceHealthPorts:
    """Listens on the health check node ports of Services and answers from the last ``sync``.

    ``sync`` needs a running event loop; ``close`` stops all listeners.
    """

    def __init__(self, health: ProxyHealth) -> None:
        self._health = health
        self._services: dict[int, ServiceName] = {}
        self._local_ready: Mapping[ServiceName, int] = {}
        self._open: dict[tuple[str, int], HttpSite] = {}
        self._visitors = Visitors()  # shared by all ports
        self._failed: dict[tuple[str, int], str] = {}
        self._server: web.Server | None = None

    def __repr__(self) -> str:
        return f"<ServiceHealthPorts {sorted({port for _, port in self._open})}>"

    @property
    def failed(self) -> Mapping[tuple[str, int], str]:
        """The addresses and ports that could not be opened, and why; the next sync retries."""
        return self._failed

    async def sync(
        self,
        ports: Mapping[ServiceName, int],
        local_ready: Mapping[ServiceName, int],
        *,
        addresses: Sequence[str] = EVERY_ADDRESS,
    ) -> None:
        """Open and close ports so that every given Service has its own, on these addresses.

        ``local_ready`` has the number of ready endpoints on this node per Service, by default 0. A
        port that cannot be opened is logged once, and retried at every call.
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
        """Answer for a Service: 200 if the node has endpoints and the proxy is healthy."""
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
            self._log_failure(address, port, exc)
            return
        self._open[address, port] = HttpSite(sock, self._server_of(), visitors=self._visitors)
        if self._failed.pop((address, port), None) is not None:
            log(_log, logging.INFO, "health check node port opened", address=address,
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

    def _log_failure(self, address: str, port: int, exc: OSError) -> None:
        if exc.errno in _NO_FAMILY and address == "::":
            return
        reason = exc.strerror or str(exc)
        if self._failed.get((address, port)) != reason:
            log(_log, logging.ERROR, "cannot open health check node port; retrying",
                address=address, port=port, service=str(self._services[port]),
                error=reason)  # fmt: skip
        self._failed[address, port] = reason

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        transport = request.transport
        port = transport.get_extra_info("sockname")[1] if transport is not None else 0
        service = self._services.get(port)
        if service is None:  # the connection outlived its port
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
    # create_server() makes IPv6 sockets IPv6-only, so that 0.0.0.0 and :: can both be bound.
    sock = socket.create_server((address, port), family=family, backlog=BACKLOG)
    sock.setblocking(False)
    return sock
