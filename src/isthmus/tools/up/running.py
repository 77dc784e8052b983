"""``isthmus up``: a server, an agent and a demo target in one process, without configuration.

Everything listens on loopback and lives in a directory that is removed at the end. lab/demo.py has
the variant with a firewall in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import uvloop

from isthmus.dial.rules_connectivity import (
    ClientTls,
    ConnectivityConfig,
    NetworkConfig,
    NetworkConnection,
    NetworkProtocol,
)
from isthmus.dial.settings_connectivity_writing import to_connectivity_service
from isthmus.errors import LinkError, LinkStage
from isthmus.frame.lifecycle import Lifecycle
from isthmus.frame.signals import stop_signals
from isthmus.logs import configure
from isthmus.programs.agent import PROGRAM as AGENT
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.server import PROGRAM as SERVER
from isthmus.programs.server.agents import AgentDoor
from isthmus.programs.server.dials import ServerDials
from isthmus.programs.server.doors import ClientListening
from isthmus.programs.server.settings import HTTP_CONNECT, ServerSettings
from isthmus.settings.admin import AdminSettings
from isthmus.tools.pki import making as pki
from isthmus.tools.pki.making import PkiFiles
from isthmus.tools.up import demo
from isthmus.tools.up.state import CONNECTIVITY, own_directory, state_home, tell_admin_ports
from isthmus.values import HostPort

Say = Callable[[str], None]

SERVER_ID = "near-side"  # a random ID takes half a line of isthmus tunnels
AGENT_ID = "far-side"
LOOPBACK = "127.0.0.1"
LINK_TIMEOUT_S = 10.0
VISIT_TIMEOUT_S = 10.0
_LOOK_AGAIN_S = 0.01
_MAX_UDS_BYTES = 107  # unix(7): 108 with the final NUL


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningDemo:
    """Where everything is, once the agent is linked."""

    files: PkiFiles
    frontend: HostPort
    admin: HostPort
    agent_admin: HostPort
    target: HostPort
    uds: str


@contextlib.asynccontextmanager
async def running(directory: Path) -> AsyncIterator[RunningDemo]:
    """Run server, agent and target, with their files in a directory, until the block ends.

    Raises:
        ConfigError: a file cannot be written or a port cannot be bound.
        LinkError: the agent did not reach the server.
    """
    async with contextlib.AsyncExitStack() as stack:
        files = pki.init(directory / "pki", days=1)
        target = await demo.serve(host=LOOPBACK, port=0, agent_id=AGENT_ID)
        stack.push_async_callback(target.close)
        server = Lifecycle(SERVER, _server_settings(directory, files))
        await server.start()
        door = server.part(ServerDials).agent_door
        stack.push_async_callback(server.stop)
        agent = Lifecycle(AGENT, _agent_settings(files, door.port, target.number))
        await agent.start()
        stack.push_async_callback(agent.stop)
        async with asyncio.TaskGroup() as tasks:
            watching = [
                tasks.create_task(server.watch(), name="server"),
                tasks.create_task(agent.watch(), name="agent"),
            ]
            await _wait_linked(door)
            frontend_port = server.part(ClientListening).port
            assert frontend_port is not None
            yield RunningDemo(
                files=files,
                frontend=HostPort(LOOPBACK, frontend_port),
                admin=HostPort(LOOPBACK, server.admin_port),
                agent_admin=HostPort(LOOPBACK, agent.admin_port),
                target=HostPort(demo.NAME, demo.PORT),
                uds=server.ground.settings.uds_name,
            )
            for task in watching:
                task.cancel()


def _server_settings(directory: Path, files: PkiFiles) -> ServerSettings:
    uds = str(directory / "server.sock")
    settings = ServerSettings(
        server_id=SERVER_ID,
        mode=(HTTP_CONNECT,),  # curl speaks HTTP CONNECT
        # The socket is optional: a home directory with a long name must not be an error.
        uds_name=uds if len(os.fsencode(uds)) <= _MAX_UDS_BYTES else "",
        server_port=0,
        server_bind_address=LOOPBACK,
        server_cert=str(files.server_cert),
        server_key=str(files.server_key),
        server_ca_cert=str(files.client_ca_cert),
        agent_port=0,
        agent_bind_address=LOOPBACK,
        cluster_cert=str(files.server_cert),
        cluster_key=str(files.server_key),
        cluster_ca_cert=str(files.ca_cert),
        admin=AdminSettings(health_port=0, health_bind_address=LOOPBACK, port=0),
    )
    settings.validate()
    return settings


def _agent_settings(files: PkiFiles, server_port: int, target_port: int) -> AgentSettings:
    settings = AgentSettings(
        agent_id=AGENT_ID,
        proxy_server_host=(LOOPBACK,),
        proxy_server_port=server_port,
        ca_cert=str(files.ca_cert),
        agent_cert=str(files.agent_cert),
        agent_key=str(files.agent_key),
        host_alias=(f"{demo.NAME}={LOOPBACK}:{target_port}",),
        admin=AdminSettings(health_port=0, health_bind_address=LOOPBACK, port=0),
    )
    settings.validate()
    return settings


async def _wait_linked(door: AgentDoor) -> None:
    try:
        async with asyncio.timeout(LINK_TIMEOUT_S):
            while not len(door.agents):
                await asyncio.sleep(_LOOK_AGAIN_S)
    except TimeoutError as exc:
        raise LinkError(
            f"the agent did not link to the server within {LINK_TIMEOUT_S:g} s",
            LinkStage.TIMED_OUT,
        ) from exc


def curl_line(frontend: HostPort, files: PkiFiles, target: HostPort) -> str:
    """The curl command that requests the target through the frontend, to paste into a shell."""
    return shlex.join([
        "curl", "--noproxy", "", "-p", "-x", f"https://{frontend}",
        "--proxy-cacert", str(files.ca_cert), "--proxy-cert", str(files.client_cert),
        "--proxy-key", str(files.client_key), f"http://{target}/",
    ])  # fmt: skip


def connectivity(up: RunningDemo) -> str:
    """The configuration with which ``isthmus curl`` and ``isthmus dial`` use the tunnel."""
    tls = ClientTls(
        ca_bundle=str(up.files.ca_cert),
        client_cert=str(up.files.client_cert),
        client_key=str(up.files.client_key),
    )
    way = NetworkConnection(protocol=NetworkProtocol.HTTP_CONNECT, tcp=up.frontend, tls=tls)
    network = NetworkConfig(name=AGENT_ID, connection=way)
    return to_connectivity_service(ConnectivityConfig(networks={AGENT_ID: network}))


def snapshot_line(admin: HostPort, environment: Mapping[str, str]) -> str:
    """The curl command that shows the state of the server."""
    # curl uses these variables for plain HTTP; on a proxy's host 127.0.0.1 is another machine.
    proxied = any(environment.get(name) for name in ("http_proxy", "all_proxy", "ALL_PROXY"))
    return shlex.join(
        ["curl", *(["--noproxy", "*"] if proxied else []), f"http://{admin}/snapshot"]
    )


def our_name(environment: Mapping[str, str], typed: str) -> str:
    """How to call this program: by name, or as ``typed`` if it is not in PATH."""
    # `make run` starts it from a virtual environment that is not in PATH.
    found = shutil.which("isthmus", path=environment.get("PATH", ""))
    return "isthmus" if found or Path(typed).name != "isthmus" else shlex.quote(typed)


def lines(
    up: RunningDemo, environment: Mapping[str, str], *, pid: int, name: str, show_curl: bool
) -> list[str]:
    """The text for the user: a header with what to watch, an empty line, three lines to paste."""
    ask = f"{name} curl http://{demo.NAME}/"
    return [
        "Isthmus is up: a server, an agent, and a demo target that only the agent can find.",
        "Paste into another terminal: a request through the tunnel, a look at the server, the end"
        " (or Ctrl-C here).",
        f"Watch it in a browser: http://{up.admin}/ui/",
        f"Watch it in a terminal: {name} status, {name} top",
        "",
        curl_line(up.frontend, up.files, up.target) if show_curl else ask,
        snapshot_line(up.admin, environment),
        f"kill {pid}",
    ]


async def _run(home: Path, say: Say, *, once: bool, show_curl: bool) -> int:
    me = asyncio.current_task()
    assert me is not None
    told = False

    def on_signal() -> None:
        nonlocal told
        if not told:  # a second signal must not interrupt the cleanup
            told = True
            me.cancel()

    # Before anything is created: from here on a signal means clean up and exit.
    for number in stop_signals():
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    try:
        with own_directory(home) as directory:
            async with running(directory) as up:
                (directory / CONNECTIVITY).write_text(connectivity(up))
                tell_admin_ports(directory, [up.admin.port, up.agent_admin.port])
                if once:
                    return await _visit(up, say)
                name = our_name(os.environ, sys.argv[0])
                for line in lines(up, os.environ, pid=os.getpid(), name=name, show_curl=show_curl):
                    say(line)
                await asyncio.get_running_loop().create_future()  # until a signal cancels it
                return 0
    except asyncio.CancelledError:
        if not told:
            raise
        return 0


async def _visit(up: RunningDemo, say: Say) -> int:
    seen = await asyncio.to_thread(
        demo.visit, up.frontend, up.files, up.target, timeout_s=VISIT_TIMEOUT_S
    )
    say(f"{up.target} through the tunnel: {seen.said}")
    return 0 if seen.worked else 1


def main(*, v: int, once: bool, show_curl: bool, say: Say) -> int:
    """Run until Ctrl-C or SIGTERM, or with ``once`` for one request; the exit code.

    Raises:
        IsthmusError: nothing could be started; nothing is left behind.
    """
    os.umask(0o077)
    configure(v, "text", sys.stderr)
    try:
        return uvloop.run(_run(state_home(os.environ), say, once=once, show_curl=show_curl))
    except BaseExceptionGroup as group:
        # A task group wraps even a single exception in a group.
        if len(group.exceptions) > 1:
            raise
        raise group.exceptions[0] from None
