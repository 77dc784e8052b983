"""Which strategy can publish which service: the table of what the control plane operator does.

What a platform or a topology forbids on top of it is in rules_platforms.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from isthmus.hosting.model import Platform, Service, Strategy


class Verdict(Enum):
    """What becomes of a service with a strategy."""

    PUBLISHED = "published"
    REFUSED = "refused"
    IGNORED = "ignored"


_YES: Final = Verdict.PUBLISHED
_NO: Final = Verdict.REFUSED
_IGNORED: Final = Verdict.IGNORED

#: Services that HyperShift still lists and does nothing about.
UNUSED: Final = frozenset({Service.OIDC, Service.OVN_SB_DB})
#: Services that have to be published.
REQUIRED: Final = (
    Service.API_SERVER,
    Service.OAUTH_SERVER,
    Service.KONNECTIVITY,
    Service.IGNITION,
)

#: Service → strategy → verdict. OAuthServer by LoadBalancer is published on Azure alone.
MATRIX: Final[Mapping[Service, Mapping[Strategy, Verdict]]] = {
    service: dict(zip(Strategy, verdicts, strict=True))
    for service, verdicts in {
        #                       LoadBalancer NodePort  Route     None      S3
        Service.API_SERVER: (_YES, _YES, _YES, _NO, _NO),
        Service.KONNECTIVITY: (_YES, _YES, _YES, _NO, _NO),
        Service.OAUTH_SERVER: (_YES, _YES, _YES, _NO, _NO),
        Service.IGNITION: (_NO, _YES, _YES, _NO, _NO),
        Service.OIDC: (_IGNORED,) * 5,
        Service.OVN_SB_DB: (_IGNORED,) * 5,
    }.items()
}


def verdict(service: Service, strategy: Strategy, platform: Platform) -> Verdict:
    """What the control plane operator does."""
    is_oauth_balancer = (service, strategy) == (Service.OAUTH_SERVER, Strategy.LOAD_BALANCER)
    if is_oauth_balancer and platform is not Platform.AZURE:
        return Verdict.REFUSED
    return MATRIX[service][strategy]


def possible(service: Service, platform: Platform) -> tuple[Strategy, ...]:
    """The strategies that publish a service, for a sentence that says what to write instead."""
    published = Verdict.PUBLISHED
    return tuple(each for each in Strategy if verdict(service, each, platform) is published)


def required(platform: Platform) -> tuple[Service, ...]:
    """The services that have to be listed: IBM Cloud brings its nodes up without Ignition."""
    if platform is Platform.IBMCLOUD:
        return tuple(each for each in REQUIRED if each is not Service.IGNITION)
    return REQUIRED
