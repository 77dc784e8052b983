"""A HostedCluster: a document or one ConfigError that names the place."""

from texts import NAME, read

from isthmus.hosting import document


def check(data: bytes) -> None:
    """Read any text."""
    read(data, lambda text: document.read(text, NAME))
