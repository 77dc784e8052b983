"""The name that an agent asks for in the TLS handshake, when it is not that of the host."""

from __future__ import annotations

import logging
import socket

import pytest
from clients import LIMIT_S
from stack import Stack, wait_until

from isthmus.wire.client_hello import ClientHello, hello_in


def read_hello(sock: socket.socket) -> ClientHello:
    """Read what a TLS client says first."""
    data = b""
    while isinstance(found := hello_in(data), int):
        more = sock.recv(65536)
        assert more, "it ended before its hello"
        data += more
    return found


@pytest.mark.parametrize(
    ("name", "asked"), [("tenant-a.example.com", "tenant-a.example.com"), ("", "")]
)
def test_a_router_reads_the_name_of_every_host(fresh: Stack, name: str, asked: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
        with socket.create_server(("127.0.0.2", port)) as two:
            fresh.add_agent(
                linked=False,
                proxy_server_host=("127.0.0.1", "127.0.0.2"),
                proxy_server_port=port,
                proxy_server_name=name,
            )
            for router in (one, two):
                router.settimeout(LIMIT_S)
                with router.accept()[0] as agent:
                    agent.settimeout(LIMIT_S)
                    # RFC 6066 §3: addresses are not sent as names.
                    assert read_hello(agent).server_name == asked


@pytest.mark.parametrize("wrong", ["", "tenant-b.example.com"])
def test_the_certificate_has_to_carry_the_name_and_not_the_host(
    fresh: Stack, caplog: pytest.LogCaptureFixture, wrong: str
) -> None:
    host = ("127.0.0.3",)  # the certificate is not for it, but for localhost
    with caplog.at_level(logging.INFO, "isthmus.agent"):
        fresh.add_server(agent_bind_address="127.0.0.3")
        agent = fresh.add_agent(linked=False, proxy_server_host=host, proxy_server_name=wrong)
        wait_until(lambda: "cannot link to the server" in caplog.messages, "it is said")
        record = caplog.records[caplog.messages.index("cannot link to the server")]
        assert "CERTIFICATE_VERIFY_FAILED" in vars(record)["fields"]["reason"]
        fresh.add_agent(proxy_server_host=host, proxy_server_name="localhost")
        assert not fresh.is_linked(agent)
