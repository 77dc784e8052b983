"""Whether everything that a node dials is denied: then its server's settings are wrong, or ours.

One denial says little: somebody may have asked for what nobody should reach. Five dials in a row
that were all denied, within two minutes, say that the node is cut off; one that was not denied, or
two minutes without any, take it back. So it does not flap while programs of the node try again, and
one target of several that is not permitted does not make an agent unready while others are used.

Pure: time comes in as an argument.
"""

from __future__ import annotations

from collections import deque

IN_A_ROW = 5
WITHIN_S = 120.0


class Denials:
    """The last dials of a node, as far as they were denied."""

    def __init__(self, *, in_a_row: int = IN_A_ROW, within_s: float = WITHIN_S) -> None:
        self._within_s = within_s
        self._denied: deque[tuple[float, str]] = deque(maxlen=in_a_row)

    def denied(self, destination: str, *, now: float) -> None:
        """A server does not permit this destination."""
        self._denied.append((now, destination))

    def other(self) -> None:
        """Another dial was not denied, whatever became of it."""
        self._denied.clear()

    def trouble(self, *, now: float) -> str:
        """Say that every recent dial was denied; empty when that is not so."""
        row = self._denied
        if len(row) < (row.maxlen or 0) or now - row[0][0] > self._within_s:
            return ""
        names = ", ".join(dict.fromkeys(destination for _, destination in row))
        return (
            f"the server denied the last {len(row)} connections of the node, to {names}: see"
            " --allowed-destination and the feature gate at the server"
        )
