"""The document, networks, rules, names, files and ways; hosts and steps have files of their own."""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from isthmus.errors import ConfigError
from isthmus.lab import catalog, reading, reading_hosts, reading_steps
from isthmus.lab.reading import read
from isthmus.lab.topology import (
    Allow,
    FrontendProtocol,
    LabDoor,
    LabFrontend,
    LabNetwork,
    Topology,
    Wall,
)

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "topologies.md"
SMALL = """\
title: Small
networks:
  left: {cidr: 10.1.0.0/24}
  right: {cidr: [10.2.0.0/24, "fd00:2::/64"]}
  island: {cidr: 10.1.0.0/24, gateway: false}
hosts:
  a: {at: {left: 10.1.0.10}}
  b: {at: {right: 10.2.0.10}}
"""


def topology(more: str = "") -> Topology:
    return read(SMALL + more, name="small", source="s.yaml")


def errors(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text, name="small", source="s.yaml")
    return str(caught.value).splitlines()


def test_networks_and_defaults() -> None:
    found = topology()
    assert (found.name, found.title, found.about) == ("small", "Small", "")
    assert found.wall is Wall.REJECT
    assert found.networks == (
        LabNetwork(name="left", cidrs=(ip_network("10.1.0.0/24"),)),
        LabNetwork(name="right", cidrs=(ip_network("10.2.0.0/24"), ip_network("fd00:2::/64"))),
        LabNetwork(name="island", cidrs=(ip_network("10.1.0.0/24"),), gateway=False),
    )
    empty: tuple[object, ...] = ()
    for part in (found.allows, found.names, found.files, found.ways, found.steps, found.needs):
        assert part == empty
    assert found.congestion_control == ""


def test_everything_about_all_hosts_is_read() -> None:
    found = topology(
        "about: More words.\n"
        "wall: drop\n"
        "allow:\n"
        "- {from: left, to: b, port: [80, 443]}\n"
        "- {from: [a, right], to: left}\n"
        "names: {web.example: 10.96.0.1, six.example: 'fd00::1'}\n"
        'files: {conf.json: \'{"dir": "{dir}"}\'}\n'
        "ways:\n"
        "  one: {protocol: grpc, uds: '{dir}/x.sock'}\n"
        "  two: {protocol: http-connect, tcp: '{a.address}:8090'}\n"
        "  three: {protocol: http-connect, tcp: 'a:8090'}\n"
        "needs: [kubectl, nft]\n"
        "congestion_control: bbr\n"
    )
    assert found.about == "More words."
    assert found.wall is Wall.DROP
    assert found.allows == (
        Allow(source="left", target="b", ports=(80, 443)),
        Allow(source="a", target="left"),
        Allow(source="right", target="left"),
    )
    assert found.names == (
        ("web.example", ip_address("10.96.0.1")),
        ("six.example", ip_address("fd00::1")),
    )
    assert found.files == (("conf.json", '{"dir": "{dir}"}'),)
    assert found.ways == (
        LabFrontend(name="one", protocol=FrontendProtocol.GRPC, uds="{dir}/x.sock"),
        LabFrontend(name="two", protocol=FrontendProtocol.HTTP_CONNECT, tcp="{a.address}:8090"),
        LabFrontend(name="three", protocol=FrontendProtocol.HTTP_CONNECT, tcp="a:8090"),
    )
    assert found.needs == ("kubectl", "nft")
    assert found.congestion_control == "bbr"


