"""Reads the haproxy.cfg that HyperShift writes for its nodes, to convert it to an Isthmus file.

Supported is one frontend in TCP mode and its backend. Any other line is an error with its location,
or, if it does not apply here, a warning with the reason. No line is skipped silently. Sections (§)
are those of haproxy's configuration manual.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from isthmus.errors import ConfigError
from isthmus.programs.apiserver_proxy.plan import (
    MAX_RETRIES,
    MAX_UPSTREAMS,
    MOST_CONNECTIONS,
    CheckPlan,
    Checks,
    ListenAt,
    ProxyPlan,
    check_plan,
    check_tlvs,
    read_listen,
    read_path,
    read_upstream,
)
from isthmus.programs.apiserver_proxy.rules import Bounds
from isthmus.programs.apiserver_proxy.settings_haproxy_server import (
    MILLISECOND,
    HaproxyServer,
    duration_s,
    number,
    server_words,
)
from isthmus.text.located_yaml import MAX_CHARS, Errors, near, short
from isthmus.values import is_address

_SECTIONS = ("global", "defaults", "frontend", "backend")
_OTHER_SECTIONS = (
    "listen", "peers", "resolvers", "userlist", "mailers", "cache", "program", "ring",
    "http-errors", "fcgi-app",
)  # fmt: skip
_NO_QUEUE = "isthmus has no queue"
#: Timeouts that do not apply, and why.
_OTHER_TIMEOUTS = {
    "client-fin": "a half-closed connection may go on as long as bytes come, 5m without any",
    "server-fin": "a half-closed connection may go on as long as bytes come, 5m without any",
    "queue": _NO_QUEUE,
    "http-request": "bytes are passed on as they are",
    "http-keep-alive": "bytes are passed on as they are",
}
_OTHER_OPTIONS = {
    "tcplog": "isthmus logs connections with --v=5",
    "dontlognull": "isthmus logs connections with --v=5",
    "log-health-checks": "isthmus logs when an upstream goes down or comes back",
    "redispatch": "isthmus always tries another upstream",
    "tcpka": "isthmus always keeps connections alive",
    "clitcpka": "isthmus always keeps connections alive",
    "srvtcpka": "isthmus always keeps connections alive",
}
_OTHER_GLOBALS = ("daemon", "user", "group", "chroot", "pidfile", "nbthread", "stats")


@dataclass(slots=True)
class HaproxyLine:
    """One line with words in it."""

    number: int
    text: str
    words: list[str]

    def column(self, word: str) -> int:
        """The column of a word, from 1."""
        return max(0, self.text.find(word)) + 1


@dataclass(slots=True)
class Section:
    """A frontend, a backend, or the defaults of all."""

    line: HaproxyLine
    name: str = ""
    binds: list[ListenAt] = field(default_factory=list)
    backend: str = ""
    backend_line: HaproxyLine | None = None
    servers: list[HaproxyServer] = field(default_factory=list)
    default_server: HaproxyServer = field(default_factory=HaproxyServer)
    timeouts: dict[str, float] = field(default_factory=dict)
    retries: int | None = None
    maxconn: int | None = None
    path: str | None = None
    check: Checks | None = None
    is_tcp: bool | None = None


_Keywords = dict[str, Callable[[HaproxyLine, Section], None]]


class Lines:
    """Reads the lines one by one."""

    def __init__(self, name: str) -> None:
        self.errors = Errors(name)
        self.name = name
        self.warnings: dict[str, None] = {}
        self.top = Section(HaproxyLine(1, "", []))  # global and defaults
        self.frontends: list[Section] = []
        self.backends: list[Section] = []
        self._now: tuple[str, Section] | None = None
        self._skips = False

    # Errors and warnings.

    def wrong(self, line: HaproxyLine, word: str, what: str) -> None:
        """Report an error at a word of a line."""
        self.errors.add(line.number, line.column(word), what)

    def warn(self, number_: int, what: str) -> None:
        """Report a warning about a line, or about the whole file for line 0; each once."""
        where = f"{self.name}:{number_}" if number_ else self.name
        self.warnings[f"{where}: {what}"] = None

    # Lines.

    def take(self, number_: int, text: str) -> None:
        """Read a line."""
        try:
            words = shlex.split(text, comments=True)
        except ValueError as error:
            self.errors.add(number_, 1, f"unterminated quote or escape: {error}".lower())
            return
        if not words:
            return
        line = HaproxyLine(number_, text, words)
        odd = next((word for word in words if not word.isprintable()), None)
        if odd is not None:  # it would get into messages, where a terminal would interpret it
            self.wrong(line, odd, f"{short(odd)} has unprintable characters")
            return
        if "$" in text:
            self.wrong(line, "$", "environment variables are not expanded; write their values")
        elif words[0] in _SECTIONS:
            self._begin(line)
        elif words[0] in _OTHER_SECTIONS:
            self.wrong(line, words[0], f"a section {words[0]} cannot be converted")
            self._now, self._skips = None, True
        elif self._now is not None:
            self._keyword(line, *self._now)
        elif not self._skips:
            self.wrong(line, words[0], f"{short(words[0])} is outside any section")

    def _begin(self, line: HaproxyLine) -> None:
        kind, *names = line.words
        section = self.top
        if kind in ("frontend", "backend"):
            section = Section(line, names[0] if names else "")
            (self.frontends if kind == "frontend" else self.backends).append(section)
            if len(names) != 1:
                self.wrong(line, kind, f"{kind} needs exactly one name")
        self._now = kind, section

    def _keyword(self, line: HaproxyLine, kind: str, section: Section) -> None:
        word = line.words[0]
        common: _Keywords = {
            "log": self._log, "mode": self._mode, "timeout": self._timeout,
            "retries": self._retries, "maxconn": self._maxconn, "option": self._option,
            "default-server": self._default_server, "balance": self._balance,
        }  # fmt: skip
        by_kind: dict[str, _Keywords] = {
            "global": {"log": self._log, "maxconn": self._maxconn},
            "defaults": common,
            "frontend": common | {"bind": self._bind, "default_backend": self._default_backend},
            "backend": common | {"server": self._server},
        }
        known = by_kind[kind]
        if kind == "global" and word in _OTHER_GLOBALS:
            self.warn(line.number, f"{word} is left out: a service manager decides that")
        elif word in known:
            known[word](line, section)
        else:
            hint = near(word, known)
            self.wrong(line, word, f"{short(word)} in {kind} cannot be converted{hint}")

    def _log(self, line: HaproxyLine, section: Section) -> None:
        self.warn(0, "log is left out: isthmus logs to standard error")

    def _one(self, line: HaproxyLine) -> str | None:
        if len(line.words) != 2:
            self.wrong(line, line.words[0], f"{line.words[0]} needs exactly one value")
            return None
        return line.words[1]

    def _mode(self, line: HaproxyLine, section: Section) -> None:
        word = self._one(line)
        if word not in (None, "tcp"):
            self.wrong(line, str(word), f"mode must be tcp, not {short(str(word))}")
        section.is_tcp = True

    def _balance(self, line: HaproxyLine, section: Section) -> None:
        if line.words[1:] != ["leastconn"]:
            self.warn(
                line.number,
                "balance is left out: isthmus takes the one with the fewest connections",
            )

    def _timeout(self, line: HaproxyLine, section: Section) -> None:
        if len(line.words) != 3:
            self.wrong(line, "timeout", "timeout needs a name and a time")
            return
        _, which, text = line.words
        if which in _OTHER_TIMEOUTS:
            self.warn(line.number, f"timeout {which} is left out: {_OTHER_TIMEOUTS[which]}")
            return
        names = ("client", "server", "connect", "tunnel", "check")
        if which not in names:
            near_ = near(which, (*names, *_OTHER_TIMEOUTS))
            self.wrong(line, which, f"timeout {short(which)} cannot be converted{near_}")
            return
        seconds = duration_s(text)
        if seconds is None or not MILLISECOND <= seconds <= 86400:
            self.wrong(line, text, f"{short(text)} is not a time from 1ms to 24h")
        else:
            section.timeouts[which] = seconds

    def _retries(self, line: HaproxyLine, section: Section) -> None:
        section.retries = self._number(line, 0, MAX_RETRIES)

    def _maxconn(self, line: HaproxyLine, section: Section) -> None:
        section.maxconn = self._number(line, 1, MOST_CONNECTIONS)

    def _number(self, line: HaproxyLine, low: int, high: int) -> int | None:
        text = self._one(line)
        found = None if text is None else number(text, low, high)
        if text is not None and found is None:
            self.wrong(line, text, f"{short(text)} is not a number from {low} to {high}")
        return found

    def _option(self, line: HaproxyLine, section: Section) -> None:
        name = line.words[1] if len(line.words) > 1 else ""
        if name in _OTHER_OPTIONS:
            self.warn(line.number, f"option {name} is left out: {_OTHER_OPTIONS[name]}")
        elif name == "httpchk":
            self._httpchk(line, section)
        elif name == "tcp-check":
            section.check = Checks.TCP
        else:
            known = (*_OTHER_OPTIONS, "httpchk", "tcp-check")
            what = f"option {short(name)} cannot be converted{near(name, known)}"
            self.wrong(line, name or "option", what)

    def _httpchk(self, line: HaproxyLine, section: Section) -> None:
        rest = line.words[2:]
        section.check = Checks.HTTPS
        method, path = "OPTIONS", "/"  # §4.2, option httpchk
        if len(rest) == 1:
            path = rest[0]
        elif rest:
            method, path = rest[0], rest[1]
        if method != "GET":
            self.warn(line.number, f"isthmus checks with GET, not {method}")
        if len(rest) > 2:
            self.warn(line.number, "the version and headers of option httpchk are left out")
        if "&amp;" in path:
            # HyperShift renders the file as HTML; haproxy requests the path literally.
            path = path.replace("&amp;", "&")
            self.warn(line.number, f"&amp; is read as &: isthmus requests {path}")
        try:
            section.path = read_path(path)
        except ValueError as error:
            self.wrong(line, path, f"{short(path)} {error}")

    def _bind(self, line: HaproxyLine, section: Section) -> None:
        for text in line.words[1:2]:
            for each in text.split(","):
                try:
                    # §4.2, bind: "*" is all addresses; IPv6 may have no brackets.
                    section.binds.append(read_listen(_bracketed(each.removeprefix("*"))))
                except ValueError as error:
                    self.wrong(line, text, f"{short(each)} {error}")
        for word in line.words[2:]:
            self.wrong(line, word, f"{short(word)} of bind cannot be converted")
        if len(line.words) < 2:
            self.wrong(line, "bind", "bind needs an address and a port")

    def _default_backend(self, line: HaproxyLine, section: Section) -> None:
        section.backend = self._one(line) or ""
        section.backend_line = line

    def _default_server(self, line: HaproxyLine, section: Section) -> None:
        self._server_words(line, 1, section.default_server)

    def _server(self, line: HaproxyLine, section: Section) -> None:
        if len(line.words) < 3:
            self.wrong(line, "server", "server needs a name and an address")
            return
        made = HaproxyServer(line=line.number, name=line.words[1])
        try:
            made.at = read_upstream(_bracketed(line.words[2]))
        except ValueError as error:
            self.wrong(line, line.words[2], f"{short(line.words[2])} {error}")
        self._server_words(line, 3, made)
        section.servers.append(made)

    def _server_words(self, line: HaproxyLine, start: int, into: HaproxyServer) -> None:
        server_words(
            line.words[start:],
            into,
            wrong=lambda word, what: self.wrong(line, word, what),
            warn=lambda what: self.warn(line.number, what),
        )


def _bracketed(text: str) -> str:
    """An address with brackets: haproxy takes IPv6 without; the last colon precedes the port."""
    host, colon, port = text.rpartition(":")
    if ":" in host and re.fullmatch(r"[0-9A-Fa-f:.]+", host):
        return f"[{host}]{colon}{port}"
    return text


#: A name in the certificate of every apiserver.
APISERVER_NAME = "kubernetes.default.svc"


@dataclass(frozen=True, slots=True)
class Converted:
    """The converted plan and its warnings, one text each."""

    plan: ProxyPlan
    warnings: tuple[str, ...]


def convert(text: str, name: str, *, ca: str = "") -> Converted:
    """Convert a haproxy.cfg to a plan; ``name`` is its name in messages.

    ``ca`` is the file with the cluster's CAs, which haproxy.cfg does not name. Without it, and
    without a ca-file, upstreams are checked only by connecting to them.

    Raises:
        ConfigError: one line for each error, ``name:line:column: what``.
    """
    if len(text) > MAX_CHARS:
        raise ConfigError(f"{name}: longer than {MAX_CHARS} characters")
    lines = Lines(name)
    for number_, line in enumerate(text.splitlines(), 1):
        lines.take(number_, line)
    return _Whole(lines).finish(ca)


class _Whole:
    """Combines the lines into a plan."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._top = lines.top

    def finish(self, ca: str) -> Converted:
        """Combine them."""
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
                "only one frontend is supported"
                if self._lines.frontends
                else "there is no frontend"
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
                    other.line.number, f"backend {other.name} is left out: no frontend uses it"
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
        """Check that all servers have the same settings."""
        first = servers[0]
        for other in servers[1:]:
            if other.shared != first.shared:
                self._lines.errors.add(
                    other.line,
                    1,
                    f"server {other.name} differs from server {first.name}",
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
            said = "haproxy retries a single server; isthmus leaves retrying to the"
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
        """Verify a name that every apiserver has, where the address would be verified.

        The address is usually a load balancer's, which no certificate of an apiserver names.
        """
        addressed = [it for it in servers if it.at is not None and is_address(it.at.host)]
        if not addressed or check.kind is not Checks.HTTPS or check.server_name:
            return check
        first = addressed[0]
        self._lines.warn(
            first.line,
            f"server {first.name} has an IP address, {first.at}: checks verify the certificate for"
            f" {APISERVER_NAME}, unless check-sni sets another name",
        )
        return replace(check, server_name=APISERVER_NAME)

    def _idle(self, times: dict[str, float]) -> float:
        if "tunnel" in times:
            return times["tunnel"]
        both = {times[which] for which in ("client", "server") if which in times}
        if len(both) > 1:
            said = "timeout client and server differ: the shorter one is used for both"
            self._lines.warn(0, said)
        if not both:
            said = "no timeout client or server: idle connections are never closed"
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
