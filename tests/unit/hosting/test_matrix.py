"""Which strategy publishes which service, retyped from what the control plane operator does."""

from __future__ import annotations

from itertools import product

import pytest

from isthmus.hosting.matrix import MATRIX, Verdict, possible, required, verdict
from isthmus.hosting.model import Platform, Service, Strategy

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
    letters = {"y": Verdict.PUBLISHED, "n": Verdict.REFUSED, "-": Verdict.IGNORED}
    letters["A"] = letters["y" if platform is Platform.AZURE else "n"]
    for service, (number, strategy) in product(Service, enumerate(Strategy)):
        wanted = letters[TYPED[service.value][number]]
        assert verdict(service, strategy, platform) is wanted, (service, strategy)


def test_the_matrix_is_whole() -> None:
    assert set(MATRIX) == set(Service)
    assert all(set(row) == set(Strategy) for row in MATRIX.values())


def test_every_required_service_can_be_published_everywhere() -> None:
    for platform in Platform:
        assert all(possible(service, platform) for service in required(platform))
    assert Service.IGNITION not in required(Platform.IBMCLOUD)
