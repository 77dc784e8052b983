"""The metric families of every program, for the reference page."""

from __future__ import annotations

from isthmus.frame.observe.counters import Family
from isthmus.frame.observe.metrics import AgentMetrics, ServerMetrics
from isthmus.frame.observe.worker_metrics import WorkersMetrics
from isthmus.programs.apiserver_proxy.metrics import ApiserverProxyMetrics
from isthmus.programs.node_proxy.metrics import MODES, NodeProxyMetrics
from isthmus.programs.sidecar.metrics import HttpsProxyMetrics, Socks5ProxyMetrics
from isthmus.programs.sni_router.metrics import SniRouterMetrics


def by_program() -> dict[str, tuple[Family, ...]]:
    """Give the families of every program but the node proxy, by the title of their section."""
    return {
        "Server": ServerMetrics().families,
        "Agent": AgentMetrics().families,
        "SNI router": SniRouterMetrics().families,
        "Apiserver proxy": ApiserverProxyMetrics().families,
        "SOCKS5 sidecar": Socks5ProxyMetrics().families,
        "HTTP proxy sidecar": HttpsProxyMetrics().families,
        "Parent of workers": WorkersMetrics().families,
    }


def every_family() -> tuple[Family, ...]:
    """Give the families of all programs; some are in several."""
    node_proxies = (NodeProxyMetrics(mode).families for mode in MODES)
    every = (*by_program().values(), *node_proxies)
    return tuple(family for families in every for family in families)
