"""The list of all looks: which function sees which checks, of which programs."""

from __future__ import annotations

from isthmus.programs import programs
from isthmus.tools.doctor import (
    alive,
    certificates,
    configuration,
    files,
    host,
    kernel,
    kubernetes,
    limits,
    peers,
    ports,
    target,
)
from isthmus.tools.doctor.examine import Look
from isthmus.tools.doctor.finding import Check
from isthmus.tools.doctor.layout import ALL

_DIALING = frozenset({"server", "agent", "apiserver-proxy", "socks5-proxy", "https-proxy"})
_SIDECARS = frozenset({"socks5-proxy", "https-proxy"})
_LINKED = frozenset({"server", "agent"})
_NODE = frozenset(it.name for it in programs() if it.operator_flags is None)
_ADMIN = ALL - _NODE

LOOKS: tuple[Look, ...] = (
    Look(checks=(Check.CONFIGURATION,), programs=ALL, see=configuration.see_configuration),
    Look(checks=(Check.FILES, Check.MODES), programs=ALL, see=files.see_files),
    Look(
        checks=(Check.KEY_PAIR, Check.CHAIN, Check.NAMES, Check.USAGE, Check.EXPIRY),
        programs=_ADMIN,
        see=certificates.see_certificates,
    ),
    Look(checks=(Check.ROLES,), programs=frozenset({"server"}), see=certificates.see_roles),
    Look(checks=(Check.PORTS,), programs=ALL, see=ports.see_ports),
    Look(
        checks=(Check.SOCKETS,), programs=frozenset({"server"}) | _SIDECARS, see=ports.see_sockets
    ),
    Look(checks=(Check.PROXY,), programs=frozenset({"agent"}), see=configuration.see_proxy),
    Look(checks=(Check.DNS,), programs=_DIALING, see=peers.see_names),
    Look(checks=(Check.ROUTE, Check.MTU, Check.RP_FILTER), programs=_DIALING, see=host.see_routes),
    Look(
        checks=(
            Check.CONNECT,
            Check.TLS,
            Check.PEER_CERTIFICATE,
            Check.ALPN,
            Check.ANSWER,
            Check.CLOCK,
        ),
        programs=_DIALING,
        see=peers.see_peers,
    ),
    Look(
        checks=(Check.KUBE_API, Check.PERMISSIONS, Check.CLOCK),
        programs=_LINKED | _NODE | _SIDECARS,
        see=kubernetes.see_api,
    ),
    Look(
        checks=(Check.BIND_ADDRESS, Check.BIND_RULE),
        programs=frozenset({"agent", "apiserver-proxy"}),
        see=host.see_bind_address,
    ),
    Look(checks=(Check.TARGET,), programs=ALL, see=target.see_target),
    Look(checks=(Check.TOOLS,), programs=_NODE, see=kernel.see_tools),
    Look(
        checks=(Check.FORWARDING, Check.LOCALNET, Check.CONNTRACK),
        programs=_NODE,
        see=kernel.see_sysctls,
    ),
    Look(checks=(Check.DESCRIPTORS,), programs=ALL, see=limits.see_descriptors),
    Look(checks=(Check.MEMORY,), programs=ALL, see=limits.see_memory),
    Look(checks=(Check.READINESS,), programs=_ADMIN, see=alive.see_readiness, running=True),
    Look(checks=(Check.LINKS,), programs=_LINKED, see=alive.see_links, running=True),
    Look(checks=(Check.VERSIONS,), programs=_ADMIN, see=alive.see_versions, running=True),
    Look(checks=(Check.SERVER_COUNT,), programs=_LINKED, see=alive.see_server_count, running=True),
    Look(checks=(Check.LOOP,), programs=_ADMIN, see=limits.see_loop, running=True),
    Look(
        checks=(Check.LINK_FAILURES,), programs=_LINKED, see=alive.see_link_failures, running=True
    ),
    Look(checks=(Check.DIAL_FAILURES,), programs=_ADMIN, see=alive.see_dial_failures, running=True),
)


def programs_of(check: Check) -> frozenset[str]:
    """Whose check it is."""
    return frozenset().union(*(look.programs for look in LOOKS if check in look.checks))
