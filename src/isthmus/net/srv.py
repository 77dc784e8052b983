"""SRV names (RFC 2782): from ``_service._tcp.name`` to the hosts and ports behind it."""

from __future__ import annotations

from typing import Any

from isthmus.values import HostPort

_LOOKUP_S = 5.0


async def srv_targets(name: str) -> list[HostPort]:
    """Look an SRV name up, best priority first; records that name no host and port are skipped.

    Raises:
        OSError: there is no such name, no answer in time, or no record that can be used.
    """
    import dns.asyncresolver
    import dns.exception

    try:
        # Not the default resolver, which reads resolv.conf once and for all.
        resolver = dns.asyncresolver.Resolver()
        answer = await resolver.resolve(name, "SRV", lifetime=_LOOKUP_S)
    except dns.exception.DNSException as exc:
        raise OSError(f"SRV {name}: {exc}") from exc
    records = sorted(answer, key=lambda record: (record.priority, -record.weight))
    targets = [target for target in map(_target, records) if target is not None]
    if not targets:
        raise OSError(f"SRV {name}: no record names a host and a port")
    return targets


def _target(record: Any) -> HostPort | None:
    host = record.target.to_text(omit_final_dot=True)
    if host in ("", "."):
        return None  # RFC 2782: "the service is decidedly not available at this domain"
    try:
        return HostPort(host, record.port)
    except ValueError:
        return None
