"""Routes of the SNI router: a document or one ConfigError that names the place."""

from texts import NAME, read

from isthmus.programs.sni_router import settings_routes as sni_routes


def check(data: bytes) -> None:
    """Read any text."""
    read(data, lambda text: sni_routes.parse(text, NAME))
