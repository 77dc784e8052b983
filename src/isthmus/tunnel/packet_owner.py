"""What a call's packets (packet_link.py) report to the link around it."""

from __future__ import annotations

from typing import Protocol


class Owner(Protocol):
    """The link around a call."""

    def asked(self, protocol: str, address: str, random: int, ours: bytes) -> None:
        """The peer asks for a dial; ``accept`` or ``refuse`` answers.

        ``ours`` is what a program of ours says about it.

        Raises:
            ProtocolError: that is not what such a program would say.
        """

    def taken_back(self, random: int) -> None:
        """The peer does not want that dial any more."""

    def told_to_drain(self) -> None:
        """The peer takes no new dials."""

    def call_over(self, text: str) -> None:
        """The call ended or was reset: so is the link."""

    def ease_later(self, delay_s: float) -> None:
        """Call ``ease`` then."""

    def broke_rules(self, what: str) -> None:
        """The peer sent what it may not."""
