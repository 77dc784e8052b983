"""A server's networks and policy: settings in, the dialer of dialers out.

What only some ways need is imported when one is asked for: most servers have agents alone.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from isthmus.dial.dialers.through_agent import AgentDialer
from isthmus.dial.rules_connectivity import ClientTls, NetworkConnection, NetworkProtocol
from isthmus.dial.rules_policy import Policy
from isthmus.dial.settings_networks import PROTOCOLS, AgentsByNetwork, ClusterNetwork
from isthmus.frame.model.snapshot import NetworkView
from isthmus.frame.part import Ground, LongTask, Part
from isthmus.links.server_side import AgentLink
from isthmus.net.contexts import HotContext, TlsFiles, client_context
from isthmus.net.files import FollowedFile
from isthmus.net.resolver import Resolver
from isthmus.net.rules_metadata import MetadataGuard
from isthmus.programs.server.agents import below
from isthmus.programs.server.metrics import ServerMetrics
from isthmus.programs.server.policy_file import current_of, follow_policy
from isthmus.programs.server.settings import ServerSettings
from isthmus.programs.server.shares import ServerShares

if TYPE_CHECKING:
    from isthmus.dial.dialers.by_network import ByNetwork, EndDialer
    from isthmus.dial.dialers.through_server import ServerPlace

_QUIET_S = 60.0
_log = logging.getLogger("isthmus.server")
_LABELS = ("--cluster-network cert", "--cluster-network key", "--cluster-network ca")


class ServerNetworks(Part):
    """What --cluster-network and --policy-file ask for.

    ``agents`` is None without networks, ``router`` until it is made and without anything to look
    at: the server then dials through any agent, as it does without this.
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
        """Read every file that is named, and make the router; ``unaudited`` is for that one.

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
        """Some network needs no agents."""
        return self.router is not None and self.router.has_ways

    def name_by_link(self) -> dict[AgentLink, str] | None:
        """In which network each link is asked; None where there are no networks."""
        if self.networks is None or self.agents is None:
            return None
        within = self.agents.within
        return {link: network.name for network in self.networks for link in within(network.name)}

    def agents_in(self, network: ClusterNetwork) -> int:
        """How many agents a network has."""
        if self.agents is None:
            return 0
        return len({link.agent_id for link in self.agents.within(network.name)})

    def way_to(self, network: ClusterNetwork) -> str:
        """Name the way to a network as --cluster-network does, without its options."""
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
        """Its networks; none where there is no --cluster-network."""
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
        """End what the ways keep open: lookups, dials and shared connections."""
        for close in self._close:
            close()

    # Ways.

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

        resolver = Resolver(self._loop)  # of the server's own name; the target's is its business
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
