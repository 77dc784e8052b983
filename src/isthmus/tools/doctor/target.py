"""A dial to --target, made as the program does, and the step at which it fails."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator, Mapping

from isthmus.dial.rules_connectivity import (
    ConnectivityConfig,
    NetworkConfig,
    NetworkConnection,
    NetworkProtocol,
)
from isthmus.errors import ConfigError, DialError, DialFailure
from isthmus.frame.finding import DIAL_ADVICE, Asked, CheckId, Finding
from isthmus.frame.patient import Patient
from isthmus.net.connect import FAILURE_OF_ERRNO
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.server.settings import GRPC, ServerSettings
from isthmus.text.units import took
from isthmus.values import HostPort, is_address

_NETWORK = "cluster"

#: The step of a dial through a server to which a failure belongs.
STEPS: Mapping[DialFailure, str] = {
    DialFailure.REFUSED: "the agent reached the target, which refused",
    DialFailure.TIMED_OUT: "the agent got no answer from the target",
    DialFailure.UNREACHABLE: "the agent has no route to the target",
    DialFailure.UNRESOLVED: "the agent did not resolve the name",
    DialFailure.DENIED: "the server's policy denied it",
    DialFailure.NO_AGENT: "the server found no agent for it",
    DialFailure.AGENT_LOST: "the link to the agent ended meanwhile",
    DialFailure.TOO_MANY: "a limit of open connections was reached",
    DialFailure.INTERNAL: "the frontend, or something on the way, failed",
}


def see_target(patient: Patient) -> Iterator[Finding]:
    """Dial the target of --target, if there is one."""
    target = patient.target
    if target is None:
        return
    match patient.settings:
        case ServerSettings():
            yield _through(patient.settings, target, patient.timeout_s)
        case AgentSettings():
            yield _from_here(patient.settings, target, patient.timeout_s)
        case _:
            asked = Asked(CheckId.TARGET, str(target), "looked for a way to dial it")
            yield asked.skip(
                f"only a server and an agent dial --target; use the {patient.program} as a client"
                " does, as curl --proxy"
            )


def connection_of(settings: ServerSettings) -> NetworkConnection | None:
    """A way into the server that needs no certificate of a client; None without a UNIX socket."""
    for door in settings.doors:
        if door.uds:
            protocol = NetworkProtocol.PACKET if door.mode == GRPC else NetworkProtocol.HTTP_CONNECT
            return NetworkConnection(protocol=protocol, uds=door.uds)
    return None


def _through(settings: ServerSettings, target: HostPort, timeout_s: float) -> Finding:
    connection = connection_of(settings)
    if connection is None:
        asked = Asked(CheckId.TARGET, str(target), "looked for a UNIX socket of the server")
        return asked.skip(
            "there is none, and its port requires a client certificate: use isthmus dial"
        )
    done = f"dialed it through the server's socket {connection.uds}"
    asked = Asked(CheckId.TARGET, str(target), done)
    started = time.monotonic()
    try:
        asyncio.run(_dial(connection, target, timeout_s))
    except DialError as error:
        detail = f": {error.detail}" if error.detail else ""
        return asked.fail(f"{STEPS[error.reason]}{detail}", DIAL_ADVICE[error.reason])
    except (ConfigError, OSError) as error:
        return asked.fail(str(error), "check that the server runs")
    return asked.ok(f"connected in {took(time.monotonic() - started)}")


async def _dial(connection: NetworkConnection, target: HostPort, timeout_s: float) -> None:
    from isthmus.client import ConnectivityService

    network = NetworkConfig(name=_NETWORK, connection=connection)
    config = ConnectivityConfig(networks={_NETWORK: network})
    async with ConnectivityService.from_config(config) as service:
        service.grace_s = 0.0
        dialer = service.dialer(_NETWORK)
        async with await dialer.dial("tcp", target, timeout_s=timeout_s):
            pass


def _from_here(settings: AgentSettings, target: HostPort, timeout_s: float) -> Finding:
    asked = Asked(CheckId.TARGET, str(target), "dialed it from this host, as the agent does")
    try:
        addresses = _addresses(settings, target)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        return asked.fail(f"its name did not resolve: {why}", DIAL_ADVICE[DialFailure.UNRESOLVED])
    failure, seen = DialFailure.UNRESOLVED, "it has no address"
    for address in addresses:
        started = time.monotonic()
        try:
            with socket.create_connection((address, target.port), timeout_s):
                needed = took(time.monotonic() - started)
                return asked.ok(f"connected to {address} in {needed}")
        except TimeoutError:
            failure, seen = DialFailure.TIMED_OUT, f"{address} did not answer"
        except OSError as error:
            failure = FAILURE_OF_ERRNO.get(error.errno or 0, DialFailure.INTERNAL)
            seen = f"{address}: {(error.strerror or str(error)).lower()}"
    return asked.fail(seen, DIAL_ADVICE[failure])


def _addresses(settings: AgentSettings, target: HostPort) -> list[str]:
    if is_address(target.host):
        return [target.host]
    aliases = settings.aliases.get(target.host.lower().removesuffix("."))
    if aliases is not None:
        return list(aliases)
    infos = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))
