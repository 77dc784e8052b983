"""Programs that run in a loop of a test, and what tests look at in them."""

from __future__ import annotations

from typing import Any

from isthmus.frame.lifecycle import Lifecycle
from isthmus.frame.listening import Listening
from isthmus.net.listen import Listener
from isthmus.programs.apiserver_proxy import PROGRAM as APISERVER_PROXY
from isthmus.programs.apiserver_proxy.connections import ProxyConnections
from isthmus.programs.apiserver_proxy.planning import PlanSource
from isthmus.programs.sidecar.connections import SidecarConnections


class Started(Lifecycle):
    """A program with a port for clients."""

    @property
    def listeners(self) -> list[Listener]:
        return self.part(Listening).open_ones


class StartedSidecar(Started):
    """Either of them."""

    @property
    def connections(self) -> SidecarConnections:
        return self.part(SidecarConnections)


class StartedProxy(Started):
    """An apiserver proxy."""

    def __init__(self, settings: Any) -> None:
        super().__init__(APISERVER_PROXY, settings)

    @property
    def connections(self) -> ProxyConnections:
        return self.part(ProxyConnections)

    @property
    def source(self) -> PlanSource:
        return self.part(PlanSource)
