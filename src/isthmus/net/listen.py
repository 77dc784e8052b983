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
#: How long a connection may wait while nothing is accepted before something is wrong.
UNDRAINED_S = 10.0
_log = logging.getLogger("isthmus.net")

Accepted = Callable[[socket.socket], None]


def bind_tcp(host: str, port: int, *, flag: str) -> list[socket.socket]:
    """Bind a port; an empty host means every address, by one dual-stack socket where there is one.

    So does ``::``, as for programs in Go; ``0.0.0.0`` means those of IPv4 alone.

    What systemd passed for this flag is used instead.

    Raises:
        ConfigError: naming the flag and what is wrong.
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
    """Bind a UNIX socket, mode 0660, in place of a stale one.

    What systemd passed for this flag is used instead, with the mode that it has.

    Raises:
        ConfigError: a live server has it, or the path is something else.
    """
    passed = PASSED.take_uds(flag, path)
    if passed is not None:
        _warn_of_mode(passed, flag)
        return passed
    _make_way(path, delete_existing=delete_existing, flag=flag)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    # The mode has to be right from the first moment, and only the umask is that early. It is the
    # whole process's, but this happens before anything else runs.
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
    """Say why a listening socket is none any more; empty while it is one."""
    try:
        # Also tells when somebody closed the descriptor and its number is another file's by now.
        # A UNIX socket that was shut down still says that it listens.
        listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if listens and not _events(sock) & select.POLLHUP:
            return ""
    except OSError:
        return "its socket is closed"
    return "its socket does not listen"


def _events(sock: socket.socket) -> int:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return next((mask for _, mask in poll.poll(0)), 0)


class Listener:
    """Accepts connections from one bound socket until stopped.

    On the poller like every other socket: what new clients ask for leaves in the same batch as
    what the others send.
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
        self._short = False  # of descriptors, when one was accepted last
        self._quiet_until = float("-inf")
        self._path = "" if self._is_tcp else str(sock.getsockname())
        #: The path of a UNIX socket, or the address and port that were bound.
        self.name = self._path or str(HostPort(*self.address))
        self._inode = os.stat(self._path).st_ino if self._path else 0
        self._stopped = False
        #: How many connections were accepted.
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
        """Say why nobody can come in here; empty while all is well, and once stopped.

        Asked now and then, it notices as well when connections wait and none is accepted. A few
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
        # Out of descriptors is no reason to end what has them: that is said in the log.
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
            if self._stopped or self._resting is not None:  # it looks again when it wakes
                return
            if self._short and self._still_short():
                return
            try:
                # What accept() calls before it makes a plain socket, of which another would have to
                # be made: accepting and closing takes 13.8 µs this way, and 16.6 that way (timeit).
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
                self._poller.again(self._accept)  # those that wait made their edge already
                raise
        self._poller.again(self._accept)

    def _still_short(self) -> bool:
        """Whether only such descriptors are left as are not for peers; then whoever comes waits."""
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
        # Out of descriptors: the connection stays in the queue, and its edge came already.
        # Asking again at once would burn the CPU that is needed to finish something.
        now = self._loop.time()
        if now >= self._quiet_until:
            self._quiet_until = now + _QUIET_S
            _log.warning("cannot accept: %s; trying every %s s", exc.strerror, _REST_S)
        self._resting = self._loop.call_later(_REST_S, self._wake)

    def _wake(self) -> None:
        self._resting = None
        self._poller.again(self._accept)

    def stop(self) -> None:
        """Close, and remove the UNIX socket's file if it is still ours, and not systemd's."""
        if self._stopped:
            return
        self._stopped = True
        if self._resting is not None:
            self._resting.cancel()
        self._poller.close(self._sock)
        if self._path and self._has_its_file() and not isinstance(self._sock, PassedSocket):
            with contextlib.suppress(OSError):
                os.unlink(self._path)
