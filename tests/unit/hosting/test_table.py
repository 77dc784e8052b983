"""Endpoint visibility as rows: every endpoint, and who can reach it, in words."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from picture_plans import PLANS

from isthmus.hosting.endpoints import HEADINGS, address_text, rows
from isthmus.hosting.model import (
    ControlPlaneService,
    PlannedEndpoint,
    PublishPlan,
    Strategy,
    Viewpoint,
)

ENDPOINT = PlannedEndpoint(
    service=ControlPlaneService.API_SERVER,
    name="kube-apiserver",
    strategy=Strategy.NODE_PORT,
    by="Service/x",
)


@pytest.mark.parametrize("name", PLANS)
def test_every_endpoint_has_a_row(name: str) -> None:
    plan = PLANS[name]
    found = rows(plan)
    assert [(row[0], row[3]) for row in found] == [
        (each.service.value, each.by) for each in plan.endpoints
    ]
    for row, each in zip(found, plan.endpoints, strict=True):
        seen = dict(zip(HEADINGS, row, strict=True))
        for place in Viewpoint:
            assert (seen[place.value] != "no") == (place in each.visible_from)


def test_a_load_balancer_with_allowed_blocks() -> None:
    (row, inside, *_) = rows(PLANS["public-loadbalancer"])
    assert row == (
        "APIServer",
        "LoadBalancer",
        "api.spring.example.com:6443",
        "Service/kube-apiserver",
        "",
        *["allowed CIDRs"] * 4,  # a pod's own address is not among them either
    )
    assert inside[1:3] == ("not published", "kube-apiserver.clusters-spring.svc:6443")
    assert inside[5:] == ("no", "no", "yes", "yes")


def test_a_route_of_the_guest_network() -> None:
    row = rows(PLANS["private-route"])[0]
    assert row[4:] == ("Service/private-router", "no", "yes", "yes", "yes")


@pytest.mark.parametrize(
    ("address", "port", "text"),
    [
        ("192.0.2.1", 30643, "192.0.2.1:30643"),
        ("2001:db8::1", 30643, "[2001:db8::1]:30643"),
        ("192.0.2.1", 0, "192.0.2.1, port chosen later"),
        ("", 6443, "chosen later, port 6443"),
        ("", 0, "chosen later"),
    ],
)
def test_addresses_as_far_as_they_are_known(address: str, port: int, text: str) -> None:
    assert address_text(replace(ENDPOINT, address=address, port=port)) == text


def test_a_plan_with_errors_has_no_rows() -> None:
    wrong: PublishPlan = PLANS["wrong"]
    assert wrong.errors and not rows(wrong)
