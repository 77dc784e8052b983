"""Binding the ports and UNIX sockets that a server's clients come to, for whoever accepts there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import NamedTuple

from isthmus.net.listen import bind_tcp, bind_uds
from isthmus.programs.server.settings import ServerSettings


class BoundDoor(NamedTuple):
    """A socket that listens, the protocol that is spoken there, and the flag that said so."""

    mode: str
    flag: str
    sock: socket.socket

    @property
    def is_uds(self) -> bool:
        """It is a UNIX socket."""
        return self.sock.family == socket.AF_UNIX


def bind_doors(settings: ServerSettings) -> Iterator[BoundDoor]:
    """Bind every port and socket, one after the other; nothing is accepted.

    Raises:
        ConfigError: one cannot be bound; those before it stay.
    """
    for mode, port, port_flag, uds, uds_flag in settings.doors:
        if port is not None:
            for sock in bind_tcp(settings.server_bind_address, port, flag=f"--{port_flag}"):
                yield BoundDoor(mode, f"--{port_flag}", sock)
                # systemd may have passed another than the flags say
                settings.roles.check_frontend_at(str(sock.getsockname()[0]))
        if uds:
            bound = bind_uds(
                uds, delete_existing=settings.delete_existing_uds_file, flag=f"--{uds_flag}"
            )
            yield BoundDoor(mode, f"--{uds_flag}", bound)
