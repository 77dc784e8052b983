"""Writes reference pages from the declarations: files, audit fields, failure codes, Go's flags.

``python tools/reference_docs.py`` writes docs/reference/files.md, audit-fields.md, failure-codes.md
and commands.md (reference_commands.py), and the tables between ``<!-- begin … -->`` and
``<!-- end … -->`` of docs/migrate-from-konnectivity.md. tests/docs/test_reference.py fails when a
page is not what this would write. The pages of flags and metrics have writers of their own
(cli/flagdocs.py, tools/metrics_reference.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import msgspec
from reference_commands import NOTE, commands

from isthmus.cli.flagdocs import PAGES
from isthmus.dial.frontends.statuses import HTTP_STATUS, KONNECTIVITY_HTTP_STATUS
from isthmus.errors import DialFailure, LinkStage
from isthmus.frame.audit.model import Claimed, Record, Requester
from isthmus.frame.finding import DIAL_ADVICE, LINK_ADVICE
from isthmus.links.go_errors import go_text
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.server.metrics import GO_DIAL_FAILURE
from isthmus.programs.server.settings import ServerSettings
from isthmus.programs.socks5_proxy.program import CODE_OF
from isthmus.settings.options import OURS, SAME, Kind, Option, options_of
from isthmus.settings.program import LogSettings
from isthmus.tunnel.end import Ending
from isthmus.values import HostPort
from isthmus.wire.payload import STATUS_OF_FAILURE

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
MIGRATION = ROOT / "docs" / "migrate-from-konnectivity.md"

_FILES = """\
Looked at once a second. Replace a file by renaming a finished one over it, or let Kubernetes do it;
a file that is wrong at the start is one sentence and exit code 2, one that is wrong later is one
line in the log, and what was read before stays in use. [Certificates](../pki.md) tells how to
change authorities without refusing anybody.
"""
_DIALS = """\
Logs, audit and snapshot say the reason in the same words, metrics by a shorter one
(`isthmus_server_dial_failures_total{reason}`); each protocol has its own way to say it.
"""
_BY_GRPC = """\
To konnectivity's clients a `DIAL_RSP` carries the sentence, `cannot dial TARGET: REASON`; to Go's
programs over a gRPC link it says what Go would:
"""
_LINKS = """\
`isthmus_server_link_failures_total{reason}` and `isthmus_agent_link_failures_total{reason}`.
"""
_ENDINGS = """\
`ending` in audit and snapshot, and by a shorter word in metrics
(`isthmus_server_tunnels_ended_total{ending}`). Everything but the first reaches client and target
as a reset, as far as their protocol has one ([closing](../explanation/closing.md)).
"""
_TLS = "at the start, and when it changes: new connections use it"
_TOKEN = "at the start, and when it changes"
_CRL = "at the start, and when it changes: connections that are open are ended too"
_KUBE = "at the start, and when it, or a file it names, changed and the API could not be reached"
#: When a file is read, by flag; ``PROGRAM flag`` where programs differ.
READ: dict[str, str] = {
    **dict.fromkeys(("server-cert", "server-key", "server-ca-cert"), _TLS),
    **dict.fromkeys(("cluster-cert", "cluster-key", "cluster-ca-cert"), _TLS),
    **dict.fromkeys(("peer-cert", "peer-key", "peer-ca-cert"), _TLS),
    **dict.fromkeys(("cluster-crl-file", "server-crl-file", "crl-file"), _CRL),
    **dict.fromkeys(("ca-cert", "agent-cert", "agent-key"), _TLS),
    **dict.fromkeys(("client-cert", "client-key", "http-proxy-ca-cert"), _TLS),
    **dict.fromkeys(("ca-cert-path", "tls-cert-path", "tls-key-path", "proxy-ca-path"), _TLS),
    **dict.fromkeys(("admin-cert", "admin-key", "admin-client-ca"), _TLS),
    **dict.fromkeys(("health-cert", "health-key"), _TLS),
    **dict.fromkeys(("admin-token-file", "password-file"), _TOKEN),
    "agent-identity-binding": "at the start, and when it changes: agents that connect from then on",
    "policy-file": "at the start, and when it changes: dials from then on",
    "kubeconfig": _KUBE,
    "service-account-token-path": "each time that the agent connects to a server",
    "sni-router config": "at the start, and when it changes: connections from then on",
    "apiserver-proxy config": "at the start, when it changes, and at SIGHUP: new connections",
    "node-proxy config": "at the start; when it changes the program ends, to be started again",
    "manifests": "at the start, and when a file of the directory changes",
}
#: Files that are written and not read.
WRITTEN = frozenset({"audit-log-path", "write-config-to"})

#: Why a flag of Go's is accepted and changes nothing.
NOT_NEEDED: dict[str, str] = {
    **dict.fromkeys(
        ("xfr-channel-size", "frontend-write-channel-size"),
        "there is no queue of packets; who cannot read stops its own writer",
    ),
    "warn-on-channel-limit": "there is no such queue; `/snapshot` says which tunnel is stalled",
    "enable-contention-profiling": "one thread carries all traffic, and waits for no lock",
    "kube-api-content-type": "the Kubernetes API is asked for JSON",
    "probe-interval": "a link that is lost says so itself",
    "sync-forever": "lost links are made again anyway; of new servers ours tell, or Leases do",
}
_KLOG = {one.flag for one in options_of(LogSettings) if one.ignored}

#: What the fields of an audit record mean.
MEANS: dict[str, str] = {
    "time": "when the record was made; all times are RFC 3339 in UTC, with microseconds",
    "stage": "`Begin`, `End`, `Refused` (by a rule, or a request that cannot be served), `Failed`"
    " (tried in vain, or its client left), `Dropped`",
    "connectionId": "what the connection is [called](../audit.md#connection-ids)",
    "serverId": "the server that wrote it",
    "frontend": "how it came: `http-connect` or `grpc`, whichever protocol is spoken there;"
    " `agent` [from a node to the control plane](../audit.md#from-nodes-to-the-control-plane)",
    "client": "the client's address; none on a UNIX socket",
    "requester": "who asked, as the transport proved it",
    "requester.name": "the subject's common name, or the user id",
    "requester.kind": "`certificate`, `uid` for the user of a UNIX socket, `none`",
    "requester.groups": "the subject's organizations",
    "claimed": "what the client [said about its request]"
    "(../audit.md#what-a-client-may-say-about-a-request), if it did",
    "claimed.believed": "whether the client had proved who it is",
    "claimed.client": "who connected at an agent, as that agent says",
    "claimed.network": "the network that it means",
    "claimed.user": "on whose behalf it asks",
    "claimed.groups": "that user's groups",
    "claimed.tenant": "the tenant",
    "claimed.object": "the Kubernetes object behind the request",
    "network": "the network that the destination belongs to, where networks are configured",
    "destination": "host and port that were asked for",
    "address": "what the agent reached: of a name, one of its addresses; Go's agents do not say",
    "agentId": "the agent that carries it; none where a network is reached without agents",
    "linkId": "the link that carries it",
    "relay": "the other server whose agent it is",
    "relayedBy": "the other server that asked",
    "decision": "`allow` or `deny`; none without networks and policy",
    "rule": "the rule of the policy that decided",
    "startTime": "when the request came",
    "endTime": "when the tunnel ended, or the request was answered",
    "durationSeconds": "of a tunnel, from its begin to its end; of a failure, from the request to"
    " the answer",
    "bytesToTarget": "what the client sent",
    "bytesToClient": "what the client's socket has taken",
    "ending": "[how it ended](failure-codes.md#how-a-tunnel-ends)",
    "endedBy": "who ended it: `client`, `target`, `us`, `revocation`, or an operator "
    "([ending a tunnel](../admin-port.md#ending-a-tunnel)); `both` for a clean end, which "
    "takes both",
    "failure": "[why a dial failed](failure-codes.md#why-a-dial-fails)",
    "status": "the status of a request that was refused before there was a dial",
    "reason": "the same in words",
    "dropped": "in a record of the stage `Dropped`: how many are missing before it",
}

#: What an ending means.
ENDS: Mapping[Ending, str] = {
    Ending.CLEAN: "both directions ended with an end of file, and everything arrived",
    Ending.RESET: "client or target reset its connection, or closed it with bytes unread",
    Ending.LINK_LOST: "the link between server and agent broke, or was silent for 20 s",
    Ending.TIMED_OUT: "half-closed, and no byte for 5 minutes; or not closed in time",
    Ending.STALLED: "its link held 128 MiB for readers that do not read, and this one held most",
    Ending.PROTOCOL: "a peer broke the rules of its protocol",
    Ending.DRAINED: "it was still open when the time of `--graceful-shutdown-timeout` was over",
    Ending.CANCELLED: "who asked for it left before it stood, or the program gave it up",
    Ending.ADMIN: "an operator ended it, on the [administrative port](../admin-port.md)",
}
_TARGET = HostPort("web.default.svc", 443)


def files() -> str:
    """Every file that a program reads: when, and whether a change is noticed."""
    lines = [
        "# Files that programs read\n",
        NOTE,
        _FILES,
    ]
    for program in PAGES.values():
        lines.append(f"## `isthmus {program.name}`\n")
        lines += ["| Flag | What for | When it is read |", "|---|---|---|"]
        lines += [
            f"| `--{option.flag}` | {option.help.replace('|', chr(92) + '|')} | {when} |"
            for option in options_of(program.settings_class)
            if (when := _when(program.name, option))
        ]
        lines.append("")
    return "\n".join(lines)


def _when(program: str, option: Option) -> str:
    takes = option.takes.split("|")
    if option.ignored or option.flag in WRITTEN or not {"FILE", "DIR"}.intersection(takes):
        return ""
    found = READ.get(f"{program} {option.flag}") or READ.get(option.flag)
    if found is None:
        raise KeyError(f"READ does not say when --{option.flag} of {program} is read")
    return found


def audit_fields() -> str:
    """Every key of an audit record."""
    lines = [
        "# Fields of an audit record\n",
        NOTE,
        "One JSON object a line ([the audit log](../audit.md)). What is not known is left out.\n",
        "| Key | Type | Meaning |",
        "|---|---|---|",
        *(f"| `{key}` | {kind} | {_meaning(key)} |" for key, kind in _keys(Record, "")),
    ]
    return "\n".join(lines) + "\n"


def _meaning(key: str) -> str:
    if key not in MEANS:
        raise KeyError(f"MEANS does not say what {key} of an audit record means")
    return MEANS[key]


def _keys(struct: type[msgspec.Struct], prefix: str) -> Iterator[tuple[str, str]]:
    for field in msgspec.structs.fields(struct):
        key = f"{prefix}{field.encode_name}"
        yield key, _json_type(field.type)
        inner = next((kind for kind in (Requester, Claimed) if kind in get_args(field.type)), None)
        if inner is not None:
            yield from _keys(inner, f"{key}.")


def _json_type(kind: Any) -> str:
    plain = next((arg for arg in get_args(kind) if arg not in (type(None), ...)), kind)
    if kind in (str, bool) or (isinstance(kind, type) and issubclass(kind, Enum)):
        return "true or false" if kind is bool else "text"
    if getattr(kind, "__origin__", None) is tuple:
        return "list of texts"
    return "number" if plain in (int, float) else "object"


def failure_codes() -> str:
    """Every way a dial, a link and a tunnel can end, and how each protocol says it."""
    lines = [
        "# Failures and endings\n",
        NOTE,
        "## Why a dial fails\n",
        _DIALS,
        "| Reason | in metrics | HTTP CONNECT | with `--compat=konnectivity` |"
        " KEP-1281 (gRPC status) | SOCKS5 | `dial_failure_count` |",
        "|---|---|---|---|---|---|---|",
        *map(_failure_row, DialFailure),
        "",
        _BY_GRPC,
        "| Reason | over a gRPC link |",
        "|---|---|",
        *(f"| {one.value} | `{go_text(one, _TARGET, '…')}` |" for one in DialFailure),
        "",
        "What to do:\n",
        "| Reason | What to do |",
        "|---|---|",
        *(f"| {one.value} | {DIAL_ADVICE[one]} |" for one in DialFailure),
        "",
        "## Why a link fails\n",
        _LINKS,
        "| Reason | Meaning | What to do |",
        "|---|---|---|",
        *(f"| `{one.name.lower()}` | {one.value} | {LINK_ADVICE[one]} |" for one in LinkStage),
        "",
        "## How a tunnel ends\n",
        _ENDINGS,
        "| Ending | in metrics | Meaning |",
        "|---|---|---|",
        *(f"| {one.value} | `{one.name.lower()}` | {ENDS[one]} |" for one in Ending),
    ]
    return "\n".join(lines) + "\n"


def _failure_row(one: DialFailure) -> str:
    socks = CODE_OF[one]
    cells = (
        f"{one.value}",
        f"`{one.name.lower()}`",  # as frame/observe/counters.py names members of an enum
        str(HTTP_STATUS[one]),
        str(KONNECTIVITY_HTTP_STATUS[one]),
        f"{STATUS_OF_FAILURE[one].name} ({STATUS_OF_FAILURE[one].value})",
        f"{socks.value} {socks.name.lower().replace('_', ' ')}",
        f"`{GO_DIAL_FAILURE[one].value}`",
    )
    return f"| {' | '.join(cells)} |"


def flags_of_go(settings: type[Any]) -> str:
    """A table of Go's flags: what became of each."""
    rows = ["| Flag | Default of Go | Here |", "|---|---|---|"]
    declared = [one for one in options_of(settings) if one.go != OURS and "no flag" not in one.go]
    for option in declared:
        if option.flag not in _KLOG:
            names = ", ".join(f"`--{name}`" for name in (option.flag, *option.aliases))
            rows.append(f"| {names} | {_go_default(option)} | {_here(option)} |")
    logging = ", ".join(f"`--{one.flag}`" for one in declared if one.flag in _KLOG)
    rows.append(f"| {logging} | those of klog | not needed: the log goes to standard error |")
    return "\n".join(rows)


