"""The commands of a lab: filling in placeholders, and the health and admin ports of programs.

A placeholder is ``{name}``: the lab's directory, its certificates, its hosts' addresses; other
braces, such as those of JSON, stay. reading.py knows where placeholders are allowed, and rejects
unknown ones. Health and admin ports are derived from the command line alone.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from isthmus.frame.program import Program
from isthmus.lab.topology import Topology
from isthmus.programs import program_named
from isthmus.settings.options import Option, options_of

if TYPE_CHECKING:
    from isthmus.tools.pki.making import PkiFiles  # cryptography is slow to import

# Where to reach a program that is bound to all addresses.
_ALL_ADDRESSES = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}

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
#: What a topology that ``builds`` a cluster may name: the folder of CNI's programs, our own image.
BUILT = ("cni_bin", "own_image")
_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_.-]*)\}")


def kind(command: Sequence[str]) -> str:
    """The name of the Isthmus program that a command runs; empty for any other."""
    program = _program(command)
    return program.name if program else ""


def ready_url(command: Sequence[str]) -> str:
    """A URL that answers 200 once the program is up; empty if unknown.

    Placeholders of the command stay in the URL.
    """
    program = _program(command)
    if program is None or program.operator_flags is None:
        return ""
    base = _url(
        program, command, host="health_bind_address", port="health_port", cert="health_cert"
    )
    # A server without agents is alive but not ready, and agents start later.
    path = "/healthz" if program.name == "server" else "/readyz"
    return f"{base}{path}" if base else ""


def admin_url(command: Sequence[str]) -> str:
    """The URL of the admin port, without a path; empty if unknown."""
    program = _program(command)
    if program is None or program.operator_flags is None:
        return ""
    return _url(program, command, host="bind_address", port="port", cert="cert")


def _program(command: Sequence[str]) -> Program | None:
    if len(command) < 2 or command[0] != "isthmus":
        return None
    return program_named(command[1])


def _url(program: Program, command: Sequence[str], *, host: str, port: str, cert: str = "") -> str:
    """The URL of a port, by the fields of AdminSettings; https if there is a ``cert``."""
    declared = {
        one.field: one for one in options_of(program.settings_class) if one.block == "admin"
    }
    address, number = _given(declared[host], command), _given(declared[port], command)
    if number == "0":
        return ""  # any free port
    address = _ALL_ADDRESSES.get(address, address)
    scheme = "https" if cert and _given(declared[cert], command) else "http"
    bare = ":" in address or address.endswith("address6}")
    return f"{scheme}://[{address}]:{number}" if bare else f"{scheme}://{address}:{number}"


def _given(option: Option, command: Sequence[str]) -> str:
    """The last value of a flag, as ``--flag=value`` or ``--flag value``, or its default."""
    found = str(option.default)
    names = [f"--{flag}" for flag in (option.flag, *option.aliases)]
    for word, after in zip(command, (*command[1:], ""), strict=True):
        flag, equals, value = word.partition("=")
        if flag in names:
            found = value if equals else after
    return found


def fill(text: str, values: Mapping[str, str]) -> str:
    """Fill in the values; a placeholder without a value stays."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)


def unknown(text: str, names: Collection[str]) -> list[str]:
    """The placeholders in the text that are not among these names, each once."""
    found = dict.fromkeys(_PLACEHOLDER.findall(text))
    return [name for name in found if name not in names]


def addresses(topology: Topology) -> dict[str, str]:
    """``HOST.address`` and ``HOST.address6``: a host's first address of each IP version."""
    found: dict[str, str] = {}
    for host in topology.hosts:
        for address in host.addresses:
            kind = "address" if address.version == 4 else "address6"
            found.setdefault(f"{host.name}.{kind}", str(address))
    return found


def known(topology: Topology) -> frozenset[str]:
    """The names of all placeholders of a topology."""
    built = BUILT if topology.builds else ()
    return frozenset({"dir", "name", "python", *built, *PKI_FILES, *addresses(topology)})


def values(topology: Topology, *, directory: str, files: PkiFiles) -> dict[str, str]:
    """The values of placeholders; ``directory`` is the lab's, ``files`` are its certificates."""
    return {
        "dir": directory,
        "name": topology.name,
        "python": sys.executable,
        **{name: str(getattr(files, name)) for name in PKI_FILES},
        **addresses(topology),
    }
