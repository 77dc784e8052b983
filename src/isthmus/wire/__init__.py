"""Pure conversions between bytes and values: frames, heads and messages, without I/O."""
