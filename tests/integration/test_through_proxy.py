"""Through a proxy that is our own server: its TLS frontend is an https proxy for CONNECT."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest
from clients import Client, Target, blocks, free_port
from stack import Stack

from isthmus.errors import LinkError, LinkStage
from isthmus.net.contexts import TlsFiles, client_context
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.net.through_proxy import connect_through
from isthmus.values import HostPort

SIZE = 8 * 1024 * 1024


def through(
    stack: Stack, target: HostPort, use: Callable[[socket.socket], None], *, shown: bool = True
) -> None:
    """Connect, use the connection here while the stack's loop carries it, and wait for its end."""
    files = stack.files
    pair = (str(files.client_cert), str(files.client_key)) if shown else ("", "")
    context = client_context(TlsFiles(*pair, str(files.ca_cert)))
    proxy = ProxyAddress.parse(f"https://127.0.0.1:{stack.server.frontend_port}")
    poller = stack.do(lambda: Poller(stack.loop))
    resolver = Resolver(stack.loop)
    try:
        sock = stack.run(connect_through(poller, resolver, proxy, target, context=context))
        sock.setblocking(True)
        use(sock)
        stack.wait(lambda: not len(poller), "the way to the proxy ends")
    finally:
        stack.do(poller.shut_down)


def test_both_ways_with_a_half_close(stack: Stack) -> None:
    sent = b"".join(blocks(1, SIZE))

    def use(sock: socket.socket) -> None:
        with Client(sock) as client:
            client.send(b"hello")
            with target.accept() as far:
                assert far.read_exactly(5) == b"hello"
                sending = threading.Thread(target=far.send, args=(sent,))
                sending.start()
                assert client.read_exactly(SIZE) == sent
                sending.join()
                far.half_close()
                assert client.read_to_end() == b""
                client.send(b"more")
                client.half_close()
                assert far.read_to_end() == b"more"

    with Target() as target:
        through(stack, HostPort("127.0.0.1", target.port), use)


def test_a_user_who_leaves_ends_the_tunnel(stack: Stack) -> None:
    def use(sock: socket.socket) -> None:
        sock.sendall(b"bye")
        sock.close()
        with target.accept() as far:
            assert far.read_exactly(3) == b"bye"

    with Target() as target:
        through(stack, HostPort("127.0.0.1", target.port), use)
    stack.wait_idle()


def test_what_the_server_answers_is_told(stack: Stack) -> None:
    target = HostPort("127.0.0.1", free_port())
    with pytest.raises(
        LinkError, match=f"answered HTTP/1.1 502 Bad Gateway for {target}"
    ) as caught:
        through(stack, target, socket.socket.close)
    assert caught.value.stage is LinkStage.CONNECT


def test_a_certificate_that_it_wants_to_see(stack: Stack) -> None:
    with pytest.raises(LinkError, match=r"broke before it answered|TLS: "):
        through(stack, HostPort("127.0.0.1", 1), socket.socket.close, shown=False)
