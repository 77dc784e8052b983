"""A server's networks, policy and fair shares: builds the dialer that routes between networks.

The policy and the shares follow their file. dial/rules_shares.py has the arithmetic of shares,
dial/metered.py limits rates. Dialers that only some networks need
are imported on demand: most servers have only agents.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from typing_extensions import override

from isthmus.dial.dialers.through_agent import AgentDialer
from isthmus.dial.metered import Gate, Gates
from isthmus.dial.rules_connectivity import ClientTls, NetworkConnection, NetworkProtocol
from isthmus.dial.rules_policy import Decision, Policy, Question, Share
from isthmus.dial.rules_shares import Full, Hold, Pot, ShareTable
from isthmus.dial.settings_networks import PROTOCOLS, AgentsByNetwork, ClusterNetwork
from isthmus.errors import ConfigError
from isthmus.frame.model.snapshot import NetworkView
from isthmus.frame.part import Ground, LongTask, Part
from isthmus.links.server_side import AgentLink
from isthmus.net.contexts import HotContext, TlsFiles, client_context
from isthmus.net.files import FollowedFile, read_text
from isthmus.net.resolver import Resolver
from isthmus.net.rules_metadata import MetadataGuard
from isthmus.programs.server.agents import below
from isthmus.programs.server.metrics import ServerMetrics
from isthmus.programs.server.settings import ServerSettings
from isthmus.values import DialRequest

if TYPE_CHECKING:
    from isthmus.dial.dialers.by_network import ByNetwork, EndDialer
    from isthmus.dial.dialers.through_server import ServerPlace

_QUIET_S = 60.0
_log = logging.getLogger("isthmus.server")
_LABELS = ("--cluster-network cert", "--cluster-network key", "--cluster-network ca")


class ServerNetworks(Part):
    """The implementation of --cluster-network and --policy-file.

    ``agents`` is None without networks; ``router`` is None before it is made and if there is
    nothing to check: the server then dials through any agent.
    """

    def __init__(self, ground: Ground[ServerSettings, ServerMetrics]) -> None:
        settings = ground.settings
        self._ground = ground
        self._loop = ground.loop
        self._poller = ground.poller
        self._once = ground.once
        self.networks = settings.network.networks
        self._policy_path = settings.network.policy_file
        self._by_flags = settings.shares.of_flags
        self.shares: ServerShares | None = None
        self.agents: AgentsByNetwork[AgentLink] | None = None
        if self.networks is not None:
            self.agents = AgentsByNetwork(
                settings.proxy_strategies, below, networks=self.networks, strayed=self._strayed,
                near=settings.near.nearness,
            )  # fmt: skip
        self.policy: FollowedFile[Policy] | None = None
        self.router: ByNetwork | None = None
        self._close: list[Callable[[], None]] = []

    def make_router(self, dialer: AgentDialer, unaudited: Callable[[], str] | None = None) -> None:
        """Read every named file, and make the router; ``unaudited`` is passed to it.

        Raises:
            ConfigError: a file or a dialer is not usable.
        """
        metrics = self._ground.metrics
        if self._policy_path or self._by_flags is not None:
            self.shares = ServerShares(self._loop, metrics, by_flags=self._by_flags)
        if self._policy_path:
            assert self.shares is not None  # made above
            self.policy = follow_policy(
                self._policy_path,
                on_failed=metrics.policy_reload_failed,
                on_changed=self.shares.follow,
            )
        if self.networks is None and self.shares is None and unaudited is None:
            return
        from isthmus.dial.dialers.by_network import ByNetwork

        ways = {
            network.name: self._way(network, network.via)
            for network in self.networks or ()
            if network.via is not None
        }
        self.router = ByNetwork(
            dialer,
            agents=self.agents,
            ways=ways,
            policy=current_of(self.policy),
            denied=metrics.policy_denied,
            admit=self.shares.admit if self.shares is not None else None,
            unaudited=unaudited,
        )

    @property
    def reachable_without_agents(self) -> bool:
        """Whether a network needs no agents."""
        return self.router is not None and self.router.has_ways

    def name_by_link(self) -> dict[AgentLink, str] | None:
        """The network of each link; None without networks."""
        if self.networks is None or self.agents is None:
            return None
        within = self.agents.within
        return {link: network.name for network in self.networks for link in within(network.name)}

    def agents_in(self, network: ClusterNetwork) -> int:
        """The number of agents in a network."""
        if self.agents is None:
            return 0
        return len({link.agent_id for link in self.agents.within(network.name)})

    def way_to(self, network: ClusterNetwork) -> str:
        """The ``via`` of a network as in --cluster-network, without its options."""
        via = network.via
        if via is None:
            return "agents"
        if via.protocol is NetworkProtocol.CUSTOM:
            return f"dialer:{via.dialer}"
        if via.protocol is NetworkProtocol.DIRECT:
            return "direct"
        scheme = next(name for name, protocol in PROTOCOLS.items() if protocol is via.protocol)
        return f"server:{scheme}://{via.tcp if via.tcp is not None else via.uds}"

    @override
    def tasks(self) -> Iterable[LongTask]:
        if self.policy is not None:
            yield "policy", self.policy.watch()

    @override
    def snapshot(self, limit: int) -> dict[str, Any]:
        """The networks; empty without --cluster-network."""
        return {
            "networks": tuple(
                NetworkView(
                    name=network.name, way=self.way_to(network), agents=self.agents_in(network)
                )
                for network in self.networks or ()
            )
        }

    @override
    def close(self) -> None:
        """Close the dialers' lookups, dials and shared connections."""
        for close in self._close:
            close()

    # Dialers.

    def _way(self, network: ClusterNetwork, via: NetworkConnection) -> EndDialer:
        if via.protocol is NetworkProtocol.CUSTOM:
            return self._custom(via)
        if via.protocol is NetworkProtocol.DIRECT:
            return self._direct(network)
        from isthmus.dial.dialers.through_server import ServerPlace

        place = ServerPlace(
            uds=via.uds,
            tcp=via.tcp,
            context=self._context(via.tls, via.protocol) if via.tls is not None else None,
            server_hostname=via.tls.server_name if via.tls is not None else "",
            keeps_half_close=network.keeps_half_close,
        )
        return self._through(place, via.protocol)

    def _direct(self, network: ClusterNetwork) -> EndDialer:
        from isthmus.dial.dialers.by_network import InsideOnly
        from isthmus.dial.dialers.direct import DirectDialer

        inside = InsideOnly(self._loop, network)
        self._close.append(inside.close)
        guard = MetadataGuard(network.cidrs)
        return DirectDialer(self._loop, self._poller, inside, metadata=guard)

    def _through(self, place: ServerPlace, protocol: NetworkProtocol) -> EndDialer:
        from isthmus.dial.dialers.through_connect import ConnectDialer
        from isthmus.dial.dialers.through_grpc import GrpcDialer, PayloadDialer

        resolver = Resolver(self._loop)  # for the server's own name; it resolves the target's
        self._close.append(resolver.close)
        if protocol is NetworkProtocol.HTTP_CONNECT:
            return ConnectDialer(self._loop, self._poller, resolver, place)
        kind = GrpcDialer if protocol is NetworkProtocol.PACKET else PayloadDialer
        shared = kind(self._loop, self._poller, resolver, place)
        self._close.append(shared.close)
        return shared

    def _custom(self, via: NetworkConnection) -> EndDialer:
        from isthmus.dial.dialers.custom import ForeignDialer, load

        made = ForeignDialer(
            self._loop, self._poller, load(via.dialer), name=via.dialer, options=via.options
        )
        self._close.append(made.close)
        return made

    def _context(self, tls: ClientTls, protocol: NetworkProtocol) -> Callable[[], ssl.SSLContext]:
        files = TlsFiles(cert=tls.client_cert, key=tls.client_key, ca=tls.ca_bundle, labels=_LABELS)
        alpn = () if protocol is NetworkProtocol.HTTP_CONNECT else ("h2",)
        context = HotContext(files, partial(client_context, alpn=alpn), purpose="client")
        self._ground.contexts.append(context)
        return lambda: context.current

    def _strayed(self, link: AgentLink, why: str) -> None:
        self._once.log(
            ("strayed", link.agent_id), _QUIET_S, _log, logging.WARNING,
            "agent is in no network and gets no dials", agent_id=link.agent_id,
            network=link.network or None, reason=why,
        )  # fmt: skip


