"""Agents bound to what they proved: refused with a sentence, audited, and by rules that change."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from clients import echo_target, tunnel
from programs import COMMAND, ENVIRONMENT, Program, Programs
from stack import http_get, metric, wait_until

OWN = "isthmus-agent"  # the common name of the certificate that every agent here has
RULES = """\
apiVersion: isthmus.dev/v1alpha1
kind: AgentIdentityBinding
rules:
- subject: {{commonName: isthmus-agent}}
  agentIDs: [{ids}]
  identifiers:
    ipv4: [10.0.0.0/16]
"""
SITES = RULES.format(ids="site-1") + "  networks: [sites]\n"
KINDS = ("mux", "grpc")


def write(path: Path, text: str) -> None:
    """Replace a file as a whole, by a rename."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """A file that lets the agents of the tests be called site-1 or site-2."""
    path = tmp_path / "bind.yaml"
    write(path, RULES.format(ids="site-1, site-2"))
    return path


def lines(program: Program, text: str) -> list[str]:
    return [line for line in program.log.splitlines() if text in line]


def reason_of(line: str) -> str:
    found = re.search(r'reason="(.*)"$', line)
    assert found, line
    return found[1]


def start(programs: Programs, server: Program, *more: str) -> Program:
    """Start an agent that need not link."""
    return programs.start("agent", *programs.agent_flags(server.port("agent_port")), *more)


def refusals(server: Program) -> float:
    text = http_get(server.port("health_port"), "/metrics")[1]
    return metric(text, 'isthmus_server_link_failures_total{reason="refused"}')


def refused(server: Program, agent: Program, agent_id: str) -> str:
    """Wait until an agent was refused; the sentence, which both sides and the audit have."""
    before = refusals(server)
    agent.wait_log("cannot link to the server")
    wait_until(lambda: refusals(server) > before + 1, "it tries again")
    (told,) = lines(agent, "cannot link to the server")
    audits = [x for x in lines(server, "audit] agent refused") if f'agent_id="{agent_id}"' in x]
    (audited,) = audits
    assert f'identity="certificate:{OWN}"' in audited
    sentence = reason_of(audited)
    assert reason_of(told).endswith(sentence), told
    assert not lines(agent, "] linked")
    assert not lines(server, "agent link refused")  # it has been said
    return sentence


def agents_of(server: Program) -> set[str]:
    found = json.loads(http_get(server.port("admin_port"), "/snapshot")[1])
    return {link["peerId"] for link in found["links"]}


def carries(programs: Programs) -> None:
    with echo_target() as target, tunnel(programs.connect_uds(), target.name) as client:
        client.send(b"hello")
        assert client.read_exactly(5) == b"hello"


@pytest.mark.parametrize("kind", KINDS)
def test_by_name_an_agent_is_called_what_its_certificate_says(
    programs: Programs, kind: str
) -> None:
    server = programs.server("--agent-identity-binding=name")
    link = f"--link={kind}"
    liar = start(programs, server, link, "--agent-id=somebody-else")
    sentence = refused(server, liar, "somebody-else")
    assert sentence.startswith(f"certificate:{OWN} may not claim agent id 'somebody-else': ")
    programs.agent(server, link, f"--agent-id={OWN}", f"--agent-identifiers=host={OWN}")
    wait_until(lambda: agents_of(server) == {OWN}, "the honest one is there, and nobody else")
    carries(programs)


def test_without_a_file_to_follow_the_server_is_well(programs: Programs) -> None:
    server = programs.server("--agent-identity-binding=name")
    assert http_get(server.port("health_port"), "/livez") == (200, "ok")


@pytest.mark.parametrize(
    ("kind", "claimed", "named"),
    [
        ("mux", "ipv4=10.0.0.7", "ipv4='10.0.0.7'"),
        ("grpc", "default-route=true", "default-route=true"),
    ],
)
def test_by_name_it_stands_for_itself_only(
    programs: Programs, kind: str, claimed: str, named: str
) -> None:
    server = programs.server("--agent-identity-binding=name")
    greedy = start(
        programs, server, f"--link={kind}", f"--agent-id={OWN}", f"--agent-identifiers={claimed}"
    )
    assert f"may not claim {named}: " in refused(server, greedy, OWN)


@pytest.mark.parametrize("kind", KINDS)
def test_by_rules(programs: Programs, rules: Path, kind: str) -> None:
    server = programs.server(f"--agent-identity-binding={rules}")
    link = f"--link={kind}"
    programs.agent(server, link, "--agent-id=site-1", "--agent-identifiers=ipv4=10.0.1.1")
    liar = start(programs, server, link, "--agent-id=site-3")
    sentence = refused(server, liar, "site-3")
    assert f"rules[0].agentIDs lists only 'site-1', 'site-2' ({rules}:4)" in sentence
    thief = start(programs, server, link, "--agent-id=site-2", "--agent-identifiers=ipv4=10.1.0.1")
    assert "may not claim ipv4='10.1.0.1'" in refused(server, thief, "site-2")
    assert agents_of(server) == {"site-1"}
    carries(programs)


@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_says_its_network(programs: Programs, rules: Path, kind: str) -> None:
    write(rules, SITES)
    server = programs.server(f"--agent-identity-binding={rules}")
    link = f"--link={kind}"
    silent = start(programs, server, link, "--agent-id=site-1")
    sentence = refused(server, silent, "site-1")
    assert "may not claim network 'cluster': rules[0].networks lists only 'sites'" in sentence
    if kind == "grpc":
        (told,) = lines(silent, "cannot link to the server")
        assert "the server ended the call: PermissionDenied certificate:" in told
    programs.agent(server, link, "--agent-id=site-1", "--agent-network=sites")
    assert agents_of(server) == {"site-1"}
    carries(programs)


def test_new_rules_hold_for_new_links_and_bad_ones_do_not(programs: Programs, rules: Path) -> None:
    server = programs.server(f"--agent-identity-binding={rules}")
    first = programs.agent(server, "--agent-id=site-1")
    third = start(programs, server, "--agent-id=site-3")
    refused(server, third, "site-3")

    write(rules, RULES.format(ids="site-3"))
    server.wait_log(f"reloaded {rules}")
    third.wait_log("] linked")
    assert not lines(first, "link ended")  # who is in stays in
    second = start(programs, server, "--agent-id=site-2")
    assert "lists only 'site-3'" in refused(server, second, "site-2")

    write(rules, RULES.format(ids="site-2").replace("agentIDs", "agentIds"))
    server.wait_log("the previously loaded rules stay in use")
    (line,) = lines(server, "the previously loaded rules stay in use")
    assert f"{rules}:5:3: " in line and "agentIds" in line
    rules.unlink()
    server.wait_log("no such file")
    assert not lines(second, "] linked") and agents_of(server) == {"site-1", "site-3"}

    write(rules, RULES.format(ids="site-2"))
    second.wait_log("] linked")
    assert agents_of(server) == {"site-1", "site-2", "site-3"}
    assert len(lines(server, "the previously loaded rules stay in use")) == 2


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        (RULES.format(ids="site-1").replace("ipv4", "ipv5"), "7:5", "did you mean"),
        (RULES.format(ids="*"), "5:15", "needs quotes"),
        ("kind: [", "", "not YAML"),
        ("", "", "is empty"),
    ],
)
def test_a_bad_file_is_no_start(
    programs: Programs, rules: Path, text: str, place: str, what: str
) -> None:
    write(rules, text)
    ended = subprocess.run(
        [*COMMAND, "server", *programs.server_flags(), f"--agent-identity-binding={rules}"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert ended.returncode == 2 and ended.stdout == ""
    assert not Path(programs.uds).exists()
    (line,) = ended.stderr.splitlines()
    assert f"{rules}:{place}: " in line if place else f"{rules}:" in line, line
    assert what in line and "Traceback" not in line


def test_a_file_that_is_not_there(programs: Programs, rules: Path) -> None:
    rules.unlink()
    server = programs.start("server", *programs.server_flags(), f"--agent-identity-binding={rules}")
    assert server.wait_exit() == 2
    assert f"cannot read --agent-identity-binding {rules}: no such file" in server.log
