"""The reference pages of the flags, written from the declarations.

``python -m isthmus.cli.flagdocs`` writes server-flags.md, agent-flags.md and one for every other
program into docs/reference; a test fails when they are not what this would write.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from isthmus.frame.cli.flags import grouped
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings
from isthmus.programs.https_proxy.settings import HttpsProxySettings
from isthmus.programs.node_proxy.settings import NodeProxySettings
from isthmus.programs.server.settings import ServerSettings
from isthmus.programs.sni_router.settings import SniRouterSettings
from isthmus.programs.socks5_proxy.settings import Socks5ProxySettings
from isthmus.settings.options import OURS, SAME, Kind, Option, options_of

_FORMS = """\
`--flag=value` and `--flag value` are the same; a boolean is `--flag` or `--flag=false`. Durations
are Go's: `500ms`, `10s`, `1h30m`, or `0`. A list is separated by commas. When a flag comes twice
the last one counts, so that one can be appended to override another. Flags marked *repeatable* add
up. A flag for an address, for ranges of addresses, for a directory, a CRL, or a file of settings or
rules, and not repeatable, is refused when it comes with two different values: neither is silently
left out. The column *In konnectivity* says how the Go program differs; where it is empty, it is the
same.
"""

_SERVER = """\
Names, meanings and defaults are those of konnectivity's `proxy-server`, except where the tables say
otherwise. Flags are checked against each other before anything is opened; what is wrong is one
sentence on standard error and exit code 2.

- A TCP frontend needs `--server-cert`, `--server-key` and `--server-ca-cert`. `--uds-name` alone
  opens no TCP port; with `--server-port` as well, both listen.
- `--cluster-cert` and `--cluster-key` are always needed, and `--cluster-ca-cert` too unless
  `--insecure-agents` says that agents are not authenticated.
- Ports are 0 to 65535, and 0 takes any free one. `--server-port=0` with `--uds-name` and without
  `--server-cert` opens no TCP port, as manifests written for konnectivity expect.
- `--compat=konnectivity` allows ports from 1024 to 49151 only, and no TCP port beside a UNIX
  socket.
- The admin port speaks plain HTTP on loopback. With `--admin-cert` and `--admin-key` it speaks
  HTTPS; any other address needs both, and `--admin-client-ca` or `--admin-token-file`
  ([the administrative port](../admin-port.md)).
"""

_AGENT = """\
Names, meanings and defaults are those of konnectivity's `proxy-agent`, except where the tables say
otherwise. Flags are checked against each other before anything is opened; what is wrong is one
sentence on standard error and exit code 2.

- `--ca-cert` is always needed; `--agent-cert` and `--agent-key` come together.
- `--proxy-server-host` may be given several times, and may be an SRV name
  (`_service._tcp.name`), which brings its own ports.
- `--agent-identifiers` is a URL query with the keys `ipv4`, `ipv6`, `host`, `cidr` and
  `default-route`; a key that is none of these is an error.
- `--host-alias` names are known only to this agent: a dial to such a name reaches the address
  given, whatever DNS says.
- The admin port speaks plain HTTP on loopback. With `--admin-cert` and `--admin-key` it speaks
  HTTPS; any other address needs both, and `--admin-client-ca` or `--admin-token-file`
  ([the administrative port](../admin-port.md)).
"""

_SNI_ROUTER = """\
Flags are checked against each other before anything is opened; what is wrong is one sentence on
standard error and exit code 2. Routes are in the file of `--config`
([how to share an address](../how-to/sni-router.md)).

- `--listen` takes `HOST:PORT`, `[V6]:PORT`, or `:PORT` for every address; port 0 takes a free one.
- `--accept-proxy` and `--proxy-from` come together. Then every connection needs a PROXY header,
  and one that comes from elsewhere is reset.
- The admin port speaks plain HTTP on loopback. With `--admin-cert` and `--admin-key` it speaks
  HTTPS; any other address needs both, and `--admin-client-ca` or `--admin-token-file`
  ([the administrative port](../admin-port.md)).
"""

_APISERVER_PROXY = """\
Flags are checked against each other before anything is opened; what is wrong is one sentence on
standard error and exit code 2 ([how to give nodes their apiserver](../how-to/apiserver-proxy.md)).

- `--config` says in a file what the flags of the groups *Listening*, *Upstreams*, *Health of the
  upstreams*, *PROXY protocol and HTTP proxy* and *Limits* say: give one or the others.
- `--listen` takes `HOST:PORT`, `[V6]:PORT`, or `:PORT` for every address; port 0 takes a free one.
  Loopback addresses and `:PORT` are never put on `lo`.
- `--listen-addr`, `--apiserver-addr` and `--proxy-addr` are the flags of HyperShift's
  kubernetes-default-proxy.
- The admin port speaks plain HTTP on loopback. With `--admin-cert` and `--admin-key` it speaks
  HTTPS; any other address needs both, and `--admin-client-ca` or `--admin-token-file`
  ([the administrative port](../admin-port.md)).
"""

_NODE_PROXY = """\
Names, meanings and defaults are those of kube-proxy, except where the tables say otherwise. Flags
are checked against each other before anything is opened; what is wrong is one sentence on standard
error and exit code 2 ([how to program a node](../how-to/node-proxy.md)).

