"""From the virtual servers that there are to those that are wanted, without cutting connections."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.programs.node_proxy.rules.ipvs.plan import IpvsOptions, kernel_version, sysctls
from isthmus.programs.node_proxy.rules.ipvs.servers import (
    AddDestination,
    AddServer,
    ChangeServer,
    DestinationState,
    IpvsCommand,
    IpvsDestination,
    IpvsFlags,
    KernelServer,
    RemoveDestination,
    RemoveServer,
    ServerKey,
    TerminatingDestinations,
    VirtualServer,
    WeighDestination,
    difference,
    in_order,
    inverse,
    owned,
)
from isthmus.programs.node_proxy.rules.ipvs.sets import IpSet
from isthmus.programs.node_proxy.rules.model import PortProtocol

KEY = ServerKey("172.30.0.5", 80, PortProtocol.TCP)
UDP = ServerKey("172.30.0.5", 53, PortProtocol.UDP)
SERVER = VirtualServer(key=KEY, scheduler="rr")
A, B = IpvsDestination("10.0.1.1", 8080), IpvsDestination("10.0.2.1", 8080)
IDLE = DestinationState()
BUSY = DestinationState(connections=2)


def apply(
    commands: list[IpvsCommand], present: dict[ServerKey, KernelServer]
) -> dict[ServerKey, KernelServer]:
    """A kernel in a few lines; raises KeyError where the real one would refuse."""
    table = dict(present)
    for command in commands:
        match command:
            case AddServer(server=server):
                assert server.key not in table
                table[server.key] = KernelServer(server=server)
            case ChangeServer(server=server):
                table[server.key] = KernelServer(
                    server=server, destinations=table[server.key].destinations
                )
            case RemoveServer(key=key):
                del table[key]
            case (
                AddDestination(key=key, destination=dest)
                | WeighDestination(key=key, destination=dest)
                | RemoveDestination(key=key, destination=dest)
            ):
                has = dict(table[key].destinations)
                if isinstance(command, AddDestination):
                    assert dest not in has
                    has[dest] = IDLE
                elif isinstance(command, WeighDestination):
                    old = has[dest]
                    has[dest] = DestinationState(weight=command.weight, connections=old.connections)
                else:
                    del has[dest]
                table[key] = KernelServer(server=table[key].server, destinations=has)
    return table


def test_from_nothing_and_back() -> None:
    commands = difference({SERVER: frozenset({B, A})}, [])
    assert commands == [
        AddServer(server=SERVER),
        AddDestination(key=KEY, destination=A),
        AddDestination(key=KEY, destination=B),
    ]
    present = [KernelServer(server=SERVER, destinations={A: IDLE, B: IDLE})]
    assert difference({SERVER: frozenset({B, A})}, present) == []
    assert difference({}, present) == [RemoveServer(key=KEY)]


def test_a_change_keeps_the_server() -> None:
    sticky = VirtualServer(key=KEY, scheduler="rr", flags=IpvsFlags.PERSISTENT, timeout_s=60)
    present = [KernelServer(server=SERVER, destinations={A: IDLE})]
    assert difference({sticky: frozenset({A})}, present) == [ChangeServer(server=sticky)]


def test_excluded_servers_are_somebody_elses() -> None:
    theirs = ServerKey("10.9.0.1", 80, PortProtocol.TCP)
    present = [
        KernelServer(server=SERVER),
        KernelServer(server=VirtualServer(key=theirs, scheduler="wlc")),
    ]
    assert difference({}, present, excluded=["10.9.0.0/16", "fd00::/8"]) == [RemoveServer(key=KEY)]


@pytest.mark.parametrize(
    ("key", "state", "expected"),
    [
        (KEY, IDLE, RemoveDestination(key=KEY, destination=A)),
        (KEY, BUSY, WeighDestination(key=KEY, destination=A, weight=0)),
        (KEY, DestinationState(weight=0, connections=1), None),
        (KEY, DestinationState(weight=0), RemoveDestination(key=KEY, destination=A)),
        (UDP, BUSY, RemoveDestination(key=UDP, destination=A)),
    ],
)
def test_how_a_destination_goes(
    key: ServerKey, state: DestinationState, expected: IpvsCommand | None
) -> None:
    server = VirtualServer(key=key, scheduler="rr")
    present = [KernelServer(server=server, destinations={A: state})]
    assert difference({server: frozenset()}, present) == ([expected] if expected else [])


def test_one_that_comes_back_takes_connections_again() -> None:
    waiting = [
        KernelServer(server=SERVER, destinations={A: DestinationState(weight=0, connections=3)})
    ]
    assert difference({SERVER: frozenset({A})}, waiting) == [
        WeighDestination(key=KEY, destination=A, weight=1)
    ]


def test_terminating_until_the_last_connection() -> None:
    waiting = TerminatingDestinations()
    waiting.done([WeighDestination(key=KEY, destination=A, weight=0)])
    waiting.done([WeighDestination(key=KEY, destination=B, weight=0)])
    assert (waiting.keys, len(waiting)) == ([KEY], 2)
    busy = DestinationState(weight=0, connections=1)
    assert waiting.ended(KEY, {A: busy, B: busy}) == []
    (done,) = waiting.ended(KEY, {A: DestinationState(weight=0), B: busy})
    assert done == RemoveDestination(key=KEY, destination=A)
    waiting.done([done])
    assert len(waiting) == 1
    # Somebody else removed it: nothing to do any more.
    assert waiting.ended(KEY, {}) == []
    assert len(waiting) == 0
    waiting.done([WeighDestination(key=KEY, destination=A, weight=0)])
    waiting.done([WeighDestination(key=KEY, destination=A, weight=1)])
    assert len(waiting) == 0
    waiting.done([WeighDestination(key=KEY, destination=A, weight=0), RemoveServer(key=KEY)])
    assert waiting.keys == []


servers = st.builds(
    VirtualServer,
    key=st.builds(
        ServerKey,
        st.sampled_from(["10.0.0.1", "10.0.0.2"]),
        st.just(80),
        st.sampled_from([PortProtocol.TCP, PortProtocol.UDP]),
    ),
    scheduler=st.sampled_from(["rr", "lc"]),
)
destinations = st.builds(IpvsDestination, st.sampled_from(["10.1.0.1", "10.1.0.2"]), st.just(1))
states = st.builds(DestinationState, weight=st.sampled_from([0, 1]), connections=st.integers(0, 1))
held = st.lists(
    st.builds(KernelServer, server=servers, destinations=st.dictionaries(destinations, states)),
    unique_by=lambda each: each.server.key,
)
targets = st.lists(
    st.tuples(servers, st.frozensets(destinations)), unique_by=lambda each: each[0].key
)


@given(present=held, targets=targets)
def test_the_difference_leads_there(
    present: list[KernelServer], targets: list[tuple[VirtualServer, frozenset[IpvsDestination]]]
) -> None:
    wanted = dict(targets)
    commands = difference(wanted, present)
    table = apply(commands, {each.server.key: each for each in present})
    assert {each.server for each in table.values()} == wanted.keys()
    for each in table.values():
        taking = {dest for dest, state in each.destinations.items() if state.weight}
        assert taking == wanted[each.server]
        # What is left besides has connections that are to end by themselves.
        for dest in each.destinations.keys() - wanted[each.server]:
            assert each.destinations[dest].connections
    left = difference(wanted, list(table.values()))
    assert left == []


@given(present=held, targets=targets, done=st.integers(0, 20))
def test_commands_are_taken_back_from_anywhere(
    present: list[KernelServer],
    targets: list[tuple[VirtualServer, frozenset[IpvsDestination]]],
    done: int,
) -> None:
    before = {each.server.key: each for each in present}
    bring, take = in_order(difference(dict(targets), present))
    commands = [*bring, *take][:done]
    back = [each for command in reversed(commands) for each in inverse(command, before)]
    table = apply(back, apply(commands, before))
    assert {key: shown(each) for key, each in table.items()} == {
        key: shown(each) for key, each in before.items()
    }


def shown(each: KernelServer) -> tuple[VirtualServer, dict[IpvsDestination, int]]:
    """A server without the connections of its destinations, which do not come back."""
    return each.server, {dest: state.weight for dest, state in each.destinations.items()}


def test_what_is_new_comes_before_what_goes() -> None:
    other = VirtualServer(key=UDP, scheduler="rr")
    present = [KernelServer(server=SERVER, destinations={A: IDLE}), KernelServer(server=other)]
    bring, take = in_order(difference({SERVER: frozenset({B})}, present))
    assert bring == [AddDestination(key=KEY, destination=B)]
    assert take == [RemoveDestination(key=KEY, destination=A), RemoveServer(key=UDP)]


def test_which_servers_are_ours() -> None:
    def server(ip: str, port: int, protocol: PortProtocol = PortProtocol.TCP) -> KernelServer:
        key = ServerKey(ip, port, protocol)
        return KernelServer(server=VirtualServer(key=key, scheduler="rr"))

    sets = {
        IpSet.CLUSTER_IP: frozenset({"172.30.0.5,tcp:80", "fd30::5,tcp:80"}),
        IpSet.LOAD_BALANCER: frozenset({"5.6.7.8,udp:53"}),
        IpSet.NODE_PORT_TCP: frozenset({"30080"}),
        IpSet.NODE_PORT_SCTP: frozenset({"10.180.0.1,sctp:30081"}),
    }
    ours = [
        server("172.30.0.5", 80),
        server("fd30::5", 80),
        server("5.6.7.8", 53, PortProtocol.UDP),
        server("10.180.0.1", 30080),
        server("10.180.0.1", 30081, PortProtocol.SCTP),
    ]
    others = [
        server("172.30.0.5", 81),
        server("172.30.0.6", 80),
        server("5.6.7.8", 53),
        server("10.180.0.1", 30080, PortProtocol.UDP),
        server("10.180.0.1", 30081),
    ]
    assert owned([*others, *ours], sets) == ours
    assert owned(ours, {}) == []


def test_sysctls() -> None:
    base = [
        ("net/ipv4/vs/conntrack", 1),
        ("net/ipv4/vs/expire_nodest_conn", 1),
        ("net/ipv4/vs/expire_quiescent_template", 1),
        ("net/ipv4/ip_forward", 1),
    ]
    assert sysctls(IpvsOptions(), (6, 1)) == base
    assert sysctls(IpvsOptions(), (5, 4))[1] == ("net/ipv4/vs/conn_reuse_mode", 0)
    assert sysctls(IpvsOptions(strict_arp=True), (6, 1)) == [
        *base,
        ("net/ipv4/conf/all/arp_ignore", 1),
        ("net/ipv4/conf/all/arp_announce", 2),
    ]
    assert kernel_version("5.15.0-91-generic") == (5, 15)
    assert kernel_version("6.1-rc3") == (6, 1)
    assert kernel_version("odd") == (0, 0)
