"""Charges what waits in a tunnel without a link: the early keeper, and both ends.

For programs that forward connections, and for targets that no agent dials. A socket counts what
waits in it (raw.py); links and calls have their own accounts (tunnel/budget.py).
"""

from __future__ import annotations

from isthmus.net.raw import RawSocket
from isthmus.tunnel.budget import Account
from isthmus.tunnel.end import BaseEnd, Early
from isthmus.tunnel.http2_stream import Http2Stream


class PaidEarly(Early):
    """The early keeper of a socket end, charged to the end's payer."""

    __slots__ = ()

    def write(self, data: bytes) -> bool:
        """Keep and charge the bytes; False once the bound is reached."""
        self.buffer += data
        self.charge()
        return len(self.buffer) < self.limit

    def charge(self, more: int = 0) -> None:
        """Charge the kept bytes, plus ``more`` bytes kept elsewhere."""
        if isinstance(self.peer, RawSocket):
            self.peer.keeps(len(self.buffer) + more)


def charge_tunnel(client: BaseEnd, far: BaseEnd, payer: Account) -> None:
    """Charge an account for what a client's end and its target's end hold.

    A call counts what its peer has not taken, wherever it waits; two sockets count separately.
    """
    stream = getattr(far, "stream", None)
    if isinstance(stream, Http2Stream) and stream.open and stream.account is not payer:
        stream.connection.charge(stream, payer)
    sockets = isinstance(client, RawSocket) and isinstance(far, RawSocket)
    for end in (far, client):
        if isinstance(end, RawSocket):
            end.charge_to(payer if sockets else None)