def _go_default(option: Option) -> str:
    return (option.shown if option.go == SAME else option.go) or ""


def _here(option: Option) -> str:
    if option.inert or option.ignored:
        return f"not needed: {NOT_NEEDED[option.flag]}"
    if option.go == SAME:
        return "same"
    default = f"default {option.shown}; " if option.shown and option.kind is not Kind.BOOL else ""
    # Not of an abbreviation: TLS certificate.
    starts = option.help[:1].lower() if option.help[1:2].islower() else option.help[:1]
    what = f"better: {default}{starts}{option.help[1:]}"
    return what.replace("|", "\\|")


def between(text: str, name: str, table: str) -> str:
    """Put a table between the two marks of its name."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    before, found, rest = text.partition(begin)
    if not found or end not in rest:
        raise ValueError(f"no marks of {name}")
    return f"{before}{begin}\n{table}\n\n{end}{rest.partition(end)[2]}"


def documents() -> dict[Path, str]:
    """Every page, as it should be."""
    migration = between(MIGRATION.read_text("utf-8"), "server flags", flags_of_go(ServerSettings))
    return {
        REFERENCE / "commands.md": commands(),
        REFERENCE / "files.md": files(),
        REFERENCE / "audit-fields.md": audit_fields(),
        REFERENCE / "failure-codes.md": failure_codes(),
        MIGRATION: between(migration, "agent flags", flags_of_go(AgentSettings)),
    }


def main() -> int:
    """Write every page."""
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
