"""The metric families of every program, for the reference page."""

from __future__ import annotations

from isthmus.observe.apiserver_proxy_metrics import ApiserverProxyMetrics
from isthmus.observe.counters import Family
from isthmus.observe.metrics import AgentMetrics, ServerMetrics
from isthmus.observe.node_proxy_metrics import MODES, NodeProxyMetrics
from isthmus.observe.sidecar_metrics import HttpsProxyMetrics, Socks5ProxyMetrics
from isthmus.observe.sni_metrics import SniRouterMetrics
from isthmus.observe.worker_metrics import WorkersMetrics


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
