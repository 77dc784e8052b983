"""The file of the apiserver proxy: what it says, and every place where it can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.errors import ConfigError
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.programs.apiserver_proxy.plan import CheckPlan, Checks, ProxyPlan, ThroughPlan
from isthmus.programs.apiserver_proxy.rules import Bounds
from isthmus.programs.apiserver_proxy.settings_file import parse, write
from isthmus.values import HostPort
from isthmus.wire.proxy_protocol import Tlv

EXAMPLE = Path(__file__).parents[4] / "examples" / "apiserver-proxy" / "apiserver-proxy.yaml"
HEAD = "apiVersion: isthmus.dev/v1alpha1\nkind: APIServerProxy\n"
EVERYTHING = """\
listen: '[fd00::1]:443'
manageAddress: false
uplinkInterfaces: [eth0]
upstreams: ['a:1', '[fd01::1]:2']
healthCheck:
  kind: tcp
  path: /livez?exclude=etcd
  caCert: /ca
  clientCert: /cert
  clientKey: /key
  serverName: kubernetes.default.svc
  interval: 5s
  timeout: 1500ms
  fall: 1
  rise: 2
  statuses: [404]
connectTimeout: 3s
idleTimeout: 0
retries: 0
maxConnections: 1_000
maxConnectionsPerSource: 100
resolveInterval: 1m
proxyProtocol:
  tlvs: [{type: 0x20, value: cluster}, {type: '0xE0', value: ''}]
httpProxy:
  url: https://user:p%40ss@proxy.example
  caCert: /proxy-ca
  noProxy: [kubernetes]
  clusterNetworks: [172.31.0.0/16]
"""
ALL = ProxyPlan(
    listen=(("fd00::1", 443),),
    manage_address=False,
    uplinks=("eth0",),
    upstreams=(HostPort("a", 1), HostPort("fd01::1", 2)),
    check=CheckPlan(
        kind=Checks.TCP, path="/livez?exclude=etcd", ca="/ca", cert="/cert", key="/key",
        server_name="kubernetes.default.svc", interval_s=5.0, timeout_s=1.5,
        bounds=Bounds(fall=1, rise=2), accepted=(404,),
    ),
    connect_timeout_s=3.0,
    idle_timeout_s=0.0,
    retries=0,
    max_connections=1000,
    max_connections_per_source=100,
    resolve_every_s=60.0,
    proxy_protocol=(Tlv(0x20, b"cluster"), Tlv(0xE0, b"")),
    through=ThroughPlan(
        proxy=ProxyAddress(
            scheme="https", at=HostPort("proxy.example", 443), user="user", password="p@ss"
        ),
        ca="/proxy-ca",
        no_proxy=("kubernetes",),
        networks=("172.31.0.0/16",),
    ),
)  # fmt: skip


def test_everything() -> None:
    found = parse(HEAD + EVERYTHING, "f")
    assert found == ALL
    assert found.through is not None and found.through.proxy.password == "p@ss"


def test_nearly_nothing() -> None:
    assert parse(HEAD + "upstreams: ['a:1']\n", "f") == ProxyPlan(upstreams=(HostPort("a", 1),))


def test_the_example() -> None:
    plan = parse(EXAMPLE.read_text(), "example")
    assert len(plan.upstreams) == 2
    assert plan.check.server_name == "kubernetes.default.svc"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", 'f: is empty,'),
        ("[]", "f:1:1: must be a mapping, not a list"),
        ("kind: x", "f:1:1: apiVersion: is missing\nf:1:1: upstreams: is missing\n"
         "f:1:7: kind: must be APIServerProxy, not 'x'"),
        (HEAD + "upstreams: []", "f:3:12: upstreams: is empty"),
        (HEAD + "upstreams: [a]", "f:3:13: upstreams[0]: 'a' is not HOST:PORT: no port in 'a'"),
        (HEAD + "upstreams: ['a:1']\nlistn: x",
         "f:4:1: unknown key 'listn', did you mean listen?"),
        (HEAD + "upstreams: ['a:1']\nidleTimeout: 10",
         "f:4:14: idleTimeout: must have a unit, such as 10s"),
        (HEAD + "upstreams: ['a:1']\nidleTimeout: 10x",
         "f:4:14: idleTimeout: '10x' is not a duration such as 500ms, 10s or 1h30m"),
        (HEAD + "upstreams: ['a:1']\nconnectTimeout: 0s",
         "f:4:17: connectTimeout: '0s' must be from more than 0 to 24h"),
        (HEAD + "upstreams: ['a:1']\nretries: 17",
         "f:4:10: retries: must be a whole number from 0 to 16, not 17"),
        (HEAD + "upstreams: ['a:1']\nhealthCheck: {kind: ping, clientKey: k, path: x}",
         "f:4:14: healthCheck:\n"
         "f:4:21: healthCheck.kind: must be https, tcp or none, not 'ping'\n"
         "f:4:47: healthCheck.path: 'x' is not a path such as /version"),
        (HEAD + "upstreams: ['a:1']\nhealthCheck: {statuses: [200]}",
         "f:4:26: healthCheck.statuses[0]: must be a whole number from 400 to 599, not 200"),
        (HEAD + "upstreams: ['a:1']\nproxyProtocol: {tlvs: [{type: 0x100, value: a}, {type: 3}]}",
         "f:4:31: proxyProtocol.tlvs[0].type: '0x100' (YAML: int)\n"
         "f:4:49: proxyProtocol.tlvs[1].value: is missing\n"
         "f:4:56: proxyProtocol.tlvs[1].type: '3' (YAML: int)"),
        (HEAD + "upstreams: ['a:1']\nhttpProxy: {url: 'ftp://u:secret@x'}",
         "f:4:18: httpProxy.url: the scheme of a proxy must be http or https"),
        (HEAD + "upstreams: ['172.20.0.1:6443']",
         'f: upstreams: 172.20.0.1:6443'),
        (HEAD + "upstreams: ['a:1']\nlisten: ['169.254.0.1:1']",
         "f: listen 169.254.0.1 is a link-local address; use an address that is free in your"
         " networks, such as one of 10.0.0.0/8 or fd00::/8"),
    ],
)  # fmt: skip
def test_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f")
    lines = zip(str(caught.value).splitlines(), said.splitlines(), strict=True)
    assert all(line.startswith(fact) for line, fact in lines), caught.value


def test_what_is_written_reads_back() -> None:
    assert parse(write(ALL), "f") == ALL.__class__(**{
        **{name: getattr(ALL, name) for name in ALL.__slots__},
        "check": CheckPlan(**{
            **{name: getattr(ALL.check, name) for name in ALL.check.__slots__},
            "path": "/version",  # a check by TCP has none
        }),
    })  # fmt: skip
