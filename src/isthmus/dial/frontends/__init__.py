"""Frontends, each of which reads the target of a new connection."""
