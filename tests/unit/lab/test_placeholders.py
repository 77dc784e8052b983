from __future__ import annotations

import sys
from dataclasses import fields
from ipaddress import ip_address, ip_network

import pytest

from isthmus.lab.commands import PKI_FILES, fill, known, unknown, values
from isthmus.lab.topology import Attachment, LabHost, LabNetwork, Topology
from isthmus.tools.pki.making import PkiFiles

TOPOLOGY = Topology(
    name="small",
    title="",
    networks=(LabNetwork(name="lan", cidrs=(ip_network("10.0.0.0/24"), ip_network("fd00::/64"))),),
    hosts=(
        LabHost(
            name="both",
            attachments=(
                Attachment(
                    network="lan", addresses=(ip_address("fd00::5"), ip_address("10.0.0.5"))
                ),
            ),
            also=(ip_address("10.9.9.9"),),
        ),
        LabHost(
            name="only-4",
            attachments=(Attachment(network="lan", addresses=(ip_address("10.0.0.6"),)),),
        ),
    ),
)


def test_the_files_are_those_of_the_pki() -> None:
    none_asked_for = {"relay_cert", "relay_key"}
    every = {field.name for field in fields(PkiFiles)}
    assert {*PKI_FILES, "directory"} == every - none_asked_for


def test_what_is_known_has_a_value() -> None:
    files = PkiFiles.in_directory("/lab/pki")
    found = values(TOPOLOGY, directory="/lab", files=files)
    assert found.keys() == known(TOPOLOGY)
    assert found["dir"] == "/lab"
    assert found["name"] == "small"
    assert found["python"] == sys.executable
    assert found["client_key"] == "/lab/pki/client.key"


def test_a_host_has_its_first_address_of_each_kind() -> None:
    found = values(TOPOLOGY, directory="/", files=PkiFiles.in_directory("/"))
    assert {name: text for name, text in found.items() if ".address" in name} == {
        "both.address": "10.0.0.5",
        "both.address6": "fd00::5",
        "only-4.address": "10.0.0.6",
    }


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("{dir}/x.sock", "/lab/x.sock"),
        ("{dir}{dir}", "/lab/lab"),
        ("[{both.address6}]:80", "[fd00::5]:80"),
        ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
        ('{"path": "{dir}"}', '{"path": "/lab"}'),
        ("{other} {Dir} {} { dir } {3}", "{other} {Dir} {} { dir } {3}"),
        ("", ""),
    ],
)
def test_braces(text: str, filled: str) -> None:
    assert fill(text, {"dir": "/lab", "both.address6": "fd00::5"}) == filled


def test_what_was_put_in_is_not_looked_at_again() -> None:
    assert fill("{a}", {"a": "{b}", "b": "x"}) == "{b}"


def test_unknown_ones_come_once_and_in_order() -> None:
    assert unknown("{z} {dir} {a} {z} {A}", {"dir"}) == ["z", "a"]
