"""Writes docs/reference/metrics.md from the metrics themselves.

Run ``python -m isthmus.tools.metrics_reference > docs/reference/metrics.md`` after changing a
metric; a test compares the two.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import Enum

from isthmus.errors import DialFailure, LinkStage
from isthmus.frame.observe.counters import Family
from isthmus.frame.observe.program import ProgramMetrics
from isthmus.frame.workers.metrics import NotHanded, WorkersMetrics
from isthmus.programs import programs
from isthmus.programs.node_proxy.metrics import (
    MODES,
    PROGRAMMING_BUCKETS_S,
    SYNC_BUCKETS_S,
    NodeProxyMetrics,
)
from isthmus.programs.server.metrics import GO_DIAL_FAILURE
from isthmus.tunnel.end import Ending

_HEAD = """# Metrics

Written by `python -m isthmus.tools.metrics_reference`; do not edit.

All programs serve these in the Prometheus text format at `/metrics`: the server, the SNI router,
the apiserver proxy and the sidecars on their health and admin ports, the agent on its health port
(its admin port redirects there).
Names that start with `konnectivity_network_proxy_` mean what they mean in konnectivity. Not shown,
because they would mean nothing here: `frontend_write_duration_seconds`, `full_receive_channels`,
`server_connection_failure_count`, and the agent's `stream_errors_total`. The server's
`stream_errors_total` counts the calls of gRPC agents that were lost, always with the packet type
`Unknown`. A value of a label of these appears with its first event, as in konnectivity: write
`or vector(0)` where an expression needs a number before that. Names that start with `isthmus_`
begin at 0. The usual `process_*` metrics are there too.

The last column says what `/metrics` of a program with `--workers` shows: the sum over its workers,
the greatest (max) or least (min) number, or that they are the same.
"""

_NODE_PROXY = """
## Node proxy

On --metrics-bind-address. Names, labels and buckets that start with `kubeproxy_` are kube-proxy's,
and mean what they mean there; those that exist in some proxy modes only say in which. The two of
packets are there where nfacct is. `/metrics/slis` has kube-proxy's `kubernetes_healthcheck` and
`kubernetes_healthchecks_total`.

| name | type | labels | meaning |
|---|---|---|---|
"""


_TABLE = "| name | type | labels | meaning | workers |\n|---|---|---|---|---|\n"


def reference() -> str:
    """The whole page."""
    parts = [_HEAD]
    for title, families in by_program().items():
        parts.append(f"\n## {title}\n\n{_TABLE}")
        parts.extend(_row(family, merged=True) for family in families)
        parts.append("\nBuckets, in seconds:\n\n")
        parts.extend(_buckets(families))
    parts.append(_node_proxy())
    parts.append(_values())
    return "".join(parts)


def every_name() -> frozenset[str]:
    """The names of the metrics of all programs."""
    return frozenset(family.name for family in every_family())


def _node_proxy() -> str:
    by_mode = {mode: NodeProxyMetrics(mode).families for mode in MODES}
    families = {family.name: family for of_mode in by_mode.values() for family in of_mode}
    parts = [_NODE_PROXY]
    # Metrics of single modes come before those of every program.
    for name in sorted(families, key=lambda each: not each.startswith("kubeproxy_")):
        family = families[name]
        modes = [mode for mode in MODES if name in {each.name for each in by_mode[mode]}]
        only = "" if len(modes) == len(MODES) else f" ({', '.join(modes)})"
        parts.append(_row(family).replace(" |\n", f"{only} |\n"))
    for title, bounds in (
        ("`kubeproxy_network_programming_duration_seconds`", PROGRAMMING_BUCKETS_S),
        ("every other `kubeproxy_` histogram", SYNC_BUCKETS_S),
    ):
        written = ", ".join(f"{bound:g}" for bound in bounds)
        parts.append(f"\nBuckets of {title}, in seconds: {written}\n")
    return "".join(parts)


def _row(family: Family, *, merged: bool = False) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    rule = f" {family.merge.name.lower()} |" if merged else ""
    return f"| `{family.name}` | {family.kind} | {labels} | {family.help.rstrip('.')} |{rule}\n"


def _buckets(families: Iterable[Family]) -> Iterable[str]:
    for family in families:
        if family.histogram is not None:
            bounds = ", ".join(f"{bound:g}" for bound in family.histogram.bounds)
            yield f"- `{family.name}`: {bounds}\n"


def _values() -> str:
    lines = [
        "\n## Label values\n\n`reason` of `dial_failures_total`, and what the same dial counts"
    ]
    lines.append(
        " as in `dial_failure_count`:\n\n| reason | meaning | konnectivity |\n|---|---|---|\n"
    )
    for failure in DialFailure:
        go = GO_DIAL_FAILURE[failure].value
        if failure is DialFailure.TIMED_OUT:
            go += ", or backend_dial_timeout if no agent answered"
        lines.append(f"| {failure.name.lower()} | {failure.value} | {go} |\n")
    lines.append(
        "\nA client that leaves before the answer counts as `frontend_close` there and nowhere"
        " else.\n"
    )
    labels: dict[str, type[Enum]] = {
        "`ending` of `tunnels_ended_total`": Ending,
        "`reason` of `link_failures_total`": LinkStage,
        **{
            title: kinds
            for each in (*_metrics(), NodeProxyMetrics())
            for title, kinds in each.label_values
        },
        "`reason` of `isthmus_workers_connections_refused_total`": NotHanded,
    }
    for title, kinds in labels.items():
        lines.append(f"\n{title}:\n\n| value | meaning |\n|---|---|\n")
        lines.extend(f"| {member.name.lower()} | {member.value} |\n" for member in kinds)
    return "".join(lines)


def by_program() -> dict[str, tuple[Family, ...]]:
    """The families of every program with operator ports, by the title of their section."""
    shown = (it for it in programs() if it.operator_flags)
    found = {it.title: made.families for it, made in zip(shown, _metrics(), strict=True)}
    return {**found, "Parent of workers": WorkersMetrics().families}


def _metrics() -> list[ProgramMetrics]:
    return [it.found(it.metrics)() for it in programs() if it.operator_flags]


def every_family() -> tuple[Family, ...]:
    """The families of all programs; several programs may have the same."""
    node_proxies = (NodeProxyMetrics(mode).families for mode in MODES)
    every = (*by_program().values(), *node_proxies)
    return tuple(family for families in every for family in families)


if __name__ == "__main__":
    sys.stdout.write(reference())
