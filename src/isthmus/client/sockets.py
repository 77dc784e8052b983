"""A tunnel as a real socket, for libraries that want one: its end is joined to one of a pair.

The pair is TCP over loopback, not socketpair(): a UNIX socket cannot be reset, and a reset that
reads as an end of file makes a half answer look whole. Where there is no loopback (a network
namespace whose ``lo`` is down) it is a UNIX pair all the same.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from isthmus.net.poller import Poller
from isthmus.net.socket_end import SocketEnd
from isthmus.tunnel.end import BaseEnd, Early, Ending, join

_LOOPBACK = "127.0.0.1"
_PAIRING_S = 5.0
_MOST_STRANGERS = 64
# A closed socket half-closes first, and TCP does not say which of the two it was. Once the kernel
# has forgotten the closed one (tcp_fin_timeout, 60 s) it answers a probe with a reset, and the
# tunnel of a target that never ends its side ends here.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


def bridge(end: BaseEnd, poller: Poller, opened: Callable[[BaseEnd], None]) -> socket.socket:
    """Give a socket that leads to where the end does; non-blocking, and the caller's to close.

    ``opened`` is told of the end in between, which whoever resets the other has to reset, too.

    Raises:
        OSError: there are no more descriptors; the end is reset.
    """
    try:
        given, kept = socket_pair()
    except OSError:
        end.abort(Ending.CANCELLED)
        raise
    inside = SocketEnd(kept, poller)
    opened(inside)
    join(end, inside)
    return given


def given(
    end: BaseEnd,
    sock: socket.socket,
    poller: Poller,
    opened: Callable[[BaseEnd], None],
    *,
    answer: bytes,
    early: bytes,
) -> None:
    """Join an end to a socket that somebody gave us; see Dialer.join_socket."""
    kept = Early()
    kept.buffer += early
    inside = SocketEnd(sock, poller, kept)
    inside.write(answer)
    opened(inside)
    join(end, inside)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Make two connected non-blocking sockets, the second of which can be reset."""
    try:
        given, kept = _over_loopback()
    except OSError:
        given, kept = socket.socketpair()
    given.setblocking(False)
    kept.setblocking(False)
    return given, kept


def _over_loopback() -> tuple[socket.socket, socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind((_LOOPBACK, 0))
        listener.listen(_MOST_STRANGERS)
        listener.settimeout(_PAIRING_S)
        given = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            given.settimeout(_PAIRING_S)
            given.connect(listener.getsockname())
            kept = _accept_own(listener, given.getsockname())
        except BaseException:
            given.close()
            raise
    for sock in (given, kept):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        kept.setsockopt(socket.IPPROTO_TCP, option, value)
    return given, kept


def _accept_own(listener: socket.socket, own: object) -> socket.socket:
    """Accept our own connection; anybody on this machine could have been faster."""
    for _ in range(_MOST_STRANGERS):
        kept, peer = listener.accept()
        if peer == own:
            return kept
        kept.close()
    raise ConnectionError("others connect to every port of this machine")
