"""The words in braces that a lab fills in: its directory, its certificates, its hosts' addresses.

A placeholder is ``{name}``; anything else with braces, JSON for one, is left alone. Where they may
stand is said by reading.py, which refuses those that nobody would fill in.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from isthmus.lab.topology import Topology

if TYPE_CHECKING:
    from isthmus.tools.pki.making import PkiFiles  # cryptography is slow to import

#: The files of the lab's own PKI: fields of isthmus.tools.pki.making.PkiFiles.
PKI_FILES = (
    "ca_cert",
    "ca_key",
    "client_ca_cert",
    "client_ca_key",
    "server_cert",
    "server_key",
    "agent_cert",
    "agent_key",
    "client_cert",
    "client_key",
)
_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_.-]*)\}")


def fill(text: str, values: Mapping[str, str]) -> str:
    """Put the values in; a placeholder without one stays as it is."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)


def unknown(text: str, names: Collection[str]) -> list[str]:
    """The names of the placeholders in the text that are none of these, each once."""
    found = dict.fromkeys(_PLACEHOLDER.findall(text))
    return [name for name in found if name not in names]


def addresses(topology: Topology) -> dict[str, str]:
    """``HOST.address`` and ``HOST.address6``: the first of each kind that a host has."""
    found: dict[str, str] = {}
    for host in topology.hosts:
        for address in host.addresses:
            kind = "address" if address.version == 4 else "address6"
            found.setdefault(f"{host.name}.{kind}", str(address))
    return found


def known(topology: Topology) -> frozenset[str]:
    """The names of all placeholders of a topology."""
    return frozenset({"dir", "name", "python", *PKI_FILES, *addresses(topology)})


def values(topology: Topology, *, directory: str, files: PkiFiles) -> dict[str, str]:
    """What is filled in: ``directory`` is the lab's own, ``files`` are its certificates."""
    return {
        "dir": directory,
        "name": topology.name,
        "python": sys.executable,
        **{name: str(getattr(files, name)) for name in PKI_FILES},
        **addresses(topology),
    }
