"""The official ``kubernetes`` client and ``kubernetes_asyncio`` through the connectivity service.

Nothing is patched: an ApiClient sends its requests by the ``pool_manager`` of its REST client,
which is replaced by one with the same TLS settings. Neither package is imported here.

The official client opens WebSockets (exec, attach, port-forward by ``kubernetes.stream``) with
another library, which supports only proxies: it gets a local proxy (blocking.py).
kubernetes_asyncio's WebSockets (its WsApiClient) use the pool, as all its requests do.
"""

from __future__ import annotations

import copy
import ssl
from typing import Any, Protocol

from isthmus.client.blocking import BlockingService
from isthmus.client.context import NetworkContext
from isthmus.client.dialer import Dialer

#: The value of kubernetes_asyncio: a watch event can be larger than aiohttp's buffer.
_READ_BYTES = 2 * 1024 * 1024
#: A name that no server has (RFC 6761 §6.4).
_NOBODY = "nobody.invalid"


class _Rest(Protocol):
    pool_manager: Any


class ApiClient(Protocol):
    """The part that the ApiClients of both packages have in common."""

    configuration: Any
    rest_client: Any


def use(api_client: ApiClient, service: BlockingService, context: NetworkContext | str) -> None:
    """Make an ApiClient of ``kubernetes`` send its requests and streams through the service.

    Its configuration is replaced by a copy, so that other clients keep theirs.
    """
    from isthmus.client.urllib3 import PoolManager

    rest: _Rest = api_client.rest_client
    before = rest.pool_manager
    # Keep the client's certificates, verification and number of connections. Drop its proxy
    # settings: a proxy would bypass the service.
    options = {k: v for k, v in before.connection_pool_kw.items() if not k.startswith("_")}
    rest.pool_manager = PoolManager(service, context, **options)
    before.clear()
    proxy = service.proxy(context)
    configuration = api_client.configuration = copy.copy(api_client.configuration)
    configuration.proxy = proxy.url
    configuration.proxy_headers = {"proxy-authorization": proxy.authorization}
    configuration.no_proxy = _NOBODY  # or NO_PROXY of the environment would bypass the proxy


async def use_async(api_client: ApiClient, dialer: Dialer) -> None:
    """Make an ApiClient of ``kubernetes_asyncio`` send its requests through the service."""
    import aiohttp

    from isthmus.client.aiohttp import Connector

    rest = api_client.rest_client
    before: aiohttp.ClientSession = rest.pool_manager
    configuration = api_client.configuration
    connector = Connector(
        dialer, ssl=_context(configuration), limit=configuration.connection_pool_maxsize or 0
    )
    rest.pool_manager = aiohttp.ClientSession(connector=connector, read_bufsize=_READ_BYTES)
    rest.proxy = None
    await before.close()


def _context(configuration: Any) -> ssl.SSLContext:
    """The TLS settings of a Configuration, as kubernetes_asyncio reads them."""
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if getattr(configuration, "disable_strict_ssl_verification", False):
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