def test_all_errors_come_at_once_with_their_places() -> None:
    text = (
        "titel: x\n"
        "networks:\n"
        "  left: {cidr: 10.1.0.1/24}\n"
        "hosts:\n"
        "  a: {at: {lift: 10.1.0.10}}\n"
        "steps:\n"
        "- {from: b, get: a:80}\n"
    )
    assert errors(text) == [
        "s.yaml:1:1: title: is missing",
        "s.yaml:1:1: unknown key 'titel', did you mean title?",
        "s.yaml:3:16: networks.left.cidr: '10.1.0.1/24' has bits below its prefix, did you mean "
        "10.1.0.0/24?",
        "s.yaml:5:12: hosts.a.at.lift: no network of this name, did you mean left?",
        "s.yaml:7:10: steps[0].from: there is no host 'b'",
    ]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("wall: dorp", "9:7: wall: must be reject or drop, not 'dorp', did you mean drop?"),
        ("about: 7", "9:8: about: must be text, not '7' (YAML: int): put it in quotes"),
        ("allow: {}", "9:8: allow: must be a list, not a mapping"),
        ("allow: [{to: a}]", "9:9: allow[0].from: is missing"),
        (
            "allow: [{from: lefd, to: b}]",
            "9:16: allow[0].from: there is no host or network 'lefd', did you mean left?",
        ),
        (
            "allow: [{from: island, to: b}]",
            "9:16: allow[0].from:",
        ),
        (
            "allow: [{from: a, to: [b, a]}]",
            "9:27: allow[0].to[1]:",
        ),
        (
            "allow: [{from: a, to: b, port: 65536}]",
            "9:32: allow[0].port: must be a whole number from 1 to 65535, not 65536",
        ),
        (
            "allow: [{from: a, to: b, port: [80, 0]}]",
            "9:37: allow[0].port[1]: must be a whole number from 1 to 65535, not 0",
        ),
        ("allow: [{from: a, to: b, port: []}]", "9:32: allow[0].port: is empty"),
        ("allow: [{from: a, to: b, prot: 1}]", "9:26: allow[0]: unknown key 'prot', did you mean"),
        ("names: {x: y}", "9:12: names.x: 'y' is not an IPv4 or IPv6 address"),
        ("names: {x: 'fe80::1%1'}", "9:12: names.x: 'fe80::1%1' is not an IPv4 or IPv6 address"),
        ("names: {x y: 10.0.0.1}", "9:9: names.x y: 'x y' is not a host name or address: 'x y'"),
        ("names: {10.0.0.2: 10.0.0.1}", "9:9: names.10.0.0.2: '10.0.0.2' is an address, not a"),
        ("names: {a: 10.0.0.1}", "9:9: names.a:"),
        ("files: {a/b: x}", "9:9: files.a/b: 'a/b'"),
        ("files: {..: x}", "9:9: files...: '..'"),
        ("files: {x: 1}", "9:12: files.x: must be text, not '1' (YAML: int): put it in quotes"),
        (
            "files:\n  x: |\n    one\n    two {dri}\n",
            "12:9: files.x: unknown placeholder {dri}, did you mean dir?",
        ),
        (
            "ways: {w: {protocol: grcp, uds: /x}}",
            "9:22: ways.w.protocol: must be http-connect, grpc or payload, not 'grcp', "
            "did you mean grpc?",
        ),
        ("ways: {w: {protocol: grpc}}", "9:11: ways.w:"),
        (
            "ways: {w: {protocol: grpc, uds: /x, tcp: 'a:1'}}",
            "9:11: ways.w:",
        ),
        ("ways: {w: {uds: /x}}", "9:11: ways.w.protocol: is missing"),
        (
            "ways: {w: {protocol: grpc, uds: x.sock}}",
            "9:33: ways.w.uds: must be an absolute path, such as {dir}/connect.sock",
        ),
        ("ways: {w: {protocol: grpc, uds: ''}}", "9:33: ways.w.uds: must be an absolute path"),
        (
            "ways: {w: {protocol: grpc, uds: '{dit}/x'}}",
            "9:34: ways.w.uds: unknown placeholder {dit}, did you mean dir?",
        ),
        (
            "ways: {w: {protocol: grpc, tcp: a}}",
            "9:33: ways.w.tcp: 'a' is not host:port: no port in 'a'",
        ),
        (
            "ways: {w: {protocol: grpc, tcp: '{b.address6}:1'}}",
            "9:34: ways.w.tcp: unknown placeholder {b.address6}, did you mean b.address?",
        ),
        ("ways: {direct: {protocol: grpc, uds: /x}}", "9:8: ways.direct:"),
        ("ways: {W: {protocol: grpc, uds: /x}}", "9:8: ways.W:"),
        ("needs: [a b]", "9:9: needs[0]: 'a b'"),
        ("congestion_control: B B", "9:21: congestion_control: 'B B'"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(more: str, said: str) -> None:
    lines = errors(SMALL + more)
    assert any(line.startswith(f"s.yaml:{said}") for line in lines), lines


@pytest.mark.parametrize(
    ("networks", "said"),
    [
        ("{}", "2:11: networks:"),
        ("[x]", "2:11: networks: must be a mapping, not a list"),
        ("{x: {}}", "2:15: networks.x.cidr: is missing"),
        ("{x: {cidr: []}}", "2:22: networks.x.cidr: is empty"),
        ("{x: {cidr: 10.0.0.0/31}}", "2:22: networks.x.cidr: '10.0.0.0/31'"),
        ("{x: {cidr: 10.0.0.1}}", "2:22: networks.x.cidr: '10.0.0.1'"),
        ("{x: {cidr: 'fd00::/127'}}", "2:22: networks.x.cidr: 'fd00::/127'"),
        ("{x: {cidr: 127.0.0.0/8}}", "2:22: networks.x.cidr: '127.0.0.0/8'"),
        (
            "{x: {cidr: 10.0.0.0/24, gateway: no}}",
            "2:44: networks.x.gateway: must be true or false",
        ),
        ("{x: {cidr: 10.0.0.0/24, gatway: true}}", "2:35: networks.x: unknown key 'gatway', did"),
        (
            "{x: {cidr: 10.0.0.0/8}, y: {cidr: 10.1.0.0/16}}",
            "2:45: networks.y.cidr: 10.1.0.0/16 overlaps 10.0.0.0/8 of network x, and both have "
            "gateways",
        ),
        (
            "{x: {cidr: [10.1.0.0/16, 10.0.0.0/8], gateway: false}}",
            "2:36: networks.x.cidr[1]: 10.0.0.0/8 overlaps 10.1.0.0/16 of the same network",
        ),
        ("{X: {cidr: 10.0.0.0/8}}", "2:12: networks.X:"),
        ("{x-: {cidr: 10.0.0.0/8}}", "2:12: networks.x-:"),
        ("{1x: {cidr: 10.0.0.0/8}}", "2:12: networks.1x:"),
        (
            "{sixteen-letters-: {cidr: 10.0.0.0/8}}",
            "2:12: networks.sixteen-letters-:",
        ),
        (
            "{sixteen-letters0: {cidr: 10.0.0.0/8}}",
            "2:12: networks.sixteen-letters0:",
        ),
        ("{wall: {cidr: 10.0.0.0/8}}", "2:12: networks.wall:"),
        ("{lab: {cidr: 10.0.0.0/8}}", "2:12: networks.lab:"),
        ("{lo: {cidr: 10.0.0.0/8}}", "2:12: networks.lo:"),
        ("{x: {cidr: 10.0.0.0/8}, x: {}}", "2:35: networks.x: is there twice"),
    ],
)
def test_wrong_networks_are_told(networks: str, said: str) -> None:
    lines = errors(f"title: x\nnetworks: {networks}\nhosts: {{}}\n")
    assert any(line.startswith(f"s.yaml:{said}") for line in lines), lines


def test_there_are_bounds() -> None:
    many = "".join(f"  n{n}: {{cidr: 10.{n}.0.0/16}}\n" for n in range(33))
    lines = errors(f"title: x\nnetworks:\n{many}hosts: {{}}\n")
    assert "s.yaml:3:3: networks: has 33 entries, at most 32 are possible" in lines


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "s.yaml:"),
        ("[]", "s.yaml:1:1: must be a mapping, not a list"),
        ("title: ' '", "s.yaml:1:8: title:"),
        ("a: b: c", "s.yaml:1:5: not YAML: mapping values are not allowed here"),
    ],
)
def test_what_is_no_topology(text: str, said: str) -> None:
    assert any(line.startswith(said) for line in errors(text))


