"""Bytes to values and back, purely: frames, heads and messages. Nothing here does I/O."""
