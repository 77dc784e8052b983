"""Which of Kubernetes' tests are run: what they have in their names, and what must not be there."""

from __future__ import annotations

from dataclasses import dataclass

#: What needs a cloud, hours, or a cluster for itself.
LEFT_OUT = r"\[Slow\]|\[Serial\]|\[Disruptive\]|\[Feature:|\[FeatureGate:|\[Alpha\]"


@dataclass(frozen=True, slots=True)
class Selection:
    """Tests by their names: ``--focus`` and ``--skip`` of ginkgo, and how many at a time."""

    focus: str
    skip: str = LEFT_OUT
    procs: int = 4


SELECTIONS = {
    # Of each kind of request that crosses the tunnel, those that take no long time.
    "short": Selection(
        focus=(
            r"\[sig-cli\] Kubectl client (Guestbook|Simple pod|Proxy server|Update Demo"
            r"|Kubectl (logs|run|exec|describe|expose|client-side validation))"
            r"|\[sig-cli\] Kubectl (logs|Port forwarding)"
            r"|AdmissionWebhook .*\[Conformance\]|Aggregator"
            r"|\[sig-network\] (Proxy|DNS should|Services should (serve|provide|be able))"
        ),
    ),
    "cli": Selection(focus=r"\[sig-cli\]"),
    "webhooks": Selection(
        focus=r"AdmissionWebhook|Aggregator|CustomResourceConversionWebhook|ValidatingAdmissionPolicy"
    ),
    "network": Selection(focus=r"\[sig-network\]"),
    "parallel": Selection(focus=r"\[Conformance\]"),
    "serial": Selection(
        focus=r"\[Serial\].*\[Conformance\]|\[Conformance\].*\[Serial\]",
        skip=r"\[Slow\]|\[Disruptive\]|\[Feature:|\[FeatureGate:",
        procs=1,
    ),
}
