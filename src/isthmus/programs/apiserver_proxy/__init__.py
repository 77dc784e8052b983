"""The node-local proxy of API servers: which one is well, and each client's way to it."""
