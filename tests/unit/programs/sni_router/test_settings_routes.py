"""The document of the SNI router: what it says, and every sentence about what is wrong with it."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.sni_router import settings_routes
from isthmus.programs.sni_router.rules import Found, ProxyOut, SniRoute
from isthmus.programs.sni_router.settings_routes import parse
from isthmus.values import HostPort
from isthmus.wire.proxy_protocol import Tlv

HEAD = "apiVersion: isthmus.dev/v1alpha1\nkind: SNIRoutes\nroutes:\n"
EXAMPLE = Path(__file__).parents[4] / "examples" / "sni-router" / "routes.yaml"


def test_everything() -> None:
    table = parse(
        HEAD
        + """\
- name: a
  hosts: [API.a.example., "*.a.example"]
  alpn: [h2, isthmus/1]
  tlv: [2f1c, "ünï"]
  allowedCIDRs: [192.0.2.7, "2001:db8::/32", "::ffff:10.0.0.0/104"]
  backends: ["10.0.0.1:6443", "[fd00::1]:6443", "name.svc:443"]
  proxyProtocol:
    authority: false
    tlvs:
    - {type: 0xE0, value: "ünï"}
    - {type: "0x20", hex: "00 ff"}
    - {type: 225, value: ""}
  maxConnections: 10
