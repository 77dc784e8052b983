"""Settings from the flags and from kube-proxy's configuration file (``--config``).

This module reads, writes and watches the file; settings_file.py interprets it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

from isthmus.errors import ConfigError, IsthmusError, unreadable
from isthmus.logs import log
from isthmus.net.files import read_part
from isthmus.programs.node_proxy.kernel.manifests import Stamp, stamp_of
from isthmus.programs.node_proxy.settings import NodeProxySettings
from isthmus.programs.node_proxy.settings_file import document, overruled, parse, without_file
from isthmus.settings.options import given_in_vain
from isthmus.settings.parsing import load
from isthmus.text.go_yaml import to_yaml
from isthmus.text.located_yaml import MAX_CHARS

LOOK_S = 1.0
_log = logging.getLogger("isthmus.node_proxy")


class ConfigChanged(IsthmusError):
    """The configuration file has changed: the program has to be restarted."""


def read_settings(given: Mapping[str, Sequence[str]]) -> NodeProxySettings:
    """Settings from flags and file; flags without effect are named on standard error."""
    settings = load(NodeProxySettings, given, os.environ)
    vain = given_in_vain(NodeProxySettings, given)
    if vain:
        click.echo(f"isthmus: these flags have no effect here: {', '.join(vain)}", err=True)
    if settings.config:
        settings = read_config(settings)
        lost = overruled([name for name, texts in given.items() if texts])
        if lost:
            click.echo(f"isthmus: flags ignored because of --config: {', '.join(lost)}", err=True)
    settings.validate()
    return settings


def read_config(flags: NodeProxySettings) -> NodeProxySettings:
    """Read the file that --config names; flags provide settings for which the file has no key.

    Raises:
        ConfigError: the file cannot be read or is invalid.
    """
    try:
        raw = read_part(flags.config, 4 * MAX_CHARS + 4)
        text = raw.decode("utf-8")[: MAX_CHARS + 1]
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(f"--config {flags.config}", error) from error
    return parse(text, flags.config, flags)


async def follow_config(settings: NodeProxySettings, look_s: float = LOOK_S) -> None:
    """Watch the configuration file; an invalid file is logged and ignored.

    Raises:
        ConfigChanged: the file has valid, different settings.
    """
    path = Path(settings.config)
    # The file may have changed since it was read: the first look compares as well.
    known: Stamp | None = None
    seen: Stamp | None = None
    while True:
        before, seen = seen, stamp_of(path)
        # A file that looks the same twice has been written completely.
        if seen == before and seen != known:
            known = seen
            await _compare(settings)
        await asyncio.sleep(look_s)


async def _compare(settings: NodeProxySettings) -> None:
    try:
        now = await asyncio.to_thread(read_config, without_file(settings))
        now.validate()
    except ConfigError as error:
        log(_log, logging.ERROR, "invalid configuration file: keeping the current settings",
            error=error)  # fmt: skip
        return
    if replace(now, places=settings.places) != settings:
        log(_log, logging.WARNING, "configuration file changed: ending, to be restarted",
            file=settings.config)  # fmt: skip
        raise ConfigChanged(f"{settings.config} changed")


def write_config(settings: NodeProxySettings) -> None:
    """Write the settings in force to the file that --write-config-to names.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        Path(settings.write_config_to).write_text(to_yaml([document(settings)]), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--write-config-to {settings.write_config_to}: cannot write the file:"
            f" {error.strerror or error}"
        ) from error
