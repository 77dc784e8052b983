"""Reading --endpoint-allow and --endpoint-deny."""

from __future__ import annotations

import pytest

from isthmus.dial.rules_policy import Ports
from isthmus.dial.settings_endpoint_lists import MAX_ENTRIES, parse_entries
from isthmus.errors import ConfigError
from isthmus.programs.agent.settings import AgentSettings
from isthmus.settings.options import compose


@pytest.mark.parametrize(
    ("text", "network", "name", "ports"),
    [
        ("10.0.0.0/8", "10.0.0.0/8", "", Ports(1, 65535)),
        ("10.0.0.1", "10.0.0.1/32", "", Ports(1, 65535)),
        ("10.0.0.0/8:443", "10.0.0.0/8", "", Ports(443, 443)),
        ("10.0.0.1:8000-8999", "10.0.0.1/32", "", Ports(8000, 8999)),
        ("fd00::/8", "fd00::/8", "", Ports(1, 65535)),
        ("fd00::1", "fd00::1/128", "", Ports(1, 65535)),
        ("[fd00::/8]:443", "fd00::/8", "", Ports(443, 443)),
        ("[fd00::1]", "fd00::1/128", "", Ports(1, 65535)),
        ("*.Example.com.:443", "None", "*.example.com", Ports(443, 443)),
        ("db", "None", "db", Ports(1, 65535)),
        ("*", "None", "*", Ports(1, 65535)),
    ],
)
def test_what_can_be_written(text: str, network: str, name: str, ports: Ports) -> None:
    [entry] = parse_entries("--endpoint-deny", [text])
    assert (str(entry.network), entry.name, entry.ports) == (network, name, ports)
    assert entry.text == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("10.0.0.1/8", "has bits below its prefix, did you mean 10.0.0.0/8?"),
        ("10.0.0.0/33", "is not a network such as 10.0.0.0/8, nor an address"),
        ("::ffff:10.0.0.1", "is a range of IPv4 addresses, list it as such"),
        ("fe80::1%eth0", "is not a network, an address or a name"),
        ("10.0.0.0/8:0", "'0' is not a port from 1 to 65535"),
        ("10.0.0.0/8:9-8", "'9-8' is not a port from 1 to 65535"),
        ("10.0.0.0/8:", "'' is not a port"),
        ("[fd00::/8", "is not written as"),
        ("[10.0.0.1]:443", "is not written as"),
        ("2130706433", "is not a network, an address or a name"),
        ("0x7f.1", "is not a network, an address or a name"),
        ("a.*.example", "has a * that is not alone"),
        ("*example", "has a * that is not alone"),
        ("", "is not a network, an address or a name"),
        ("a b", "is not a network, an address or a name"),
    ],
)
def test_what_cannot(text: str, words: str) -> None:
    settings = compose(AgentSettings, ca_cert="ca.crt", endpoint_deny=(text,))
    with pytest.raises(ConfigError) as caught:
        settings.validate()
    assert str(caught.value).startswith(f"--endpoint-deny {text}: ")
    assert words in str(caught.value)


def test_too_many() -> None:
    with pytest.raises(ConfigError, match="more than 1000 entries"):
        parse_entries("--endpoint-allow", ["10.0.0.1"] * (MAX_ENTRIES + 1))
