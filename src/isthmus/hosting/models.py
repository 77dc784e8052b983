"""What each version of HyperShift's API publishes, and how: tables, and no code.

The engine (visibility.py, objects*.py, rules*.py) reads them off the document's model. What a
platform or a topology forbids on top of a table is in rules_platforms.py.
"""

from __future__ import annotations

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
_USED = (_API, _OAUTH, _TUNNEL, _IGNITION)

# Words for the rows below, each of which has a cell for every strategy.
_YES: Final = StrategyVerdict.PUBLISHED
_NO: Final = StrategyVerdict.REFUSED
_IGNORED: Final = StrategyVerdict.IGNORED

#: Today's HyperShift. Its table of services and strategies is what the control plane operator does.
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
            ControlPlaneService.OIDC: (_IGNORED,) * 5,
            ControlPlaneService.OVN_SB_DB: (_IGNORED,) * 5,
        }.items()
    },
    only_on={(_OAUTH, Strategy.LOAD_BALANCER): Platform.AZURE},
    # OIDC and OVNSbDb can still be listed.
    required=_USED,
    with_access=frozenset({Platform.AWS, Platform.AZURE, Platform.GCP}),
    # Nodes' own services have no way for everybody as soon as there is one for their network.
    shown={
        EndpointAccess.PUBLIC: VisibleServices(frozenset(_USED), frozenset()),
        EndpointAccess.PUBLIC_AND_PRIVATE: VisibleServices(
            frozenset({_API, _OAUTH}), frozenset(_USED)
        ),
        EndpointAccess.PRIVATE: VisibleServices(frozenset(), frozenset(_USED)),
    },
    # HyperShift has no annotation for it that would make it internal.
    open_balancers=frozenset({_TUNNEL}),
)

#: By the apiVersion of a document.
MODELS: Final = {each.api_version: each for each in (V1BETA1,)}