- `--config` reads kube-proxy's own file. Flags that it has a key for are not used beside it, apart
  from `--hostname-override` and those of *Logging*; which they were is said.
- `--node-cidr` may come without a value: `--node-cidr`, `--node-cidr=` and none are the same.
- A value for another `--detect-local`, `--detect-local-mode` or `--proxy-mode` than the one that is
  chosen is not used, and the log says by which it would be.
- Interfaces have at most 15 characters, and prefixes of them 14; neither takes a `+`.
"""

_SIDECAR = """\
Names, meanings and defaults are those of HyperShift's `konnectivity-{name}`, which is what the
column *In konnectivity* speaks of. Flags are checked against each other before anything is opened;
what is wrong is one sentence on standard error and exit code 2
([how to run sidecars](../how-to/sidecars.md)).

- The word `run` before the flags is accepted and changes nothing.
- The connectivity server is at `--konnectivity-hostname` and `--konnectivity-port`, with mutual
  TLS; or at `--konnectivity-uds`, and then no certificates are needed.
- `--username` and `--password-file` come together. A `--serving-address` that is not loopback needs
  them, or `--allow-unauthenticated`.
{more}- The admin port speaks plain HTTP on loopback. With `--admin-cert` and `--admin-key` it
  speaks HTTPS; any other address needs both, and `--admin-client-ca` or `--admin-token-file`
  ([the administrative port](../admin-port.md)).
"""

_SOCKS5_PROXY = _SIDECAR.format(
    name="socks5-proxy",
    more="""\
- `--disable-resolver` wins over the other flags of *Names*.
""",
)

_HTTPS_PROXY = _SIDECAR.format(
    name="https-proxy",
    more="""\
- Names are resolved before each dial by the DNS of the guest cluster; there are no flags for that.
- `--http-proxy` is for plain requests, `--https-proxy` for `CONNECT`. `--no-proxy` is for both and
  is read as Go reads `NO_PROXY`; `localhost` and loopback addresses never go by a proxy.
""",
)

#: Whose flags are compared with those of another Go program.
_OF_KUBE_PROXY = "node-proxy-flags.md"

PAGES: dict[str, tuple[str, str, type[Any]]] = {
    "server-flags.md": ("isthmus server", _SERVER, ServerSettings),
    "agent-flags.md": ("isthmus agent", _AGENT, AgentSettings),
    "sni-router-flags.md": ("isthmus sni-router", _SNI_ROUTER, SniRouterSettings),
    "apiserver-proxy-flags.md": (
        "isthmus apiserver-proxy",
        _APISERVER_PROXY,
        ApiserverProxySettings,
    ),
    _OF_KUBE_PROXY: ("isthmus node-proxy", _NODE_PROXY, NodeProxySettings),
    "socks5-proxy-flags.md": ("isthmus socks5-proxy", _SOCKS5_PROXY, Socks5ProxySettings),
    "https-proxy-flags.md": ("isthmus https-proxy", _HTTPS_PROXY, HttpsProxySettings),
}


def page(name: str) -> str:
    """The text of one reference page."""
    title, rules, settings = PAGES[name]
    tables = _tables(options_of(settings))
    text = "\n".join([f"# Flags of `{title}`\n", rules, _FORMS, *tables])
    return text.replace("konnectivity", "kube-proxy") if name == _OF_KUBE_PROXY else text


def _tables(declared: Iterable[Option]) -> Iterator[str]:
    declared = list(declared)
    for group, options in grouped(option for option in declared if not option.ignored):
        yield f"## {group}\n"
        yield "| Flag | Default | In konnectivity | What it does |"
        yield "|---|---|---|---|"
        yield from map(_row, options)
        yield ""
    yield "## Accepted and ignored\n"
    yield (
        "Manifests written for konnectivity may set these; they change nothing, and a line on\n"
        "standard error says so.\n"
    )
    yield ", ".join(f"`--{option.flag}`" for option in declared if option.ignored) + "\n"


def _row(option: Option) -> str:
    takes = f"={option.takes}" if option.kind is not Kind.BOOL else ""
    flag = f"`--{option.flag}{takes}`".replace("|", "\\|")
    go = {SAME: "", OURS: "no such flag"}.get(option.go, option.go)
    notes = [f"`--{alias}` is the same" for alias in option.aliases]
    if option.repeat:
        notes.append("repeatable")
    if option.env:
        notes.append(f"or the environment variable `{option.env}`")
    if option.inert:
        notes.append("no effect here")
    what = "; ".join([option.help, *notes]).replace("|", "\\|")
    return f"| {flag} | {option.shown} | {go} | {what} |"


def write(directory: Path) -> None:
    """Write every page into the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in PAGES:
        (directory / name).write_text(page(name), encoding="utf-8")


if __name__ == "__main__":
    given = sys.argv[1:]
    if len(given) > 1 or any(word.startswith("-") for word in given):
        sys.exit("usage: python -m isthmus.cli.flagdocs [DIRECTORY]")
    write(Path(given[0] if given else "docs/reference"))
