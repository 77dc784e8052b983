"""An agent's lists against real dials: refused with 403, counted, audited and shown."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from clients import Target, ask, head_for, tunnel
from grpc_clients import GrpcCall
from stack import Stack, metric, wait_until

from isthmus.dial.settings_endpoint_lists import DENIED_BY_DEFAULT
from isthmus.values import DialId, DialRequest, Identity
from isthmus.wire.link_pb2 import DialResult

#: What an agent says that has connected to nothing: denied, or no target at all.
NOT_DIALED = (DialResult.DENIED, DialResult.UNRESOLVED, DialResult.INTERNAL)
DENIED = "169.254.0.0/16 of the agent's --endpoint-deny has"


@pytest.mark.parametrize("link", ["mux", "grpc"])
@pytest.mark.parametrize("host", ["169.254.169.254", "[::ffff:169.254.169.254]", "meta.example"])
def test_a_denied_endpoint(fresh: Stack, link: str, host: str, tmp_path: Path) -> None:
    audit = tmp_path / "audit.log"
    fresh.add_server(audit_log_path=str(audit))
    agent = fresh.add_agent(link=link, host_alias=("meta.example=169.254.169.254",))
    with fresh.uds() as client:
        answer = ask(client, head_for(f"{host}:80"))
    assert answer.status == 403
    assert "denied by policy" in answer.body and DENIED in answer.body
    counted = 'isthmus_agent_endpoint_denials_total{entry="169.254.0.0/16"}'
    assert metric(fresh.metrics(agent), counted) == 1
    assert fresh.snapshot(agent)["endpointDeny"] == list(DENIED_BY_DEFAULT)
    wait_until(
        lambda: audit.exists() and audit.read_text().endswith("}\n"), "the record is written"
    )
    record = json.loads(audit.read_text())
    assert (record["stage"], record["decision"], record["rule"]) == (
        "Refused",
        "deny",
        "(far side)",
    )
    assert DENIED in record["reason"]


@pytest.mark.parametrize("link", ["mux", "grpc"])
def test_the_grpc_frontend_says_it_too(fresh: Stack, link: str) -> None:
    fresh.add_server(mode=("grpc",))
    fresh.add_agent(link=link)
    with fresh.uds() as client:
        said = GrpcCall(client).dial("169.254.169.254:80")
    assert "denied by policy" in said and DENIED in said


def test_what_is_allowed_is_dialed_and_nothing_else(fresh: Stack) -> None:
    fresh.add_server()
    fresh.add_agent(endpoint_allow=("127.0.0.0/8", "localhost"), endpoint_deny=("127.0.0.2",))
    with Target() as target, tunnel(fresh.uds(), target.name) as client, target.accept() as far:
        client.send(b"x")
        assert far.read_exactly(1) == b"x"
    for host in ("127.0.0.2", "192.0.2.1", "[::1]"):
        with fresh.uds() as client:
            assert ask(client, head_for(f"{host}:80")).status == 403
    fresh.wait_idle()


class Spelled(NamedTuple):
    """A target as a server might write it that checks nothing."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def ask_agent(stack: Stack, target: Spelled) -> DialResult:
    """What the agent answers to a server that asks for this, whatever our own would have asked."""
    answers: list[DialResult | None] = []

    def dial() -> None:
        (link,) = stack.server.agents
        unchecked: Any = target
        request = DialRequest(unchecked, Identity("who"))
        link.open_dial(request, dial_id=DialId(7), timeout_s=5.0, told=answers.append)

    stack.do(dial)
    stack.wait(lambda: bool(answers), "it is answered")
    (answer,) = answers
    assert answer is not None, "the link was lost"
    return answer


#: The C library takes most of these for 127.0.0.1.
LOOPBACK = (
    "127.0.0.1", "127.1", "127.8.8.8", "0", "0.0.0.0", "0x7f000001", "0x7F.0.0.1", "2130706433",
    "0177.0.0.1", "127.0.1", "127.0.0.1.", " 127.0.0.1", "127.0.0.1%lo", "127.0.0.1\0.example",
    "\uff11\uff12\uff17.0.0.1", "::", "::1", "0:0:0:0:0:0:0:1", "::1%lo", "::ffff:127.0.0.1",
    "::ffff:7f00:1", "::FFFF:7F00:0001", "::ffff:0.0.0.0", "localhost", "LOCALHOST.",
    "alias.example",
)  # fmt: skip


@pytest.mark.parametrize("link", ["mux", "grpc"])
def test_no_spelling_that_a_server_finds_gets_past(fresh: Stack, link: str) -> None:
    """The agent itself looks, at what is asked for and at what the system makes of it."""
    fresh.add_server()
    fresh.add_agent(
        link=link, endpoint_deny=("loopback",), host_alias=("alias.example=::ffff:127.0.0.1",)
    )
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        listener.setblocking(False)
        for host in LOOPBACK:
            answer = ask_agent(fresh, Spelled(host, listener.getsockname()[1]))
            assert answer.failure in NOT_DIALED, f"{host!r}: {answer}"
            with pytest.raises(BlockingIOError):
                listener.accept()


@pytest.mark.parametrize("link", ["mux", "grpc"])
def test_no_spelling_of_a_metadata_address_gets_past(fresh: Stack, link: str) -> None:
    fresh.add_server()
    fresh.add_agent(link=link)
    for host in (
        "169.254.169.254", "0xa9fea9fe", "2852039166", "0251.0376.0251.0376", "169.254.43518",
        "::ffff:169.254.169.254", "::ffff:a9fe:a9fe", "64:ff9b::a9fe:a9fe", "fe80::1", "FEBF::1",
        "fe80::1%lo", "fe80::1%25lo", "fd00:ec2::254", "fd00:0ec2:0:0:0:0:0:254",
    ):  # fmt: skip
        answer = ask_agent(fresh, Spelled(host, 80))
        assert answer.failure in NOT_DIALED, f"{host!r}: {answer}"