def follow_policy(
    path: str,
    on_failed: Callable[[], None],
    on_changed: Callable[[Policy], None] | None = None,
) -> FollowedFile[Policy]:
    """Read the policy; call ``current`` of the result for each dial.

    Open tunnels stay open whatever a new policy says. ``on_failed`` is called for each new
    invalid state of the file, ``on_changed`` for each policy that takes effect,
    including the first.

    Raises:
        ConfigError: the file cannot be read or is invalid.
    """

    def taken(policy: Policy) -> None:
        if on_changed is not None:
            on_changed(policy)
        _log.info("reloaded %s", path)

    def failed(error: ConfigError) -> None:
        on_failed()
        _log.warning("%s; the previously loaded policy stays in use", error)

    followed = FollowedFile(path, read_policy, taken=taken, failed=failed)
    if on_changed is not None:
        on_changed(followed.current)
    return followed


def read_policy(path: str) -> Policy:
    """Read a policy file.

    Raises:
        ConfigError: the file cannot be read or is invalid.
    """
    from isthmus.dial.settings_policy import parse
    from isthmus.text.located_yaml import MAX_CHARS  # YAML is slow to import

    # One more character than allowed, so that a longer file is reported as too long.
    return parse(read_text(path, what="--policy-file ", most_chars=MAX_CHARS + 1), path)


