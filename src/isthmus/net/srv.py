"""SRV names (RFC 2782): from ``_service._tcp.name`` to the hosts and ports behind it."""

from __future__ import annotations

from isthmus.values import HostPort

_LOOKUP_S = 5.0


async def srv_targets(name: str) -> list[HostPort]:
    """Look an SRV name up, best priority first.

    Raises:
        OSError: there is no such name, or no answer in time.
    """
    import dns.asyncresolver
    import dns.exception

    try:
        answer = await dns.asyncresolver.resolve(name, "SRV", lifetime=_LOOKUP_S)
    except dns.exception.DNSException as exc:
        raise OSError(f"SRV {name}: {exc}") from exc
    records = sorted(answer, key=lambda record: (record.priority, -record.weight))
    return [HostPort(record.target.to_text(omit_final_dot=True), record.port) for record in records]
