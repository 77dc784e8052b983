"""Public fakes for tests: ends and carriers in memory, and a clock moved by hand."""

from isthmus.testing.carriers import Frame, MemoryCarrier, MemoryLink, take_frames
from isthmus.testing.clock import ManualClock
from isthmus.testing.ends import MemoryEnd

__all__ = ["Frame", "ManualClock", "MemoryCarrier", "MemoryEnd", "MemoryLink", "take_frames"]
