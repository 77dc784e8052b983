"""The three topologies of 2022 in network namespaces: who reaches what, by real connections.

What is expected is typed from the proposal's lists, and not taken from the plan that is tried.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_publishing import LIMIT_S, run, topology

API, OAUTH = "kube-apiserver", "oauth-openshift"
TUNNEL, OVN, IGNITION, BUCKET = "konnectivity", "ovnkube-master", "ignition-server", "oidc-bucket"

#: Whom a user on the internet reaches, and whom a node of the guest by names of its own network.
#: The proposal lists the first four; Ignition goes with OVN, and the bucket is not of the cluster.
FOR_USERS = {
    "public": {API, OAUTH, TUNNEL, OVN, IGNITION, BUCKET},
    "public-and-private": {API, OAUTH, BUCKET},
    "private": {OAUTH, BUCKET},
}
FOR_NODES_ALONE: dict[str, set[str]] = {
    "public": set(),
    "public-and-private": {API, TUNNEL, OVN, IGNITION},
    "private": {API, TUNNEL, OVN, IGNITION},
}


def reached(report: dict[str, Any], who: str, *, inside: bool) -> set[str]:
    """Services that answered somebody by such names; konnectivity's lets connect, and is silent."""
    found = set()
    for step in report["steps"]:
        private = ".hypershift.local" in step["what"]
        published = private or ".com:" in step["what"]
        if step["from"] != who or not published or private is not inside:
            continue
        if step["seen"].startswith("from "):
            found.add(step["seen"].removeprefix("from ").strip())
        elif step["seen"] == "connected":
            found.add(TUNNEL)
    return found


@pytest.mark.parametrize("name", FOR_USERS)
@pytest.mark.timeout(LIMIT_S + 60)
def test_a_topology_of_the_proposal(tmp_path: Path, name: str) -> None:
    report = run(topology(tmp_path, f"v1alpha1/{name}"))
    broken = [step for step in report["steps"] if not step["held"]]
    assert report["held"] and not broken, broken
    assert reached(report, "user", inside=False) == FOR_USERS[name]
    assert reached(report, "user", inside=True) == set()
    assert reached(report, "node", inside=True) == FOR_NODES_ALONE[name]
    assert reached(report, "node", inside=False) >= FOR_USERS[name] - FOR_NODES_ALONE[name]
    # The way back: kube-apiserver reaches a pod by the agent's tunnel, and by nothing else.
    (way,) = [step for step in report["steps"] if step["what"] == "get pod:8080" and step["held"]
              and step["seen"].startswith("from pod")]  # fmt: skip
    assert way["from"] == API