- {name: b, backends: ["10.0.0.2:1"], proxyProtocol: {}}
default: b
tlvType: 0xE1
""",
        "f",
    )
    assert table.routes == (
        SniRoute(
            name="a",
            hosts=("api.a.example", "*.a.example"),
            alpn=("h2", "isthmus/1"),
            tlv=(b"2f1c", "ünï".encode()),
            allowed_cidrs=tuple(map(ip_network, ("192.0.2.7/32", "2001:db8::/32", "10.0.0.0/8"))),
            backends=(
                HostPort("10.0.0.1", 6443),
                HostPort("fd00::1", 6443),
                HostPort("name.svc", 443),
            ),
            proxy=ProxyOut(
                authority=False,
                tlvs=(Tlv(0xE0, "ünï".encode()), Tlv(0x20, b"\0\xff"), Tlv(0xE1, b"")),
            ),
            max_connections=10,
        ),
        SniRoute(name="b", backends=(HostPort("10.0.0.2", 1),), proxy=ProxyOut()),
    )
    assert table.default is table.routes[1]
    assert table.tlv_type == 0xE1
    assert table.routes[0].where == "f:4"


def test_the_example_is_right() -> None:
    table = parse(EXAMPLE.read_text(encoding="utf-8"), "routes.yaml")
    found = table.find("api.tenant-c.example.com", ["isthmus/1"])
    assert isinstance(found, Found)
    assert found.route.name == "tenant-c-agents"


def test_one_host_for_several_protocols() -> None:
    routes = "".join(
        f"- {{name: {name}, hosts: [x.y], backends: ['1.2.3.4:1']{alpn}}}\n"
        for name, alpn in (("a", ", alpn: [h2]"), ("b", ", alpn: [h3]"), ("c", ""))
    )
    assert len(parse(HEAD + routes, "f").routes) == 3


def test_documents_of_several_tenants_are_one_table() -> None:
    second = one("tlv: [u]").replace("name: a", "name: b")
    table = parse(one("tlv: [t]") + "tlvType: 0x20\n---\n" + second + "---\n", "f")
    assert [(each.name, each.where) for each in table.routes] == [("a", "f:4"), ("b", "f:10")]
    assert table.hosts == 1


def one(fields: str) -> str:
    return f"{HEAD}- {{name: a, hosts: [x.y], backends: ['1.2.3.4:1'], {fields}}}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "f: is empty,"),
        ("kind: SNIRoutes\nroutes: []\n", "f:1:1: apiVersion: is missing"),
        (
            HEAD.replace("SNIRoutes", "Routes").replace("routes:", "routes: []"),
            "f:2:7: kind: must be SNIRoutes, not 'Routes'",
        ),
        (one("hots: [a]"), "f:4:52: routes[0]: unknown key 'hots', did you mean hosts?"),
        (HEAD + "- {name: a, hosts: [x.y]}\n", "f:4:3: routes[0].backends: is missing"),
        (
            HEAD + "- {name: a b, hosts: [x.y], backends: ['1.2.3.4:1']}\n",
            "f:4:10: routes[0].name: 'a b' is not a name of at most 127 letters, digits, '.', '_'"
            " and '-'",
        ),
        (
            HEAD + "- {name: a, backends: ['1.2.3.4:1']}\n",
            "f:4:3: routes[0]:",
        ),
        (
            HEAD + "- {name: a, hosts: [], backends: []}\n",
            "f:4:20: routes[0].hosts: is empty\nf:4:34: routes[0].backends: is empty",
        ),
        (
            HEAD + "- {name: a, hosts: [x.y], backends: ['1.2.3.4']}\n",
            "f:4:38: routes[0].backends[0]: '1.2.3.4' is not HOST:PORT: no port in '1.2.3.4'",
        ),
        (
            HEAD + "- {name: a, hosts: [x.y], backends: ['x:1', 'x:1']}\n",
            "f:4:45: routes[0].backends[1]: 'x:1'",
        ),
        (
            HEAD + "- {name: a, hosts: ['*x.y', '*', 'a.*.y', 'x y'], backends: ['x:1']}\n",
            "f:4:21: routes[0].hosts[0]: '*x.y' is not a host name, and * stands for the whole"
            " first label only\n"
            "f:4:29: routes[0].hosts[1]: '*' is not a host name, and * stands for the whole first"
            " label only\n"
            "f:4:34: routes[0].hosts[2]: 'a.*.y' is not a host name, and * stands for the whole"
            " first label only\n"
            "f:4:43: routes[0].hosts[3]: 'x y' is not a host name",
        ),
        (
            HEAD + "- {name: a, hosts: [10.0.0.1, 'ü.y'], backends: ['x:1']}\n",
            "f:4:21: routes[0].hosts[0]: '10.0.0.1' is an address\n"
            "f:4:31: routes[0].hosts[1]: 'ü.y' is not ASCII;",
        ),
        (
            HEAD + "- {name: a, hosts: [x.y, X.Y.], backends: ['x:1']}\n",
            "f:4:26: routes[0].hosts[1]: 'x.y'",
        ),
        (
            one("alpn: [h2, h3]") + "- {name: b, hosts: [x.y], alpn: [h3], backends: ['x:1']}\n",
            "f:5:21: routes[1].hosts[0]: 'x.y'",
        ),
        (
            one("maxConnections: 1") + "- {name: a, hosts: [x.z], backends: ['x:1']}\n",
            "f:5:3: routes[1]: 'a'",
        ),
        (
            one("maxConnections: 0"),
            "f:4:68: routes[0].maxConnections: must be a whole number from 1 to 1000000, not 0",
        ),
        (one("alpn: ['']"), "f:4:59: routes[0].alpn[0]: '' is not an ALPN protocol such as h2"),
        (
            one("maxConnections: 1") + "default: b\n",
            "f:5:10: default: there is no route 'b'",
        ),
        (
            one("proxyProtocol: {tlvs: [{type: 0x100, value: a}]}"),
            "f:4:82: routes[0].proxyProtocol.tlvs[0].type: must be a number from 0x00 to 0xFF, not"
            " '0x100' (YAML: int)",
        ),
        (
            one("proxyProtocol: {tlvs: [{type: 0x02, value: a}]}"),
            "f:4:82: routes[0].proxyProtocol.tlvs[0].type: 0x02",
        ),
        (
            one("proxyProtocol: {tlvs: [{type: 1}]}"),
            "f:4:75: routes[0].proxyProtocol.tlvs[0]:",
        ),
        (
            one("proxyProtocol: {tlvs: [{type: 1, hex: '0'}]}"),
            "f:4:90: routes[0].proxyProtocol.tlvs[0].hex: '0' is not hexadecimal",
        ),
        (
            one(f"proxyProtocol: {{tlvs: [{{type: 1, value: {'a' * 1025}}}]}}"),
            "f:4:75: routes[0].proxyProtocol.tlvs[0]: has 1025",
        ),
        (HEAD + "- x\n", "f:4:3: routes[0]: must be a mapping, not 'x'"),
        (
            one("allowedCIDRs: []"),
            "f:4:66: routes[0].allowedCIDRs: is empty; leave it out to allow every source",
        ),
        (
            one("allowedCIDRs: [10.0.0.1/8, x, '::1/129', 10.0.0.0/255.0.0.0]"),
            "f:4:67: routes[0].allowedCIDRs[0]: '10.0.0.1/8' has bits below its prefix, did you"
            " mean 10.0.0.0/8?\n"
            + "\n".join(
                f"f:4:{column}: routes[0].allowedCIDRs[{index}]: '{text}' is not a network such as"
                " 10.0.0.0/8, nor an address"
                for index, column, text in (
                    (1, 79, "x"),
                    (2, 82, "::1/129"),
                    (3, 93, "10.0.0.0/255.0.0.0"),
                )
            ),
        ),
        (
            one("allowedCIDRs: [10.0.0.0/8, '::ffff:10.0.0.0/104']"),
            "f:4:79: routes[0].allowedCIDRs[1]: '10.0.0.0/8'",
        ),
        (
            one("allowedCIDRs: [10.0.0.0/8]") + "- {name: b, hosts: [x.y], backends: ['x:1']}\n",
            "f:5:21: routes[1].hosts[0]: 'x.y'",
        ),
        (
            one("allowedCIDRs: [10.0.0.0/8]")
            + "- {name: b, hosts: [x.y], backends: ['x:1'], allowedCIDRs: ['::/0', 10.0.0.0/8]}\n",
            "f:5:69: routes[1].allowedCIDRs[1]: 10.0.0.0/8",
        ),
        (
            HEAD + "- {name: a, tlv: [t], backends: ['x:1']}\n"
            "- {name: b, tlv: [u, t], backends: ['x:1']}\n",
            "f:5:3: routes[1]:",
        ),
        (one("tlv: ['']"), "f:4:58: routes[0].tlv[0]: '' is not a value of 1 to 1024 bytes"),
        (
            one("tlv: [t]") + "default: a\n",
            "f:5:10: default: 'a' is only for connections with its TLV (f:4), and the default"
            " route takes those without",
        ),
        (
            one("tlv: [t]") + "tlvType: 0x04\n",
            "f:5:10: tlvType: 0x04 is padding",
        ),
        (
            one("tlv: [t]") + "tlvType: 0xE0\n---\n" + one("tlv: [u]").replace("x.y", "y.z"),
            "f:5:10: tlvType: is 0xe0, and 0x20 in another document: there can be one\n"
            "f:10:3: routes[0]: 'a'",
        ),
        (
            one("maxConnections: 1")
            + "default: a\n---\n"
            + one("maxConnections: 1").replace("x.y", "y.z").replace("name: a", "name: b")
            + "default: b\n",
            "f:11:10: default: there is a default route already (f:5)",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f")
    lines = zip(str(caught.value).splitlines(), said.splitlines(), strict=True)
    assert all(line.startswith(fact) for line, fact in lines), caught.value


@pytest.mark.parametrize("host", ["h{}.x", "é{}"], ids=["names", "no names"])
def test_anchors_do_not_make_more_of_a_short_text_than_can_be_held(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(settings_routes, "MAX_ENTRIES", 5000)
    names = ",".join(host.format(number) for number in range(1000))
    text = HEAD + f"- {{name: r0, tlv: [t0], hosts: &all [{names}], backends: ['x:1']}}\n"
    again = "- {{name: r{0}, tlv: [t{0}], hosts: *all, backends: ['x:1']}}\n"
    text += "".join(map(again.format, range(1, 9)))
    with pytest.raises(ConfigError) as caught:
        parse(text, "f")
    assert len(str(caught.value)) < 10_000
    if host.isascii():
        assert str(caught.value).startswith("f:8:3: routes[4]: ")
        assert "more than 5000 combinations" in str(caught.value)
