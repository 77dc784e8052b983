"""Agents near the destination are preferred, over both kinds of links."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from clients import echo_target
from stack import Stack

from isthmus.errors import ConfigError
from isthmus.net.rules_near import NEAR_MORE
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.options import compose
from isthmus.tools.pki import making as pki


@pytest.fixture(scope="module", params=["mux", "grpc"])
def link(request: pytest.FixtureRequest) -> str:
    """What agents speak; either way they say their zone."""
    return str(request.param)


@pytest.fixture
def near(certificates: pki.PkiFiles, link: str) -> Iterator[Stack]:
    with Stack(certificates, link) as stack:
        stack.add_server(zone="home", zone_cidr=("west=127.9.0.0/16",))
        stack.add_agent(agent_id="node", agent_identifiers="cidr=127.0.0.1/32", zone="east")
        stack.add_agent(agent_id="east", zone="east")
        stack.add_agent(agent_id="west", zone="west")
        stack.add_agent(agent_id="home", zone="home")
        yield stack


def served(stack: Stack, host: str = "127.0.0.1", times: int = 6) -> set[str]:
    """By which agents tunnels go."""
    found = set()
    with echo_target() as target:
        for _ in range(times):
            with stack.tunnel("uds", f"{host}:{target.port}") as client:
                client.send(b"x")
                assert client.read_exactly(1) == b"x"
                found |= {it["agentId"] for it in stack.snapshot()["tunnels"]}
            stack.wait_idle()
    return found


def test_node_then_zone_then_the_server_s_zone(near: Stack) -> None:
    assert {it["id"]: it["zone"] for it in near.snapshot()["agents"]} == {
        "node": "east", "east": "east", "west": "west", "home": "home",
    }  # fmt: skip
    assert served(near) == {"node"}

    def drain(name: str) -> None:
        for link in near.server.agents:
            if link.agent_id == name:
                link.draining = True

    near.do(lambda: drain("node"))
    assert served(near) == {"east"}  # it is known that the node is there
    near.do(lambda: drain("east"))
    assert served(near) == {"home"}
    near.do(lambda: drain("home"))
    assert served(near) == {"west"}


def test_one_that_has_much_to_do_is_not_preferred(
    near: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    from isthmus.links.server_side import AgentLink

    def weight(self: AgentLink) -> float:
        return NEAR_MORE + 1 if self.agent_id == "node" else 0.0

    monkeypatch.setattr(AgentLink, "weight", property(weight))
    assert served(near) == {"east"}


def test_it_can_be_switched_off(certificates: pki.PkiFiles, link: str) -> None:
    with Stack(certificates, link) as stack:
        stack.add_server(prefer_near=False)
        stack.add_agent(agent_id="node", agent_identifiers="cidr=127.0.0.1/32")
        stack.add_agent(agent_id="far")
        assert served(stack, times=30) == {"node", "far"}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"zone": "a b"}, "--zone: a zone has 1 to 63"),
        ({"zone_cidr": ("10.0.0.0/8",)}, "--zone-cidr takes ZONE=CIDR"),
        ({"zone_cidr": ("a=10.0.0.1/8",)}, "did you mean 10.0.0.0/8"),
        ({"zone_cidr": ("a=10.0.0.0/8", "b=10.0.0.0/8")}, "is in a and in b"),
    ],
)
def test_flags_that_make_no_sense(flags: dict[str, object], says: str) -> None:
    settings = compose(ServerSettings, **flags)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=says):
        settings.near.check()
