"""Endpoint visibility as rows for a table: who can reach which endpoint, in words.

The same as a picture is picture.py. How a table is printed is for the command.
"""

from __future__ import annotations

from isthmus.hosting.model import Endpoint, From, Plan, Strategy

#: What the cells of a row are, in order; the last four are where somebody stands.
HEADINGS = (
    "service",
    "strategy",
    "address",
    "object",
    "through",
    *(place.value for place in From),
)

YES, NO = "yes", "no"
HELD = "allowed CIDRs"
NOT_PUBLISHED = "not published"


def rows(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """One row for each endpoint of a plan, with a cell for each of HEADINGS."""
    return tuple(
        (
            each.service.value,
            strategy_text(each),
            address_text(each),
            each.by,
            each.through,
            *(seen_text(each, place) for place in From),
        )
        for each in plan.endpoints
    )


def seen_text(endpoint: Endpoint, place: From) -> str:
    """Whether somebody who stands there can reach an endpoint.

    Where the allowed CIDR blocks hold, they hold for the management cluster's own pods too: those
    reach the Service by its cluster address, which is an endpoint of its own.
    """
    if place not in endpoint.visible_from:
        return NO
    return HELD if endpoint.restricted else YES


def strategy_text(endpoint: Endpoint) -> str:
    """How it is published, if it is."""
    return NOT_PUBLISHED if endpoint.strategy is Strategy.NONE else endpoint.strategy.value


def address_text(endpoint: Endpoint) -> str:
    """Where an endpoint is, as far as it is known before anything is made."""
    if endpoint.target is not None:
        return str(endpoint.target)
    if endpoint.address:
        return f"{endpoint.address}, port chosen later"
    if endpoint.port:
        return f"chosen later, port {endpoint.port}"
    return "chosen later"
