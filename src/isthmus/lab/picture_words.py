"""How numbers are written in a picture: bytes, times, and what a bad line does."""

from __future__ import annotations

from isthmus.lab.picture_live import Link
from isthmus.lab.topology import Shape

UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def bytes_text(count: int) -> str:
    """Write a number of bytes with at most three digits: ``0 B``, ``1.2 kB``, ``340 MB``."""
    value = float(count)
    for unit in UNITS:
        if value < 999.5 or unit == UNITS[-1]:
            break
        value /= 1000
    digits = 1 if unit != "B" and value < 9.95 else 0
    return f"{value:.{digits}f} {unit}"


def rtt_text(seconds: float) -> str:
    """Write a round trip: ``40 µs``, ``0.4 ms``, ``101 ms``, ``1.5 s``."""
    if seconds < 0.0001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.01:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def shape_text(shape: Shape | None) -> str:
    """Write what a line does to frames: ``50 ms, 1 % loss, 20 Mbit/s``; empty if nothing."""
    if shape is None:
        return ""
    parts = (
        f"{shape.delay_ms:g} ms" if shape.delay_ms else "",
        f"{shape.loss * 100:g} % loss" if shape.loss else "",
        f"{shape.rate_mbit:g} Mbit/s" if shape.rate_mbit else "",
    )
    return ", ".join(part for part in parts if part)


def counted(number: int, what: str) -> str:
    """Write ``1 tunnel``, ``3 tunnels``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def flow_text(to_target: int | None, to_client: int | None) -> str:
    """Write the bytes each way: up towards the target, down towards the client."""
    up = "" if to_target is None else f"↑ {bytes_text(to_target)}"
    down = "" if to_client is None else f"↓ {bytes_text(to_client)}"
    return f"{up} {down}".strip()


def link_texts(link: Link) -> tuple[str, ...]:
    """Write a link's numbers, most telling first; its state only when it is not well."""
    stalled = link.stalled
    return tuple(
        part
        for part in (
            "" if link.well else (link.state or "state unknown"),
            counted(link.open, "tunnel") + (f", {stalled} stalled" if stalled else ""),
            flow_text(link.to_agent, link.to_server),
            "" if link.rtt_s is None else f"rtt {rtt_text(link.rtt_s)}",
        )
        if part
    )
