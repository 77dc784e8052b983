"""For the doctor: the addresses, upstreams and health check in the proxy's settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address

from typing_extensions import override

from isthmus.frame.layout import ListeningPort, Peer, SettingsLayout, TlsUse
from isthmus.net.certificates import TlsFiles
from isthmus.programs.apiserver_proxy.plan import Checks, ProxyPlan
from isthmus.programs.apiserver_proxy.planning import read_plan
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings


class ApiserverProxyLayout(SettingsLayout[ApiserverProxySettings]):
    """The layout of an apiserver proxy, from its flags or its file, which is read once.

    Raises:
        ConfigError: the file is wrong.
    """

    @cached_property
    def _plan(self) -> ProxyPlan:
        settings = self.settings
        return read_plan(settings.config) if settings.config else settings.plan()

    @property
    def _files(self) -> TlsFiles | None:
        check = self._plan.check
        if check.kind is not Checks.HTTPS:
            return None
        labels = ("--client-cert", "--client-key", "--ca-cert")
        return TlsFiles(check.cert, check.key, check.ca, labels=labels)

    @override
    def tls_uses(self) -> Iterator[TlsUse]:
        if self._files is not None:
            yield TlsUse(files=self._files, purpose="client")

    @override
    def listeners(self) -> Iterator[ListeningPort]:
        managed = {str(address) for address in self._plan.managed}
        for host, port in self._plan.listen:
            yield ListeningPort(flag="--listen", host=host, port=port, brought=host in managed)

    @override
    def peers(self) -> Iterator[Peer]:
        plan, files = self._plan, self._files
        for upstream in plan.upstreams:
            yield Peer(
                flag="--upstream",
                at=upstream,
                name=plan.check.server_name,
                name_flag="--health-check-server-name",
                files=files,
                alpn=("http/1.1",) if files is not None else (),
                proxy=plan.proxy_for(upstream),
                http=files is not None and plan.proxy_protocol is None,
            )

    @override
    def brought(self) -> Sequence[IPv4Address | IPv6Address]:
        return self._plan.managed
