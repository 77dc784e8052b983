"""Rate-limited tunnels: an end that reads too fast is paused.

Each end of such a tunnel has a face as its peer, which passes everything on and charges bytes
to the pots of its share. While a pot is in debt the end stops reading, and continues in its
turn when the debt is paid. There is no queue of bytes: received bytes have been passed on, and
later ones stay in the kernel. Tunnels without such a share are joined directly.

rules_shares.py has the arithmetic; programs/server/networks.py refuses dials.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from isthmus.dial.rules_shares import Pot
from isthmus.text.pacing import TokenBucket
from isthmus.tunnel.end import GONE, End, Ending, unsent
from isthmus.tunnel.first_byte import UntouchedTunnel
from isthmus.tunnel.linked_end import LinkedEnd

#: The usual largest amount that a resumed end reads.
_PIECE_BYTES = 64 * 1024
_SOONEST_S = 0.001


class Gate:
    """One direction of a pot: the faces waiting until its debt is paid, in order."""

    __slots__ = ("_bucket", "_loop", "_timer", "_waiting", "_waits")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        bucket: Callable[[], TokenBucket | None],
        waits: Callable[[], None],
    ) -> None:
        """``bucket`` returns the pot's current bucket; ``waits`` is called for each that waits."""
        self._loop = loop
        self._bucket = bucket
        self._waits = waits
        self._waiting: deque[Face] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def spend(self, size: int) -> bool:
        """Charge bytes; True: the pot is now in debt."""
        bucket = self._bucket()
        return bucket is not None and bucket.spend(size, now=self._loop.time())

    @property
    def in_debt(self) -> bool:
        """Whether reading has to wait."""
        bucket = self._bucket()
        return bucket is not None and bucket.wait_s(now=self._loop.time()) > 0

    def wait(self, face: Face) -> None:
        """Resume the face in its turn."""
        self._waits()
        self._waiting.append(face)
        self._arm()

    def changed(self) -> None:
        """The rate changed, or was removed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._open()

    def _arm(self) -> None:
        if self._timer is None and self._waiting:
            bucket = self._bucket()
            wait_s = bucket.wait_s(now=self._loop.time()) if bucket is not None else 0.0
            self._timer = self._loop.call_later(max(wait_s, _SOONEST_S), self._open)

    def _open(self) -> None:
        self._timer = None
        bucket = self._bucket()
        number = len(self._waiting)
        if bucket is not None:
            now = self._loop.time()
            if bucket.wait_s(now=now) > 0:
                number = 0
            else:
                # Their bytes arrive later: resume only as many as fit.
                number = min(number, 1 + int(bucket.room(now=now) / _PIECE_BYTES))
        while number and self._waiting:
            number -= self._waiting.popleft().let_on()
        self._arm()


class Face:
    """The peer of one end of a metered tunnel: stands for the other end; see End."""

    __slots__ = ("_full", "_gates", "_held", "other", "sink", "source")

    def __init__(self, source: End, sink: End, gates: Sequence[Gate]) -> None:
        self.source = source  # the end whose peer this is
        self.sink = sink
        # Konnectivity's links cannot pause one of their connections: braking would stop the
        # whole link, including other clients. Data from such a link is not rate-limited.
        self._gates = () if isinstance(source, LinkedEnd) else tuple(gates)
        self._held = False  # by a gate
        self._full = False  # by the sink
        self.other: Face = self

    @property
    def peer(self) -> End:
        """The end whose peer this is."""
        return self.source

    @peer.setter
    def peer(self, end: End) -> None:
        """Do nothing: the peer is fixed."""

    @property
    def bytes_written(self) -> int:
        """The bytes passed to the sink."""
        return self.sink.bytes_written

    @bytes_written.setter
    def bytes_written(self, number: int) -> None:
        self.sink.bytes_written = number

    @property
    def out_bytes(self) -> int:
        """The bytes that the sink has not passed on."""
        return unsent(self.sink)

    @property
    def ending(self) -> Ending | None:
        """How the sink finished, after which it holds nothing."""
        return getattr(self.sink, "ending", None)

    @property
    def held(self) -> bool:
        """Whether it waits for a debt to be paid."""
        return self._held

    # From the source.

    def write(self, data: bytes) -> bool:
        """Pass bytes on, and count them; False: the sink is full, or a pot is in debt."""
        size = len(data)
        for gate in self._gates:
            if gate.spend(size) and not self._held:
                self._held = True
                gate.wait(self)
        if not self.sink.write(data):
            self._full = True
            return False
        return not self._held

    def write_eof(self) -> None:
        self.sink.write_eof()

    def abort(self, reason: Ending) -> None:
        self.sink.abort(reason)

    def let_go(self) -> None:
        self.sink.let_go()

    def pause_reading(self) -> None:
        """Pause the sink's reading: the source is full."""
        self.sink.pause_reading()

    def resume_reading(self) -> None:
        """The source has room again: its peer may read, unless a pot holds it."""
        other = self.other
        other._full = False
        if not other._held:
            self.sink.resume_reading()

    def start(self) -> None:
        """Do nothing: a face sends nothing."""

    # From a gate.

    def let_on(self) -> bool:
        """Resume unless another pot is in debt; False: it stays paused."""
        for gate in self._gates:
            if gate.in_debt:
                gate.wait(self)
                return False
        self._held = False
        if self._full or self.source is GONE:
            return False
        self.source.resume_reading()
        return True

    def leave(self) -> None:
        """The tunnel ended: leave all gates."""
        self.source = self.sink = GONE
        self.other = self
        self._gates = ()


class MeteredTunnel(UntouchedTunnel):
    """A tunnel whose ends are joined by faces; at its first byte, if it can be dialed again."""

    __slots__ = ("_faces", "_gates")

    def hold_to(self, gates: tuple[Sequence[Gate], Sequence[Gate]]) -> None:
        """Set the gates towards the target and those towards the client, before it is opened."""
        self._gates = gates
        self._faces: tuple[Face, Face] | tuple[()] = ()

    @property
    def held(self) -> bool:
        """Whether one of its directions waits for its share."""
        return any(face.held for face in self._faces)

    def open(self) -> None:
        """Join the two ends by faces. They may be done before this returns."""
        if self.untouched:
            super().open()
            return
        client, far = self.client, self.far
        client.on_done = far.on_done = self._end_done
        client.peer, far.peer = self.meet()
        client.start()
        far.start()

    def meet(self) -> tuple[End, End]:
        """The faces, created once the far end is final."""
        if not self._faces:
            to_target, to_client = self._gates
            up = Face(self.client, self.far, to_target)
            down = Face(self.far, self.client, to_client)
            up.other, down.other = down, up
            self._faces = (up, down)
        return self._faces

    def leave(self) -> None:
        """The tunnel ended: break the reference cycle of faces and ends."""
        faces, self._faces = self._faces, ()
        for face in faces:
            face.leave()


class Gates:
    """Both gates of a pot."""

    __slots__ = ("to_client", "to_target")

    def __init__(
        self, pot: Pot, loop: asyncio.AbstractEventLoop, waits: Callable[[], None]
    ) -> None:
        self.to_target = Gate(loop, lambda: pot.to_target, waits)
        self.to_client = Gate(loop, lambda: pot.to_client, waits)

    def changed(self) -> None:
        """The pot's rate changed, or was removed."""
        self.to_target.changed()
        self.to_client.changed()
