"""Fair shares on real sockets: who has too much is refused or slowed down, and nobody else is.

Whoever comes by TLS is limited, whoever comes by a UNIX socket is not.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_bed import config, doors
from clients import LIMIT_S, Target, ask, echo_target, full_target, head_for, tunnel
from stack import Stack, metric, wait_until

from isthmus.client import DialError
from isthmus.client.blocking import BlockingService

KIB, MIB = 1024, 1024 * 1024
RATE = MIB
FRONTENDS = pytest.mark.parametrize("frontend", ["connect", "packet", "payload"])
LINKS = pytest.mark.parametrize("link", ["mux", "grpc"])
#: What is under way may still come: windows, and the buffers of every kernel in between.
UNDER_WAY = 6 * MIB
POLICY = """\
apiVersion: isthmus.dev/v1alpha1
kind: ConnectivityPolicy
default: allow
rules: []
shares:
- name: slow
  match: {requesters: ["certificate:*"]}
"""


@contextlib.contextmanager
def serving(stack: Stack, link: str, limits: str, path: Path) -> Iterator[BlockingService]:
    policy = path / "policy.yaml"
    policy.write_text(POLICY + "".join(f"  {line}\n" for line in limits.split("; ")))
    audit = str(path / "audit.log")
    stack.add_server(**doors(stack), policy_file=str(policy), audit_log_path=audit)
    stack.add_agent(link=link)
    with BlockingService(config(stack)) as service:
        yield service


class Pump:
    """Sends for ever on one side and counts what comes on the other, in threads."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.received = 0
        self._sockets = (source, sink)
        self._threads = [
            threading.Thread(target=self._send, args=(source,), daemon=True),
            threading.Thread(target=self._count, args=(sink,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _send(self, source: socket.socket) -> None:
        block = bytes(64 * KIB)
        with contextlib.suppress(OSError):
            while True:
                source.sendall(block)

    def _count(self, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := sink.recv(MIB):
                self.received += len(data)

    def stop(self) -> None:
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LIMIT_S)


def send_through(source: socket.socket, sink: socket.socket, total: int) -> None:
    """Send so many bytes, and read them all on the other side."""
    sender = threading.Thread(target=source.sendall, args=(bytes(total),), daemon=True)
    sender.start()
    left = total
    while left:
        data = sink.recv(MIB)
        assert data
        left -= len(data)
    sender.join(LIMIT_S)


@pytest.mark.parametrize(
    ("frontend", "link", "way"),
    [
        ("connect", "mux", "to_target"),
        ("packet", "mux", "to_client"),
        ("payload", "grpc", "to_target"),
        # Frontends and links know nothing of each other: a release tries the other pairs.
        pytest.param("connect", "mux", "to_client", marks=pytest.mark.nightly),
        pytest.param("connect", "grpc", "to_target", marks=pytest.mark.nightly),
        pytest.param("packet", "mux", "to_target", marks=pytest.mark.nightly),
        pytest.param("packet", "grpc", "to_target", marks=pytest.mark.nightly),
        pytest.param("payload", "mux", "to_target", marks=pytest.mark.nightly),
        pytest.param("payload", "mux", "to_client", marks=pytest.mark.nightly),
    ],
)
def test_who_is_at_its_rate_slows_nobody_else(
    fresh: Stack, frontend: str, link: str, way: str, tmp_path: Path
) -> None:
    limits = f"bytesPerSecond: {RATE}; burstBytes: {RATE}"
    with contextlib.ExitStack() as opened:
        service = opened.enter_context(serving(fresh, link, limits, tmp_path))
        target = opened.enter_context(Target())
        pairs = []
        for kind in ("tls", "tls", "uds"):
            client = opened.enter_context(service.connect(f"{frontend}-{kind}", target.name))
            far = opened.enter_context(target.accept()).sock
            client.settimeout(LIMIT_S)
            pairs.append((client, far) if way == "to_target" else (far, client))
        began = time.monotonic()
        pumps = [Pump(*pair) for pair in pairs[:2]]
        try:
            wait_until(lambda: all(pump.received for pump in pumps), "both get something")
            wait_until(
                lambda: "waits_total" in _sample(fresh), "those that are limited have to wait"
            )
            send_through(*pairs[2], 32 * MIB)
            # Both together had no more than their rate allows, while the other had all.
            got = sum(pump.received for pump in pumps)
            assert got <= RATE + RATE * (time.monotonic() - began) + 2 * UNDER_WAY
            assert fresh.snapshot()["truncated"] == 0
            assert {it["state"] for it in fresh.snapshot()["tunnels"]} <= {"open", "stalled"}
            # And they go on.
            before = [pump.received for pump in pumps]
            wait_until(
                lambda: all(pump.received > seen for pump, seen in zip(pumps, before, strict=True)),
                "both get their turns",
            )
        finally:
            for pump in pumps:
                pump.stop()
    fresh.wait_idle()
    wait_until(
        lambda: metric(fresh.metrics(), 'isthmus_server_share_tunnels{share="slow"}') == 0,
        "everything was given back",
    )


def test_what_comes_by_konnectivitys_protocol_is_not_held_to_a_rate(
    fresh: Stack, tmp_path: Path
) -> None:
    # It cannot make one connection wait: the whole link would, and with it everybody else.
    limits = f"bytesPerSecond: {64 * KIB}; burstBytes: {64 * KIB}"
    with contextlib.ExitStack() as opened:
        service = opened.enter_context(serving(fresh, "grpc", limits, tmp_path))
        target = opened.enter_context(Target())
        client = opened.enter_context(service.connect("connect-tls", target.name))
        far = opened.enter_context(target.accept()).sock
        client.settimeout(LIMIT_S)
        send_through(far, client, 8 * MIB)  # two minutes' worth
        assert not _sample(fresh)
    fresh.wait_idle()


def _sample(stack: Stack) -> str:
    wanted = 'isthmus_server_share_waits_total{share="slow"}'
    return "\n".join(line for line in stack.metrics().splitlines() if line.startswith(wanted))


@FRONTENDS
@LINKS
def test_who_has_all_its_tunnels_is_refused_and_nobody_else(
    fresh: Stack, frontend: str, link: str, tmp_path: Path
) -> None:
    with serving(fresh, link, "maxTunnels: 2", tmp_path) as service, echo_target() as target:
        with contextlib.ExitStack() as opened:
            for _ in range(2):
                opened.enter_context(service.connect(f"{frontend}-tls", target.name))
            for _ in range(3):
                with pytest.raises(DialError) as caught:
                    service.connect(f"{frontend}-tls", target.name)
                assert "tunnels, the most of share slow" in str(caught.value)
                opened.enter_context(service.connect(f"{frontend}-uds", target.name))
        fresh.wait_idle()
        # What has ended makes room.
        service.connect(f"{frontend}-tls", target.name).close()
        counted = 'isthmus_server_share_refusals_total{limit="tunnels",share="slow"}'
        assert metric(fresh.metrics(), counted) == 3
        records = _records(tmp_path, "share/slow")
        assert {(it["stage"], it["decision"]) for it in records} == {("Refused", "deny")}
        assert len(records) == 3 and "the most of share slow" in records[0]["reason"]
    fresh.wait_idle()


def _records(path: Path, rule: str) -> list[dict[str, str]]:
    def found() -> list[dict[str, str]]:
        lines = (path / "audit.log").read_text().splitlines()
        return [it for it in map(json.loads, lines) if it.get("rule") == rule]

    wait_until(lambda: len(found()) >= 3, "the audit log has them")
    return found()


@LINKS
def test_who_dials_too_often_is_refused_and_nobody_else(
    fresh: Stack, link: str, tmp_path: Path
) -> None:
    limits = "dialsPerSecond: 0.01; dialBurst: 3"
    with serving(fresh, link, limits, tmp_path) as service, echo_target() as target:
        for _ in range(3):
            service.connect("connect-tls", target.name).close()
        with pytest.raises(DialError, match=r"dial more than 0\.01 times a second"):
            service.connect("connect-tls", target.name)
        for _ in range(10):
            service.connect("connect-uds", target.name).close()
    fresh.wait_idle()


def test_the_status_is_503(fresh: Stack) -> None:
    fresh.add_server(max_tunnels_per_requester=1)
    fresh.add_agent()
    with echo_target() as target, tunnel(fresh.uds(), target.name), fresh.uds() as second:
        answer = ask(second, head_for(target.name))
    assert answer.status == 503
    assert "too many open connections" in answer.body and "share (flags)" in answer.body
    fresh.wait_idle()


def test_dials_that_fail_or_are_left_give_back_what_they_took(fresh: Stack) -> None:
    fresh.add_server(max_tunnels_per_requester=1)
    fresh.add_agent()
    for _ in range(3):
        with fresh.uds() as client:
            assert ask(client, head_for("127.0.0.1:1")).status == 502
    with full_target() as busy, fresh.uds() as left:
        left.send(head_for(busy.name))
        fresh.wait(lambda: len(fresh.server.dialer.pending) == 1, "the dial is under way")
    fresh.wait_idle()
    with echo_target() as target, tunnel(fresh.uds(), target.name):
        pass
    fresh.wait_idle()


def test_a_reload_changes_what_is_allowed(fresh: Stack, tmp_path: Path) -> None:
    with contextlib.ExitStack() as opened:
        service = opened.enter_context(serving(fresh, "mux", "maxTunnels: 1", tmp_path))
        target = opened.enter_context(echo_target())
        opened.enter_context(service.connect("connect-tls", target.name))
        with pytest.raises(DialError):
            service.connect("connect-tls", target.name)
        policy = tmp_path / "policy.yaml"
        policy.write_text(policy.read_text().replace("maxTunnels: 1", "maxTunnels: 2"))
        shares = fresh.server.networks.shares
        assert shares is not None
        fresh.wait(lambda: shares.table.shares[0].max_tunnels == 2, "the file is read again")
        opened.enter_context(service.connect("connect-tls", target.name))
        with pytest.raises(DialError):
            service.connect("connect-tls", target.name)
    fresh.wait_idle()


def test_a_rate_that_is_lifted_while_somebody_waits(fresh: Stack, tmp_path: Path) -> None:
    limits = f"bytesPerSecond: {64 * KIB}; burstBytes: {64 * KIB}"
    with contextlib.ExitStack() as opened:
        service = opened.enter_context(serving(fresh, "mux", limits, tmp_path))
        target = opened.enter_context(Target())
        client = opened.enter_context(service.connect("connect-tls", target.name))
        far = opened.enter_context(target.accept())
        client.settimeout(LIMIT_S)
        sender = threading.Thread(target=far.send, args=(bytes(32 * MIB),), daemon=True)
        sender.start()
        wait_until(lambda: "waits_total" in _sample(fresh), "it has to wait")
        policy = tmp_path / "policy.yaml"
        policy.write_text(policy.read_text().replace(str(64 * KIB), "1Gi"))
        left = 32 * MIB
        while left:
            data = client.recv(MIB)
            assert data
            left -= len(data)
        sender.join(LIMIT_S)
    fresh.wait_idle()
