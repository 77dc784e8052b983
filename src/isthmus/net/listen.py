"""Listening sockets: binding with clear errors, and accepting without a task."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import select
import socket
import stat
from collections.abc import Callable

from isthmus.errors import ConfigError
from isthmus.net.connection_gate import AcceptedSocket
from isthmus.net.descriptors import is_kept_back
from isthmus.net.poller import IN, Poller
from isthmus.net.systemd import PASSED, PassedSocket
from isthmus.values import HostPort

_BACKLOG = 4096
_ACCEPTS_PER_EVENT = 64
_REST_S = 0.2
_QUIET_S = 60.0
#: How long connections may wait without being accepted before this counts as a failure.
UNDRAINED_S = 10.0
_log = logging.getLogger("isthmus.net")

Accepted = Callable[[socket.socket], None]


def bind_tcp(host: str, port: int, *, flag: str) -> list[socket.socket]:
    """Bind a port; an empty host means every address, with one dual-stack socket if possible.

    ``::`` means the same, as in Go's programs; ``0.0.0.0`` means IPv4 only.

    A socket that systemd passed for this flag is used instead.

    Raises:
        ConfigError: names the flag and the problem.
    """
    try:
        passed = PASSED.take_tcp(flag, lambda: (host and _address_of(host), port))
        if passed:
            return list(passed)
        if host:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            return [_bound(infos[0][0], infos[0][4], dual=infos[0][4][0] == "::")]
        if socket.has_dualstack_ipv6():
            return [_bound(socket.AF_INET6, ("::", port), dual=True)]
        return [_bound(socket.AF_INET, ("0.0.0.0", port), dual=False)]
    except OSError as exc:
        where = f"{host}:{port}" if host else f"port {port}"
        why = "already in use" if exc.errno == errno.EADDRINUSE else exc.strerror or str(exc)
        raise ConfigError(f"{flag}: cannot listen on {where}: {why}") from exc


def _address_of(host: str) -> str:
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return str(found[0][4][0])


def _bound(family: int, address: object, *, dual: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not dual)
        sock.bind(address)  # type: ignore[arg-type]  # as getaddrinfo gave it
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def bind_uds(path: str, *, delete_existing: bool, flag: str) -> socket.socket:
    """Bind a UNIX socket, mode 0660, replacing a stale one.

    A socket that systemd passed for this flag is used instead, with its mode.

    Raises:
        ConfigError: a live server uses it, or the path is not a socket.
    """
    passed = PASSED.take_uds(flag, path)
    if passed is not None:
        _warn_of_mode(passed, flag)
        return passed
    _make_way(path, delete_existing=delete_existing, flag=flag)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    # The mode has to be right from the first moment, which only the umask achieves. The umask
    # belongs to the whole process, but this happens before anything else runs.
    before = os.umask(0o117)
    try:
        sock.bind(path)
        sock.listen(_BACKLOG)
    except OSError as exc:
        sock.close()
        why = "path too long" if "too long" in str(exc) else exc.strerror or str(exc)
        raise ConfigError(f"{flag} {path}: cannot listen: {why}") from exc
    finally:
        os.umask(before)
    return sock


def _warn_of_mode(sock: PassedSocket, flag: str) -> None:
    path = str(sock.getsockname())
    mode = stat.S_IMODE(os.stat(path).st_mode) if os.path.exists(path) else 0
    if mode & stat.S_IRWXO:
        _log.warning(
            "%s %s: every user may connect (mode %04o); its unit needs SocketMode=0660",
            flag, path, mode,
        )  # fmt: skip


def _make_way(path: str, *, delete_existing: bool, flag: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as exc:
        raise ConfigError(f"{flag} {path}: {exc.strerror}") from exc
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{flag} {path}: exists and is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            pass
        except OSError as exc:
            raise ConfigError(f"{flag} {path}: {exc.strerror or exc}") from exc
        else:
            raise ConfigError(f"{flag} {path}: in use by a live server")
    if not delete_existing:
        raise ConfigError(f"{flag} {path}: exists; remove it or set --delete-existing-uds-file")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def not_listening(sock: socket.socket) -> str:
    """Why a socket no longer listens; empty while it does."""
    try:
        # Also fails if the descriptor was closed and its number reused for another file.
        # A UNIX socket that was shut down still claims to listen.
        listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if listens and not _events(sock) & select.POLLHUP:
            return ""
    except OSError:
        return "its socket was closed"
    return "its socket does not listen"


def _events(sock: socket.socket) -> int:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return next((mask for _, mask in poll.poll(0)), 0)


class Listener:
    """Accepts connections from one bound socket until stopped.

    It is on the poller like every other socket, so requests of new clients are sent in the same
    batch as those of others.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        sock: socket.socket,
        accepted: Accepted,
    ) -> None:
        self._loop = loop
        self._poller = poller
        self._sock = sock
        self._accepted = accepted
        self._family = sock.family
        self._is_tcp = sock.family != socket.AF_UNIX
        self._resting: asyncio.TimerHandle | None = None
        self._short = False  # whether descriptors were short at the last accept
        self._quiet_until = float("-inf")
        self._path = "" if self._is_tcp else str(sock.getsockname())
        #: The path of a UNIX socket, or the bound address and port.
        self.name = self._path or str(HostPort(*self.address))
        self._inode = os.stat(self._path).st_ino if self._path else 0
        self._stopped = False
        #: The number of accepted connections.
        self.accepted = 0
        self._waiting: tuple[int, float] | None = None
        poller.register(sock.fileno(), IN, self._readable)

    @property
    def port(self) -> int:
        """The bound TCP port."""
        return int(self._sock.getsockname()[1])

    @property
    def address(self) -> tuple[str, int]:
        """The bound TCP address and port."""
        host, port = self._sock.getsockname()[:2]
        return str(host), int(port)

    def trouble(self, now: float) -> str:
        """Why clients cannot connect here; empty while they can, and once stopped.

        Called periodically, it also detects that connections wait and none is accepted. Costs a few
        system calls.
        """
        if self._stopped:
            return ""
        closed = not_listening(self._sock)
        if closed:
            return closed
        if self._path and not self._has_its_file():
            return "its file was removed or replaced"
        if not self._poller.rearm(self._sock.fileno(), IN):
            return "its events are not watched"
        return self._undrained(now)

    def _has_its_file(self) -> bool:
        try:
            return os.stat(self._path).st_ino == self._inode
        except OSError:
            return False

    def _undrained(self, now: float) -> str:
        # A lack of descriptors is logged, but must not restart the program that uses them.
        if self._resting is not None or not _events(self._sock):
            self._waiting = None
            return ""
        if self._waiting is None or self._waiting[0] != self.accepted:
            self._waiting = (self.accepted, now)
        since = now - self._waiting[1]
        return f"nothing was accepted for {since:.0f} s" if since >= UNDRAINED_S else ""

    def _readable(self, mask: int) -> None:
        self._accept()

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_EVENT):
            if self._stopped or self._resting is not None:  # it retries when it wakes
                return
            if self._short and self._still_short():
                return
            try:
                # socket.accept() calls this and wraps the result in a plain socket, which would
                # have to be wrapped again: accepting and closing takes 13.8 µs this way, and 16.6
                # that way (timeit).
                fd, _ = self._sock._accept()  # type: ignore[attr-defined]  # typeshed has it not
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError as exc:
                self._rest(exc)
                return
            self.accepted += 1
            self._short = is_kept_back(fd)
            sock = AcceptedSocket(self._family, fd)
            sock.setblocking(False)
            if self._is_tcp:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                self._accepted(sock)
            except Exception:
                self._poller.again(
                    self._accept
                )  # waiting connections will not trigger another edge
                raise
        self._poller.again(self._accept)

    def _still_short(self) -> bool:
        """Whether only reserved descriptors are left; connections then wait."""
        try:
            probe = os.dup(self._sock.fileno())
        except OSError as exc:
            self._rest(exc)
            return True
        os.close(probe)
        self._short = is_kept_back(probe)
        if self._short:
            self._rest(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        return self._short

    def _rest(self, exc: OSError) -> None:
        # Out of descriptors: the connection stays in the queue, without another edge.
        # Retrying at once would burn the CPU that is needed to finish other connections.
        now = self._loop.time()
        if now >= self._quiet_until:
            self._quiet_until = now + _QUIET_S
            _log.warning("cannot accept: %s; trying every %s s", exc.strerror, _REST_S)
        self._resting = self._loop.call_later(_REST_S, self._wake)

    def _wake(self) -> None:
        self._resting = None
        self._poller.again(self._accept)

    def stop(self) -> None:
        """Close, and remove the UNIX socket's file if it is still ours and not systemd's."""
        if self._stopped:
            return
        self._stopped = True
        if self._resting is not None:
            self._resting.cancel()
        self._poller.close(self._sock)
        if self._path and self._has_its_file() and not isinstance(self._sock, PassedSocket):
            with contextlib.suppress(OSError):
                os.unlink(self._path)
