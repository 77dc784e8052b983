from __future__ import annotations

import pytest

from isthmus.errors import ConfigError
from isthmus.lab.reading import read
from isthmus.lab.topology import (
    AgentsAre,
    AttemptFailure,
    Cable,
    Deed,
    Expectation,
    LabAttempt,
    LabStep,
    ProcessAction,
    Run,
    Traffic,
    TrafficEnds,
    Verb,
    WindowsGrow,
)

HEAD = """\
title: x
networks: {lan: {cidr: 10.1.0.0/24}}
hosts:
  a: {at: {lan: 10.1.0.10}, processes: {srv: isthmus server, web: nginx}}
  b: {at: {lan: 10.1.0.11}, processes: {agt: isthmus agent}}
ways:
  one: {protocol: grpc, uds: /one}
  two: {protocol: http-connect, uds: /two}
steps:
"""


def steps(*given: str) -> tuple[LabStep, ...]:
    text = HEAD + "".join(f"- {one}\n" for one in given)
    return read(text, name="t", source="t.yaml").steps


def errors(*given: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        steps(*given)
    return str(caught.value).splitlines()


def test_an_attempt_and_its_defaults() -> None:
    attempt = LabAttempt(source="a", verb=Verb.CONNECT, target="elsewhere:80")
    assert steps("{connect: 'elsewhere:80', from: a}") == (Expectation(attempt=attempt),)


def test_everything_of_an_expectation() -> None:
    get, echo, load = steps(
        "{get: 'https://b:8443/x?y', from: a, through: one, answers: hello, within_s: 3,"
        " timeout_s: 0.5}",
        "{echo: '[fd00::1]:7', from: a, bytes: 1_000_000, fails: [refused, no-agent]}",
        "{upload: b:9, from: a, seconds: 2, at_least_mbit: 1.5}",
    )
    assert get == Expectation(
        attempt=LabAttempt(
            source="a", verb=Verb.GET, target="https://b:8443/x?y", through="one", timeout_s=0.5
        ),
        answers="hello",
        within_s=3,
    )
    assert echo == Expectation(
        attempt=LabAttempt(source="a", verb=Verb.ECHO, target="[fd00::1]:7", bytes=1_000_000),
        fails=(AttemptFailure.REFUSED, AttemptFailure.NO_AGENT),
    )
    assert load == Expectation(
        attempt=LabAttempt(source="a", verb=Verb.UPLOAD, target="b:9", seconds=2), at_least_mbit=1.5
    )


def test_who_is_asked_by_tcp_or_udp() -> None:
    found = steps("{ask: [b:1, 'udp://b:1'], from: a, through: direct, answers: b saw a}")
    assert found == tuple(
        Expectation(attempt=LabAttempt(source="a", verb=Verb.ASK, target=target), answers="b saw a")
        for target in ("b:1", "udp://b:1")
    )


def test_lists_stand_for_all_combinations_targets_outermost() -> None:
    found = steps("{get: [x:1, y:2], from: [a, b], through: [direct, one]}")
    seen = [
        (step.attempt.target, step.attempt.source, step.attempt.through)
        for step in found
        if isinstance(step, Expectation)
    ]
    assert seen == [
        ("x:1", "a", ""),
        ("x:1", "a", "one"),
        ("x:1", "b", ""),
        ("x:1", "b", "one"),
        ("y:2", "a", ""),
        ("y:2", "a", "one"),
        ("y:2", "b", ""),
        ("y:2", "b", "one"),
    ]


def test_questions_to_programs() -> None:
    assert steps(
        "{agents: srv, are: [x, y], within_s: 20}",
        "{agents: srv, are: []}",
        "{windows: agt, at_least_bytes: 262144, within_s: 2.5}",
    ) == (
        AgentsAre(server="srv", agents=("x", "y"), within_s=20),
        AgentsAre(server="srv", agents=()),
        WindowsGrow(process="agt", at_least_bytes=262144, within_s=2.5),
    )


def test_commands() -> None:
    assert steps(
        "{run: 'ls \"{dir}\"', from: a}",
        "{run: [cat, '-'], from: b, prints: '^x{2}$', fails: true, stdin: '{name}',"
        " timeout_s: 1, within_s: 2}",
    ) == (
        Run(source="a", command=("ls", "{dir}")),
        Run(
            source="b",
            command=("cat", "-"),
            prints="^x{2}$",
            fails=True,
            stdin="{name}",
            timeout_s=1,
            within_s=2,
        ),
    )


def test_cables_are_cut_and_mended() -> None:
    assert steps("cut: a", "{mend: a, network: lan}", "{cut: b, network: [lan]}") == (
        Cable(host="a", networks=("lan",), whole=False),
        Cable(host="a", networks=("lan",), whole=True),
        Cable(host="b", networks=("lan",), whole=False),
    )


@pytest.mark.parametrize("deed", Deed)
def test_deeds(deed: Deed) -> None:
    assert steps(f"{deed.value}: web") == (ProcessAction(deed=deed, process="web"),)


def test_traffic() -> None:
    begun, ended, _, _ = steps(
        "{traffic: t, from: a, get: [b:1, b:2], through: one, clients: 5, pause_s: 0,"
        " timeout_s: 1}",
        "{end_traffic: t, at_most_failed: 0}",
        "{traffic: u, from: a, connect: b:1}",
        "end_traffic: u",
    )
    assert begun == Traffic(
        name="t",
        attempts=tuple(
            LabAttempt(source="a", verb=Verb.GET, target=target, through="one", timeout_s=1)
            for target in ("b:1", "b:2")
        ),
        clients=5,
        pause_s=0,
    )
    assert ended == TrafficEnds(name="t", at_most_failed=0)
    assert steps("{traffic: t, from: a, connect: b:1}", "end_traffic: t")[1] == TrafficEnds(
        name="t", at_most_failed=None
    )


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("@7", ": must be a mapping, not '7' (YAML: int)"),
        ("@{from: a}", ":"),
        ("{from: a, @conect: b:1}", ": unknown key 'conect', did you mean connect?"),
        ("@{connect: b:1}", ".from: is missing"),
        ("@{connect: b:1, get: b:1, from: a}", ":"),
        ("{connect: @b, from: a}", ".connect: 'b' is not host:port: no port in 'b'"),
        ("{connect: [b:1, @b:0], from: a}", ".connect[1]: 'b:0' is not host:port: port out of ran"),
        ("{connect: @'http://b/', from: a}", ".connect: 'http://b/' is not host:port"),
        ("{connect: @[], from: a}", ".connect: is empty"),
        ("{connect: @7, from: a}", ".connect: must be text, not '7' (YAML: int)"),
        ("{get: @'ftp://b/', from: a}", ".get: 'ftp://b/'"),
        ("{get: @'http://b:x/', from: a}", ".get: 'http://b:x/' is not a URL: Port could not be"),
        ("{get: @'http://[b/', from: a}", ".get: 'http://[b/' is not a URL: "),
        ("{get: @'http:///', from: a}", ".get: 'http:///' is not a URL: host is empty"),
        ("{get: @'http://b/a b', from: a}", ".get: 'http://b/a b'"),
        ("{ask: @'tcp://b:1', from: a}", ".ask: 'tcp://b:1' is not host:port"),
        ("{ask: @'udp://b', from: a}", ".ask: 'udp://b' is not host:port"),
        ("{ask: 'udp://b:1', from: a, through: @one}", ".through:"),
        ("{get: b:1, from: @c}", ".from: there is no host 'c'"),
        ("{get: b:1, from: [a, @c]}", ".from[1]: there is no host 'c'"),
        ("{get: b:1, from: a, through: @on}", ".through: must be text, not 'on' (YAML: bool)"),
        ("{get: b:1, from: a, through: @oen}", ".through: there is no way 'oen', did you mean one"),
        ("{get: b:1, from: a, through: @dirct}", ".through: there is no way 'dirct', did you mean"),
        ("{get: b:1, from: a, through: @[]}", ".through: is empty"),
        (
            "{get: b:1, from: a, fails: @refussed}",
            ".fails: must be refused, timeout, unreachable, unresolved, denied, no-agent, reset or"
            " other, not 'refussed', did you mean refused?",
        ),
        ("{get: b:1, from: a, fails: @[]}", ".fails: is empty"),
        ("{get: b:1, from: a, fails: @true}", ".fails: must be text, not 'true' (YAML: bool)"),
        (
            "{get: b:1, from: a, fails: reset, answers: @x}",
            ".answers:",
        ),
        ("{echo: b:1, from: a, answers: @x}", ".answers: is only for get and ask, not for echo"),
        (
            "{get: b:1, from: a, seconds: @1}",
            ".seconds: is only for download and upload, not for get",
        ),
        ("{get: b:1, from: a, bytes: @1}", ".bytes: is only for echo, not for get"),
        ("{get: b:1, from: a, at_least_mbit: @1}", ".at_least_mbit: is only for download and"),
        (
            "{get: b:1, from: a, timeout_s: @601}",
            ".timeout_s: must be a number from 0.1 to 600, not 601",
        ),
        ("{get: b:1, from: a, timeout_s: @0}", ".timeout_s: must be a number from 0.1 to 600, not"),
        ("{get: b:1, from: a, within_s: @-1}", ".within_s: must be a number from 0 to 600, not -1"),
        ("{get: b:1, from: a, @within: 1}", ": unknown key 'within', did you mean within_s?"),
        ("{get: b:1, @agent: a}", ": unknown key 'agent'"),
        ("{agents: @srf, are: []}", ".agents: there is no process 'srf', did you mean srv?"),
        ("{agents: @agt, are: []}", ".agents:"),
        ("@{agents: srv}", ".are: is missing"),
        ("{agents: srv, are: [@7]}", ".are[0]: must be text, not '7' (YAML: int)"),
        ("{windows: @web, at_least_bytes: 1}", ".windows:"),
        ("@{windows: srv}", ".at_least_bytes: is missing"),
        ("@{run: ls}", ".from: is missing"),
        ("{run: @'', from: a}", ".run:"),
        ("{run: 'ls @{dri}', from: a}", ".run: unknown placeholder {dri}, did you mean dir?"),
        ("{run: ls, from: a, stdin: '@{dri}'}", ".stdin: unknown placeholder {dri}, did you mean"),
        ("{run: ls, from: @[a, b]}", ".from: must be text, not a list"),
        ("{run: ls, from: a, fails: @refused}", ".fails: must be true or false, not 'refused'"),
        ("{run: ls, from: a, prints: @'('}", ".prints: '(' is not a regular expression: missing )"),
        ("{run: ls, from: a, prints: @'[[]'}", ".prints: '[[]' is not a regular expression: Possi"),
        ("{run: ls, from: a, @connect: b:1}", ": unknown key 'connect'"),
        ("kill: @wep", ".kill: there is no process 'wep', did you mean web?"),
        ("@{kill: web, start: web}", ": does kill and start, which are two steps"),
        ("{kill: web, @within_s: 1}", ": unknown key 'within_s'"),
        ("cut: @c", ".cut: there is no host 'c'"),
        ("@{cut: a, mend: b}", ": does cut and mend, which are two steps"),
        ("{mend: a, network: @lam}", ".network: there is no network of a 'lam', did you mean lan?"),
        ("{cut: a, @within_s: 1}", ": unknown key 'within_s'"),
        ("@{traffic: t, from: a}", ":"),
        ("@{traffic: t, connect: b:1}", ".from: is missing"),
        ("{traffic: @T, from: a, connect: b:1}", ".traffic:"),
        ("{traffic: @7, from: a, connect: b:1}", ".traffic: must be text, not '7' (YAML: int)"),
        (
            "{traffic: t, from: a, connect: b:1, clients: @101}",
            ".clients: must be a whole number from 1 to 100, not 101",
        ),
        ("{traffic: t, from: a, connect: b:1, @fails: reset}", ": unknown key 'fails'"),
        ("{end_traffic: @t}", ".end_traffic: 't'"),
        (
            "{end_traffic: t, at_most_failed: @-1}",
            ".at_most_failed: must be a whole number from 0 to",
        ),
    ],
)
def test_what_is_wrong_with_a_step(step: str, said: str) -> None:
    """The place that is told is marked by an @."""
    column = step.index("@") + 3
    lines = errors(step.replace("@", "", 1))
    assert any(one.startswith(f"t.yaml:10:{column}: steps[0]{said}") for one in lines), lines


