"""Loads configurations of the connectivity service, and checks the files and dialers they name.

settings_connectivity.py parses them. This module does what needs a disk: it opens files, checks
that certificates and keys exist, are readable and match, and that custom dialers are
installed. As in kube-apiserver, a relative path
in a configuration is relative to the working directory, not to the configuration file.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from isthmus.dial.rules_connectivity import ConnectivityConfig
from isthmus.dial.settings_connectivity import DocumentPart, combine, read_part
from isthmus.dial.settings_connectivity_fields import Draft, NamedFile
from isthmus.errors import ConfigError, unreadable, why_unreadable
from isthmus.net.contexts import TlsFiles, client_context
from isthmus.net.files import read_part as read_beginning
from isthmus.text.located_yaml import MAX_CHARS, near, short

STDIN = "-"

_LABELS = ("clientCert", "clientKey", "caBundle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A loaded configuration, the kinds of its documents, and warnings.

    ``kube`` is what kube-apiserver would read from the first file; None if that has another kind.
    """

    config: ConnectivityConfig
    kube: ConnectivityConfig | None
    kinds: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]


def load(paths: Sequence[str], *, check_files: bool = True) -> Loaded:
    """Read one configuration from one or several files; ``-`` is standard input.

    ``check_files`` also checks the certificates, keys and dialers that it names.

    Raises:
        ConfigError: one line for each error, ``path:line:column: field: what``.
    """
    wrong: list[str] = []
    parts: list[DocumentPart] = []
    for path in paths:
        try:
            name = "<stdin>" if path == STDIN else path
            parts.append(read_part(_text(path), name=name))
        except ConfigError as error:
            wrong.append(str(error))
    config = combine(parts)
    warnings = [warning for part in parts for warning in part.warnings]
    for draft in (draft for part in parts for draft in part.drafts if check_files):
        warnings += _check(draft)
    for part in parts:
        try:
            part.errors.raise_any()
        except ConfigError as error:
            wrong.append(str(error))
    if wrong:
        raise ConfigError("\n".join(wrong))
    kinds = tuple(kind for part in parts for kind in part.kinds)
    kube = None
    if parts[0].kube is not None:
        networks = {draft.network.name: draft.network for draft in parts[0].kube}
        kube = ConnectivityConfig(networks=networks)
    return Loaded(config=config, kube=kube, kinds=kinds, warnings=tuple(warnings))


def _text(path: str) -> str:
    try:
        if path == STDIN:
            return sys.stdin.read(MAX_CHARS + 1)
        with open(path, encoding="utf-8") as file:
            return file.read(MAX_CHARS + 1)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error


def _check(draft: Draft) -> list[str]:
    """Check the files of a network; errors are recorded at their fields, warnings returned."""
    _check_dialer(draft)
    tls = draft.tls
    if tls is None:
        return []
    wrong = [(file, what) for file in tls.files if (what := _unreadable(file.path))]
    for file, what in wrong:
        file.at.error(f"{file.path}: {what}")
    if wrong:
        return []
    ca, cert, key = (file.path if file else "" for file in (tls.ca, tls.cert, tls.key))
    if tls.ca is not None:
        _try(TlsFiles("", "", ca, _LABELS), [tls.ca])
    if tls.cert is not None and tls.key is not None:
        _try(TlsFiles(cert, key, "", _LABELS), [tls.cert, tls.key])
    warnings = []
    if tls.cert is None and tls.key is None:
        warnings.append(
            f"{draft.network.where}: network {draft.network.name} has no client certificate,"
            " and a server that asks for one will refuse it"
        )
    if tls.key is not None and os.stat(key).st_mode & stat.S_IROTH:
        warnings.append(f"{tls.key.at.where}: {tls.key.at.path}: {key} is readable by every user")
    return warnings


def _check_dialer(draft: Draft) -> None:
    name = draft.network.connection.dialer
    if not name or draft.connection_at is None:
        return
    from isthmus.dial.dialers.custom import installed

    there = sorted(installed())
    if name in there:
        return
    known = f"installed are {', '.join(there)}" if there else "none is installed"
    draft.connection_at.error(
        f"dialer {short(name)} is not installed: install the package that offers it"
        f" ({known}{near(name, there)})",
        at=name,
    )


def _unreadable(path: str) -> str:
    """Why a file cannot be read; empty if it can."""
    try:
        read_beginning(path, 1)
    except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
        return why_unreadable(error)
    return ""


def _try(files: TlsFiles, named: Sequence[NamedFile]) -> None:
    try:
        client_context(files)
    except ConfigError as error:
        # The message starts with the field concerned.
        label, _, rest = str(error).partition(" ")
        file = next((one for one in named if one.at.path.endswith(f".{label}")), named[-1])
        file.at.error(rest)
