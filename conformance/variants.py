"""The clusters that are compared, made out of the one topology of the lab."""

from __future__ import annotations

from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network

from isthmus.lab.topology import Attachment, LabHost, LabRoute, LabService, Process, Topology

MASTER, NODES = "master", ("node1", "node2")
_ADDRESS = ip_address("10.220.0.10")
_API = ip_address("10.99.0.1")
_ISTHMUS = ("server", "agent1", "agent2", "agent1-unit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A way to run the cluster; ``direct`` has no wall, no Isthmus, and kube-proxy."""

    mode: str = "nftables"
    egress: str = "GRPC"
    direct: bool = False

    @property
    def name(self) -> str:
        if self.direct:
            return f"direct, kube-proxy {self.mode}"
        return f"{self.egress}, node-proxy {self.mode}"


def variant_of(topology: Topology, variant: Variant) -> Topology:
    """The topology as a variant has it."""
    if variant.direct:
        return _direct(topology, variant.mode)
    files = {
        "cluster.sh": ("--proxy-mode=nftables", f"--proxy-mode={variant.mode}"),
        "egress.yaml": ("proxyProtocol: GRPC", f"proxyProtocol: {variant.egress}"),
    }
    changed = _with_files(topology, files)
    if variant.egress == "GRPC":
        return changed
    hosts = tuple(
        replace(host, processes=tuple(map(_http_connect, host.processes))) for host in changed.hosts
    )
    return replace(changed, hosts=hosts)


def _http_connect(process: Process) -> Process:
    if process.name != "server":
        return process
    return replace(process, command=(*process.command, "--mode=http-connect"))


def _with_files(topology: Topology, changes: dict[str, tuple[str, str]]) -> Topology:
    files = []
    for name, text in topology.files:
        old, new = changes.get(name, ("", ""))
        assert old in text, f"{name} of the topology has no {old!r}"
        files.append((name, text.replace(old, new) if old else text))
    return replace(topology, files=tuple(files))


def _direct(topology: Topology, mode: str) -> Topology:
    """Everybody on one network, kube-proxy on each node, and no word of Isthmus."""
    files = dict(topology.files)
    text = files["cluster.sh"]
    own = text[text.index("{python}") : text.index("kubectl wait")]
    left = text[text.index("kubectl -n kube-system rollout status daemonset") :].partition("\n")[0]
    changed = replace(
        topology,
        files=tuple({**files, "cluster.sh": text.replace(own, "").replace(left, "")}.items()),
        allows=(),
        ways=(),
        steps=(),
    )
    nodes = (_direct_node(changed.host(name), mode) for name in NODES)
    return replace(changed, hosts=(_direct_master(changed.host(MASTER)), *nodes))


def _direct_master(host: LabHost) -> LabHost:
    processes = tuple(
        _direct_apiserver(one) if one.name == "apiserver" else one
        for one in host.processes
        if one.name not in _ISTHMUS
    )
    return replace(
        host,
        attachments=(*host.attachments, Attachment(network="nodes", addresses=(_ADDRESS,))),
        routes=tuple(
            LabRoute(to=ip_network(f"10.80.{number}.0/24"), via=name)
            for number, name in enumerate(NODES, 1)
        ),
        processes=processes,
    )


def _direct_apiserver(process: Process) -> Process:
    """No tunnel, and an address that its nodes reach."""
    ours = ("egress-selector", "advertise-address")
    words = (word for word in process.command if not any(name in word for name in ours))
    return replace(process, command=(*words, f"--advertise-address={_ADDRESS}"))


def _direct_node(host: LabHost, mode: str) -> LabHost:
    proxy = Process(
        name=f"kube-proxy-{host.name}",
        host=host.name,
        command=(
            *("kube-proxy", "--kubeconfig={dir}/admin.conf", f"--hostname-override={host.name}"),
            *(f"--proxy-mode={mode}", "--detect-local-mode=NodeCIDR"),
            *("--conntrack-max-per-core=0", "--oom-score-adj=0"),
        ),
        after=("bootstrap",),
    )
    way = LabService(address=_API, port=6443, to_host=MASTER, to_port=6443)
    return replace(
        host,
        services=(way,),
        processes=(*(one for one in host.processes if one.name not in _ISTHMUS), proxy),
    )
