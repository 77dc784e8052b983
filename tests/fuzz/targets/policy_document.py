"""The policy: a document or one ConfigError that names the place."""

from texts import NAME, read

from isthmus.dial import settings_policy as policy


def check(data: bytes) -> None:
    """Read any text."""
    read(data, lambda text: policy.parse(text, NAME))
