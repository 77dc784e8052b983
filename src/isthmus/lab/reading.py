"""Reads a topology from YAML, strictly: reports all errors at once, each with its position.

This module reads the document and what concerns all hosts; reading_hosts.py reads networks and
hosts, reading_steps.py the steps, reading_words.py the smallest parts. catalog.py opens files.
Imports yaml, which is slow.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import product

from isthmus.errors import ConfigError
from isthmus.lab import reading_words as words
from isthmus.lab.commands import addresses, fill, known
from isthmus.lab.reading_hosts import NetworkTable, check_behind, read_hosts, read_networks
from isthmus.lab.reading_steps import DIRECT, StepsReader
from isthmus.lab.topology import (
    Allow,
    FrontendProtocol,
    IpAddress,
    LabDoor,
    LabFrontend,
    LabHost,
    LabNetwork,
    Topology,
    Wall,
)
from isthmus.text.located_yaml import Fields, Located, compose, read_all

MAX_WAY_CHARS = 40

TOPOLOGY_KEYS = (
    "title",
    "about",
    "wall",
    "networks",
    "allow",
    "hosts",
    "names",
    "files",
    "ways",
    "needs",
    "congestion_control",
    "builds",
    "door",
    "steps",
)
ALLOW_KEYS = ("from", "to", "port")
WAY_KEYS = ("protocol", "uds", "tcp")
DOOR_KEYS = ("host", "port", "kubeconfig")

_TOPOLOGY_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?", re.ASCII)


def read(text: str, *, name: str, source: str) -> Topology:
    """Read a topology; ``name`` is its name, ``source`` the file's name in messages.

    Raises:
        ConfigError: one line for each error, ``source:line:column: field: what``.
    """
    if not _TOPOLOGY_NAME.fullmatch(name):
        raise ConfigError(
            f"{source}: a topology is named after its file, and {name!r} is not a valid name:"
            " at most 40 lower-case letters, digits and hyphens"
        )
    root = compose(text, source, expected="expected a topology")
    topology = _topology(root, name)
    root.errors.raise_any()
    return topology


def _topology(root: Located, name: str) -> Topology:
    found = root.mapping(TOPOLOGY_KEYS, required=("title", "networks", "hosts"))
    networks = read_networks(found["networks"]) if "networks" in found else NetworkTable()
    builds = found.boolean("builds", False)
    hosts: tuple[LabHost, ...] = ()
    if "hosts" in found:
        hosts = read_hosts(found["hosts"], name, networks, builds=builds)
    for host in hosts:
        if host.machine and not builds:
            found["hosts"].error(f"{host.name} is a machine, which needs builds: true")
    check_behind(networks, hosts)
    title = found.text("title")
    if "title" in found and not title.strip():
        found["title"].error("is empty: write a title")
    topology = Topology(
        name=name,
        title=" ".join(title.split()),
        about=found.text("about"),
        wall=found.member("wall", Wall.REJECT),
        networks=tuple(networks.values()),
        hosts=hosts,
        allows=tuple(
            allow
            for node in found.nodes("allow", most=words.MAX_ITEMS)
            for allow in _allows(node, networks, hosts)
        ),
        names=_names(found["names"], hosts) if "names" in found else (),
        needs=read_all(found.one_or_nodes("needs", most=words.MAX_ITEMS), words.program),
        congestion_control=found.value("congestion_control", words.congestion_control, ""),
        builds=builds,
    )
    return _with_placeholders(topology, found)


def _with_placeholders(topology: Topology, found: Fields) -> Topology:
    """Read what may contain hosts' addresses: files, ways, steps."""
    names = known(topology)
    files = found["files"].entries(most=words.MAX_ITEMS) if "files" in found else {}
    for key, _ in files.values():
        key.read(words.file_name)
    ways = _ways(found["ways"], names, addresses(topology)) if "ways" in found else ()
    steps = StepsReader(
        hosts={host.name: host for host in topology.hosts},
        networks={network.name: network for network in topology.networks},
        processes={one.name: one for one in topology.processes},
        ways=[way.name for way in ways],
        placeholders=names,
    )
    return replace(
        topology,
        files=tuple((name, words.filled(at.value, names) or "") for name, at in files.items()),
        ways=ways,
        door=_door(found["door"], topology, files) if "door" in found else None,
        steps=steps.read(found["steps"]) if "steps" in found else (),
    )


def _door(node: Located, topology: Topology, files: Collection[str]) -> LabDoor:
    found = node.mapping(DOOR_KEYS, required=DOOR_KEYS)
    hosts = [host.name for host in topology.hosts]
    return LabDoor(
        host=found["host"].reference(hosts, "host") if "host" in found else "",
        port=found.integer("port", 1, *words.PORTS),
        kubeconfig=found["kubeconfig"].reference(files, "file") if "kubeconfig" in found else "",
    )


def _allows(
    node: Located, networks: Mapping[str, LabNetwork], hosts: Collection[LabHost]
) -> Iterator[Allow]:
    """One rule for each pair of source and target."""
    found = node.mapping(ALLOW_KEYS, required=("from", "to"))
    names = [*networks, *(host.name for host in hosts)]
    sides: dict[str, list[str]] = {"from": [], "to": []}
    for side, read in sides.items():
        for one in words.some(found, side):
            name = one.reference(names, "host or network")
            if name in networks and not networks[name].gateway:
                one.error(f"network {name} has no gateway, so none of its traffic reaches the wall")
            if name and side == "to" and name in sides["from"]:
                one.error(f"is {name} itself, whose traffic does not cross the wall")
            read.append(name)
    ports = tuple(port.integer(*words.PORTS) for port in words.some(found, "port"))
    for source, target in product(sides["from"], sides["to"]):
        yield Allow(source=source, target=target, ports=ports)


def _names(node: Located, hosts: Collection[LabHost]) -> tuple[tuple[str, IpAddress], ...]:
    read = []
    for name, (key, value) in node.entries(most=words.MAX_ITEMS).items():
        key.read(words.dns_name)
        if name == "localhost" or any(name == host.name for host in hosts):
            key.error("is already the name of a host")
        address = value.read(words.address)
        read += [(name, address)] if address is not None else []
    return tuple(read)


def _ways(
    node: Located, placeholders: Collection[str], filling: Mapping[str, str]
) -> tuple[LabFrontend, ...]:
    ways = []
    for name, (key, value) in node.entries(most=words.MAX_ITEMS).items():
        words.check_name(key, name, "a way", most=MAX_WAY_CHARS, reserved=(DIRECT, "wall", "lab"))
        found = value.mapping(WAY_KEYS, required=("protocol",))
        if value.is_mapping and ("uds" in found) == ("tcp" in found):
            value.error("needs either uds or tcp")
        uds, tcp = (
            words.filled(found[kind], placeholders) if kind in found else None
            for kind in ("uds", "tcp")
        )
        if uds is not None and not uds.startswith(("/", "{dir}/")):
            found["uds"].error("must be an absolute path, such as {dir}/connect.sock")
        if tcp is not None:
            found["tcp"].read(lambda text: words.target(fill(text, filling)))
        protocol = found.member("protocol", FrontendProtocol.HTTP_CONNECT)
        ways.append(LabFrontend(name=name, protocol=protocol, uds=uds or "", tcp=tcp or ""))
    return tuple(ways)
