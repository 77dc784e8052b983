"""kube-proxy's configuration file, a KubeProxyConfiguration: from YAML to settings and back.

The caller opens the file. yaml is slow to import: import this module only where there is a document
to read or to write.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from isthmus.programs.node_proxy.settings import IPVS, NFTABLES, NodeProxySettings
from isthmus.settings.options import Kind, Option, changed, options_of, values_of
from isthmus.text.durations import format_duration, parse_duration
from isthmus.text.located_yaml import Located, compose, short

API_VERSION = "kubeproxy.config.k8s.io/v1alpha1"
KIND = "KubeProxyConfiguration"
_INT32 = 2**31 - 1
_MOST = 1024

#: Keys of the document by setting; the type of a value follows from the setting.
KEYS = {
    "clientConnection.kubeconfig": "kubeconfig",
    "clientConnection.contentType": "kube_api_content_type",
    "clientConnection.qps": "kube_api_qps",
    "clientConnection.burst": "kube_api_burst",
    "logging.format": "log_format",
    "logging.verbosity": "v",
    "hostnameOverride": "hostname_override",
    "bindAddress": "bind_address",
    "healthzBindAddress": "healthz_bind_address",
    "metricsBindAddress": "metrics_bind_address",
    "bindAddressHardFail": "bind_address_hard_fail",
    "enableProfiling": "profiling",
    "showHiddenMetricsForVersion": "show_hidden_metrics_for_version",
    "mode": "proxy_mode",
    "iptables.masqueradeBit": "iptables_masquerade_bit",
    "iptables.localhostNodePorts": "iptables_localhost_nodeports",
    "iptables.syncPeriod": "iptables_sync_period_s",
    "iptables.minSyncPeriod": "iptables_min_sync_period_s",
    "ipvs.syncPeriod": "ipvs_sync_period_s",
    "ipvs.minSyncPeriod": "ipvs_min_sync_period_s",
    "ipvs.scheduler": "ipvs_scheduler",
    "ipvs.excludeCIDRs": "ipvs_exclude_cidrs",
    "ipvs.strictARP": "ipvs_strict_arp",
    "ipvs.tcpTimeout": "ipvs_tcp_timeout_s",
    "ipvs.tcpFinTimeout": "ipvs_tcpfin_timeout_s",
    "ipvs.udpTimeout": "ipvs_udp_timeout_s",
    "nftables.masqueradeBit": "nftables_masquerade_bit",
    "nftables.syncPeriod": "nftables_sync_period_s",
    "nftables.minSyncPeriod": "nftables_min_sync_period_s",
    "detectLocalMode": "detect_local_mode",
    "detectLocal.bridgeInterface": "pod_bridge_interface",
    "detectLocal.interfaceNamePrefix": "pod_interface_name_prefix",
    "clusterCIDR": "cluster_cidr",
    "nodePortAddresses": "nodeport_addresses",
    "oomScoreAdj": "oom_score_adj",
    "conntrack.maxPerCore": "conntrack_max_per_core",
    "conntrack.min": "conntrack_min",
    "conntrack.tcpEstablishedTimeout": "conntrack_tcp_timeout_established_s",
    "conntrack.tcpCloseWaitTimeout": "conntrack_tcp_timeout_close_wait_s",
    "conntrack.tcpBeLiberal": "conntrack_tcp_be_liberal",
    "conntrack.udpTimeout": "conntrack_udp_timeout_s",
    "conntrack.udpStreamTimeout": "conntrack_udp_timeout_stream_s",
    "configSyncPeriod": "config_sync_period_s",
}
# One setting corresponds to two keys: the proxy mode determines which.
_MASQUERADE_ALL = ("iptables.masqueradeAll", "nftables.masqueradeAll")
# Keys without effect here: for other operating systems, and for logging.
_UNUSED = frozenset(
    {
        "clientConnection.acceptContentTypes", "featureGates", "logging.flushFrequency",
        "logging.options", "logging.vmodule", "winkernel", "windowsRunAsService", "portRange",
        # Keys of older versions, which files of upgraded clusters still have.
        "udpIdleTimeout", "resourceContainer", "conntrack.max",
    }
)  # fmt: skip
# For these Go's zero value means that the key is not set.
_ZERO_IS_NOTHING = frozenset(
    {
        "kube_api_qps", "kube_api_burst", "iptables_sync_period_s", "iptables_min_sync_period_s",
        "ipvs_sync_period_s", "nftables_sync_period_s", "nftables_min_sync_period_s",
        "config_sync_period_s", "v",
    }
)  # fmt: skip
# kube-proxy's defaults for the file, where they differ from those of the flags.
_FILE_DEFAULTS = {
    "ipvs_min_sync_period_s": 0.0,
    "nftables_sync_period_s": 30.0,
    "nftables_min_sync_period_s": 1.0,
}
# Flags that the file has no key for, or that apply in addition to it.
_BOTH = frozenset({"hostname_override", "log_format", "v"})


def parse(text: str, name: str, flags: NodeProxySettings) -> NodeProxySettings:
    """Read the document; ``flags`` provide settings for which it has no key.

    As in kube-proxy a flag for which the document has a key is ignored (see ``overruled``), apart
    from the host's name and logging.

    Raises:
        ConfigError: one line for each error, ``name:line:column: field: what``.
    """
    root = compose(text, name, expected=f"expected a document of kind {KIND}")
    reader = _Reader()
    reader.section(root, "")
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        found = reader.seen.get(key)
        if found is None:
            root.error(f"{key} is missing: set it to {wanted}")
        elif found.text() not in (wanted, None):
            found.error(f"must be {wanted}, not {short(str(found.node.value))}")
    root.errors.raise_any()
    return reader.settings(flags)


def without_file(settings: NodeProxySettings) -> NodeProxySettings:
    """The flags on which settings are based, as far as ``parse`` needs them."""
    own = values_of(NodeProxySettings())
    taken = {each: own[each] for each in _BOTH if each in settings.places}
    return changed(settings, **taken, places={})


def overruled(given: Collection[str]) -> list[str]:
    """Those of the given flags, as ``--flag``, that a file overrules."""
    lost = {*KEYS.values(), "masquerade_all", "healthz_port", "metrics_port"} - _BOTH
    return [
        f"--{each.flag}"
        for each in options_of(NodeProxySettings)
        if each.attribute in lost and each.attribute in given
    ]


class _Reader:
    """Walks through a document and collects settings."""

    def __init__(self) -> None:
        self.seen: dict[str, Located] = {}
        self.values: dict[str, object] = {}
        self.places: dict[str, str] = {}
        self.all: dict[str, bool] = {}
        self._options = {each.attribute: each for each in options_of(NodeProxySettings)}

    def section(self, node: Located, prefix: str) -> None:
        """Read a mapping; ``prefix`` is put before its keys."""
        every = (*KEYS, *_MASQUERADE_ALL, *_UNUSED, "apiVersion", "kind")
        known = dict.fromkeys(
            key.removeprefix(prefix).partition(".")[0] for key in every if key.startswith(prefix)
        )
        for name, found in node.mapping(tuple(known)).items():
            key = f"{prefix}{name}"
            if found.kind == "nothing":
                continue  # null is the same as absent: Go's own writer produces it
            if any(each.startswith(f"{key}.") for each in every):
                self.section(found, f"{key}.")
            elif key in ("apiVersion", "kind"):
                self.seen[key] = found
            elif key in _MASQUERADE_ALL:
                self.all[key.partition(".")[0]] = found.boolean()
            elif key in KEYS:
                self._take(self._options[KEYS[key]], found)

    def _take(self, option: Option, node: Located) -> None:
        value = _value(option, node)
        if value is None or (not value and option.attribute in _ZERO_IS_NOTHING):
            return
        if value == "":
            return  # Go's zero value is the same as absent
        self.values[option.attribute] = value
        self.places[option.attribute] = f"{node.where}: {node.path}"

    def settings(self, flags: NodeProxySettings) -> NodeProxySettings:
        """The settings of document and flags together."""
        own, given = values_of(NodeProxySettings()), values_of(flags)
        values = {each: own[each] for each in KEYS.values()} | _FILE_DEFAULTS
        for attribute in _BOTH:
            values[attribute] = given[attribute]
            if values[attribute] != own[attribute]:
                self.values.pop(attribute, None)
                self.places.pop(attribute, None)
        values |= self.values
        mode = values["proxy_mode"]
        values["masquerade_all"] = self.all.get(NFTABLES if mode == NFTABLES else "iptables", False)
        values |= {each: own[each] for each in ("healthz_port", "metrics_port")}
        return changed(flags, **values, places=self.places or {"": KIND})


def _value(option: Option, node: Located) -> object:
    """The value of a node, as the setting's type; None after an error."""
    match option.kind:
        case Kind.BOOL:
            return node.boolean()
        case Kind.INT:
            return node.integer(-_INT32, _INT32)
        case Kind.NUMBER:
            return node.number(0, 1e9)
        case Kind.DURATION:
            return node.read(_duration)
        case Kind.LIST if node.is_list:
            texts = [each.text() for each in node.items(most=_MOST)]
            return tuple(text for text in texts if text is not None)
        case Kind.LIST:
            text = node.text()
            return None if text is None else tuple(filter(None, map(str.strip, text.split(","))))
        case Kind.TEXT:
            text = node.text()
            if text and option.choices and text not in option.choices:
                named = " or ".join(filter(None, option.choices))
                node.error(f"must be {named}, not {short(text)}")
            return text


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError:
        raise ValueError("is not a duration like 500ms, 10s or 1h30m") from None


