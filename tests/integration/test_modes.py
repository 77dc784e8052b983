"""Both protocols for clients at once, each behind its own door."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from clients import Client, Target, connect_uds, tunnel
from stack import Stack, client_context

from isthmus.wire.grpc import MESSAGE_HEAD, message_size
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
from isthmus.wire.packet import data_packet, dial_request, parse

CALL = encode_headers(
    (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/ProxyService/Proxy"),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
)


def next_data(client: Client) -> bytes:
    """The payload of the next DATA frame; what else comes is passed over."""
    while True:
        high, low, kind, _, _ = unpack_head(client.read_exactly(9))
        payload = client.read_exactly(high << 8 | low)
        if kind == DATA:
            return payload


def test_both_modes_serve_at_once(fresh: Stack) -> None:
    connect_socket = Path(fresh.dir) / "connect.sock"
    server = fresh.add_server(
        mode=("grpc", "http-connect"), http_connect_uds_name=str(connect_socket)
    )
    fresh.add_agent()
    with Target() as target:
        with (
            tunnel(connect_uds(str(connect_socket)), target.name, b"connect"),
            target.accept() as far,
        ):
            assert far.read_exactly(7) == b"connect"
        with connect_uds(server.settings.uds_name) as client:
            client.send(
                PREFACE
                + settings()
                + SETTINGS_ACK
                + frame(HEADERS, END_HEADERS, 1, CALL)
                + frame(DATA, 0, 1, dial_request("tcp", target.name, 7))
            )
            answer = next_data(client)
            assert message_size(answer[:MESSAGE_HEAD]) == len(answer) - MESSAGE_HEAD
            packet = parse(answer[MESSAGE_HEAD:])
            assert packet.dialResponse.random == 7 and not packet.dialResponse.error
            connect_id = packet.dialResponse.connectID
            with target.accept() as far:
                client.send(frame(DATA, 0, 1, data_packet(connect_id, b"grpc")))
                assert far.read_exactly(4) == b"grpc"
                far.send(b"back")
                back = parse(next_data(client)[MESSAGE_HEAD:])
                assert back.data.connectID == connect_id and back.data.data == b"back"
    shown = {view.frontend for view in fresh.do(lambda: server.tunnels.views(10))}
    assert shown <= {"grpc", "http-connect"}


@pytest.mark.parametrize("mode", [("grpc", "http-connect"), ("http-connect", "grpc")])
def test_only_the_port_of_grpc_speaks_http2(fresh: Stack, mode: tuple[str, ...]) -> None:
    server = fresh.add_server(
        mode=mode,
        http_connect_port=0,
        http_connect_uds_name=str(Path(fresh.dir) / "connect.sock"),
    )
    context = client_context(fresh.files)
    context.set_alpn_protocols(["h2", "http/1.1"])
    chosen = {}
    for name, port in server.doors.ports.items():
        with (
            socket.create_connection(("127.0.0.1", port), 20) as sock,
            context.wrap_socket(sock, server_hostname="localhost") as tls,
        ):
            chosen[name] = tls.selected_alpn_protocol()
    assert chosen == {"grpc": "h2", "http-connect": None}
