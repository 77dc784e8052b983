"""Kinds that a Kubernetes without OpenShift or the Prometheus operator does not know.

Their published shape, as far as anybody here could write something of it: a field that is not in it
is refused by a strict dry run, as the real ones would.
"""

from __future__ import annotations

import json
from typing import Any

from kube.api import Api

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
SWITCH: Schema = {"type": "boolean"}
EITHER: Schema = {"x-kubernetes-int-or-string": True}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
DURATION: Schema = {**TEXT, "pattern": r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?"
                    r"(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$"}  # fmt: skip


def words(*allowed: str) -> Schema:
    return {**TEXT, "enum": list(allowed)}


def listed(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def mapping(*needed: str, **properties: Schema) -> Schema:
    found: Schema = {"type": "object", "properties": properties}
    return {**found, "required": list(needed)} if needed else found


_TARGET = mapping(
    "kind",
    "name",
    kind=words("Service", ""),
    name={**TEXT, "minLength": 1},
    weight={**NUMBER, "minimum": 0, "maximum": 256},
)
_TLS = mapping(
    "termination",
    termination=words("edge", "reencrypt", "passthrough"),
    insecureEdgeTerminationPolicy=words("Allow", "None", "Redirect", ""),
    **dict.fromkeys(("certificate", "key", "caCertificate", "destinationCACertificate"), TEXT),
    externalCertificate=mapping("name", name=TEXT),
)
_ROUTE = mapping(
    "to",
    host={
        **TEXT,
        "maxLength": 253,
        "pattern": r"^([a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]{0,61}[a-zA-Z0-9])"
        r"(\.([a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]{0,61}[a-zA-Z0-9]))*$",
    },
    subdomain=TEXT,
    path={**TEXT, "pattern": "^/"},
    to=_TARGET,
    alternateBackends=listed(_TARGET, maxItems=3),
    port=mapping("targetPort", targetPort=EITHER),
    tls=_TLS,
    wildcardPolicy=words("None", "Subdomain", ""),
)
# A passthrough Route has no certificate of its own, and no path.
_ROUTE["x-kubernetes-validations"] = [
    {
        "rule": "!has(self.tls) || self.tls.termination != 'passthrough' || !has(self.path)",
        "message": "passthrough termination does not support paths",
    }
]

_RELABELLING = mapping(
    sourceLabels=listed(TEXT),
    separator=TEXT,
    targetLabel=TEXT,
    regex=TEXT,
    modulus=NUMBER,
    replacement=TEXT,
    action=TEXT,
)
_KEY_OF = mapping("key", name=TEXT, key=TEXT, optional=SWITCH)
_SECRET_OR_MAP = mapping(secret=_KEY_OF, configMap=_KEY_OF)
_SCRAPE = mapping(
    port=TEXT,
    portNumber=NUMBER,
    targetPort=EITHER,
    path=TEXT,
    scheme=words("http", "https", "HTTP", "HTTPS"),
    params={"type": "object", "additionalProperties": listed(TEXT)},
    interval=DURATION,
    scrapeTimeout=DURATION,
    honorLabels=SWITCH,
    honorTimestamps=SWITCH,
    followRedirects=SWITCH,
    filterRunning=SWITCH,
    enableHttp2=SWITCH,
    relabelings=listed(_RELABELLING),
    metricRelabelings=listed(_RELABELLING),
    tlsConfig=mapping(
        ca=_SECRET_OR_MAP,
        cert=_SECRET_OR_MAP,
        keySecret=_KEY_OF,
        serverName=TEXT,
        insecureSkipVerify=SWITCH,
        minVersion=TEXT,
        maxVersion=TEXT,
    ),
    bearerTokenSecret=_KEY_OF,
    authorization=mapping(type=TEXT, credentials=_KEY_OF),
)
_SELECTOR = mapping(
    matchLabels=TEXTS,
    matchExpressions=listed(
        mapping("key", "operator", key=TEXT, operator=TEXT, values=listed(TEXT))
    ),
)
_LIMITS = dict.fromkeys(("sampleLimit", "targetLimit", "labelLimit"), NUMBER)
_AROUND = {
    "jobLabel": TEXT,
    "podTargetLabels": listed(TEXT),
    "namespaceSelector": mapping(any=SWITCH, matchNames=listed(TEXT)),
    "selector": _SELECTOR,
    **_LIMITS,
}
_POD_MONITOR = mapping("selector", podMetricsEndpoints=listed(_SCRAPE), **_AROUND)
_SERVICE_MONITOR = mapping(
    "selector", "endpoints", endpoints=listed(_SCRAPE), targetLabels=listed(TEXT), **_AROUND
)
_RULE = mapping(
    "expr",
    record=TEXT,
    alert=TEXT,
    expr=EITHER,
    **{"for": DURATION, "keep_firing_for": {**DURATION, "minLength": 1}},
    labels=TEXTS,
    annotations=TEXTS,
)
_RULES = mapping(
    groups=listed(
        mapping(
            "name",
            name={**TEXT, "minLength": 1},
            interval=DURATION,
            query_offset=DURATION,
            limit=NUMBER,
            labels=TEXTS,
            rules=listed(_RULE),
        )
    )
)

#: By group: the plural, the kind, and what its spec can say.
KINDS: dict[str, dict[str, tuple[str, Schema]]] = {
    "route.openshift.io": {"routes": ("Route", _ROUTE)},
    "monitoring.coreos.com": {
        "podmonitors": ("PodMonitor", _POD_MONITOR),
        "servicemonitors": ("ServiceMonitor", _SERVICE_MONITOR),
        "prometheusrules": ("PrometheusRule", _RULES),
    },
}


def define(api: Api, group: str) -> None:
    """Let an API know the kinds of a group; it may know them already."""
    kinds = KINDS[group]
    text = "\n---\n".join(
        json.dumps(_definition(group, plural, *each)) for plural, each in kinds.items()
    )
    api.kubectl("apply", "-f", "-", stdin=text.encode())
    for plural in kinds:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{group}"
        api.wait_for(path, f"{plural} are known", Established="True")


def _definition(group: str, plural: str, kind: str, spec: Schema) -> dict[str, Any]:
    schema = mapping("spec", spec=spec)
    version = {
        "name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema},
    }  # fmt: skip
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"plural": plural, "kind": kind, "singular": kind.lower()},
            "scope": "Namespaced",
            "versions": [version],
        },
    }
