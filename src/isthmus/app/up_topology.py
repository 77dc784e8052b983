"""Three network namespaces in a row, the middle one a firewall: where ``up --namespaces`` plays.

The middle one routes and lets a single thing through, connections from the agent's side to the
server's agent port. What runs in them is app/up_namespaces.py. Plain blocking code: pyroute2 wants
no event loop around it.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyroute2 import IPRoute, NetlinkError, netns

from isthmus.app.up_state import PREFIX
from isthmus.errors import ConfigError
from isthmus.net.namespaces import in_namespace, inside, remove

# Nobody else is in these namespaces, so addresses and ports may be fixed.
WALL_TO_SERVER, SERVER = "10.200.0.1", "10.200.0.2"
WALL_TO_AGENT, AGENT = "10.200.0.5", "10.200.0.6"
PREFIX_LENGTH = 30
AGENT_PORT = 8091
TOOL_TIMEOUT_S = 10.0

# The first that is there is used.
FIREWALLS: Mapping[str, Sequence[str]] = {
    "nft": ("nft", "-f", "-"),
    "iptables-restore": ("iptables-restore",),
}
RULES = {
    "nft": f"""\
table inet isthmus {{
  chain input {{
    type filter hook input priority 0; policy drop;
  }}
  chain forward {{
    type filter hook forward priority 0; policy drop;
    ct state established,related accept
    iifname "agent" oifname "server" ip daddr {SERVER} tcp dport {AGENT_PORT} accept
  }}
}}
""",
    "iptables-restore": f"""\
*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A FORWARD -i agent -o server -d {SERVER} -p tcp -m tcp --dport {AGENT_PORT} -j ACCEPT
COMMIT
""",
}


def find_tool(*names: str) -> str:
    """Find the first of these tools.

    Raises:
        ConfigError: none is in the PATH.
    """
    found = next((name for name in names if shutil.which(name)), None)
    if found is None:
        raise ConfigError(f"--namespaces needs {' or '.join(names)}, which is not in the PATH")
    return found


@dataclass(frozen=True, slots=True)
class Names:
    """The namespaces of one run."""

    server: str
    wall: str
    agent: str

    @classmethod
    def of(cls, run: str) -> Names:
        """Name them after the run's directory, so that a later run can find them."""
        token = run.removeprefix(PREFIX)
        return cls(*(f"isthmus-{token}-{side}" for side in ("server", "wall", "agent")))

    def __iter__(self) -> Iterator[str]:
        return iter((self.server, self.wall, self.agent))


def remove_run(run: str) -> None:
    """Remove the namespaces of a run that was killed."""
    for name in Names.of(run):
        remove(name)


@contextlib.contextmanager
def topology(names: Names, firewall: str) -> Iterator[None]:
    """Make the namespaces, the links between them and the firewall; remove them at the end.

    ``firewall`` is the tool that loads the rules, a key of RULES.

    Raises:
        ConfigError: the kernel or a tool does not allow it.
    """
    with contextlib.ExitStack() as stack:
        try:
            for name in names:
                stack.callback(remove, name)
                netns.create(name)
            with IPRoute(netns=names.wall) as wall:
                _connect(wall, "server", WALL_TO_SERVER, names.server, SERVER)
                _connect(wall, "agent", WALL_TO_AGENT, names.agent, AGENT)
            inside(names.wall, partial(Path("/proc/sys/net/ipv4/ip_forward").write_text, "1"))
            _load_rules(names.wall, firewall)
        except (OSError, NetlinkError) as exc:
            # NetlinkError is no OSError, and its text begins with the number.
            why = str(exc.args[-1]) if exc.args else str(exc)
            raise ConfigError(f"--namespaces: cannot make network namespaces: {why}") from exc
        yield


def _connect(wall: IPRoute, link: str, here: str, namespace: str, there: str) -> None:
    """Join a namespace to the wall by a pair of interfaces, and send all its traffic there."""
    wall.link("add", kind="veth", ifname=link, peer={"ifname": "wall", "net_ns_fd": namespace})
    _bring_up(wall, link, here)
    with IPRoute(netns=namespace) as far:
        _bring_up(far, "wall", there)
        far.link("set", index=far.link_lookup(ifname="lo")[0], state="up")
        far.route("add", dst="default", gateway=here)


def _bring_up(side: IPRoute, link: str, address: str) -> None:
    index = side.link_lookup(ifname=link)[0]
    side.addr("add", index=index, address=address, prefixlen=PREFIX_LENGTH)
    side.link("set", index=index, state="up")


def _load_rules(namespace: str, firewall: str) -> None:
    done = subprocess.run(
        in_namespace(namespace, FIREWALLS[firewall]),
        input=RULES[firewall],
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=TOOL_TIMEOUT_S,
        start_new_session=True,
        check=False,
    )
    if done.returncode:
        raise ConfigError(f"--namespaces: {firewall}: {' '.join(done.stderr.split())}")
