"""What each version of HyperShift's API publishes, and how: tables without code.

The engine (visibility.py, objects*.py, rules*.py) uses the tables of the document's version.
Further restrictions of platforms and topologies are in rules_platforms.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from isthmus.hosting.model import (
    ControlPlaneService,
    EndpointAccess,
    Platform,
    PublishingModel,
    Strategy,
    StrategyVerdict,
    VisibleServices,
)

_API, _OAUTH = ControlPlaneService.API_SERVER, ControlPlaneService.OAUTH_SERVER
_TUNNEL, _IGNITION = ControlPlaneService.KONNECTIVITY, ControlPlaneService.IGNITION
_OIDC, _OVN = ControlPlaneService.OIDC, ControlPlaneService.OVN_SB_DB
_USED = (_API, _OAUTH, _TUNNEL, _IGNITION)

# Short names for the rows below; each row has a cell for every strategy.
_YES: Final = StrategyVerdict.PUBLISHED
_NO: Final = StrategyVerdict.REFUSED
_IGNORED: Final = StrategyVerdict.IGNORED
_HIDDEN: Final = StrategyVerdict.HIDDEN

#: Today's HyperShift. The table of services and strategies follows the control plane operator.
V1BETA1: Final = PublishingModel(
    api_version="hypershift.openshift.io/v1beta1",
    matrix={
        service: dict(zip(Strategy, verdicts, strict=True))
        for service, verdicts in {
            #         LoadBalancer NodePort Route None S3
            _API: (_YES, _YES, _YES, _NO, _NO),
            _TUNNEL: (_YES, _YES, _YES, _NO, _NO),
            _OAUTH: (_YES, _YES, _YES, _NO, _NO),
            _IGNITION: (_NO, _YES, _YES, _NO, _NO),
            _OIDC: (_IGNORED,) * 5,
            _OVN: (_IGNORED,) * 5,
        }.items()
    },
    only_on={(_OAUTH, Strategy.LOAD_BALANCER): Platform.AZURE},
    # OIDC and OVNSbDb can still be listed.
    required=_USED,
    platforms=frozenset(Platform),
    with_access=frozenset({Platform.AWS, Platform.AZURE, Platform.GCP}),
    # Services for nodes are no longer public once there is an endpoint for their network.
    shown={
        EndpointAccess.PUBLIC: VisibleServices(frozenset(_USED), frozenset()),
        EndpointAccess.PUBLIC_AND_PRIVATE: VisibleServices(
            frozenset({_API, _OAUTH}), frozenset(_USED)
        ),
        EndpointAccess.PRIVATE: VisibleServices(frozenset(), frozenset(_USED)),
    },
    # HyperShift has no annotation to make it internal.
    open_balancers=frozenset({_TUNNEL}),
)

#: The lists of HyperShift's networking proposal of 2022, "Endpoints topology".
DESIGNED: Final[Mapping[EndpointAccess, VisibleServices]] = {
    EndpointAccess.PUBLIC: VisibleServices(frozenset({_API, _TUNNEL, _OVN, _OAUTH}), frozenset()),
    EndpointAccess.PUBLIC_AND_PRIVATE: VisibleServices(
        frozenset({_API, _OAUTH}), frozenset({_API, _TUNNEL, _OVN})
    ),
    EndpointAccess.PRIVATE: VisibleServices(frozenset({_OAUTH}), frozenset({_API, _TUNNEL, _OVN})),
}


def _with_ignition(designed: VisibleServices) -> VisibleServices:
    """The proposal's lists plus Ignition, which only nodes use and reach like OVN."""
    ignition = frozenset({_IGNITION})
    public = designed.public | (ignition if _OVN in designed.public else frozenset())
    private = designed.private | (ignition if _OVN in designed.private else frozenset())
    return VisibleServices(public, private)


#: HyperShift's networking proposal of 2022, and the control plane operator of its day.
V1ALPHA1: Final = PublishingModel(
    api_version="hypershift.openshift.io/v1alpha1",
    matrix={
        service: dict(zip(Strategy, verdicts, strict=True))
        for service, verdicts in {
            #         LoadBalancer NodePort Route None S3
            _API: (_YES, _YES, _YES, _NO, _NO),
            _TUNNEL: (_YES, _YES, _YES, _NO, _NO),
            _OAUTH: (_NO, _YES, _YES, _NO, _NO),
            _IGNITION: (_NO, _YES, _YES, _NO, _NO),
            _OVN: (_NO, _YES, _YES, _HIDDEN, _NO),
            # Documents for verifiers of tokens: in a bucket, or nowhere.
            _OIDC: (_IGNORED, _IGNORED, _IGNORED, _HIDDEN, _YES),
        }.items()
    },
    only_on={(_OIDC, Strategy.S3): Platform.AWS},
    required=_USED,
    platforms=frozenset(Platform) - {Platform.GCP, Platform.OPENSTACK},
    with_access=frozenset({Platform.AWS}),
    shown={access: _with_ignition(each) for access, each in DESIGNED.items()},
    # "labeled, so it can be accepted by an additional public ingress shard"
    sharded=frozenset({_OAUTH}),
)

#: By the apiVersion of a document.
MODELS: Final = {each.api_version: each for each in (V1BETA1, V1ALPHA1)}


def other_model(model: PublishingModel) -> PublishingModel:
    return V1BETA1 if model is V1ALPHA1 else V1ALPHA1
