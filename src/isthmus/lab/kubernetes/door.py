"""Lets kubectl of this machine into a lab: a port here that leads to one there, and a kubeconfig.

``python -m isthmus.lab.kubernetes.door NAMESPACE PORT SOURCE TARGET`` takes connections on a free
port of 127.0.0.1, makes the kubeconfig TARGET out of SOURCE with that address, and leads each
connection to the port of 127.0.0.1 in the namespace, until it is told to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from isthmus.lab.namespaces import inside
from isthmus.lab.python import module
from isthmus.lab.servers import JoinedEnds, until_told
from isthmus.lab.state import KUBECONFIG, Lab
from isthmus.lab.topology import LabDoor
from isthmus.net.listen import Listener, bind_tcp
from isthmus.net.poller import Poller
from isthmus.net.socket_end import SocketEnd

NAME = "door"
_SERVER = re.compile(r"https://[^\"'\s,}]+")
_CONNECT_S = 5.0


def command(lab: Lab, door: LabDoor, namespace: str) -> list[str]:
    """Write the command that is a lab's door."""
    source, target = lab.directory / door.kubeconfig, lab.directory / KUBECONFIG
    words = (namespace, str(door.port), str(source), str(target))
    return module("isthmus.lab.kubernetes.door", *words)


async def _run(namespace: str, port: int, source: Path, target: Path) -> None:
    loop = asyncio.get_running_loop()
    poller, connections = Poller(loop), JoinedEnds(loop)
    pending: set[asyncio.Task[None]] = set()

    async def lead(client: socket.socket) -> None:
        try:
            far = await asyncio.to_thread(inside, namespace, lambda: _connected(port))
        except OSError:
            client.close()
            return
        connections.join(SocketEnd(client, poller), SocketEnd(far, poller))

    def accept(client: socket.socket) -> None:
        task = loop.create_task(lead(client), name="lead")
        pending.add(task)
        task.add_done_callback(pending.discard)

    (sock,) = bind_tcp("127.0.0.1", 0, flag=NAME)
    listener = Listener(loop, poller, sock, accept)
    _write(source, target, listener.port)
    try:
        await until_told(f"{NAME}: ready")
    finally:
        listener.stop()
        connections.abort_all()
        await asyncio.sleep(0)  # one turn of the loop, in which the poller closes what is doomed
        poller.shut_down()


def _connected(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=_CONNECT_S)
    sock.setblocking(False)
    return sock


def _write(source: Path, target: Path, port: int) -> None:
    """Write the kubeconfig, whole and for its owner alone."""
    fresh = target.with_name(f".{target.name}")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    text = _SERVER.sub(f"https://127.0.0.1:{port}", source.read_text())
    with open(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(text)
    fresh.replace(target)


def main(words: Sequence[str]) -> int:
    """Be a lab's door until told to end."""
    namespace, port, source, target = words
    asyncio.run(_run(namespace, int(port), Path(source), Path(target)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
