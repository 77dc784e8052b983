"""Counts of konnectivity's packets."""

from __future__ import annotations

from isthmus.wire.packet import DATA, DRAIN


class Packets:
    """How many packets went each way, by type; shared by all links or clients of a program."""

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.received = [0] * (DRAIN + 1)
        self.sent = [0] * (DRAIN + 1)

    def count(self, kind: int, *, has_data: bool) -> None:
        """Count a packet that was parsed; data is counted where it is handed on."""
        if 0 <= kind <= DRAIN and not (kind == DATA and has_data):
            self.received[kind] += 1
