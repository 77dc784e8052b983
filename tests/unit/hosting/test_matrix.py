"""Which strategy publishes which service, retyped from what the control plane operator does."""

from __future__ import annotations

from itertools import product

import pytest

from isthmus.hosting.model import ControlPlaneService, Platform, Strategy, StrategyVerdict
from isthmus.hosting.models import V1BETA1

#: LoadBalancer, NodePort, Route, None, S3: y is published, n refused, - ignored, A on Azure only.
TYPED = {
    "APIServer": "yyynn",
    "OAuthServer": "Ayynn",
    "Konnectivity": "yyynn",
    "Ignition": "nyynn",
    "OIDC": "-----",
    "OVNSbDb": "-----",
}


@pytest.mark.parametrize("platform", Platform, ids=lambda each: str(each.value))
def test_the_matrix_is_as_it_was_typed(platform: Platform) -> None:
    letters = {
        "y": StrategyVerdict.PUBLISHED,
        "n": StrategyVerdict.REFUSED,
        "-": StrategyVerdict.IGNORED,
    }
    letters["A"] = letters["y" if platform is Platform.AZURE else "n"]
    for service, (number, strategy) in product(ControlPlaneService, enumerate(Strategy)):
        wanted = letters[TYPED[service.value][number]]
        assert V1BETA1.verdict(service, strategy, platform) is wanted, (service, strategy)


def test_the_matrix_is_whole() -> None:
    assert set(V1BETA1.matrix) == set(ControlPlaneService)
    assert all(set(row) == set(Strategy) for row in V1BETA1.matrix.values())


def test_every_required_service_can_be_published_everywhere() -> None:
    for platform in Platform:
        assert all(V1BETA1.possible(service, platform) for service in V1BETA1.required_on(platform))
    assert ControlPlaneService.IGNITION not in V1BETA1.required_on(Platform.IBMCLOUD)
