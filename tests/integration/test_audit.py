"""The audit log against what really crossed the sockets: every way in, every way to end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from clients import (
    LIMIT_S,
    Client,
    Target,
    TlsClient,
    ask,
    connect_uds,
    free_port,
    full_target,
    head_for,
    tunnel,
)
from grpc_clients import GrpcCall
from programs import COMMAND, ENVIRONMENT, Programs
from stack import Stack, client_context, metric, wait_until

from isthmus.tools.pki.making import PkiFiles
from isthmus.tunnel.end import Ending, unsent

Record = dict[str, Any]
UP, DOWN = b"u" * 4321, b"d" * 12345


@pytest.fixture(scope="module", params=["auto", "grpc"])
def link(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def running(certificates: PkiFiles, link: str) -> Iterator[Stack]:
    with Stack(certificates, link) as stack:
        add_server(stack)
        stack.add_agent(agent_id="node-1")
        yield stack


def add_server(stack: Stack, **settings: Any) -> None:
    """A server with both frontends and an audit log."""
    stack.add_server(
        mode=("grpc", "http-connect"),
        http_connect_uds_name=str(stack.dir / "connect.sock"),
        http_connect_port=0,
        audit_log_path=str(stack.dir / "audit.log"),
        server_id="s-1",
        **settings,
    )


def connect(stack: Stack) -> Client:
    return connect_uds(stack.server.settings.http_connect_uds_name)


def read(path: Path) -> list[Record]:
    """Every record of a file; each line is whole."""
    data = path.read_bytes()
    assert not data or data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


class Since:
    """What the audit log says from now on."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._path = Path(stack.server.settings.audit.log_path)
        self._before = self._put()

    def _put(self) -> int:
        log = self._stack.server.audit
        assert log is not None
        wait_until(lambda: log.log._taken_bytes == log.log._put_bytes, "everything is written")
        return len(read(self._path))

    def records(self) -> list[Record]:
        """Everything, when nothing goes on any more."""
        self._stack.wait_idle()
        self._put()
        return read(self._path)[self._before :]

    def tunnel(self) -> tuple[Record, Record]:
        """The two records of the one tunnel."""
        begin, end = self.records()
        assert (begin["stage"], end["stage"]) == ("Begin", "End")
        changed = {key for key in begin if begin[key] != end[key]}
        assert changed == {"time", "stage"}, "the end repeats what the begin said"
        return begin, end

    def one(self) -> Record:
        """The only record."""
        [record] = self.records()
        return record


def moment(record: Record, key: str) -> datetime:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", record[key])
    return datetime.fromisoformat(record[key])


def carried(end: Record) -> tuple[int, int]:
    return end["bytesToTarget"], end["bytesToClient"]


# Tunnels by CONNECT.


def test_a_tunnel_has_a_begin_and_an_end_with_everything_known(stack: Stack) -> None:
    since = Since(stack)
    with Target() as target:
        with tunnel(connect(stack), target.name, UP[:100]) as client, target.accept() as far:
            client.send(UP[100:])
            assert far.read_exactly(len(UP)) == UP
            far.send(DOWN)
            assert client.read_exactly(len(DOWN)) == DOWN
            client.half_close()
            assert far.recv() == b""
            far.half_close()
            assert client.recv() == b""
        begin, end = since.tunnel()
    assert carried(end) == (len(UP), len(DOWN))
    assert (end["ending"], end["endedBy"]) == ("closed", "both")
    assert begin["requester"] == {"name": str(os.getuid()), "kind": "uid"}
    assert begin["frontend"] == "http-connect"
    assert begin["destination"] == target.name
    assert begin["address"] == target.name
    assert (begin["agentId"], begin["serverId"]) == ("node-1", "s-1")
    assert begin["linkId"] in {it.id for it in stack.server.links}
    assert "client" not in begin and "claimed" not in begin
    assert moment(begin, "startTime") <= moment(begin, "time") <= moment(end, "endTime")
    assert end["endTime"] == end["time"]
    lived = moment(end, "endTime") - moment(begin, "time")
    assert abs(timedelta(seconds=end["durationSeconds"]) - lived) < timedelta(seconds=1)


