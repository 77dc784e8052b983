"""The Services of a cluster, listed once and then watched, for lookups without a request.

While the API is unreachable, the last known state stands. If listing is forbidden, each Service
is read when needed, which is all that HyperShift's sidecars ever do, and cached for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from isthmus.dial.rules_service_names import Service, ServiceName
from isthmus.errors import KubeError
from isthmus.kube.api import Change, Services
from isthmus.kube.following import FIRST_RETRY_S, SILENCE_S, Follower
from isthmus.text.addresses import reached_address

#: How long a lookup waits for the first listing, and how long Services read one by one are cached.
FIRST_LISTING_S = 5.0
_KEEP_S = 30.0
_MOST_KEPT = 4096

_NOT_FOUND = 404
_FORBIDDEN = frozenset({401, 403})


class ServiceWatch:
    """Keeps the Services of a cluster up to date while ``run`` runs."""

    def __init__(
        self,
        services: Services,
        *,
        silence_s: float = SILENCE_S,
        first_retry_s: float = FIRST_RETRY_S,
        first_listing_s: float = FIRST_LISTING_S,
        keep_s: float = _KEEP_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._services = services
        self._first_listing_s = first_listing_s
        self._keep_s = keep_s
        self._clock = clock
        self._follower = Follower(
            services,
            "watching services",
            listed=self._replace,
            changed=self._take,
            failed=self._fail,
            silence_s=silence_s,
            first_retry_s=first_retry_s,
        )
        self._known: dict[ServiceName, Service] = {}
        self._addresses: dict[str, ServiceName] = {}
        self._tried = asyncio.Event()
        self._error: KubeError | None = None
        self._one_by_one: OrderedDict[ServiceName, tuple[float, Service | None]] = OrderedDict()
        self.listed = False

    def __repr__(self) -> str:
        return f"<ServiceWatch {len(self._known)}{'' if self.listed else ', not listed'}>"

    def __len__(self) -> int:
        return len(self._known)

    @property
    def forbidden(self) -> bool:
        """Whether listing is forbidden, so that each Service is read on demand."""
        return self._error is not None and self._error.status in _FORBIDDEN and not self.listed

    def known(self, at: ServiceName) -> Service | None:
        """A Service, if it is known without a request."""
        return self._known.get(at)

    def has_address(self, address: str) -> bool:
        """Whether the address, in any spelling, is a cluster IP of a Service."""
        return str(reached_address(address)) in self._addresses

    async def find(self, at: ServiceName) -> Service | None:
        """Find a Service; None if it does not exist.

        Waits briefly for a first listing in progress, and never for a second one.

        Raises:
            KubeError: the API has never answered.
        """
        if not self.listed and not self._tried.is_set():
            try:
                await asyncio.wait_for(self._tried.wait(), self._first_listing_s)
            except TimeoutError:
                raise KubeError("the Kubernetes API has not answered yet") from None
        if self.listed:
            return self._known.get(at)
        if self.forbidden:
            return await self._read(at)
        assert self._error is not None
        raise self._error

    async def _read(self, at: ServiceName) -> Service | None:
        until, service = self._one_by_one.get(at, (0.0, None))
        if until > self._clock():
            return service
        try:
            service = await self._services.get(at)
        except KubeError as exc:
            if exc.status != _NOT_FOUND:
                raise
            service = None
        self._one_by_one.pop(at, None)
        self._one_by_one[at] = (self._clock() + self._keep_s, service)
        while len(self._one_by_one) > _MOST_KEPT:
            self._one_by_one.popitem(last=False)
        return service

    async def run(self) -> None:
        """List and watch, until cancelled."""
        await self._follower.run()

    def _replace(self, services: Sequence[Service]) -> None:
        self._known = {service.at: service for service in services}
        self._addresses = {
            address: service.at for service in services for address in service.addresses
        }
        self._one_by_one.clear()
        self.listed = True
        self._error = None
        self._tried.set()

    def _fail(self, error: KubeError) -> None:
        self._error = error
        self._tried.set()

    def _take(self, change: Change, service: Service) -> None:
        old = self._known.pop(service.at, None)
        for address in old.addresses if old is not None else ():
            # Unless another Service has taken the address in the meantime.
            if self._addresses.get(address) == service.at:
                del self._addresses[address]
        if change is not Change.DELETED:
            self._known[service.at] = service
            self._addresses.update(dict.fromkeys(service.addresses, service.at))
