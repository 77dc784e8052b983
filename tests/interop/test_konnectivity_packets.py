"""Packets that konnectivity-client never sends, or not in this order, towards our server."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from konnpeers import Event, Peers

pytestmark = pytest.mark.interop

PROXY = "/ProxyService/Proxy"
CONNECT = "/AgentService/Connect"


def opened(stream: str = "a", method: str = PROXY, **metadata: str) -> Event:
    return {"stream": stream, "open": method, "metadata": metadata}


def dial(address: str, random: int = 7, stream: str = "a") -> Event:
    request = {"protocol": "tcp", "address": address, "random": random}
    return {"stream": stream, "send": {"type": "DIAL_REQ", "dialRequest": request}}


def data(text: bytes, connect_id: int = 0, stream: str = "a", **more: Any) -> Event:
    """Of the connection that the stream dialed, unless another id is added to its own."""
    body = {"connectID": connect_id, "data": base64.b64encode(text).decode()}
    return {"stream": stream, "send": {"type": "DATA", "data": body}, **more}


def close(connect_id: int = 0, stream: str = "a", **more: Any) -> Event:
    body = {"connectID": connect_id}
    return {"stream": stream, "send": {"type": "CLOSE_REQ", "closeRequest": body}, **more}


def dial_cls(random: int = 7, stream: str = "a") -> Event:
    return {"stream": stream, "send": {"type": "DIAL_CLS", "closeDial": {"random": random}}}


def until(kind: str, stream: str = "a") -> Event:
    return {"stream": stream, "await": kind}


def end(stream: str = "a") -> Event:
    return {"stream": stream, "end": True}


CANCEL: Event = {"stream": "a", "cancel": True}
OWN = {"connect_of": "a"}


def packets(lines: list[Event], kind: str, stream: str = "a") -> list[Event]:
    return [x["packet"] for x in lines if x["stream"] == stream and x.get("type") == kind]


def code(lines: list[Event], stream: str = "a") -> str:
    (found,) = (x["code"] for x in lines if x["stream"] == stream and "code" in x)
    return str(found)


@pytest.fixture(params=["ours", "go"])
def running(request: pytest.FixtureRequest, peers: Peers) -> Peers:
    """Our server, with an agent of either kind."""
    server = peers.server("--mode=grpc")
    if request.param == "ours":
        peers.agent(server)
    else:
        peers.go_agent(server)
    return peers


def still_works(peers: Peers) -> None:
    peers.check("echo", "echo", "--n=3")
    peers.target.wait_closed("echo")


def test_dial_echo_close(running: Peers) -> None:
    lines = running.script(
        opened(),
        dial(running.target["echo"]),
        until("DIAL_RSP"),
        data(b"hello", **OWN),
        until("DATA"),
        close(**OWN),
        until("CLOSE_RSP"),
    )
    (answer,) = packets(lines, "DIAL_RSP")
    assert answer["dialResponse"]["random"] == "7"
    assert base64.b64decode(packets(lines, "DATA")[0]["data"]["data"]) == b"hello"
    assert "error" not in packets(lines, "CLOSE_RSP")[0].get("closeResponse", {})
    running.target.wait_closed("echo")


def test_data_before_dial(running: Peers) -> None:
    lines = running.script(opened(), data(b"early", 5), until("CLOSE_RSP"))
    assert packets(lines, "CLOSE_RSP")[0]["closeResponse"]["error"]
    still_works(running)


def test_close_before_dial(running: Peers) -> None:
    lines = running.script(opened(), close(5), until("CLOSE_RSP"))
    assert packets(lines, "CLOSE_RSP")[0]["closeResponse"]["error"]
    still_works(running)


def test_data_of_an_unknown_connection_ends_only_this_stream(running: Peers) -> None:
    echo = running.target["echo"]
    lines = running.script(
        opened("b"),
        dial(echo, 8, "b"),
        until("DIAL_RSP", "b"),
        opened(),
        dial(echo),
        until("DIAL_RSP"),
        data(b"whose?", 1_000_000, **OWN),
        until("CLOSE_RSP"),
        data(b"still", stream="b", connect_of="b"),
        until("DATA", "b"),
        close(stream="b", connect_of="b"),
        until("CLOSE_RSP", "b"),
    )
    assert not packets(lines, "DATA")
    still_works(running)


@pytest.mark.parametrize("role", ["echo", "stuck"])
def test_dial_closed_before_its_answer(running: Peers, role: str) -> None:
    running.script(opened(), dial(running.target[role]), dial_cls(), CANCEL, end())
    still_works(running)


def test_dial_closed_after_its_answer(running: Peers) -> None:
    steps = (opened(), dial(running.target["echo"]), until("DIAL_RSP"), dial_cls(), CANCEL, end())
    running.script(*steps)
    still_works(running)


def test_dial_cls_of_no_dial(running: Peers) -> None:
    running.script(opened(), dial_cls(99), CANCEL, end())
    still_works(running)


def test_second_dial_on_a_stream(running: Peers) -> None:
    """One stream, one connection: the second is refused or ends the stream, and leaks nothing."""
    echo = running.target["echo"]
    steps = (opened(), dial(echo), until("DIAL_RSP"), dial(echo, 8))
    running.script(*steps, {"stream": "a", "half_close": True}, CANCEL, end())
    still_works(running)


def test_stream_that_vanishes(running: Peers) -> None:
    echo = running.target["echo"]
    running.script(opened(), dial(echo), until("DIAL_RSP"), data(b"x", **OWN), CANCEL, end())
    running.target.wait_closed("echo")
    still_works(running)


@pytest.mark.parametrize("role", ["echo", "stuck"])
def test_connection_that_vanishes(running: Peers, role: str) -> None:
    address = running.target[role]
    both = (opened(), dial(address), opened("b"), dial(address, 8, "b"))
    answered = (until("DIAL_RSP"), until("DIAL_RSP", "b")) if role == "echo" else ()
    # The answer to the last stream says that the server has read the dials before it.
    read = (opened("c"), data(b"early", 5, "c"), until("CLOSE_RSP", "c"))
    running.script(*both, *answered, *read, {"drop": True}, end(), end("b"))
    still_works(running)


def test_half_close_of_the_stream(running: Peers) -> None:
    steps = (opened(), dial(running.target["echo"]), until("DIAL_RSP"))
    running.script(*steps, {"stream": "a", "half_close": True}, end())
    still_works(running)


@pytest.mark.parametrize("method", ["/ProxyService/Nope", "/Nope/Proxy", CONNECT])
def test_wrong_method(running: Peers, method: str) -> None:
    lines = running.script(opened(method=method), end())
    assert code(lines) == "Unimplemented"
    still_works(running)


def test_message_above_4_mib(running: Peers) -> None:
    steps = (opened(), dial(running.target["sink"]), until("DIAL_RSP"))
    lines = running.script(*steps, data(b"", fill=4 * 1024 * 1024 + 1, **OWN), end())
    assert code(lines) == "ResourceExhausted"
    running.target.wait_closed("sink")
    still_works(running)


def test_message_that_is_no_packet(running: Peers) -> None:
    garbage = base64.b64encode(b"\xff\xff\xff\xff").decode()
    lines = running.script(opened(), {"stream": "a", "send_bytes": garbage}, end())
    assert code(lines) in ("Internal", "InvalidArgument")
    still_works(running)


def test_packets_that_only_an_agent_sends(running: Peers) -> None:
    response = {"type": "DIAL_RSP", "dialResponse": {"random": 1, "connectID": 1}}
    running.script(opened(), {"stream": "a", "send": response}, CANCEL, end())
    still_works(running)