@pytest.mark.parametrize("name", ["", "Big", "a b", "a_b", "-a", "a-", "x" * 41])
def test_a_topology_needs_a_name_too(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^s\.yaml: .*{name!r}"):
        read(SMALL, name=name, source="s.yaml")


def test_every_built_in_topology_is_right() -> None:
    names = catalog.names()
    assert "isolated-cluster" in names
    assert names == sorted(names)
    for name in names:
        found = catalog.load(name)
        assert found.name == name
        assert read(catalog.text(name), name=name, source="x") == found


def test_a_name_that_nobody_has() -> None:
    with pytest.raises(ConfigError) as caught:
        catalog.load("isolated-clutser")
    assert str(caught.value) == (
        "there is no topology 'isolated-clutser', did you mean isolated-cluster?"
    )
    with pytest.raises(ConfigError, match=r"'zzz'; a file needs its path: \./FILE$"):
        catalog.load("zzz")


def test_a_file_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "my-own.yaml"
    path.write_text(SMALL)
    assert catalog.load(str(path)).name == "my-own"
    path.write_text("title: x\n")
    with pytest.raises(ConfigError, match=f"^{re.escape(str(path))}:1:1: hosts: is missing"):
        catalog.load(str(path))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing, binary, long = (tmp_path / f"{name}.yml" for name in ("missing", "binary", "long"))
    binary.write_bytes(b"\xff\xfe\x00")
    long.write_bytes(b"#" * (4 * 1024 * 1024 + 1))
    for path, why in (
        (missing, f"cannot read {missing}: no such file"),
        (binary, f"cannot read {binary}: not UTF-8 text"),
        (long, f"{long}: longer than 1048576 characters"),
    ):
        with pytest.raises(ConfigError) as caught:
            catalog.load(str(path))
        assert str(caught.value) == why
    with pytest.raises(ConfigError, match=r"is a directory$"):
        catalog.load(f"{tmp_path}/")


def known_keys() -> set[str]:
    modules = (reading, reading_hosts, reading_steps)
    lists = [
        value
        for module in modules
        for name, value in vars(module).items()
        if name.endswith("_KEYS")
    ]
    assert len(lists) >= 14
    return {key for keys in lists for key in keys}


def test_the_page_names_every_key() -> None:
    page = PAGE.read_text()
    missing = sorted(key for key in known_keys() if f"`{key}`" not in page)
    assert missing == []


def test_the_examples_of_the_page_are_topologies() -> None:
    examples = re.findall(r"^```yaml\n(title:.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert examples
    for text in examples:
        assert read(text, name="example", source="page").steps


def test_the_errors_of_the_page_are_those_one_gets() -> None:
    page = PAGE.read_text()
    text = re.findall(r"^```yaml\n(title:.*?)^```", page, re.DOTALL | re.MULTILINE)[0]
    wrong = text.replace("from: master", "from: mastr", 1).replace("{dir}", "{dri}", 1)
    with pytest.raises(ConfigError) as caught:
        read(wrong, name="example", source="example.yaml")
    assert f"```text\n{caught.value}\n```" in page


def test_a_door_is_a_host_and_one_of_the_files() -> None:
    text = (
        "title: x\nnetworks: {lan: {cidr: 10.1.0.0/24}}\nhosts: {x: {at: {lan: 10.1.0.10}}}\n"
        "files: {admin.conf: abc}\n"
    )
    good = f"{text}door: {{host: x, port: 6443, kubeconfig: admin.conf}}\n"
    door = read(good, name="t", source="t.yaml").door
    assert door == LabDoor(host="x", port=6443, kubeconfig="admin.conf")
    with pytest.raises(ConfigError) as caught:
        read(f"{text}door: {{host: y, port: 0, kubeconfig: none}}\n", name="t", source="t.yaml")
    found = [line.split(": ")[1] for line in str(caught.value).splitlines()]
    assert found == ["door.host", "door.port", "door.kubeconfig"]
