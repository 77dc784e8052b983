"""The demo target of ``isthmus up``, a page on the far side, and a request for it by the tunnel."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException, HTTPResponse

from aiohttp import web

from isthmus.frame.admin import ports
from isthmus.tools.pki.making import PkiFiles
from isthmus.values import HostPort

NAME = "demo.internal"
PORT = 80  # of the name; the agent maps it to the port where the target listens
_MAX_PAGE_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """The result of one attempt to reach the target."""

    worked: bool
    said: str


async def serve(*, host: str, port: int, agent_id: str) -> ports.Port:
    """Serve the page on an address; port 0 takes any free one.

    Raises:
        ConfigError: the address cannot be bound.
    """
    return await ports.serve(
        {"/": partial(_answer, agent_id)},
        host=host,
        port=port,
        host_flag="--host",
        port_flag="--port",
    )


def page(asked_for: str, agent_id: str) -> str:
    """Answer with the way that the request took, as far as the target can know it."""
    if asked_for.partition(":")[0].lower().removesuffix(".") == NAME:
        return (
            f"Hello from the far side: you reached {NAME} through agent {agent_id}.\n"
            "Only that agent knows the name, so the request came through the tunnel.\n"
        )
    return (
        f"Hello from the demo target of agent {agent_id}, by its address.\n"
        f"Ask for {NAME} through the tunnel to take the way that nothing else knows.\n"
    )


async def _answer(agent_id: str, request: web.BaseRequest) -> web.Response:
    return web.Response(text=page(request.headers.get("Host", ""), agent_id))


def visit(frontend: HostPort, files: PkiFiles, target: HostPort, *, timeout_s: float) -> Visit:
    """Ask the target for its page with CONNECT over mutual TLS, as curl would. Blocks."""
    try:
        context = ssl.create_default_context(cafile=str(files.ca_cert))
        context.load_cert_chain(files.client_cert, files.client_key)
        with (
            socket.create_connection((frontend.host, frontend.port), timeout_s) as sock,
            context.wrap_socket(sock, server_hostname=frontend.host) as tls,
        ):
            return _ask(tls, target)
    except (OSError, HTTPException) as exc:
        return Visit(worked=False, said=reason(exc))


def _ask(tls: ssl.SSLSocket, target: HostPort) -> Visit:
    tls.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    with HTTPResponse(tls, method="CONNECT") as opened:
        opened.begin()
        if opened.status != 200:
            why = opened.read(_MAX_PAGE_BYTES).decode(errors="replace").strip()
            return Visit(worked=False, said=f"{opened.status} {opened.reason}: {why}")
    # The target speaks only when asked, so the first response took no byte of the second.
    tls.sendall(f"GET / HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n".encode())
    with HTTPResponse(tls, method="GET") as answer:
        answer.begin()
        text = answer.read(_MAX_PAGE_BYTES).decode(errors="replace").strip()
    return Visit(worked=answer.status == 200, said=text.partition("\n")[0])


def reason(error: Exception) -> str:
    """The system's text for an error, without its number."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
