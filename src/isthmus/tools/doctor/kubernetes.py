"""Whether the Kubernetes API answers, and lets the program do what it has to; and its time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from isthmus.errors import ConfigError, KubeError
from isthmus.frame.finding import Asked, CheckId, Finding
from isthmus.frame.layout import KubeNeed
from isthmus.frame.patient import Patient
from isthmus.kube.permissions import look_at_api, may
from isthmus.tools.doctor.certificates import judge_skew
from isthmus.tools.doctor.layout import layout_of


def see_api(patient: Patient) -> Iterator[Finding]:
    """Ask the API for its version, compare its time, and ask what we may do."""
    need = layout_of(patient.settings).kube()
    if need is None:
        return
    asked = Asked(CheckId.KUBE_API, need.about, "asked the API for its version")
    limit = patient.timeout_s
    try:
        seen = asyncio.run(look_at_api(need.kubeconfig, server=need.server, timeout_s=limit))
    except ConfigError as error:
        yield asked.fail(str(error), "give a kubeconfig that works: kubectl --kubeconfig=… version")
        return
    except KubeError as error:
        yield asked.fail(str(error), "see its address, the routes and firewalls to it, and its CA")
        return
    if seen.status >= 500:
        yield asked.fail(f"{seen.server} answers {seen.status}", "see how kube-apiserver is doing")
    else:
        yield asked.ok(f"{seen.server} answers")
    if seen.date is not None:
        yield judge_skew(f"{seen.server}, its Date", seen.date, patient.now())
    yield from _see_permissions(need, limit)


def _see_permissions(need: KubeNeed, limit_s: float) -> Iterator[Finding]:
    done = "asked by SelfSubjectAccessReview"
    try:
        found = asyncio.run(
            may(need.kubeconfig, need.permissions, server=need.server, timeout_s=limit_s)
        )
    except (ConfigError, KubeError) as error:
        unknown = isinstance(error, KubeError) and error.status == 401
        todo = "give credentials that the API knows" if unknown else "see how the API is doing"
        yield Asked(CheckId.PERMISSIONS, need.about, done).fail(str(error), todo)
        return
    for permission, allowed in zip(need.permissions, found, strict=True):
        asked = Asked(CheckId.PERMISSIONS, f"{need.about}: {permission}", done)
        if allowed:
            yield asked.ok("allowed")
        else:
            yield asked.fail(
                "not allowed",
                f"allow it by a Role or ClusterRole: kubectl auth can-i {permission.verb}"
                f" {permission.resource}",
            )
