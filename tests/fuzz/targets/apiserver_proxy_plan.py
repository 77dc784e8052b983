"""The plan of the node-local API proxy: a document or one ConfigError that names the place."""

from texts import NAME, read

from isthmus.programs.apiserver_proxy import settings_file as apiserver_proxy_file


def check(data: bytes) -> None:
    """Read any text."""
    read(data, lambda text: apiserver_proxy_file.parse(text, NAME))
