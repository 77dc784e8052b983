"""Servers that relay for one another, in this process; and the certificate that lets them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from clients import Client, connect_uds, tunnel
from stack import Server, Stack, metric

from isthmus.tools.pki import making as pki

#: The name in the certificate of a server that may relay.
NAME = "relay.isthmus.internal"
SENT = 'isthmus_server_relayed_dials_total{direction="sent",result="%s"}'
TAKEN = 'isthmus_server_relayed_dials_total{direction="taken",result="%s"}'


def peer_files(files: pki.PkiFiles, directory: Path, name: str = NAME) -> pki.PkiFiles:
    """A certificate of the same authority, good for clients, with this name."""
    directory.mkdir()
    for source in (files.ca_cert, files.ca_key):
        shutil.copy(source, directory)
    return pki.renew(directory, other_names=pki.OtherNames(client=(name,)))


class Relays:
    """Some servers that know each other; the first one asks."""

    def __init__(self, stack: Stack, peer: pki.PkiFiles) -> None:
        self.stack = stack
        self.peer = peer

    def helper(self, name: str, **more: Any) -> Server:
        """A server that passes dials to its agents for one with the right certificate."""
        return self.stack.add_server(**({"server_id": name, "peer_relay_name": (NAME,)} | more))

    def asker(self, *helpers: Server, name: str = "asks", **more: Any) -> Server:
        """A server that asks the others while it has no agents."""
        given: dict[str, Any] = {
            "server_id": name,
            "peer_relay": True,
            "peer_server": tuple(f"{it.id}=127.0.0.1:{it.agent_port}" for it in helpers),
            "peer_cert": str(self.peer.client_cert),
            "peer_key": str(self.peer.client_key),
        }
        return self.stack.add_server(**(given | more))

    def agent(self, server: Server, name: str, **more: Any) -> Any:
        """An agent that is linked to this server alone."""
        made = self.stack.add_agent(
            linked=False, agent_id=name, proxy_server_port=server.agent_port, **more
        )
        self.stack.wait(
            lambda: any(it.agent_id == name and it.takes_dials for it in server.agents),
            f"{name} is linked to {server.id}",
        )
        return made

    def wait_relay(self, server: Server, number: int = 1) -> None:
        """Wait until so many others can pass on what this server asks."""
        relays = server.relays
        assert relays is not None
        self.stack.wait(
            lambda: sum(link.can_relay for link in relays.links) == number, "others can relay"
        )

    def tunnel(self, server: Server, target: str, early: bytes = b"") -> Client:
        """A tunnel of a client of this server."""
        return tunnel(connect_uds(server.settings.uds_name), target, early)

    def counted(self, server: Server, name: str) -> float:
        """One of a server's metrics."""
        return metric(self.stack.metrics(server), name)

    def end_all(self) -> None:
        """Every tunnel is over."""
        self.stack.wait_idle()
