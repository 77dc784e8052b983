"""The direct dialer and the addresses where clouds keep credentials: given as such, and by name."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_network

import pytest

from isthmus.client.service import ConnectivityService
from isthmus.dial.dialers.direct import DirectDialer
from isthmus.dial.rules_connectivity import (
    ConnectivityConfig,
    NetworkConfig,
    NetworkConnection,
    NetworkProtocol,
)
from isthmus.errors import DialError, DialFailure
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.net.rules_metadata import METADATA, NO_METADATA, NO_METADATA_BY_NAME, MetadataGuard
from isthmus.net.socket_end import SocketEnd
from isthmus.programs.apiserver_proxy.ways import OtherResolver
from isthmus.tunnel.end import Ending
from isthmus.values import HostPort

ADDRESSES = [str(ip_network(text)[0] + 1) if "/" in text else text for text in METADATA]


async def dialed(host: str, guard: MetadataGuard, **names: list[str]) -> DialFailure | None:
    """What became of a dial; None is a connection."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[DialFailure | None] = loop.create_future()
    poller = Poller(loop)

    def reached(end: SocketEnd) -> None:
        end.abort(Ending.CANCELLED)
        done.set_result(None)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        dialer = DirectDialer(loop, poller, Resolver(loop, names), metadata=guard)
        dialer.dial(
            HostPort(host, listener.getsockname()[1]), timeout_s=20, reached=reached,
            failed=lambda failure, _: done.set_result(failure),
        )  # fmt: skip
        return await done


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_address_and_no_name_leads_there(address: str) -> None:
    assert asyncio.run(dialed(address, NO_METADATA)) is DialFailure.DENIED
    for guard in (NO_METADATA, NO_METADATA_BY_NAME):
        assert asyncio.run(dialed("meta", guard, meta=[address])) is DialFailure.DENIED


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_name_leads_to_its_other_addresses(address: str) -> None:
    found = asyncio.run(dialed("mixed", NO_METADATA, mixed=[address, "127.0.0.1", address]))
    assert found is None


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_name_of_an_apiserver_leads_there(address: str) -> None:
    """The apiserver proxy keeps what names resolve to, and connects to that."""

    async def looked_up(name: str) -> list[str]:
        names = {"meta": [address], "mixed": [address, "127.0.0.1"]}
        resolver = OtherResolver(asyncio.get_running_loop(), names)
        return [str(it[1][0]) for it in await resolver.addresses(HostPort(name, 443))]

    with pytest.raises(OSError, match="clouds serve credentials at"):
        asyncio.run(looked_up("meta"))
    assert asyncio.run(looked_up("mixed")) == ["127.0.0.1"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_direct_network_of_a_client_leads_there(address: str) -> None:
    direct = NetworkConnection(protocol=NetworkProtocol.DIRECT)

    everything = (ip_network("0.0.0.0/0"), ip_network("::/0"))

    async def dial() -> None:
        network = NetworkConfig(name="cluster", connection=direct, cidrs=everything)
        made = ConnectivityService.from_config(ConnectivityConfig(networks={"cluster": network}))
        async with made as service:
            await service.dialer("cluster").dial("tcp", HostPort(address, 80))

    with pytest.raises(DialError) as denied:
        asyncio.run(dial())
    assert denied.value.reason is DialFailure.DENIED