def document(settings: NodeProxySettings) -> dict[str, Any]:
    """The settings as a KubeProxyConfiguration, for /configz and --write-config-to."""
    found: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND}
    options = {each.attribute: each for each in options_of(NodeProxySettings)}
    for key, attribute in KEYS.items():
        *sections, name = key.split(".")
        where = found
        for section in sections:
            where = where.setdefault(section, {})
        value = options[attribute].value_in(settings)
        if value is None:
            value = _FILE_DEFAULTS.get(attribute, "")
        where[name] = _plain(key, options[attribute], value)
    for key in _MASQUERADE_ALL:
        section, name = key.split(".")
        used = section == (NFTABLES if settings.mode == NFTABLES else "iptables")
        found[section][name] = settings.masquerade_all and used
    period = {"syncPeriod": settings.sync_period_s, "minSyncPeriod": settings.min_sync_period_s}
    section = settings.mode if settings.mode in (IPVS, NFTABLES) else "iptables"
    found[section] |= {key: format_duration(value) for key, value in period.items()}
    found["mode"] = settings.mode
    found["nodePortAddresses"] = list(settings.nodeport_addresses or settings.node_port_ranges)
    for key, bound in (
        ("healthzBindAddress", settings.healthz), ("metricsBindAddress", settings.metrics)
    ):  # fmt: skip
        host = f"[{bound.host}]" if bound and ":" in bound.host else bound.host if bound else ""
        found[key] = f"{host}:{bound.port}" if bound else ""
    return found


def _plain(key: str, option: Option, value: object) -> object:
    match value:
        case tuple():
            return ",".join(value) if key == "clusterCIDR" else list(value)
        case float() if option.kind is Kind.DURATION:
            return format_duration(value)
        case _:
            return value
