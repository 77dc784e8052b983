"""Several networks behind one server: no way from one into another, and a policy above them.

All of 127.0.0.0/8 is this machine, so networks are parts of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clients import (
    Answer,
    Client,
    Target,
    ask,
    connect_uds,
    echo_target,
    free_port,
    full_target,
    tunnel,
)
from stack import Server, Stack, http_get, metric, wait_until

from isthmus.errors import ConfigError
from isthmus.tools.pki.making import PkiFiles
from isthmus.wire.grpc import MESSAGE_HEAD
from isthmus.wire.http2 import (
    DATA,
    END_HEADERS,
    HEADERS,
    PREFACE,
    SETTINGS_ACK,
    encode_headers,
    frame,
    settings,
    unpack_head,
)
from isthmus.wire.packet import dial_request, parse

EAST, WEST = "127.1.0.1", "127.2.0.1"
NETWORKS = ("east=127.1.0.0/16", "west=127.2.0.0/16")
BOTH = "east (127.1.0.0/16), west (127.2.0.0/16)"
POLICY = """\
apiVersion: isthmus.dev/v1alpha1
kind: ConnectivityPolicy
rules:
"""
ALLOW_ALL = POLICY + "- {name: everything, effect: allow}\n"


def dial(client: Client, target: str, network: str = "") -> Client:
    """Open a tunnel, naming a network."""
    named = f"Isthmus-Network: {network}\r\n" if network else ""
    head = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{named}\r\n".encode()
    client.send(head)
    answer = client.read_head()
    assert answer.startswith(b"HTTP/1.1 200 "), answer + client.recv()
    return client


def refused(client: Client, target: str, network: str = "") -> Answer:
    named = f"Isthmus-Network: {network}\r\n" if network else ""
    with client:
        return ask(client, f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{named}\r\n".encode())


def refused_by_grpc(path: str, target: str) -> str:
    """What a gRPC client is told."""
    call = encode_headers(
        (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/ProxyService/Proxy"),
            (b":authority", b"localhost"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        )
    )
    with connect_uds(path) as client:
        client.send(
            PREFACE + settings() + SETTINGS_ACK + frame(HEADERS, END_HEADERS, 1, call)
            + frame(DATA, 0, 1, dial_request("tcp", target, 7))
        )  # fmt: skip
        while True:
            high, low, kind, _, _ = unpack_head(client.read_exactly(9))
            payload = client.read_exactly(high << 8 | low)
            if kind == DATA:
                return str(parse(payload[MESSAGE_HEAD:]).dialResponse.error)


def through(
    stack: Stack, target: Target, network: str = "", kind: str = "uds", *, halves: bool = True
) -> str:
    """Say something through a tunnel both ways; the agent that carried it.

    ``halves``: what is on the way keeps half-closes, as konnectivity's protocol cannot.
    """
    with dial(stack.client(kind), target.name, network) as client, target.accept() as far:
        client.send(b"ping")
        assert far.read_exactly(4) == b"ping"
        far.send(b"pong")
        far.half_close()
        assert client.read_to_end() == b"pong"
        (view,) = stack.do(lambda: stack.server.tunnels.views(10))
        assert (view.link_id == 0) is (view.agent_id == "")
        if halves:
            client.send(b"more")
            assert far.read_exactly(4) == b"more"
    stack.wait_idle()
    return view.agent_id


def denials(stack: Stack, rule: str) -> float:
    return metric(stack.metrics(), f'isthmus_server_policy_denials_total{{rule="{rule}"}}')


# Through agents.


@pytest.fixture(scope="module", params=["mux", "grpc"])
def link(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def running(certificates: PkiFiles, link: str) -> Iterator[Stack]:
    """Two networks: the agent of the first names it, that of the second has addresses in it."""
    with Stack(certificates, link) as stack:
        stack.add_server(
            cluster_network=NETWORKS,
            mode=("grpc", "http-connect"),
            uds_name=str(stack.dir / "grpc.sock"),
            http_connect_uds_name=str(stack.dir / "0.sock"),
            server_port=None,
        )
        stack.add_agent(
            agent_id="agent-east",
            agent_network="east",
            agent_identifiers="host=db.internal",
            host_alias=("db.internal=127.1.0.1", "app.internal=127.1.0.1"),
        )
        stack.add_agent(
            agent_id="agent-west",
            agent_identifiers="cidr=127.2.0.0/16&host=web.internal",
            host_alias=("web.internal=127.2.0.1", "app.internal=127.2.0.1"),
        )
        stack.uds = lambda: connect_uds(str(stack.dir / "0.sock"))  # type: ignore[method-assign]
        yield stack


def test_each_address_goes_to_the_agent_of_its_network(stack: Stack) -> None:
    with Target(EAST) as east, Target(WEST) as west:
        for _ in range(10):
            assert through(stack, east) == "agent-east"
            assert through(stack, west) == "agent-west"


def test_outside_of_every_network_nothing_is_dialed(stack: Stack) -> None:
    assert refused(stack.uds(), "127.4.0.1:80").status == 403
    before = denials(stack, "(network)")
    with Target("127.3.0.1") as target:
        answer = refused(stack.uds(), target.name)
        assert answer.status == 403
        sentence = f"127.3.0.1 is in none of the networks {BOTH}"
        assert answer.body == f"cannot dial {target.name}: denied by policy: {sentence}\n"
        said = refused_by_grpc(stack.server.settings.uds_name, target.name)
        assert said == f"cannot dial {target.name}: denied by policy: {sentence}"
    assert denials(stack, "(network)") == before + 2
    failed = metric(stack.metrics(), 'isthmus_server_dial_failures_total{reason="denied"}')
    assert failed >= 2
    assert stack.do(lambda: [len(agent.tunnels) for agent in stack.agents]) == [0, 0]


@pytest.mark.parametrize("target", ["[::1]:80", "[::ffff:127.3.0.1]:80", "0.0.0.0:80"])
def test_other_spellings_are_no_way_out(stack: Stack, target: str) -> None:
    assert refused(stack.uds(), target).status == 403


def test_ipv4_written_as_ipv6_is_in_its_network(stack: Stack) -> None:
    with Target(WEST) as west:
        west.name = f"[::ffff:{WEST}]:{west.port}"
        assert through(stack, west) == "agent-west"


def test_the_client_may_name_the_network_that_it_is(stack: Stack) -> None:
    with Target(EAST) as east:
        assert through(stack, east, network="East") == "agent-east"
        answer = refused(stack.uds(), east.name, network="west")
        assert answer.status == 403
        assert "is in network east (127.1.0.0/16), and the client asked for west" in answer.body
        # A name that the server does not have is the client's own.
        assert through(stack, east, network="cluster") == "agent-east"


def test_names_follow_the_agents_that_stand_for_them(stack: Stack) -> None:
    with Target(EAST) as east, Target(WEST) as west:
        east.name, west.name = f"db.internal:{east.port}", f"WEB.internal:{west.port}"
        assert through(stack, east) == "agent-east"
        assert through(stack, west) == "agent-west"


def test_a_name_that_nobody_stands_for_is_denied_unless_the_client_says_where(stack: Stack) -> None:
    answer = refused(stack.uds(), "app.internal:80")
    assert answer.status == 403
    assert "app.internal is a name, no agent stands for it (host=app.internal)" in answer.body
    with Target(EAST) as east, Target(WEST) as west:
        east.name, west.name = f"app.internal:{east.port}", f"app.internal:{west.port}"
        assert through(stack, east, network="east") == "agent-east"
        assert through(stack, west, network="west") == "agent-west"


def test_without_its_agent_a_network_is_not_reached_by_anothers(fresh: Stack) -> None:
    fresh.add_server(cluster_network=NETWORKS)
    east = fresh.add_agent(agent_id="agent-east", agent_network="east")
    fresh.add_agent(agent_id="agent-west", agent_network="west")
    stray = fresh.add_agent(agent_id="stray")
    with Target(EAST) as target:
        assert through(fresh, target) == "agent-east"
        fresh.stop(east)
        fresh.wait(lambda: len(fresh.server.agents) == 2, "the link is gone")
        answer = refused(fresh.uds(), target.name)
        assert answer.status == 503
        assert (
            answer.body == f"cannot dial {target.name}: no agent available: none in network east\n"
        )
        fresh.add_agent(agent_id="agent-east", agent_network="east")
        assert through(fresh, target) == "agent-east"
    assert stray.metrics.dials.count == 0


def test_only_strays_are_as_good_as_nobody(fresh: Stack) -> None:
    server = fresh.add_server(cluster_network=NETWORKS)
    fresh.add_agent(agent_id="lost", agent_network="north")
    assert http_get(server.health_port, "/readyz")[0] == 500
    fresh.add_agent(agent_id="found", agent_network="west")
    assert http_get(server.health_port, "/readyz")[0] == 200


def test_with_one_network_names_and_silent_agents_go_there(fresh: Stack) -> None:
    fresh.add_server(cluster_network=("east=127.1.0.0/16",))
    fresh.add_agent(agent_id="silent", host_alias=("db.internal=127.1.0.1",))
    with Target(EAST) as target:
        assert through(fresh, target) == "silent"
        target.name = f"db.internal:{target.port}"
        assert through(fresh, target) == "silent"
    assert refused(fresh.uds(), f"{WEST}:80").status == 403


# Directly.


def test_a_network_reached_directly_needs_no_agent(fresh: Stack) -> None:
    server = fresh.add_server(cluster_network=("near=127.1.0.0/16;via=direct",))
    assert http_get(server.health_port, "/readyz")[0] == 200
    with Target(EAST) as target:
        assert through(fresh, target) == ""
    answer = refused(fresh.uds(), f"127.1.0.1:{free_port()}")
    assert answer.status == 502 and "connection refused" in answer.body
    # Names are looked up here, and every address is held against the network.
    answer = refused(fresh.uds(), "localhost:80")
    assert answer.status == 403
    assert "outside of network near (127.1.0.0/16)" in answer.body
    assert denials(fresh, "(network)") == 1
    assert refused(fresh.uds(), "no-such-host.invalid:80").status == 502


def test_a_name_inside_is_reached_directly(fresh: Stack) -> None:
    fresh.add_server(cluster_network=("near=127.0.0.0/16;via=direct",))
    with Target() as target:
        target.name = f"localhost:{target.port}"
        assert through(fresh, target) == ""


def test_deadlines_and_clients_that_leave(fresh: Stack) -> None:
    server = fresh.add_server(
        cluster_network=("near=127.0.0.0/8;via=direct",), backend_dial_timeout_s=0.3
    )
    with full_target() as target:
        assert refused(fresh.uds(), target.name).status == 504
        with fresh.uds() as client:
            client.send(f"CONNECT {target.name} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            fresh.wait(lambda: len(server.dialer.pending) == 1, "the dial is under way")
        fresh.wait(lambda: len(server.dialer.pending) == 0, "and is taken back")
    left = 'konnectivity_network_proxy_server_dial_failure_count{reason="frontend_close"}'
    assert metric(fresh.metrics(), left) == 1


def test_a_drain_waits_for_what_goes_directly(fresh: Stack) -> None:
    server = fresh.add_server(cluster_network=("near=127.1.0.0/16;via=direct",))
    with Target(EAST) as target:
        with dial(fresh.uds(), target.name) as client, target.accept() as far:
            drained = threading.Thread(target=lambda: fresh.run(server.drain(10.0)))
            drained.start()
            fresh.wait(lambda: server.draining, "it drains")
            client.send(b"still")
            assert far.read_exactly(5) == b"still"
            assert drained.is_alive()
        drained.join(20)
        assert not drained.is_alive()


def test_stopping_ends_what_goes_directly(fresh: Stack) -> None:
    server = fresh.add_server(cluster_network=("near=127.0.0.0/8;via=direct",))
    with full_target() as target, fresh.uds() as client:
        client.send(f"CONNECT {target.name} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        fresh.wait(lambda: len(server.dialer.pending) == 1, "the dial is under way")
        fresh.stop(server)
        assert client.read_head().startswith(b"HTTP/1.1 502 ")


# Through another server.


def far_server(stack: Stack, **settings: Any) -> Server:
    """A second server with an agent of its own."""
    server = stack.add_server(
        mode=("grpc", "http-connect"),
        http_connect_uds_name=str(stack.dir / "far.sock"),
        http_connect_port=0,
        cluster_network=("beyond=127.1.0.0/16",),
        **settings,
    )
    stack.add_agent(agent_id="far")
    return server


@pytest.mark.parametrize(
    "way", ["http-connect", "konnectivity", "kep", "http-connect-tls", "kep-tls"]
)
def test_a_network_behind_another_server(fresh: Stack, way: str) -> None:
    protocol = way.removesuffix("-tls")
    far = far_server(fresh)
    where = f"server:{protocol}://{fresh.dir}/{'far' if protocol == 'http-connect' else '0'}.sock"
    if way.endswith("-tls"):
        files = fresh.files
        port = far.doors.ports["http-connect" if protocol == "http-connect" else "grpc"]
        where = (
            f"server:{protocol}://localhost:{port}?ca={files.ca_cert}"
            f"&cert={files.client_cert}&key={files.client_key}"
        )
    near = fresh.add_server(
        cluster_network=(f"far=127.1.0.0/16,127.3.0.0/16;via={where}", "west=127.2.0.0/16")
    )
    fresh.servers = [near, far]  # clients ask the first
    with Target(EAST) as target:
        for _ in range(3):
            assert through(fresh, target, halves=protocol != "konnectivity") == ""
        assert fresh.do(lambda: far.metrics.dials.count) == 3
    # What the second says, the client hears.
    answer = refused(fresh.uds(), "127.3.0.1:80")
    assert answer.status == 403
    assert "127.3.0.1 is in none of the networks beyond (127.1.0.0/16)" in answer.body
    answer = refused(fresh.uds(), f"127.1.0.1:{free_port()}")
    assert answer.status == 502 and "connection refused" in answer.body
    # And it is asked for nothing that is not behind it.
    assert refused(fresh.uds(), f"{WEST}:80").status == 503


def test_another_server_that_is_not_there(fresh: Stack) -> None:
    fresh.add_server(
        cluster_network=(f"far=127.1.0.0/16;via=server:http-connect://{fresh.dir}/none.sock",)
    )
    answer = refused(fresh.uds(), "127.1.0.1:80")
    assert answer.status == 502
    assert "connectivity server" in answer.body and "none.sock" in answer.body


# By a dialer that somebody else wrote.


def test_a_network_behind_a_dialer_that_somebody_else_wrote(
    fresh: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netw_jump.py").write_text(
        "import asyncio, socket\n"
        "class Jump:\n"
        "    async def open(self, target, *, timeout_s, options):\n"
        "        sock = socket.socket()\n"
        "        sock.setblocking(False)\n"
        "        where = (options['to'], target.port)\n"
        "        try:\n"
        "            await asyncio.get_running_loop().sock_connect(sock, where)\n"
        "        except BaseException:\n"
        "            sock.close()\n"
        "            raise\n"
        "        return sock\n"
    )
    info = tmp_path / "netw_jump-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: netw-jump\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[isthmus.dialers]\nnetw-jump = netw_jump:Jump\n")
    monkeypatch.syspath_prepend(tmp_path)
    fresh.add_server(cluster_network=("vpn=192.0.2.0/24;via=dialer:netw-jump?to=127.1.0.1",))
    with Target(EAST) as target:
        target.name = f"192.0.2.1:{target.port}"
        assert through(fresh, target) == ""
    answer = refused(fresh.uds(), f"192.0.2.1:{free_port()}")
    assert answer.status == 502 and "connection refused" in answer.body
    assert refused(fresh.uds(), "192.0.3.1:80").status == 403


def test_a_dialer_that_is_not_installed_is_said_at_the_start(fresh: Stack) -> None:
    with pytest.raises(ConfigError, match="unknown dialer 'no-such'"):
        fresh.add_server(cluster_network=("vpn=192.0.2.0/24;via=dialer:no-such",))


def test_a_policy_that_is_not_right_is_said_at_the_start(fresh: Stack, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    with pytest.raises(ConfigError, match=r"cannot read --policy-file .*: no such file"):
        fresh.add_server(policy_file=str(path))
    path.write_text(POLICY + "- {name: a, effect: alow}\n")
    with pytest.raises(ConfigError, match=r"policy.yaml:4:21: rules\[0\]\.effect: must be allow"):
        fresh.add_server(policy_file=str(path))


def test_files_of_another_server_are_read_at_the_start(fresh: Stack) -> None:
    with pytest.raises(ConfigError, match=r"--cluster-network ca /no/such\.crt"):
        fresh.add_server(
            cluster_network=("far=127.1.0.0/16;via=server:kep://localhost:1?ca=/no/such.crt",)
        )


# Policy.


def write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    write(path, ALLOW_ALL)
    return path


def look(stack: Stack) -> None:
    """Have the file looked at now; the server does it every second."""
    file = stack.server.networks.policy
    assert file is not None
    stack.run(file.check())


def test_rules_are_about_who_asks(fresh: Stack, policy: Path) -> None:
    write(
        policy,
        POLICY
        + "- {name: client, effect: allow, match: {requesters: ['certificate:isthmus-client']}}\n"
        + "- {name: no-users, effect: deny, match: {requesters: ['uid:*']}}\n",
    )
    fresh.add_server(policy_file=str(policy))
    fresh.add_agent(agent_id="any")
    with Target() as target:
        assert through(fresh, target, kind="tls") == "any"
        answer = refused(fresh.uds(), target.name)
        assert answer.status == 403
        assert answer.body == (
            f"cannot dial {target.name}: denied by policy: rule no-users denies it\n"
        )
    assert denials(fresh, "no-users") == 1


def test_rules_are_about_networks_and_names(fresh: Stack, policy: Path) -> None:
    write(
        policy,
        POLICY
        + "- {name: no-west, effect: deny, match: {networks: [west]}}\n"
        + "- {name: pods, effect: allow, match: {cidrs: [127.0.0.0/8]}}\n",
    )
    fresh.add_server(policy_file=str(policy), cluster_network=NETWORKS)
    fresh.add_agent(
        agent_id="agent-east",
        agent_network="east",
        agent_identifiers="host=db.internal",
        host_alias=("db.internal=127.1.0.1",),
    )
    with Target(EAST) as target:
        assert through(fresh, target) == "agent-east"
        # It has an address that is allowed, but nobody here knows that.
        answer = refused(fresh.uds(), f"db.internal:{target.port}")
        assert answer.status == 403 and "no rule allows it" in answer.body
    assert "rule no-west denies it" in refused(fresh.uds(), f"{WEST}:80").body


def test_a_new_policy_holds_for_new_dials(fresh: Stack, policy: Path) -> None:
    server = fresh.add_server(policy_file=str(policy))
    fresh.add_agent()
    failures = "isthmus_server_policy_reload_failures_total"
    with Target() as target:
        with tunnel(fresh.uds(), target.name) as client, target.accept() as far:
            write(policy, POLICY + "- {name: closed, effect: deny}\n")
            look(fresh)
            assert "rule closed denies it" in refused(fresh.uds(), target.name).body
            client.send(b"still here")
            assert far.read_exactly(10) == b"still here"
            # What is not right changes nothing, and is said once.
            before = metric(fresh.metrics(), failures)
            write(policy, POLICY + "- {name: open, effect: alow}\n")
            look(fresh)
            look(fresh)
            assert metric(fresh.metrics(), failures) == before + 1
            assert "rule closed denies it" in refused(fresh.uds(), target.name).body
            policy.unlink()
            look(fresh)
            assert "rule closed denies it" in refused(fresh.uds(), target.name).body
        write(policy, ALLOW_ALL)
        wait_until(
            lambda: fresh.do(lambda: server.networks.policy.current.rules[0].name) == "everything",  # type: ignore[union-attr]
            "the server looks by itself",
        )
        fresh.wait_idle()
        through(fresh, target)


def test_policies_change_under_traffic(fresh: Stack, policy: Path) -> None:
    """Every dial is allowed or denied as a whole, whatever is in the file at the moment."""
    fresh.add_server(policy_file=str(policy), cluster_network=("near=127.0.0.0/8",))
    fresh.add_agent()
    closed = POLICY + "- {name: closed, effect: deny}\n"
    seen: dict[int, int] = {}
    stop = threading.Event()
    lock = threading.Lock()
    wrong: list[str] = []

    with echo_target() as target:  # one that accepts: a full queue would hold dials up

        def work() -> None:
            while not stop.is_set():
                with fresh.uds() as client:
                    client.send(f"CONNECT {target.name} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                    status = int(client.read_head().split(b" ", 2)[1])
                    with lock:
                        seen[status] = seen.get(status, 0) + 1
                    if status == 403 and b"rule closed denies it" not in client.read_to_end():
                        wrong.append("another reason")

        workers = [threading.Thread(target=work) for _ in range(3)]
        for worker in workers:
            worker.start()
        for number in range(20):
            write(policy, (closed, ALLOW_ALL)[number % 2] + f"# {number}\n")
            look(fresh)
            have = dict(seen)
            status = (403, 200)[number % 2]
            wait_until(
                lambda: seen.get(status, 0) > have.get(status, 0) + 3,  # noqa: B023
                f"dials see version {number}",
            )
        stop.set()
        for worker in workers:
            worker.join(20)
    assert not wrong
    assert set(seen) == {200, 403}
    fresh.wait_idle()
