"""What is read from an agent before it is welcome: counted, and never more than a greeting takes.

Stands between the carrier and the session until then, so that a link that is ready pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.errors import ProtocolError
from isthmus.net.carriers import Carried

#: A Hello has 64 KiB at most, a call of konnectivity's about as much; with room for frames.
MAX_UNPROVEN_BYTES = 128 * 1024

#: Asks whether the peer may send this many more bytes.
MayRead = Callable[[int], bool]


class Unproven:
    """Counts what it passes on; see carriers.Carried."""

    __slots__ = ("_may_read", "read_bytes", "session")

    def __init__(self, session: Carried, may_read: MayRead) -> None:
        self.session = session
        self.read_bytes = 0
        self._may_read = may_read

    def heard(self) -> None:
        """Bytes arrived."""
        self.session.heard()

    def receive(self, view: memoryview) -> None:
        """Take them.

        Raises:
            ProtocolError: they are too many of somebody who has not shown who it is.
        """
        self.read_bytes += len(view)
        if self.read_bytes > MAX_UNPROVEN_BYTES or not self._may_read(len(view)):
            raise ProtocolError(
                f"link: the peer sent {self.read_bytes} bytes without showing who it is"
            )
        self.session.receive(view)

    def flush(self) -> None:
        """Write out what this batch of events made."""
        self.session.flush()

    def resume(self) -> None:
        """There is room for more."""
        self.session.resume()
