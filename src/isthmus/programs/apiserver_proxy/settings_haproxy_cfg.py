"""Reading the haproxy.cfg that HyperShift writes for its nodes, to make our own file of it.

The subset: one frontend in TCP mode and its backend. A line that means something else is an error
with its place; one that is understood and does not apply here is a warning that says why. Nothing
is passed over in silence. Single lines are haproxy_lines.py. Sections (§) are those of haproxy's
configuration manual.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from isthmus.errors import ConfigError
from isthmus.programs.apiserver_proxy.plan import (
    MAX_UPSTREAMS,
    CheckPlan,
    Checks,
    ProxyPlan,
    check_plan,
    check_tlvs,
)
from isthmus.programs.apiserver_proxy.rules import Bounds
from isthmus.programs.apiserver_proxy.settings_haproxy_lines import HaproxyLine, Lines, Section
from isthmus.programs.apiserver_proxy.settings_haproxy_server import HaproxyServer
from isthmus.text.located_yaml import MAX_CHARS, near, short
from isthmus.values import is_address

#: In the certificate of every apiserver.
APISERVER_NAME = "kubernetes.default.svc"


@dataclass(frozen=True, slots=True)
class Converted:
    """What a file says, and what is to be known about that; each warning is one sentence."""

    plan: ProxyPlan
    warnings: tuple[str, ...]


def convert(text: str, name: str, *, ca: str = "") -> Converted:
    """Make a plan of a haproxy.cfg; ``name`` is what messages call it.

    ``ca``: the file with the cluster's authorities, which haproxy.cfg does not name. Without it,
    and without a ca-file, upstreams are checked by connecting to them only.

    Raises:
        ConfigError: one line for each thing that is wrong, ``name:line:column: what``.
    """
    if len(text) > MAX_CHARS:
        raise ConfigError(f"{name}: longer than {MAX_CHARS} characters")
    lines = Lines(name)
    for number_, line in enumerate(text.splitlines(), 1):
        lines.take(number_, line)
    return _Whole(lines).finish(ca)


class _Whole:
    """Puts together what the lines say."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._top = lines.top

    def finish(self, ca: str) -> Converted:
        """Put it together."""
        frontend, backend = self._pair()
        self._lines.errors.raise_any()
        assert frontend is not None and backend is not None
        servers = [each.over(backend.default_server, self._top.default_server)
                   for each in backend.servers]  # fmt: skip
        self._same(servers)
        self._lines.errors.raise_any()
        plan = self._plan(frontend, backend, servers, ca)
        try:
            check_plan(plan, listen="bind", upstream="server")
        except ConfigError as error:
            raise ConfigError(f"{self._lines.name}: {error}") from None
        return Converted(plan, tuple(self._lines.warnings))

    def _pair(self) -> tuple[Section | None, Section | None]:
        frontends = self._lines.frontends
        if len(frontends) != 1:
            line = frontends[1].line if frontends else HaproxyLine(1, "", [])
            what = (
                "one frontend can be converted" if self._lines.frontends else "there is no frontend"
            )
            self._lines.wrong(line, "frontend", what)
            return None, None
        (frontend,) = frontends
        if not frontend.binds:
            self._lines.wrong(frontend.line, "frontend", f"frontend {frontend.name} has no bind")
        by_name = {each.name: each for each in self._lines.backends}
        backend = by_name.get(frontend.backend)
        if backend is None:
            what = f"there is no backend {short(frontend.backend)}{near(frontend.backend, by_name)}"
            line = frontend.backend_line or frontend.line
            self._lines.wrong(line, frontend.backend or "frontend", what)
            return frontend, None
        for other in self._lines.backends:
            if other is not backend:
                self._lines.warn(
                    other.line.number, f"backend {other.name} is left out: nothing leads there"
                )
        if not 0 < len(backend.servers) <= MAX_UPSTREAMS:
            what = f"backend {backend.name} must have 1 to {MAX_UPSTREAMS} servers"
            self._lines.wrong(backend.line, "backend", what)
        for section in (frontend, backend):
            if not (section.is_tcp or self._top.is_tcp):
                self._lines.wrong(
                    section.line, section.line.words[0], f"{section.name}: mode tcp is missing"
                )
        return frontend, backend

    def _same(self, servers: list[HaproxyServer]) -> None:
        """Each setting of a server is one of all servers here."""
        first = servers[0]
        for other in servers[1:]:
            if other.shared != first.shared:
                self._lines.errors.add(
                    other.line, 1, f"server {other.name} must be set like server {first.name}"
                )
        wrong = check_tlvs(tuple(first.tlvs))
        if wrong:
            self._lines.errors.add(first.line, 1, f"the TLVs of server {first.name} {wrong}")

    def _plan(
        self, frontend: Section, backend: Section, servers: list[HaproxyServer], ca: str
    ) -> ProxyPlan:
        default = ProxyPlan()
        times = {**self._top.timeouts, **backend.timeouts, **frontend.timeouts}
        first = servers[0]
        retries = [it.retries for it in (backend, self._top) if it.retries is not None]
        if len(servers) == 1 and any(retries[:1]):
            said = "haproxy tries the only server again; isthmus does not, and leaves that to the"
            self._lines.warn(0, f"retries {retries[0]}: {said} client")
        counts = [it.maxconn for it in (frontend, self._top) if it.maxconn is not None]
        return ProxyPlan(
            listen=tuple(frontend.binds),
            upstreams=tuple(each.at for each in servers if each.at is not None),
            check=self._named(servers, self._check(backend, first, ca, times.get("check", 0.0))),
            connect_timeout_s=times.get("connect", default.connect_timeout_s),
            idle_timeout_s=self._idle(times),
            retries=retries[0] if retries else default.retries,
            max_connections=min(counts) if counts else default.max_connections,
            proxy_protocol=tuple(first.tlvs) if first.send_proxy else None,
        )

    def _named(self, servers: list[HaproxyServer], check: CheckPlan) -> CheckPlan:
        """Ask for a name that an apiserver has, where its address would be asked for.

        The address is a load balancer's as a rule, which no certificate of an apiserver names.
        """
        addressed = [it for it in servers if it.at is not None and is_address(it.at.host)]
        if not addressed or check.kind is not Checks.HTTPS or check.server_name:
            return check
        first = addressed[0]
        self._lines.warn(
            first.line,
            f"server {first.name} is at an address, {first.at}: checks want a certificate for"
            f" {APISERVER_NAME}, unless check-sni says another name",
        )
        return replace(check, server_name=APISERVER_NAME)

    def _idle(self, times: dict[str, float]) -> float:
        if "tunnel" in times:
            return times["tunnel"]
        both = {times[which] for which in ("client", "server") if which in times}
        if len(both) > 1:
            said = "timeout client and server differ: the shorter is taken for both"
            self._lines.warn(0, said)
        if not both:
            said = "no timeout client or server: a connection may be idle for ever"
            self._lines.warn(0, said)
        return min(both, default=0.0)

    def _check(
        self, backend: Section, first: HaproxyServer, ca: str, timeout_s: float
    ) -> CheckPlan:
        made = CheckPlan(
            kind=backend.check or self._top.check or Checks.TCP,
            path=backend.path or self._top.path or "/",
            ca=first.ca or ca,
            server_name=first.check_sni,
            timeout_s=timeout_s,
            bounds=Bounds(fall=first.fall or 3, rise=first.rise or 3),
            interval_s=first.inter_s or 2.0,  # §5.2, inter
        )
        where = f"{self._lines.name}:{first.line}: server {first.name}"
        if not first.check:
            self._lines.warnings[
                f"{where} has no check, so haproxy never checks it; isthmus does"
            ] = None
        elif made.kind is Checks.HTTPS and not first.check_ssl:
            self._lines.warnings[f"{where} is checked without TLS by haproxy; isthmus uses TLS"] = (
                None
            )
        if made.kind is Checks.HTTPS and not made.ca:
            said = (
                f"server {first.name} names no ca-file: upstreams are checked by connecting only;"
                f" with --ca-cert, isthmus asks for {made.path} over TLS"
            )
            self._lines.warn(first.line, said)
            return replace(made, kind=Checks.TCP)
        return made