def test_a_half_close_is_counted_to_the_last_byte(stack: Stack) -> None:
    since = Since(stack)
    with Target() as target:
        with tunnel(connect(stack), target.name) as client, target.accept() as far:
            client.send(UP)
            client.half_close()
            assert len(far.read_to_end()) == len(UP)
            far.send(DOWN)  # long after the client's end
            far.half_close()
            assert len(client.read_to_end()) == len(DOWN)
        _, end = since.tunnel()
    assert carried(end) == (len(UP), len(DOWN))
    assert end["ending"] == "closed"


@pytest.mark.parametrize("who", ["client", "target"])
def test_a_reset_says_who_and_how_much_before(stack: Stack, who: str) -> None:
    since = Since(stack)
    with Target() as target:
        with tunnel(tls(stack), target.name) as client, target.accept() as far:
            client.send(UP)
            assert far.read_exactly(len(UP)) == UP
            far.send(DOWN)
            assert client.read_exactly(len(DOWN)) == DOWN
            (client if who == "client" else far).reset()
            with pytest.raises(OSError):
                (far if who == "client" else client).recv()
        begin, end = since.tunnel()
    assert carried(end) == (len(UP), len(DOWN))
    assert (end["ending"], end["endedBy"]) == ("reset by peer", who)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", begin["client"])
    assert begin["requester"]["kind"] == "certificate"
    assert begin["requester"]["name"]


def tls(stack: Stack) -> Client:
    """A client of the TCP port of http-connect."""
    port = stack.server.doors.ports["http-connect"]
    sock = socket.create_connection(("127.0.0.1", port), LIMIT_S)
    return TlsClient(sock, client_context(stack.files), "localhost")


# By gRPC.


def grpc_clean(call: GrpcCall, far: Client) -> None:
    call.close()
    assert far.recv() == b""


def grpc_half_close(call: GrpcCall, far: Client) -> None:
    call.half_close()
    assert far.recv() == b""
    far.half_close()
    while call.packet() is not None:
        pass


def grpc_target_ends(call: GrpcCall, far: Client) -> None:
    far.half_close()
    while call.packet() is not None:
        pass


def grpc_reset(call: GrpcCall, far: Client) -> None:
    call.reset()
    with pytest.raises(OSError):
        far.recv()


def grpc_target_resets(call: GrpcCall, far: Client) -> None:
    far.reset()
    while call.packet() is not None:
        pass


@pytest.mark.parametrize(
    ("finish", "ending", "by"),
    [
        (grpc_clean, "closed", "both"),
        (grpc_half_close, "closed", "both"),
        (grpc_target_ends, "closed", "both"),
        (grpc_reset, "reset by peer", "client"),
        (grpc_target_resets, "reset by peer", "target"),
    ],
)
def test_a_grpc_tunnel_is_counted_alike(
    stack: Stack, finish: Callable[[GrpcCall, Client], None], ending: str, by: str
) -> None:
    since = Since(stack)
    with Target() as target, stack.uds() as client:
        call = GrpcCall(client)
        assert call.dial(target.name) == ""
        with target.accept() as far:
            call.send(UP)
            assert far.read_exactly(len(UP)) == UP
            far.send(DOWN)
            assert call.read_exactly(len(DOWN)) == DOWN
            finish(call, far)
        begin, end = since.tunnel()
    assert carried(end) == (len(UP), len(DOWN))
    assert (end["ending"], end["endedBy"]) == (ending, by)
    assert begin["frontend"] == "grpc"
    assert begin["connectionId"] == call.response["isthmus-connection-id"]


# Requests that become no tunnel.


def test_a_refused_target_is_a_failed_request(stack: Stack) -> None:
    since = Since(stack)
    name = f"127.0.0.1:{free_port()}"
    with connect(stack) as client:
        assert ask(client, head_for(name)).status == 502
    record = since.one()
    assert (record["stage"], record["failure"]) == ("Failed", "connection refused")
    assert record["destination"] == name
    assert record["endTime"] == record["time"] and record["durationSeconds"] >= 0
    assert "bytesToTarget" not in record and "agentId" not in record


def test_a_refused_target_by_grpc_too(stack: Stack) -> None:
    since = Since(stack)
    with stack.uds() as client:
        call = GrpcCall(client)
        assert "refused" in call.dial(f"127.0.0.1:{free_port()}")
    record = since.one()
    assert (record["stage"], record["frontend"]) == ("Failed", "grpc")
    assert record["connectionId"] == call.response["isthmus-connection-id"]