def test_traffic_begins_once_and_ends_once() -> None:
    begin, end = "{traffic: t, from: a, connect: b:1}", "end_traffic: t"
    assert errors(begin, begin, end) == [
        "t.yaml:11:13: steps[1].traffic: 't' has already been started"
    ]
    assert errors(begin) == [
        "t.yaml:10:13: steps[0].traffic: is never ended: add a step end_traffic"
    ]
    assert errors(begin, end, end) == [
        "t.yaml:12:16: steps[2].end_traffic: 't' has already been ended"
    ]
    assert errors(end, begin) == ["t.yaml:10:16: steps[0].end_traffic: 't' has not been started"]


def test_there_are_bounds() -> None:
    many = ", ".join(f"b:{port}" for port in range(1, 257))
    big = f"{{connect: [{many}], from: [a, b], through: [one, two]}}"
    assert errors(big) == ["t.yaml:10:3: steps[0]: expands to more than 1000 steps"]
    half = f"{{connect: [{many}], from: [a, b]}}"
    assert errors(half, half) == ["t.yaml:10:1: steps: expand to more than 1000 steps"]
    one_more = f"{{connect: [{many}, b:257], from: a}}"
    assert errors(one_more) == [
        "t.yaml:10:13: steps[0].connect: has 257 items, at most 256 are possible"
    ]
