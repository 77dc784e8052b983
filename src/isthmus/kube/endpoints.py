"""Where the kubernetes Service leads, as the API says. Imports lightkube."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from lightkube.resources.core_v1 import Endpoints
from lightkube.resources.discovery_v1 import EndpointSlice

from isthmus.errors import KubeError
from isthmus.kube.client import KubeClient
from isthmus.values import HostPort

NAME, NAMESPACE = "kubernetes", "default"
_FORBIDDEN, _MISSING = 403, 404


async def kubernetes_endpoints(kubeconfig: str, *, timeout_s: float) -> tuple[HostPort, ...]:
    """Ask for the EndpointSlice, or where that is not permitted the Endpoints.

    Nodes may read the one, node proxies the other.

    Raises:
        ConfigError: the kubeconfig cannot be used.
        KubeError: the API refuses both, or does not answer.
    """
    async with _client(kubeconfig, timeout_s) as client:
        try:
            return await _from_slice(client)
        except KubeError as error:
            if error.status not in (_FORBIDDEN, _MISSING):
                raise
        return await _from_endpoints(client)


@contextlib.asynccontextmanager
async def _client(kubeconfig: str, timeout_s: float) -> AsyncIterator[KubeClient]:
    client = KubeClient(kubeconfig, timeout_s=timeout_s)
    try:
        yield client
    finally:
        await client.close()


async def _from_slice(client: KubeClient) -> tuple[HostPort, ...]:
    found = await client.call(
        "read the EndpointSlice of kubernetes",
        EndpointSlice,
        "get",
        EndpointSlice,
        namespace=NAMESPACE,
        name=NAME,
    )
    ports = [each.port for each in found.ports or () if each.port]
    addresses = [address for each in found.endpoints or () for address in each.addresses]
    return tuple(HostPort(address, port) for address in addresses for port in ports)


async def _from_endpoints(client: KubeClient) -> tuple[HostPort, ...]:
    found = await client.call(
        "read the Endpoints of kubernetes",
        Endpoints,
        "get",
        Endpoints,
        namespace=NAMESPACE,
        name=NAME,
    )
    return tuple(
        HostPort(address.ip, port.port)
        for subset in found.subsets or ()
        for address in subset.addresses or ()
        for port in subset.ports or ()
    )
