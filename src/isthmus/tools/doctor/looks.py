"""The list of all looks: which function does which checks, for which programs."""

from __future__ import annotations

from isthmus.frame.finding import CheckId
from isthmus.frame.patient import Look
from isthmus.programs import programs
from isthmus.tools.doctor import (
    alive,
    certificates,
    configuration,
    files,
    host,
    limits,
    peers,
    ports,
    target,
)
from isthmus.tools.doctor.layout import ALL, LAYOUTS, programs_with

_DIALING = programs_with("peers")
_LINKED = frozenset({"server", "agent"})
_ADMIN = frozenset(it.name for it in programs() if it.operator_flags is not None)

LOOKS: tuple[Look, ...] = (
    Look(checks=(CheckId.CONFIGURATION,), programs=ALL, see=configuration.see_configuration),
    Look(checks=(CheckId.FILES, CheckId.MODES), programs=ALL, see=files.see_files),
    Look(
        checks=(
            CheckId.KEY_PAIR,
            CheckId.CHAIN,
            CheckId.NAMES,
            CheckId.USAGE,
            CheckId.EXPIRY,
        ),
        programs=_ADMIN,
        see=certificates.see_certificates,
    ),
    Look(checks=(CheckId.ROLES,), programs=frozenset({"server"}), see=certificates.see_roles),
    Look(checks=(CheckId.PORTS,), programs=ALL, see=ports.see_ports),
    Look(
        checks=(CheckId.SOCKETS,),
        programs=programs_with("socket_files"),
        see=ports.see_sockets,
    ),
    Look(checks=(CheckId.PROXY,), programs=frozenset({"agent"}), see=configuration.see_proxy),
    Look(checks=(CheckId.DNS,), programs=_DIALING, see=peers.see_names),
    Look(
        checks=(CheckId.ROUTE, CheckId.MTU, CheckId.RP_FILTER),
        programs=_DIALING,
        see=host.see_routes,
    ),
    Look(
        checks=(
            CheckId.CONNECT,
            CheckId.TLS,
            CheckId.PEER_CERTIFICATE,
            CheckId.ALPN,
            CheckId.ANSWER,
            CheckId.CLOCK,
        ),
        programs=_DIALING,
        see=peers.see_peers,
    ),
    Look(
        checks=(CheckId.KUBE_API, CheckId.PERMISSIONS, CheckId.CLOCK),
        programs=programs_with("kube"),
        see=peers.see_api,
    ),
    Look(
        checks=(CheckId.BIND_ADDRESS, CheckId.BIND_RULE),
        programs=programs_with("brought"),
        see=host.see_bind_address,
    ),
    Look(checks=(CheckId.TARGET,), programs=ALL, see=target.see_target),
    *(look for layout in LAYOUTS.values() for look in layout.looks),
    Look(checks=(CheckId.DESCRIPTORS,), programs=ALL, see=limits.see_descriptors),
    Look(checks=(CheckId.MEMORY,), programs=ALL, see=limits.see_memory),
    Look(checks=(CheckId.READINESS,), programs=_ADMIN, see=alive.see_readiness, running=True),
    Look(checks=(CheckId.LINKS,), programs=_LINKED, see=alive.see_links, running=True),
    Look(checks=(CheckId.VERSIONS,), programs=_ADMIN, see=alive.see_versions, running=True),
    Look(
        checks=(CheckId.SERVER_COUNT,),
        programs=_LINKED,
        see=alive.see_server_count,
        running=True,
    ),
    Look(checks=(CheckId.LOOP,), programs=_ADMIN, see=limits.see_loop, running=True),
    Look(
        checks=(CheckId.LINK_FAILURES,),
        programs=_LINKED,
        see=alive.see_link_failures,
        running=True,
    ),
    Look(
        checks=(CheckId.DIAL_FAILURES,),
        programs=_ADMIN,
        see=alive.see_dial_failures,
        running=True,
    ),
)


def programs_of(check: CheckId) -> frozenset[str]:
    """The programs that have the check."""
    return frozenset().union(*(look.programs for look in LOOKS if check in look.checks))
