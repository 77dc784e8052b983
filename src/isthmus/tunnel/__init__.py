"""The data path, purely: ends, join, and the multiplexing session with its flow control."""
