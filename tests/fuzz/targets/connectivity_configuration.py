"""Egress selectors and connectivity services: a document, or one ConfigError with its place."""

from texts import NAME, read

from isthmus.dial import settings_connectivity as connectivity


def check(data: bytes) -> None:
    """Read any text."""
    read(data, lambda text: connectivity.read(text, name=NAME))
