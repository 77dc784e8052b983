"""KubeProxyConfiguration: settings or one ConfigError that names the place."""

from texts import NAME, read

from isthmus.programs.node_proxy import settings_file as node_proxy_file
from isthmus.programs.node_proxy.settings import NodeProxySettings

_FLAGS = NodeProxySettings()


def check(data: bytes) -> None:
    """Read any text."""
    read(data, lambda text: node_proxy_file.parse(text, NAME, _FLAGS))
