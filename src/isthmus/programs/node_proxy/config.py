"""Flags and the file of ``isthmus node-proxy --config``, which is kube-proxy's, as settings.

The file is opened, written and followed here; what it says is settings_file.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

from isthmus.errors import ConfigError, IsthmusError
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
    """The file says something else than at the start: the program has to start again."""


def read_settings(given: Mapping[str, Sequence[str]]) -> NodeProxySettings:
    """What flags and file say; what has no effect is named on standard error."""
    settings = load(NodeProxySettings, given, os.environ)
    vain = given_in_vain(NodeProxySettings, given)
    if vain:
        click.echo(f"isthmus: these flags have no effect here: {', '.join(vain)}", err=True)
    if settings.config:
        settings = read_config(settings)
        lost = overruled([name for name, texts in given.items() if texts])
        if lost:
            click.echo(
                f"isthmus: these flags are only used without --config: {', '.join(lost)}", err=True
            )
    settings.validate()
    return settings


def read_config(flags: NodeProxySettings) -> NodeProxySettings:
    """Read the file that --config names; the flags give what it has no key for.

    Raises:
        ConfigError: it cannot be read, or says something that cannot be used.
    """
    try:
        raw = read_part(flags.config, 4 * MAX_CHARS + 4)
        text = raw.decode("utf-8")[: MAX_CHARS + 1]
    except UnicodeDecodeError as error:
        raise ConfigError(f"--config {flags.config}: not text") from error
    except OSError as error:
        raise ConfigError(
            f"--config {flags.config}: cannot be read: {error.strerror or error}"
        ) from error
    return parse(text, flags.config, flags)


async def follow_config(settings: NodeProxySettings, look_s: float = LOOK_S) -> None:
    """Look at the file of these settings for ever; one that is wrong is said, and not used.

    Raises:
        ConfigChanged: other settings follow from it, which are right.
    """
    path = Path(settings.config)
    # It may have changed since it was read: the first look compares too.
    known: Stamp | None = None
    seen: Stamp | None = None
    while True:
        before, seen = seen, stamp_of(path)
        # What looks the same twice is written to the end.
        if seen == before and seen != known:
            known = seen
            await _compare(settings)
        await asyncio.sleep(look_s)


async def _compare(settings: NodeProxySettings) -> None:
    try:
        now = await asyncio.to_thread(read_config, without_file(settings))
        now.validate()
    except ConfigError as error:
        log(_log, logging.ERROR, f"{error}; the settings read before stay in use")
        return
    if replace(now, places=settings.places) != settings:
        log(_log, logging.WARNING, "the file of --config changed; ending, to be started again",
            file=settings.config)  # fmt: skip
        raise ConfigChanged(f"{settings.config} changed")


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
