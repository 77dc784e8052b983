from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from isthmus.errors import ConfigError
from isthmus.lab.reading import read
from isthmus.lab.topology import (
    Attachment,
    LabHost,
    LabRoute,
    LabService,
    LineShape,
    Process,
    Serve,
    Serving,
    Topology,
)

HEAD = """\
title: x
networks: {lan: {cidr: [10.1.0.0/24, "fd00:1::/64"]}, far: {cidr: 10.2.0.0/24, gateway: false}}
hosts:
"""
OTHER = "  other: {at: {lan: 10.1.0.99}}\n"


def topology(hosts: str) -> Topology:
    return read(HEAD + hosts, name="t", source="t.yaml")


def host(fields: str) -> LabHost:
    return topology(f"{OTHER}  x: {{{fields}}}\n").host("x")


def errors(hosts: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        topology(hosts)
    return str(caught.value).splitlines()


def test_a_host_with_one_address() -> None:
    assert host("at: {lan: 10.1.0.10}") == LabHost(
        name="x", attachments=(Attachment(network="lan", addresses=(ip_address("10.1.0.10"),)),)
    )


def test_all_ways_to_say_where_a_host_is() -> None:
    found = host(
        "at: {lan: [10.1.0.10, 'fd00:1::10'], far: {address: 10.2.0.10, delay_ms: 50, loss: 0.01}},"
        " also: [192.0.2.1, 'fd00:9::1']"
    )
    assert found.attachments == (
        Attachment(network="lan", addresses=(ip_address("10.1.0.10"), ip_address("fd00:1::10"))),
        Attachment(
            network="far",
            addresses=(ip_address("10.2.0.10"),),
            shape=LineShape(delay_ms=50, loss=0.01),
        ),
    )
    assert found.also == (ip_address("192.0.2.1"), ip_address("fd00:9::1"))
    assert host("at: {lan: 10.1.0.10}, also: 192.0.2.1").also == (ip_address("192.0.2.1"),)


def test_a_shape_that_does_nothing_is_none() -> None:
    assert host("at: {lan: {address: [10.1.0.10], rate_mbit: 0}}").attachments[0].shape is None


def test_everything_else_of_a_host() -> None:
    found = host(
        "at: {lan: 10.1.0.10},"
        " routes: [{to: 10.9.0.0/16, via: other}],"
        " serve: {http: [80, 8080], sink: 9},"
        " services: [{address: '10.96.0.1:80', to: 'other:8080'},"
        " {address: '10.96.0.1:443', to: '10.99.0.1:6443'}],"
        " sysctl: {net.ipv4.ip_forward: 1, net.ipv4.tcp_rmem: 4096 131072 6291456}"
    )
    assert found.routes == (LabRoute(to=ip_network("10.9.0.0/16"), via="other"),)
    assert found.serves == (
        Serve(kind=Serving.HTTP, port=80),
        Serve(kind=Serving.HTTP, port=8080),
        Serve(kind=Serving.SINK, port=9),
    )
    assert found.services == (
        LabService(address=ip_address("10.96.0.1"), port=80, to_host="other", to_port=8080),
        LabService(
            address=ip_address("10.96.0.1"),
            port=443,
            to_address=ip_address("10.99.0.1"),
            to_port=6443,
        ),
    )
    assert found.sysctls == (
        ("net.ipv4.ip_forward", "1"),
        ("net.ipv4.tcp_rmem", "4096 131072 6291456"),
    )


def process(text: str) -> Process:
    (found,) = host(f"at: {{lan: 10.1.0.10}}, processes: {{p: {text}}}").processes
    assert (found.name, found.host) == ("p", "x")
    return found


def test_a_command_is_a_line_or_its_words() -> None:
    assert process("'sleep \"1 0\" {dir}'").command == ("sleep", "1 0", "{dir}")
    assert process("[sleep, 1 0, '']").command == ("sleep", "1 0", "")
    found = process("{command: [a], start: false, ready: 'tcp:80'}")
    assert found == Process(name="p", host="x", command=("a",), ready="tcp:80", start=False)


def test_readiness_has_a_default_for_our_programs_only() -> None:
    assert process("isthmus agent --health-server-port=1").ready == "http://127.0.0.1:1/readyz"
    assert process("{command: isthmus server}").ready == "http://127.0.0.1:8092/healthz"
    assert process("{command: isthmus server, ready: ''}").ready == ""
    assert process("sleep 1").ready == ""
    url = "https://{x.address}:6443/readyz"
    assert process(f"{{command: a, ready: '{url}'}}").ready == url


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("x: 7", "x: must be a mapping, not '7' (YAML: int)"),
        ("x: {}", "x.at: is missing"),
        ("x: {at: {}}", "x.at:"),
        ("x: {at: {lan: []}}", "x.at.lan: is empty"),
        ("x: {at: {lan: 10.1.0}}", "x.at.lan: '10.1.0' is not an IPv4 or IPv6 address"),
        (
            "x: {at: {lan: 10.3.0.1}}",
            "x.at.lan: 10.3.0.1",
        ),
        ("x: {at: {lan: 10.1.0.1}}", "x.at.lan: 10.1.0.1 is the gateway of 10.1.0.0/24"),
        ("x: {at: {lan: ['fd00:1::1']}}", "x.at.lan[0]: fd00:1::1 is the gateway of fd00:1::/64"),
        ("x: {at: {lan: 10.1.0.0}}", "x.at.lan: 10.1.0.0 is the first or the last of 10.1.0.0/24"),
        ("x: {at: {lan: 10.1.0.255}}", "x.at.lan: 10.1.0.255 is the first or the last of"),
        ("x: {at: {lan: 10.1.0.99}}", "x.at.lan: 10.1.0.99"),
        ("x: {at: {lan: [10.1.0.5, 10.1.0.5]}}", "x.at.lan[1]: 10.1.0.5"),
        ("x: {at: {lan: {delay_ms: 1}}}", "x.at.lan.address: is missing"),
        ("x: {at: {lan: {address: {}}}}", "x.at.lan.address: must be text, not a mapping"),
        (
            "x: {at: {lan: {address: 10.1.0.5, delay_ms: 10001}}}",
            "x.at.lan.delay_ms: must be a number from 0 to 10000, not 10001",
        ),
        (
            "x: {at: {lan: {address: 10.1.0.5, loss: 0.91}}}",
            "x.at.lan.loss: must be a number from 0 to 0.9, not 0.91",
        ),
        (
            "x: {at: {lan: {address: 10.1.0.5, rate_mbit: -1}}}",
            "x.at.lan.rate_mbit: must be a number from 0 to 10000, not -1",
        ),
        (
            "x: {at: {lan: {address: 10.1.0.5, delay: 1}}}",
            "x.at.lan: unknown key 'delay', did you mean delay_ms?",
        ),
        ("wall: {at: {lan: 10.1.0.5}}", "wall:"),
        ("lab: {at: {lan: 10.1.0.5}}", "lab:"),
        ("lan: {at: {lan: 10.1.0.5}}", "lan:"),
        ("a_b: {at: {lan: 10.1.0.5}}", "a_b:"),
        (f"{'x' * 41}: {{at: {{lan: 10.1.0.5}}}}", f"{'x' * 41}: is too long for a host"),
        ("other: {at: {lan: 10.1.0.5}}", "other: is there twice"),
    ],
)
def test_where_a_host_cannot_be(fields: str, said: str) -> None:
    (line,) = errors(f"{OTHER}  {fields}\n")
    place, _, told = line.partition(" hosts.")
    assert place.startswith("t.yaml:5:")
    assert told.startswith(said)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("also: [@10.1.0.10]", "also[0]: 10.1.0.10"),
        ("also: [192.0.2.1, @192.0.2.1]", "also[1]: 192.0.2.1"),
        ("routes: @{}", "routes: must be a list, not a mapping"),
        ("routes: [@{to: 10.0.0.0/8}]", "routes[0].via: is missing"),
        (
            "routes: [{to: 10.0.0.0/8, via: @othr}]",
            "routes[0].via: there is no host 'othr', did",
        ),
        ("routes: [{to: 10.0.0.0/8, via: @x}]", "routes[0].via:"),
        (
            "routes: [{to: 10.0.0.0/8, via: @away}]",
            "routes[0].via:",
        ),
        (
            "routes: [{to: 'fd00::/8', via: @other}]",
            "routes[0].via:",
        ),
        ("routes: [{to: @10.0.0.1/8, via: other}]", "routes[0].to: '10.0.0.1/8' has bits below"),
        ("serve: {@htpp: 80}", "serve: unknown key 'htpp', did you mean http?"),
        ("serve: {http: @0}", "serve.http: must be a whole number from 1 to 65535, not 0"),
        ("serve: {http: @'80'}", "serve.http: must be a whole number from 1 to 65535, not '80'"),
        ("serve: {http: 80, echo: [7, @80]}", "serve.echo[1]:"),
        ("services: [@{to: 'other:1'}]", "services[0].address: is missing"),
        (
            "services: [{address: @'web:80', to: 'other:1'}]",
            "services[0].address: 'web:80'",
        ),
        (
            "services: [{address: @'10.0.0.1', to: 'other:1'}]",
            "services[0].address: '10.0.0.1' is not host:port: no port in '10.0.0.1'",
        ),
        (
            "services: [{address: '10.0.0.1:1', to: @'othr:1'}]",
            "services[0].to:",
        ),
        (
            "services: [{address: '[fd00::1]:1', to: @'10.0.0.1:1'}]",
            "services[0].to: 10.0.0.1",
        ),
        (
            "services: [{address: '[fd00::1]:1', to: @'other:1'}]",
            "services[0].to: other has no IPv6 address",
        ),
        ("sysctl: {@kernel.panic: 1}", "sysctl.kernel.panic: 'kernel.panic'"),
        ("sysctl: {net.ipv4.x: @true}", "sysctl.net.ipv4.x: must be text, not 'true' (YAML: bo"),
        ('sysctl: {net.ipv4.x: @"a\\nb"}', "sysctl.net.ipv4.x: must be one line"),
        ("processes: @[]", "processes: must be a mapping, not a list"),
        ("processes: {@P: a}", "processes.P:"),
        ("processes: {@taken: a}", "processes.taken:"),
        ("processes: {p: @''}", "processes.p:"),
        ("processes: {p: @[]}", "processes.p:"),
        ("processes: {p: @['']}", "processes.p:"),
        ("processes: {p: @7}", "processes.p: must be text, not '7' (YAML: int)"),
        ("processes: {p: [a, @7]}", "processes.p[1]: must be text, not '7' (YAML: int)"),
        ('processes: {p: @"a \'b"}', "processes.p: is not a command line: no closing quotation"),
        ('processes: {p: @"a\\0b"}', "processes.p:"),
        (
            "processes: {p: 'a @{agent_crt}'}",
            "processes.p: unknown placeholder {agent_crt}, did you mean agent_cert?",
        ),
        (
            "processes: {p: [a, '@{x.adress}']}",
            "processes.p[1]: unknown placeholder {x.adress}, did you mean x.address?",
        ),
        ("processes: {p: 'a @{x.address6}'}", "processes.p: unknown placeholder {x.address6}"),
        ("processes: {p: @{start: false}}", "processes.p.command: is missing"),
        ("processes: {p: {@comand: a}}", "processes.p: unknown key 'comand', did you mean"),
        ("processes: {p: {command: a, start: @1}}", "processes.p.start: must be true or false"),
        (
            "processes: {p: {command: a, ready: @'tcp:0'}}",
            "processes.p.ready: 'tcp:0' is neither a URL nor tcp:PORT",
        ),
        (
            "processes: {p: {command: a, ready: @'ftp://x/'}}",
            "processes.p.ready: 'ftp://x/'",
        ),
        (
            "processes: {p: {command: a, ready: 'http://@{x.adres}/'}}",
            "processes.p.ready: unknown placeholder {x.adres}, did you mean x.address?",
        ),
    ],
)
def test_what_is_wrong_with_a_host(fields: str, said: str) -> None:
    """The place that is told is marked by an @."""
    others = (
        "  other: {at: {lan: 10.1.0.99}, processes: {taken: b}}\n  away: {at: {far: 10.2.0.99}}\n"
    )
    line = f"  x: {{at: {{lan: 10.1.0.10}}, {fields}}}\n"
    column = line.index("@") + 1
    lines = errors(others + line.replace("@", ""))
    assert any(one.startswith(f"t.yaml:6:{column}: hosts.x.{said}") for one in lines), lines


