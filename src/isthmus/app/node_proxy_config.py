"""The file of ``isthmus node-proxy --config``, which is kube-proxy's, opened and written."""

from __future__ import annotations

from pathlib import Path

from isthmus.config.go_yaml_writing import to_yaml
from isthmus.config.located import MAX_CHARS
from isthmus.config.node_proxy import NodeProxySettings
from isthmus.config.node_proxy_file import document, parse
from isthmus.errors import ConfigError


def read_config(flags: NodeProxySettings) -> NodeProxySettings:
    """Read the file that --config names; the flags give what it has no key for.

    Raises:
        ConfigError: it cannot be read, or says something that cannot be used.
    """
    try:
        with Path(flags.config).open(encoding="utf-8") as file:
            text = file.read(MAX_CHARS + 1)
    except UnicodeDecodeError as error:
        raise ConfigError(f"--config {flags.config}: not text") from error
    except OSError as error:
        raise ConfigError(
            f"--config {flags.config}: cannot be read: {error.strerror or error}"
        ) from error
    return parse(text, flags.config, flags)


def write_config(settings: NodeProxySettings) -> None:
    """Write the settings in force to the file that --write-config-to names.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        Path(settings.write_config_to).write_text(to_yaml([document(settings)]), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--write-config-to {settings.write_config_to}: cannot be written:"
            f" {error.strerror or error}"
        ) from error
