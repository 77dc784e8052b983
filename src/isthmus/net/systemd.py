"""The protocols between systemd and a program: passed sockets and notifications.

They are those of sd_listen_fds(3) and sd_notify(3): environment variables, descriptors from 3
on, and datagrams. Without the variables nothing happens. frame/lifetime.py decides what to
notify, and when.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass

from isthmus.errors import ConfigError
from isthmus.values import HostPort

_FIRST = 3  # SD_LISTEN_FDS_START
_MOST = 64
_TCP = (socket.AF_INET, socket.AF_INET6)
_KINDS = {socket.SOCK_DGRAM: "datagram", socket.SOCK_SEQPACKET: "sequential packet"}
_log = logging.getLogger("isthmus.systemd")

#: The FileDescriptorName= for each flag that binds.
NAMES: Mapping[str, str] = {
    "--server-port": "frontend",
    "--uds-name": "frontend",
    "--http-connect-port": "http-connect",
    "--http-connect-uds-name": "http-connect",
    "--agent-port": "agents",
    "--serving-port": "frontend",
    "--listen": "frontend",
    "--health-port": "health",
    "--health-server-port": "health",
    "--healthz-bind-address": "health",
    "--admin-port": "admin",
    "--admin-server-port": "admin",
    "--metrics-bind-address": "metrics",
}


class PassedSocket(socket.socket):
    """A listening socket that was passed in: its file is not ours to remove."""


@dataclass(frozen=True, slots=True)
class _Passed:
    sock: PassedSocket
    name: str

    @property
    def where(self) -> str:
        """Its path, or its address and port."""
        bound = self.sock.getsockname()
        return str(HostPort(*bound[:2])) if self.sock.family in _TCP else str(bound)


class PassedSockets:
    """The listening sockets that this process was started with, until they are taken.

    A socket with a name in ``NAMES`` belongs to the flag of that name; any other to the flag
    with its address.
    """

    def __init__(self) -> None:
        self._left: list[_Passed] = []

    def __len__(self) -> int:
        return len(self._left)

    def adopt(self, environment: MutableMapping[str, str], *, pid: int) -> None:
        """Take over the sockets that the variables name, and remove the variables for children.

        Raises:
            ConfigError: a descriptor is not a listening stream socket, or the variables are
            invalid.
        """
        given = environment.pop("LISTEN_PID", "")
        count = environment.pop("LISTEN_FDS", "")
        names = environment.pop("LISTEN_FDNAMES", "").split(":")
        environment.pop("LISTEN_PIDFDID", None)
        if given != str(pid):  # meant for another process
            return
        if not (count.isascii() and count.isdigit() and int(count) <= _MOST):
            raise ConfigError(f"LISTEN_FDS={count}: not a number of sockets up to {_MOST}")
        for index in range(int(count)):
            name = names[index] if index < len(names) else ""
            self._left.append(_Passed(_checked(_FIRST + index, name), name))

    def take_tcp(self, flag: str, address: Callable[[], tuple[str, int]]) -> list[PassedSocket]:
        """The sockets for this flag; its address is requested only if needed.

        An empty host means every address.
        """
        return self._taken(self._find(flag, _TCP, lambda it: _is_at(it, *address())))

    def take_uds(self, flag: str, path: str) -> PassedSocket | None:
        """The UNIX socket for this flag, if any."""
        found = self._find(flag, (socket.AF_UNIX,), lambda it: bool(it.getsockname() == path))
        return self._taken(found[:1])[0] if found else None

    def _find(
        self, flag: str, families: tuple[int, ...], is_there: Callable[[PassedSocket], bool]
    ) -> list[_Passed]:
        ours = [it for it in self._left if it.sock.family in families and self._fits(it, flag)]
        # By address first: of several sockets with one name, each flag gets its own.
        at_home = [it for it in ours if is_there(it.sock)]
        return at_home or [it for it in ours if it.name == NAMES.get(flag)]

    def _taken(self, found: list[_Passed]) -> list[PassedSocket]:
        self._left = [it for it in self._left if it not in found]
        return [it.sock for it in found]

    @staticmethod
    def _fits(passed: _Passed, flag: str) -> bool:
        return passed.name == NAMES.get(flag) or passed.name not in NAMES.values()

    def check_taken(self) -> None:
        """Check that every socket was taken by a flag: otherwise clients would wait in it for ever.

        Raises:
            ConfigError: a socket is left.
        """
        if not self._left:
            return
        left = self._left[0]
        flags = " or ".join(flag for flag, name in NAMES.items() if name == left.name)
        named = f"named {left.name}" if flags else "with an unknown name"
        asks = (
            f"no flag of this program has this address ({flags})"
            if flags
            else "no flag has this address"
        )
        raise ConfigError(
            f"systemd passed a socket {named} at {left.where}, and {asks}: it would not be served"
        )

    def close(self) -> None:
        """Close the sockets that were not taken."""
        for each in self._left:
            each.sock.close()
        self._left.clear()


#: The sockets of this process; empty until lifetime.main() adopts some.
PASSED = PassedSockets()


def _checked(number: int, name: str) -> PassedSocket:
    """Make a socket of a descriptor.

    Raises:
        ConfigError: the program cannot accept connections from it.
    """
    what = f"descriptor {number} of systemd" + (f" ({name})" if name else "")
    try:
        is_socket = stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError as exc:
        raise ConfigError(f"{what}: {exc.strerror}") from exc
    if not is_socket:
        raise ConfigError(f"{what} is not a socket")
    sock = PassedSocket(fileno=number)
    wrong = _wrong_kind(sock)
    if wrong:
        sock.close()
        raise ConfigError(f"{what} {wrong}")
    sock.set_inheritable(False)
    sock.setblocking(False)
    return sock


def _wrong_kind(sock: socket.socket) -> str:
    if sock.family not in (*_TCP, socket.AF_UNIX):
        return "is neither a TCP nor a UNIX socket"
    if sock.type != socket.SOCK_STREAM:
        return f"is a {_KINDS.get(sock.type, 'raw')} socket: its unit needs ListenStream="
    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return "does not listen: its unit must not say Accept=yes"
    if sock.family == socket.AF_UNIX and not isinstance(sock.getsockname(), str):
        return "has an abstract address, which every user may connect to: give it a path"
    return ""


def _is_at(sock: socket.socket, host: str, port: int) -> bool:
    bound, number = sock.getsockname()[:2]
    return bool(number == port and (bound == host or (not host and bound in ("::", "0.0.0.0"))))


class Notifier:
    """Sends notifications to systemd; ``watchdog_s`` is 0 without a watchdog."""

    def __init__(self, address: str, *, watchdog_s: float = 0.0) -> None:
        self.watchdog_s = watchdog_s
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._failed = False

    @classmethod
    def from_environment(
        cls, environment: MutableMapping[str, str], *, pid: int
    ) -> Notifier | None:
        """Read and remove the variables, so that no child notifies for us; None without them.

        Raises:
            ConfigError: they are invalid.
        """
        address = environment.pop("NOTIFY_SOCKET", "")
        watchdog = environment.pop("WATCHDOG_USEC", "")
        for_whom = environment.pop("WATCHDOG_PID", "")
        if not address:
            return None
        if address[0] not in "/@" or len(address) < 2:
            raise ConfigError(f"NOTIFY_SOCKET={address}: neither a path nor an abstract address")
        if not watchdog or for_whom not in ("", str(pid)):
            return cls(address)
        if not (watchdog.isascii() and watchdog.isdigit() and 0 < len(watchdog) < 16):
            raise ConfigError(f"WATCHDOG_USEC={watchdog}: not a number of microseconds")
        return cls(address, watchdog_s=int(watchdog) / 1e6)

    def tell(self, **news: str | int) -> None:
        """Send assignments, such as ``READY=1``; a failure is logged and otherwise ignored."""
        text = "".join(f"{key}={value}\n" for key, value in news.items())
        try:
            self._sock.sendto(text.encode(errors="replace"), self._address)
        except OSError as exc:
            if not self._failed:
                self._failed = True
                _log.warning("cannot notify systemd: %s", exc.strerror or exc)

    def close(self) -> None:
        """Close the notification socket."""
        self._sock.close()