def test_a_request_that_is_none_is_refused(stack: Stack) -> None:
    since = Since(stack)
    with connect(stack) as client:
        assert ask(client, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").status == 405
    record = since.one()
    assert (record["stage"], record["status"]) == ("Refused", 405)
    assert "GET" in record["reason"] and "destination" not in record
    assert record["requester"]["kind"] == "uid" and record["connectionId"]


@pytest.mark.parametrize("address", ["no-port", "127.1:80"])
def test_a_grpc_target_that_is_none_is_refused(stack: Stack, address: str) -> None:
    since = Since(stack)
    with stack.uds() as client:
        assert "cannot dial" in GrpcCall(client).dial(address)
    record = since.one()
    assert (record["stage"], record["status"], record["frontend"]) == ("Refused", 400, "grpc")
    assert address in record["reason"]


@pytest.mark.parametrize("frontend", ["connect", "grpc"])
def test_a_client_that_leaves_before_the_answer_is_told_of(stack: Stack, frontend: str) -> None:
    since = Since(stack)
    with full_target() as target:
        with connect(stack) if frontend == "connect" else stack.uds() as client:
            if frontend == "connect":
                client.send(head_for(target.name))
            else:
                GrpcCall(client).ask(target.name)
            stack.wait(lambda: len(stack.server.dialer.pending) == 1, "it is dialed")
        record = since.one()
    assert (record["stage"], record["destination"]) == ("Failed", target.name)
    assert record["reason"] == "the client left before the answer"
    assert "failure" not in record
    assert record["requester"]["kind"] == "uid"


def test_without_an_agent_the_request_fails(fresh: Stack) -> None:
    add_server(fresh)
    since = Since(fresh)
    with connect(fresh) as client:
        assert ask(client, head_for("10.0.0.1:1")).status == 503
    record = since.one()
    assert (record["stage"], record["failure"]) == ("Failed", "no agent available")


def test_a_tunnel_whose_agent_is_lost_says_so(fresh: Stack) -> None:
    add_server(fresh)
    agent = fresh.add_agent(agent_id="node-1")
    since = Since(fresh)
    with Target() as target:
        with tunnel(connect(fresh), target.name, UP) as client, target.accept() as far:
            assert far.read_exactly(len(UP)) == UP
            [link] = fresh.server.links
            fresh.do(lambda: link.lost("cut by the test"))
            assert client.recv() == b""  # a UNIX socket cannot say more
        _, end = since.tunnel()
    assert (end["ending"], end["endedBy"]) == ("link lost", "target")
    assert carried(end) == (len(UP), 0)
    assert agent.id == end["agentId"]


def fill(stack: Stack, far: Client) -> None:
    """Send until the server has bytes that its client does not take."""
    far.sock.setblocking(False)
    [open_tunnel] = stack.do(lambda: list(stack.server.tunnels._open.values()))

    def stuck() -> bool:
        with contextlib.suppress(BlockingIOError):
            while True:
                far.sock.send(bytes(65536))
        return stack.do(lambda: unsent(open_tunnel.client)) > 0

    wait_until(stuck, "the client's buffers are full")


@pytest.mark.parametrize("how", ["agent lost", "target resets", "ended by us"])
def test_what_a_client_never_got_is_not_counted(fresh: Stack, how: str) -> None:
    add_server(fresh)
    fresh.add_agent(agent_id="node-1")
    since = Since(fresh)
    with Target() as target:
        with tunnel(connect(fresh), target.name, UP) as client, target.accept() as far:
            fill(fresh, far)
            if how == "agent lost":
                [link] = fresh.server.links
                fresh.do(lambda: link.lost("cut by the test"))
            elif how == "target resets":
                far.reset()
            else:
                fresh.do(lambda: fresh.server.tunnels.abort_all(Ending.DRAINED))
            fresh.wait(lambda: not len(fresh.server.tunnels), "it has ended")
            got = len(client.read_to_end())  # what the kernel has taken for it
        _, end = since.tunnel()
    assert carried(end) == (len(UP), got)


@pytest.mark.parametrize("who", ["client", "target", "us"])
def test_what_a_grpc_client_never_got_is_not_counted(stack: Stack, who: str) -> None:
    since = Since(stack)
    with Target() as target, stack.uds() as client:
        call = GrpcCall(client)
        assert call.dial(target.name) == ""
        with target.accept() as far:
            call.send(UP)
            assert far.read_exactly(len(UP)) == UP
            fill(stack, far)
            if who == "client":
                call.reset()
            elif who == "target":
                far.reset()
            else:
                stack.do(lambda: stack.server.tunnels.abort_all(Ending.ADMIN))
            stack.wait(lambda: not len(stack.server.tunnels), "it has ended")
        _, end = since.tunnel()
    # It never gives credit, so it gets one window (RFC 9113 §6.9.2), heads of packets included.
    assert end["bytesToTarget"] == len(UP)
    assert 64_000 < end["bytesToClient"] <= 65_535


def test_what_a_client_that_left_never_got_is_not_counted(stack: Stack) -> None:
    since = Since(stack)
    with Target() as target:
        with tunnel(connect(stack), target.name, UP) as client, target.accept() as far:
            fill(stack, far)
            got = len(client.read_exactly(100_000))
            client.close()
            stack.wait(lambda: not len(stack.server.tunnels), "it has ended")
        _, end = since.tunnel()
    assert end["bytesToTarget"] == len(UP)
    # More than it read by what waited in its socket, and less than what the server still had.
    assert got <= end["bytesToClient"] < got + 500_000


def test_the_decision_and_what_made_it_are_told(fresh: Stack, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "apiVersion: isthmus.dev/v1alpha1\nkind: ConnectivityPolicy\nrules:\n"
        "- {name: no-ssh, effect: deny, match: {ports: [22]}}\n"
        "- {name: pods, effect: allow, match: {networks: [pods]}}\n"
    )
    add_server(fresh, policy_file=str(policy), cluster_network=("pods=127.0.0.0/8;via=direct",))
    since = Since(fresh)
    with Target() as target:
        with tunnel(connect(fresh), target.name, UP) as client, target.accept() as far:
            assert far.read_exactly(len(UP)) == UP
            far.send(DOWN)
            assert client.read_exactly(len(DOWN)) == DOWN
        begin, end = since.tunnel()
    assert (begin["network"], begin["decision"], begin["rule"]) == ("pods", "allow", "pods")
    assert carried(end) == (len(UP), len(DOWN))
    assert "agentId" not in begin and "linkId" not in begin
    for name, network, rule in (
        ("127.0.0.1:22", "pods", "no-ssh"),
        ("9.9.9.9:1", None, "(network)"),
    ):
        since = Since(fresh)
        with connect(fresh) as client:
            assert ask(client, head_for(name)).status == 403
        record = since.one()
        assert (record["stage"], record["failure"]) == ("Refused", "denied by policy")
        assert (record["decision"], record["rule"]) == ("deny", rule)
        assert (record["destination"], record.get("network")) == (name, network)
        assert record["reason"] and "bytesToTarget" not in record


# What clients say.

CLAIMS = (
    b"Isthmus-User: alice%40example.org\r\nIsthmus-Group: a\r\nIsthmus-Group: b\r\n"
    b"Isthmus-Tenant: t\r\nIsthmus-Object: pods/x\r\nIsthmus-Network: cluster\r\n"
)
CLAIMED = {
    "network": "cluster", "user": "alice@example.org", "groups": ["a", "b"], "tenant": "t",
    "object": "pods/x",
}  # fmt: skip


def claim(stack: Stack, client: Client) -> Record:
    since = Since(stack)
    with Target() as target, client:
        client.send(head_for(target.name)[:-2] + CLAIMS + b"\r\n")
        assert client.read_head().startswith(b"HTTP/1.1 200 ")
        target.accept().close()
    begin, _ = since.tunnel()
    claimed: Record = begin["claimed"]
    return claimed


@pytest.mark.parametrize("kind", ["uds", "tls"])
def test_who_proved_who_they_are_is_believed(stack: Stack, kind: str) -> None:
    client = tls(stack) if kind == "tls" else connect(stack)
    assert claim(stack, client) == {"believed": True, **CLAIMED}


def test_with_compat_nobody_is_believed(fresh: Stack) -> None:
    fresh.add_server(
        server_port=None, server_cert="", server_key="", server_ca_cert="",
        compat="konnectivity", agent_port=free_port(), health_port=free_port(),
        admin_port=free_port(), audit_log_path=str(fresh.dir / "audit.log"),
    )  # fmt: skip
    fresh.add_agent()
    assert claim(fresh, fresh.uds()) == {"believed": False, **CLAIMED}


# The file.


def test_metrics_count_the_records(stack: Stack) -> None:
    since = Since(stack)
    since.records()
    text = stack.metrics()
    path = Path(stack.server.settings.audit.log_path)
    assert metric(text, "isthmus_server_audit_records_total") == len(read(path))
    assert metric(text, "isthmus_server_audit_records_dropped_total") == 0
    assert metric(text, "isthmus_server_audit_write_errors_total") == 0


def test_a_server_that_stops_writes_everything(programs: Programs, tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    server = programs.server(f"--audit-log-path={path}", "--graceful-shutdown-timeout=0")
    programs.agent(server)
    programs.wait_ready(server)
    with Target() as target, tunnel(programs.connect_uds(), target.name, UP), target.accept():
        wait_until(lambda: path.stat().st_size > 0, "the begin is written")
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 0
    begin, end = read(path)
    assert (begin["stage"], end["stage"]) == ("Begin", "End")
    assert (end["ending"], end["endedBy"]) == ("drain deadline passed", "us")
    assert carried(end) == (len(UP), 0)


def test_an_agent_that_is_killed_ends_its_tunnels_with_what_they_carried(
    programs: Programs, tmp_path: Path
) -> None:
    path = tmp_path / "audit.log"
    server = programs.server(f"--audit-log-path={path}", "--link-resume-timeout=1s")
    agent = programs.agent(server)
    programs.wait_ready(server)
    with (
        Target() as target,
        tunnel(programs.connect_uds(), target.name, UP) as client,
        target.accept() as far,
    ):
        assert far.read_exactly(len(UP)) == UP
        far.send(DOWN)
        assert client.read_exactly(len(DOWN)) == DOWN
        agent.signal(signal.SIGKILL)
        assert client.recv() == b""  # a UNIX socket cannot say more
        wait_until(lambda: b'"End"' in path.read_bytes(), "the end is written")
    _, end = read(path)
    assert (end["ending"], end["endedBy"]) == ("link lost", "target")
    assert carried(end) == (len(UP), len(DOWN))


def test_a_server_that_is_killed_leaves_whole_lines(programs: Programs, tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    server = programs.server(f"--audit-log-path={path}")
    programs.agent(server)
    programs.wait_ready(server)
    with Target() as target:
        for _ in range(200):
            tunnel(programs.connect_uds(), target.name).close()
            target.accept().close()
        wait_until(lambda: path.read_bytes().count(b'"Begin"') > 100, "some of it is written")
        server.signal(signal.SIGKILL)
        server.wait_exit()
    records = read(path)
    # What was not written yet is lost, and only that: those of the last moment.
    begins = [it["connectionId"] for it in records if it["stage"] == "Begin"]
    ends = {it["connectionId"] for it in records if it["stage"] == "End"}
    assert len(begins) > 100
    numbers = [int(it.partition("-")[2], 16) for it in begins]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert ends <= set(begins) and len(begins) - len(ends) < 20


def test_hangup_opens_the_file_again(programs: Programs, tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    server = programs.server(f"--audit-log-path={path}")
    path.rename(tmp_path / "old.log")
    server.signal(signal.SIGHUP)
    wait_until(path.exists, "the file is there again")
    assert server.process.poll() is None
    server.signal(signal.SIGTERM)
    assert server.wait_exit() == 0


def test_a_file_that_cannot_be_opened_is_one_sentence(programs: Programs, tmp_path: Path) -> None:
    server = programs.start("server", *programs.server_flags(), f"--audit-log-path={tmp_path}/x/y")
    assert server.wait_exit() == 2
    assert f"--audit-log-path {tmp_path}/x/y: No such file or directory" in server.log


def test_standard_output_that_is_closed_is_one_sentence(programs: Programs) -> None:
    flags = [*programs.server_flags(), "--audit-log-path=-"]
    command = [*COMMAND, "server", *flags]
    # Whatever is opened first then would be 1, and get the records.
    done = subprocess.run(
        command, stderr=subprocess.PIPE, timeout=LIMIT_S, env=ENVIRONMENT,
        preexec_fn=partial(os.close, 1),
    )  # fmt: skip
    assert done.returncode == 2
    assert b"--audit-log-path -: standard output is closed" in done.stderr
