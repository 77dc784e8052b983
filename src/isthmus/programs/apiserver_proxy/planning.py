"""The plan of an apiserver proxy with its certificates, from flags or from a file that may change.

Plans are defined in plan.py and read in the ``settings`` modules.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from typing_extensions import override

from isthmus.errors import ConfigError
from isthmus.frame.part import Ground, LongTask, Part
from isthmus.frame.resources import allow_connections
from isthmus.logs import log
from isthmus.net.contexts import HotContext, TlsFiles, client_context
from isthmus.net.files import FollowedFile, read_text
from isthmus.programs.apiserver_proxy.metrics import ApiserverProxyMetrics
from isthmus.programs.apiserver_proxy.plan import Checks, ProxyPlan
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings

_log = logging.getLogger("isthmus.apiserver_proxy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A plan whose files were read and are valid."""

    plan: ProxyPlan
    check_context: HotContext | None = None
    proxy_context: HotContext | None = None

    @property
    def pairs(self) -> int:
        """The pairs of descriptors per connection: TLS to a proxy takes another one."""
        return 1 if self.proxy_context is None else 2

    @property
    def contexts(self) -> list[HotContext]:
        """Those that there are."""
        return [it for it in (self.check_context, self.proxy_context) if it is not None]


def prepare(plan: ProxyPlan, *, flags: bool) -> Prepared:
    """Read the certificates that a plan names.

    Raises:
        ConfigError: one of them is wrong.
    """
    check, through = plan.check, plan.through
    check_context = proxy_context = None
    names = ("--client-cert", "--client-key", "--ca-cert", "--http-proxy-ca-cert")
    if not flags:
        names = ("clientCert", "clientKey", "caCert", "httpProxy.caCert")
    if check.kind is Checks.HTTPS:
        files = TlsFiles(check.cert, check.key, check.ca, labels=(names[0], names[1], names[2]))
        check_context = HotContext(files, _context, purpose="client")
    if through is not None and through.proxy.scheme == "https":
        files = TlsFiles("", "", through.ca, labels=("", "", names[3]))
        proxy_context = HotContext(files, _context, purpose="client")
    return Prepared(plan=plan, check_context=check_context, proxy_context=proxy_context)


def _context(files: TlsFiles) -> ssl.SSLContext:
    return client_context(files, alpn=("http/1.1",))


def read_plan(path: str, *, what: str = "--config ") -> ProxyPlan:
    """Read a file; errors put ``what`` before its name.

    Raises:
        ConfigError: it cannot be read or is wrong.
    """
    from isthmus.programs.apiserver_proxy.settings_file import parse  # YAML is slow to import

    return parse(read_text(path, what=what), path)


def _read_prepared(path: str) -> Prepared:
    return prepare(read_plan(path), flags=False)


class PlanSource(Part):
    """Where the plan comes from: flags, or a ``file`` to be watched.

    ``current`` is the plan in use, ``changed`` is called with a new one.

    Open connections stay open when the plan changes. A file that is missing or invalid changes
    nothing, and is logged once, in one line.
    """

    def __init__(self, ground: Ground[ApiserverProxySettings, ApiserverProxyMetrics]) -> None:
        """Read the plan.

        Raises:
            ConfigError: the file, or one that it names, cannot be read or is wrong.
        """
        settings = ground.settings
        self._path = settings.config
        self._metrics = ground.metrics
        self._contexts = ground.contexts
        self.changed: Callable[[Prepared], None] = lambda _: None
        self.file: FollowedFile[Prepared] | None = None
        if settings.config:
            self.file = FollowedFile(
                settings.config, _read_prepared, taken=self._take, failed=self._refuse
            )
            self.current = self.file.current
        else:
            self.current = prepare(settings.plan(), flags=True)
        self._contexts += self.current.contexts

    @override
    def tasks(self) -> Iterable[LongTask]:
        if self.file is not None:
            yield "config", self.file.watch()

    @override
    def snapshot(self, limit: int) -> dict[str, Any]:
        return {"config": self._path}

    @override
    def reload(self) -> None:
        if self.file is None:
            log(_log, logging.INFO, "nothing to reload: --config is not set")
        else:
            self.file.look_now()

    def _refuse(self, error: ConfigError) -> None:
        self._metrics.reload_failures += 1
        first, *more = str(error).splitlines()
        log(
            _log, logging.WARNING, "cannot use the changed configuration, keeping the previous one",
            error=first, more=len(more),
        )  # fmt: skip

    def _take(self, prepared: Prepared) -> None:
        assert self.file is not None  # the same content as before
        old, new = self.current.plan, prepared.plan
        kept = replace(
            new, listen=old.listen, manage_address=old.manage_address, uplinks=old.uplinks
        )
        if kept != new:
            log(
                _log, logging.WARNING, "listen, manageAddress and uplinkInterfaces stay as they"
                " were until the next start", file=self.file.path,
            )  # fmt: skip
            prepared = replace(prepared, plan=kept)
        for context in self.current.contexts:
            self._contexts.remove(context)
        self._contexts += prepared.contexts
        self.current = prepared
        self._metrics.reloads += 1
        allow_connections(prepared.plan.max_connections * prepared.pairs)
        self.changed(prepared)
        log(
            _log, logging.INFO, "configuration reloaded", file=self.file.path,
            upstreams=",".join(map(str, prepared.plan.upstreams)),
        )  # fmt: skip
