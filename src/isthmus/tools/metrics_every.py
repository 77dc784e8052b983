"""The metric families of every program, for the reference page."""

from __future__ import annotations

from isthmus.frame.observe.counters import Family
from isthmus.frame.workers.metrics import WorkersMetrics
from isthmus.programs import programs
from isthmus.programs.node_proxy.metrics import MODES, NodeProxyMetrics


def by_program() -> dict[str, tuple[Family, ...]]:
    """Give the families of every program with operator ports, by the title of their section."""
    found = {it.title: it.found(it.metrics)().families for it in programs() if it.operator_flags}
    return {**found, "Parent of workers": WorkersMetrics().families}


def every_family() -> tuple[Family, ...]:
    """Give the families of all programs; some are in several."""
    node_proxies = (NodeProxyMetrics(mode).families for mode in MODES)
    every = (*by_program().values(), *node_proxies)
    return tuple(family for families in every for family in families)