def test_one_address_is_translated_once() -> None:
    twice = "{address: '10.0.0.1:1', to: 'other:1'}"
    (line,) = errors(f"{OTHER}  x: {{at: {{lan: 10.1.0.5}}, services: [{twice}, {twice}]}}\n")
    assert "hosts.x.services[1]: 10.0.0.1 port 1 " in line


def test_there_are_bounds() -> None:
    many = "".join(f"  h{n}: {{at: {{lan: 10.1.0.{n + 10}}}}}\n" for n in range(65))
    assert errors(many)[0] == "t.yaml:4:3: hosts: has 65 entries, at most 64 are possible"


def test_a_topology_needs_a_host() -> None:
    with pytest.raises(ConfigError, match=r"hosts: is empty"):
        read("title: x\nnetworks: {x: {cidr: 10.0.0.0/8}}\nhosts: {}\n", name="t", source="t")


def test_a_host_without_a_name_is_told_like_any_other_mistake() -> None:
    lines = errors("  '': {at: {lan: 10.1.0.5}, routes: [{}]}\n")
    places = [line.partition("hosts.")[2].partition(": ")[0] for line in lines]
    assert places == ["", ".routes[0].to", ".routes[0].via"]


def test_a_machine_needs_what_is_built() -> None:
    assert errors("  x: {at: {lan: 10.1.0.10}, machine: true}\n") == [
        "t.yaml:4:3: hosts: x is a machine, which needs builds: true"
    ]


def test_processes_that_wait_for_others() -> None:
    text = HEAD.replace("title: x", "title: x\nbuilds: true") + (
        "  x: {at: {lan: 10.1.0.10}, machine: true, processes: {\n"
        "    first: {command: 'true {cni_bin}', once: true, within_s: 5},\n"
        "    second: {command: sleep 9, after: first}}}\n"
    )
    found = read(text, name="t", source="t.yaml").host("x")
    assert found.machine
    assert found.processes == (
        Process(name="first", host="x", command=("true", "{cni_bin}"), once=True, within_s=5),
        Process(name="second", host="x", command=("sleep", "9"), after=("first",)),
    )


def test_a_process_can_only_wait_for_those_before_it() -> None:
    hosts = "  x: {at: {lan: 10.1.0.10}, processes: {one: {command: a, after: two}, two: b}}\n"
    (error,) = errors(hosts)
    assert error == "t.yaml:4:66: hosts.x.processes.one.after: there is no earlier process 'two'"
