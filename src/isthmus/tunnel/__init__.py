"""The data path without I/O: ends, join, and the multiplexing session with its flow control."""
