"""The node service proxy: objects in, rules in the kernel out, health and metrics."""