def current_of(file: FollowedFile[Policy] | None) -> Callable[[], Policy | None]:
    """A function that returns the file's current policy, or None without a file."""
    return (lambda: None) if file is None else (lambda: file.current)


class Holder(Protocol):
    """A dial that holds parts of shares until it, or its tunnel, ends."""

    hold: Hold | None


class ServerShares:
    """The shares of a server."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        metrics: ServerMetrics,
        *,
        by_flags: Share | None,
    ) -> None:
        self._loop = loop
        self._metrics = metrics
        self._by_flags = (by_flags,) if by_flags is not None else ()
        self.table = ShareTable(self._by_flags)
        metrics.share_tunnels = self._tunnels

    def follow(self, policy: Policy) -> None:
        """Apply the file's current shares; flags apply to requesters that none of them matches."""
        shares = (*policy.shares, *self._by_flags)
        for pot in self.table.replace(shares, now=self._loop.time()):
            if isinstance(pot.gates, Gates):
                pot.gates.changed()

    def admit(self, who: object, request: DialRequest, network: str) -> Decision | None:
        """Charge a dial to its shares; returns the denial, or None."""
        if not self.table.shares:
            return None
        asked = Question(requester=request.requester, network=network, target=request.target)
        got = self.table.take(asked, now=self._loop.time())
        if isinstance(got, Full):
            self._metrics.share_refused(got.share.name, got.limit)
            return Decision(
                allowed=False,
                network=network,
                rule=got.share.rule,
                where=got.share.where,
                why=got.why,
            )
        cast(Holder, who).hold = got
        return None

    def gates(self, hold: Hold) -> tuple[Sequence[Gate], Sequence[Gate]] | None:
        """A tunnel's gates for both directions; None without a rate limit."""
        if not hold.meters:
            return None
        found = [self._of(pot) for pot in hold.pots if pot.share.bytes_per_s]
        return [it.to_target for it in found], [it.to_client for it in found]

    def _of(self, pot: Pot) -> Gates:
        gates = pot.gates
        if not isinstance(gates, Gates):
            waits = partial(self._metrics.share_waited, pot.share.name)
            gates = pot.gates = Gates(pot, self._loop, waits)
        return gates

    def _tunnels(self) -> Counter[str]:
        found: Counter[str] = Counter({share.name: 0 for share in self.table.shares})
        for pot in self.table.pots:
            found[pot.share.name] += pot.tunnels
        return found
