"""haproxy.cfg, converted: a document or one ConfigError that names the place."""

from texts import NAME, read

from isthmus.programs.apiserver_proxy import settings_haproxy_cfg as haproxy_cfg


def check(data: bytes) -> None:
    """Read any text."""
    read(data, lambda text: haproxy_cfg.convert(text, NAME))
