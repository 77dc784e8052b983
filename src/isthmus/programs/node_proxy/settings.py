"""The settings of ``isthmus node-proxy``: kube-proxy's flags, and Isthmus' own.

``validate()`` checks them, ``notes()`` names unused ones. A kube-proxy configuration file gives the
same settings (settings_file.py). settings_local.py has those about local traffic,
settings_kernel.py those about the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import NamedTuple

from isthmus.errors import ConfigError
from isthmus.programs.node_proxy.rules.detectors import tidy_range
from isthmus.programs.node_proxy.settings_kernel import IPTABLES, IPVS, NFTABLES, RULES
from isthmus.programs.node_proxy.settings_local import LocalTrafficSettings
from isthmus.settings.admin import HEALTH_CERT, HEALTH_KEY
from isthmus.settings.options import option, port
from isthmus.settings.parsing import check_pair, check_values
from isthmus.settings.program import CONFIG, KUBECONFIG
from isthmus.values import is_address

__all__ = ["IPTABLES", "IPVS", "NFTABLES", "PRIMARY", "BindAddress", "NodeProxySettings"]

#: The value of --nodeport-addresses for the node's own address.
PRIMARY = "primary"
HEALTHZ_PORT, METRICS_PORT = 10256, 10249
_CLUSTER = "Cluster"
_PORTS = "Ports"


class BindAddress(NamedTuple):
    """An address and a port to listen on."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProxySettings(LocalTrafficSettings):
    """All settings of the node proxy; ``validate()`` checks them."""

    config: str = CONFIG(
        help="KubeProxyConfiguration of kube-proxy to read settings from instead of flags",
        group=_CLUSTER,
        common=True,
    )
    kubeconfig: str = KUBECONFIG(
        help="Kubeconfig for the Kubernetes API; empty means the pod's service account",
        group=_CLUSTER,
        common=True,
    )
    master: str = option(
        "",
        help="URL of the Kubernetes API, instead of the kubeconfig's",
        group=_CLUSTER,
        metavar="URL",
    )
    manifests: str = option(
        "",
        help="Files with Services, EndpointSlices and the Node to follow instead of the API",
        group=_CLUSTER,
        metavar="DIR",
        common=True,
    )
    take_over: bool = option(
        False,
        help="Start beside a running kube-proxy and take its place",
        group=_CLUSTER,
        common=True,
    )
    kube_api_qps: float = option(
        5.0, help="Maximum number of API requests per second", group=_CLUSTER
    )
    kube_api_burst: int = option(10, help="API request burst", group=_CLUSTER)
    hostname_override: str = option(
        "",
        help="Name of the Node that this is",
        shown_default="the host's name",
        group=_CLUSTER,
        metavar="NAME",
        common=True,
    )
    bind_address: str = option(
        "0.0.0.0",
        help="Address of the node; nothing is bound to it",
        group=_CLUSTER,
        metavar="ADDRESS",
    )
    nodeport_addresses: tuple[str, ...] = option(
        (),
        help="Ranges of addresses at which node ports are served, or primary for the node's "
        "primary address alone",
        repeat=True,
        shown_default="all, with nftables primary",
        group=RULES,
        metavar="CIDR,…|primary",
        common=True,
    )
    healthz_bind_address: str | None = option(
        None,
        help="Address of /healthz and /livez; empty turns them off, port 0 takes a free port",
        shown_default=f"0.0.0.0:{HEALTHZ_PORT}",
        group=_PORTS,
        metavar="ADDRESS:PORT",
        common=True,
    )
    metrics_bind_address: str | None = option(
        None,
        help="Address of /metrics, /proxyMode and /configz; empty turns them off",
        shown_default=f"127.0.0.1:{METRICS_PORT}",
        group=_PORTS,
        metavar="ADDRESS:PORT",
        common=True,
    )
    healthz_port: int = port(
        HEALTHZ_PORT,
        help="Port if --healthz-bind-address has none; 0 turns it off",
        group=_PORTS,
    )
    metrics_port: int = port(
        METRICS_PORT,
        help="Port if --metrics-bind-address has none; 0 turns it off",
        group=_PORTS,
    )
    health_cert: str = HEALTH_CERT(
        help="TLS certificate of both ports; clients do not need one", group=_PORTS
    )
    health_key: str = HEALTH_KEY(group=_PORTS)
    profiling: bool = option(
        False, help="Serve profiles under /debug/pprof on the metrics port", group=_PORTS
    )
    cleanup: bool = option(
        False, help="Remove all rules and exit, as isthmus node-proxy cleanup does", group=_CLUSTER
    )
    init_only: bool = option(
        False, help="Apply the settings that need full privileges, and exit", group=_CLUSTER
    )
    write_config_to: str = option(
        "", help="File to write the settings to before exiting", group=_CLUSTER, metavar="FILE"
    )

    @property
    def node_port_ranges(self) -> tuple[str, ...]:
        """Ranges whose addresses accept node ports, or PRIMARY alone; empty for all."""
        if not self.nodeport_addresses and self.mode == NFTABLES:
            return (PRIMARY,)
        return tuple(each if each == PRIMARY else tidy_range(each)
                     for each in self.nodeport_addresses)  # fmt: skip

    @property
    def healthz(self) -> BindAddress | None:
        """The address of the health port; None if it is off."""
        return self._bound("healthz_bind_address", "0.0.0.0", "::", self.healthz_port)

    @property
    def metrics(self) -> BindAddress | None:
        """The address of the metrics port; None if it is off."""
        return self._bound("metrics_bind_address", "127.0.0.1", "::1", self.metrics_port)

    def _bound(self, attribute: str, v4: str, v6: str, port: int) -> BindAddress | None:
        text = getattr(self, attribute)
        if not port or text == "":
            return None
        if text is None:
            return BindAddress(v6 if ":" in self.bind_address else v4, port)
        try:
            return _endpoint(text, port)
        except ValueError as error:
            raise ConfigError(f"{self.named(attribute)}: {text!r} {error}") from None

    def validate(self) -> None:
        """Check the settings, also against each other.

        Raises:
            ConfigError: a value is invalid; the message names the flag, or the line in the file.
        """
        check_values(self)
        self.check_times()
        self.check_localhost()
        self._check_addresses()
        check_pair("health-cert", self.health_cert, "health-key", self.health_key)
        self.check_detector()
        if self.hostname_override and not self.hostname_override.strip():
            raise ConfigError(f"{self.named('hostname_override')} is empty")
        if self.kube_api_burst < 0:
            raise ConfigError(f"{self.named('kube_api_burst')} must not be negative")

    def _check_addresses(self) -> None:
        if not is_address(self.bind_address):
            raise ConfigError(
                f"{self.named('bind_address')} must be an address, not {self.bind_address!r}"
            )
        for _ in (self.healthz, self.metrics):
            pass  # the property raises if the value is invalid
        if PRIMARY in self.nodeport_addresses:
            if len(self.nodeport_addresses) > 1:
                raise ConfigError(
                    f"{self.named('nodeport_addresses')}: {PRIMARY} cannot be combined with ranges"
                )
        else:
            self.check_ranges("nodeport_addresses")
        if self.mode == IPVS:
            self.check_ranges("ipvs_exclude_cidrs")

    def notes(self) -> list[str]:
        """Messages about settings that are given but not used."""
        idle = ("kubeconfig", "master") if self.manifests else ()
        return [
            *self.unused_values(),
            *self.unused_by_mode(),
            *(
                f"{self.named(each)} is ignored with --manifests"
                for each in idle
                if getattr(self, each)
            ),
        ]


def _endpoint(text: str, port: int) -> BindAddress:
    """Read ``address:port``, ``[v6]:port``, or an address, to which ``port`` is added."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if is_address(bare):
        return BindAddress(bare, port)
    host, _, number = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not is_address(host) or not (number.isascii() and number.isdigit() and len(number) < 6):
        raise ValueError("is not an address and port such as 0.0.0.0:10256")
    if int(number) > 65535:
        raise ValueError("has a port out of range")
    return BindAddress(str(ip_address(host)), int(number))
