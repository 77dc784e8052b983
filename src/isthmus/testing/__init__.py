"""Public fakes for tests: ends and carriers in memory, and a clock that a test sets."""

from isthmus.testing.carriers import Frame, MemoryCarrier, MemoryLink, take_frames
from isthmus.testing.clock import ManualClock
from isthmus.testing.ends import MemoryEnd
from isthmus.testing.http2 import Http2Frame, Http2Pair, Recorder, take_http2_frames

__all__ = [
    "Frame",
    "Http2Frame",
    "Http2Pair",
    "ManualClock",
    "MemoryCarrier",
    "MemoryEnd",
    "MemoryLink",
    "Recorder",
    "take_frames",
    "take_http2_frames",
]
