"""A document becomes a plan: what is wrong with it, or what follows from it."""

from __future__ import annotations

from isthmus.hosting.cidrs import cidr_findings
from isthmus.hosting.endpoints import endpoints_of
from isthmus.hosting.model import HostedCluster, Plan, Weight
from isthmus.hosting.objects import objects
from isthmus.hosting.rules import check
from isthmus.hosting.surprises import surprises


def make_plan(cluster: HostedCluster, *, keep_sources: bool = False) -> Plan:
    """Check a cluster, and say what publishing it makes and who will see what.

    ``keep_sources`` makes the allowed CIDR blocks hold for node ports and load balancers that they
    would not hold for otherwise; what that asks of the nodes is said in objects.py.
    """
    findings = check(cluster)
    if any(each.weight is Weight.ERROR for each in findings):
        return Plan(cluster=cluster, findings=findings)
    made = objects(cluster, keep_sources=keep_sources)
    found = endpoints_of(cluster, made)
    return Plan(
        cluster=cluster,
        findings=(*findings, *cidr_findings(cluster, found), *surprises(cluster, found)),
        endpoints=found,
        objects=tuple(each.manifest for each in made),
    )
