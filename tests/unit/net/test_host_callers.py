"""What people are told to do about an address, by who wanted it."""

from __future__ import annotations

from isthmus.net.host_placement import AGENT, SETUP, AddressUser

PROXY = AddressUser(who="apiserver proxy", address_flag="--listen")


def test_an_agent_has_a_command_and_a_flag() -> None:
    assert AGENT.address_flag == "--bind-address"
    assert AGENT.remedy == f"run {SETUP} as root before, or give the agent that capability"
    assert AGENT.remedy_again == f"run {SETUP} again"
    assert AGENT.elsewhere("isthmus0") == "use --bind-interface=isthmus0 as well"


def test_nobody_else_is_told_of_an_agents_flags() -> None:
    said = (PROXY.remedy, PROXY.remedy_again, PROXY.elsewhere("isthmus0"))
    give = "give the apiserver proxy that capability"
    assert said == (give, give, "remove it there first")
    assert not any("agent" in sentence or "--bind" in sentence for sentence in said)
