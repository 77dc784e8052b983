"""Closes connections whose certificate or token was revoked, and counts them.

New connections are refused in their handshakes (net/revocation.py). After each reload of a list
this closes everything open that was made with a certificate in it. Agents whose token was revoked
are disconnected here, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from isthmus.errors import LinkStage
from isthmus.frame.model.merge import Merge
from isthmus.frame.observe.counters import Family, by_name, counter, gauge, one
from isthmus.links.link import Link, peer_of
from isthmus.logs import OncePer
from isthmus.net.carriers import TlsCarrier
from isthmus.net.contexts import peer_identity
from isthmus.net.revocation import CrlFiles, Revocations
from isthmus.net.tls import TlsEnd, TlsSocket
from isthmus.tunnel.end import Ending
from isthmus.tunnel.payload import PayloadEnd
from isthmus.tunnel.proxy_end import ProxyEnd

if TYPE_CHECKING:
    from isthmus.frame.tunnels import TunnelTable
    from isthmus.net.poller import Poller
    from isthmus.net.revocation import Revocations

#: The ender of a tunnel whose client or agent is disconnected, for audit and snapshot.
BY_REVOCATION = "revocation"
_WHY = "its certificate is revoked"
_QUIET_S = 60.0
_log = logging.getLogger("isthmus.tls")
_audit = logging.getLogger("isthmus.audit")


class Revoking:
    """The lists of a program, by the prefix of their flags."""

    def __init__(self, *, once: OncePer, metrics: RevocationMetrics, poller: Poller) -> None:
        self._once = once
        self._metrics = metrics
        self._poller = poller
        self.all: dict[str, Revocations] = {}

    def read(self, name: str, crl: str, ca: str, *, prefix: str = "") -> None:
        """Read the lists of ``--PREFIXcrl-file``, if it is set.

        Raises:
            ConfigError: the file cannot be read, or its lists are not signed by its authorities.
        """
        if not crl:
            return
        files = CrlFiles(crl=crl, ca=ca, label=f"--{prefix}crl-file", ca_label=f"--{prefix}ca-cert")
        self.all[name] = Revocations(files, on_refused=self._refused)
        self._metrics.files = tuple(self.all.values())

    def _refused(self, certificate: str) -> None:
        self._once.log(
            ("revoked", certificate), _QUIET_S, _log, logging.WARNING,
            "refused a revoked certificate", certificate=certificate,
        )  # fmt: skip

    # What is open.

    def cut(self, links: Iterable[Link], tunnels: TunnelTable) -> None:
        """Reset everything open that was made with a certificate that is now revoked."""
        for link in list(links):
            if self._is_cut(link.carrier.tls):
                self.cut_link(link, tunnels, kind="link", why=_WHY)
        for tunnel in tunnels.all:
            client = tunnel.client
            if isinstance(client, TlsEnd) and self._is_cut(client.tls):
                self._cut_client(client)
                tunnel.abort(Ending.ADMIN, BY_REVOCATION)
        # Clients without a tunnel yet, and those whose connection carries many.
        for owner in self._poller.owners():
            if isinstance(owner, TlsSocket) and not owner.closed and self._is_cut(owner.tls):
                self._cut_client(owner)
                if isinstance(owner, TlsCarrier) and owner.session is not None:
                    _abort_calls(owner.session, tunnels)
                owner.reset()
                owner.broken()

    def cut_link(self, link: Link, tunnels: TunnelTable, *, kind: str, why: str) -> None:
        """End a link and reset its tunnels, with an audit record for each.

        A tunnel without a byte so far is not reset: it may move to another link.
        """
        self._metrics.cut(kind)
        who: dict[str, Any] = {f"{link.peer_kind}_id": link.peer_id}
        self._once.log(
            ("cut", link.peer_id), _QUIET_S, _audit, logging.WARNING, f"{link.peer_kind} cut",
            **who, link=link.id, address=link.peer_address, identity=str(link.identity),
            reason=why,
        )  # fmt: skip
        tunnels.end_on(link.id, BY_REVOCATION)
        link.lost(why, LinkStage.REFUSED)

    def _cut_client(self, client: TlsSocket) -> None:
        self._metrics.cut("client")
        identity, address = str(peer_identity(client.tls)), peer_of(client.sock)
        self._once.log(
            ("cut", identity), _QUIET_S, _audit, logging.WARNING, "client cut",
            identity=identity, address=address, reason=_WHY,
        )  # fmt: skip

    def _is_cut(self, tls: object) -> bool:
        return any(it.is_cut(tls) for it in self.all.values())


def _abort_calls(session: object, tunnels: TunnelTable) -> None:
    """Reset the tunnels of calls on a connection before it closes: their ends have its name."""
    for tunnel in tunnels.all:
        client = tunnel.client
        if isinstance(client, ProxyEnd | PayloadEnd) and client.stream.connection is session:
            tunnel.abort(Ending.ADMIN, BY_REVOCATION)


class RevocationMetrics:
    """What a program counts about revocation; ``files`` are the lists it follows."""

    def __init__(self) -> None:
        self.files: Sequence[Revocations] = ()
        self.cuts: dict[str, int] = {}

    def cut(self, what: str) -> None:
        """Count a connection that was closed, by kind."""
        self.cuts[what] = self.cuts.get(what, 0) + 1

    def _due(self) -> dict[str, float]:
        return {
            it.files.crl: it.lists.next_update
            for it in self.files
            if it.lists.next_update is not None
        }

    def _listed(self) -> dict[str, float]:
        # Two flags may name one file, and a sample must not appear twice.
        return {it.files.crl: len(it.lists) for it in self.files}

    def families(self, ours: str) -> list[Family]:
        """The metric families; names begin with ``ours``."""
        return [
            counter(
                f"{ours}revocation_cuts_total",
                "Connections closed because a certificate or token was revoked, by kind.",
                lambda: by_name(self.cuts)(),
                ("kind",),
            ),
            gauge(
                f"{ours}crl_next_update_timestamp_seconds",
                "Next update of each certificate revocation list, in UNIX time.",
                lambda: by_name(self._due())(),
                ("file",),
                merge=Merge.MIN,
            ),
            gauge(
                f"{ours}crl_revoked_certificates",
                "Certificates in each certificate revocation list.",
                lambda: by_name(self._listed())(),
                ("file",),
                merge=Merge.MIN,
            ),
            counter(
                f"{ours}crl_reload_failures_total",
                "Failed reloads of changed certificate revocation lists.",
                one(lambda: sum(it.failures for it in self.files)),
                merge=Merge.MAX,
            ),
        ]
