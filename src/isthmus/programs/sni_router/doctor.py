"""What the settings of an SNI router name, for the doctor: where it listens."""

from __future__ import annotations

from collections.abc import Iterator

from typing_extensions import override

from isthmus.frame.layout import ListeningPort, SettingsLayout
from isthmus.programs.sni_router.settings import SniRouterSettings


class SniRouterLayout(SettingsLayout[SniRouterSettings]):
    """An SNI router's."""

    @override
    def listeners(self) -> Iterator[ListeningPort]:
        for host, port in self.settings.listeners:
            yield ListeningPort(flag="--listen", host=host, port=port)
        for host, port in self.settings.proxy_listeners:
            yield ListeningPort(flag="--listen-proxy", host=host, port=port)
