"""Who pays for what waits in a tunnel without a link: the early keeper, and both ends.

For programs that pass connections on, and for targets that no agent dials. A socket counts what
waits in it (raw.py); links and calls have accounts of their own (tunnel/budget.py).
"""

from __future__ import annotations

from isthmus.net.raw import RawSocket
from isthmus.tunnel.budget import Account
from isthmus.tunnel.end import BaseEnd, Early
from isthmus.tunnel.http2_stream import Http2Stream


class PaidEarly(Early):
    """The early keeper of a socket end whose payer is charged for what it keeps."""

    __slots__ = ()

    def write(self, data: bytes) -> bool:
        """Keep the bytes, and have them charged; False once the bound is reached."""
        self.buffer += data
        self.charge()
        return len(self.buffer) < self.limit

    def charge(self, more: int = 0) -> None:
        """Charge what is kept now, with so much ``more`` that is kept elsewhere."""
        if isinstance(self.peer, RawSocket):
            self.peer.keeps(len(self.buffer) + more)


def charge_tunnel(client: BaseEnd, far: BaseEnd, payer: Account) -> None:
    """Have an account pay for what a client's end and the end of its target hold.

    A call counts what its peer has not taken, wherever that waits; of two sockets each counts.
    """
    stream = getattr(far, "stream", None)
    if isinstance(stream, Http2Stream) and stream.open and stream.account is not payer:
        stream.connection.charge(stream, payer)
    sockets = isinstance(client, RawSocket) and isinstance(far, RawSocket)
    for end in (far, client):
        if isinstance(end, RawSocket):
            end.charge_to(payer if sockets else None)
