"""The bounds of one HTTP/2 connection."""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.wire.http2 import DEFAULT_WINDOW, MAX_WINDOW

KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Limits:
    """What a peer may make us keep, and for how long."""

    max_streams: int = 16_384
    stream_window_bytes: int = 256 * KIB
    connection_window_bytes: int = 4 * MIB
    max_header_list_bytes: int = 16 * KIB
    max_continuations: int = 8
    max_waiting_control_bytes: int = MIB
    batch_bytes: int = 256 * KIB
    ping_every_s: float = 10.0
    dead_after_s: float = 20.0
    #: How long the last bytes of an ended stream may wait without any of them being taken: as long
    #: as a socket's (frame/tunnels.py).
    linger_s: float = 300.0
    #: While the budget is exhausted: a reader that takes nothing for so long is reset.
    stuck_s: float = 300.0

    def __post_init__(self) -> None:
        for window in (self.stream_window_bytes, self.connection_window_bytes):
            # A peer may use the default until it has read our SETTINGS; none can be taken back.
            if not DEFAULT_WINDOW <= window <= MAX_WINDOW:
                raise ValueError(f"a window of {window} bytes, not {DEFAULT_WINDOW} to 2**31 - 1")
