"""Two network namespaces and a firewall: the control plane's side, and the node's behind it.

Nothing reaches the node that it did not ask for: every new connection towards it is rejected, and
all it may do itself is connect to the agent ports of the control plane.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from kube.programs import is_left_over, run_name
from pyroute2 import IPRoute, netns

from isthmus.lab.namespaces import in_namespace, remove

# Nobody else is in these namespaces, so addresses may be fixed.
CONTROL_PLANE = "10.201.0.1"
NODE = "10.201.0.2"
POD = "10.201.1.10"
AGENT_PORTS = range(8091, 8121)
_TOOL_LIMIT_S = 20.0
_numbers = itertools.count()

# A reset, so that a refused connection is known at once and needs no timeout.
RULES = f"""\
table inet isthmus {{
  chain input {{
    type filter hook input priority 0; policy drop;
    ct state established,related accept
    iifname "lo" accept
    meta l4proto tcp reject with tcp reset
    reject
  }}
  chain output {{
    type filter hook output priority 0; policy drop;
    ct state established,related accept
    oifname "lo" accept
    ip daddr {CONTROL_PLANE} tcp dport {AGENT_PORTS[0]}-{AGENT_PORTS[-1]} accept
    meta l4proto tcp reject with tcp reset
    reject
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Ground:
    """The namespaces of one run."""

    control_plane: str
    node: str


@contextlib.contextmanager
def ground() -> Iterator[Ground]:
    """Make both namespaces, the link between them and the firewall; remove them at the end."""
    for name in filter(is_left_over, netns.listnetns()):
        remove(name)
    prefix = f"{run_name()}{next(_numbers)}"
    names = Ground(f"{prefix}-cp", f"{prefix}-node")
    with contextlib.ExitStack() as stack:
        for name in (names.control_plane, names.node):
            stack.callback(remove, name)
            netns.create(name)
        with IPRoute(netns=names.control_plane) as here, IPRoute(netns=names.node) as there:
            peer = {"ifname": "cp", "net_ns_fd": names.node}
            here.link("add", kind="veth", ifname="node", peer=peer)
            _bring_up(here, "node", CONTROL_PLANE, 24)
            _bring_up(there, "cp", NODE, 24)
            _bring_up(there, "lo", POD, 32)
            here.link("set", index=here.link_lookup(ifname="lo")[0], state="up")
            here.route("add", dst="default", gateway=NODE)
        subprocess.run(
            in_namespace(names.node, ["nft", "-f", "-"]),
            input=RULES, text=True, check=True, timeout=_TOOL_LIMIT_S,
        )  # fmt: skip
        yield names


def _bring_up(side: IPRoute, link: str, address: str, prefix_length: int) -> None:
    index = side.link_lookup(ifname=link)[0]
    side.addr("add", index=index, address=address, prefixlen=prefix_length)
    side.link("set", index=index, state="up")
