"""What agents may claim: a document or one ConfigError that names the place."""

from texts import NAME, read

from isthmus.dial import settings_entitlements as entitlements


def check(data: bytes) -> None:
    """Read any text."""
    read(data, lambda text: entitlements.parse(text, NAME))
