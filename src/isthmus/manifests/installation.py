"""A whole installation for values of the chart; the Helm chart (chart.py) creates the same objects.

It has every program's part (``Program.chart``), and what several programs share: values, the
namespace of the Leases, monitoring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from isthmus.errors import ConfigError
from isthmus.manifests import around
from isthmus.manifests.alerts import rules
from isthmus.manifests.around import WorkloadOwner
from isthmus.manifests.chart_parts import (
    BY_CERTIFICATE,
    CERTIFICATE,
    CLIENT_CA,
    COMPUTED,
    COUNTS_LEASES,
    HAS_AGENTS,
    HAS_SERVER,
    IN_CLUSTER,
    IS_DEPLOYMENT,
    IS_STATIC,
    KUBECONFIG,
    LEASES,
    LEASES_IN,
    NAMESPACE,
    SHARED_NAMESPACE,
    TOKEN,
    ChartPart,
    HealthPort,
    NeededObject,
)
from isthmus.manifests.chart_values import (
    CIDR,
    OBJECT,
    OBJECT_OR_NONE,
    PLAIN,
    Value,
    ValueShape,
    leaves,
    merged,
    put,
    text_value,
    texts_value,
    whole_value,
    words_value,
    yes_value,
)
from isthmus.manifests.pods import Manifest
from isthmus.manifests.settings import AUDIENCE, UNPRIVILEGED
from isthmus.manifests.template import (
    Chosen,
    Computed,
    FromFile,
    Node,
    Spread,
    Template,
    Tree,
    When,
    given,
    hole,
)
from isthmus.manifests.volumes import CA
from isthmus.programs import programs
from isthmus.text.addresses import cidr

RULES_FILE = "files/isthmus-rules.yaml"
#: The parts of programs, in the order to create them.
PARTS: Sequence[ChartPart] = [it.found(it.chart) for it in programs() if it.chart]

_SHARED = (
    text_value("image.repository", "isthmus", "Image, without tag", pattern="^[A-Za-z0-9][^@ ]*$"),
    text_value("image.tag", "", "Tag; empty: the version of the chart's programs"),
    text_value("image.digest", "", "Digest, such as sha256:…; with it the tag is for people only"),
    text_value(
        "image.pullPolicy",
        "IfNotPresent",
        "When nodes get the image",
        choices=("IfNotPresent", "Always", "Never"),
    ),
    texts_value("imagePullSecrets", [], "Names of Secrets for the registry", pattern=OBJECT),
    whole_value("runAs", UNPRIVILEGED, "User and group of the programs, never root", 1, 2**31 - 1),
    text_value(
        "auth.mode",
        TOKEN,
        "How agents prove who they are: by tokens of their service account, or by certificates",
        choices=(TOKEN, CERTIFICATE),
    ),
    text_value("auth.audience", AUDIENCE, "Audience of the tokens", pattern="^[^$ ]+$"),
    text_value(
        "auth.agentNamespace", "", "Namespace of agents; empty: the release's", pattern=PLAIN
    ),
    text_value(
        "certificates.caConfigMap",
        "isthmus-ca",
        "ConfigMap with ca.crt: the authorities that agents and servers know each other by",
        pattern=OBJECT,
    ),
    text_value(
        "certificates.clientCaConfigMap",
        "",
        "ConfigMap with ca.crt: the authorities of kube-apiserver's certificate, of a deployment; "
        "empty: those of caConfigMap, and an agent's certificate opens the frontend, too, which a "
        "later version will refuse",
        pattern=OBJECT_OR_NONE,
    ),
)
_MONITORING = (
    yes_value(
        "monitoring.podMonitor.enabled", False, "Whether a PodMonitor finds server and agents"
    ),
    text_value("monitoring.podMonitor.interval", "30s", "How often metrics are read"),
    words_value("monitoring.podMonitor.labels", "Labels that Prometheus looks for"),
    yes_value("monitoring.prometheusRule.enabled", False, "Whether there are our alerts"),
    words_value("monitoring.prometheusRule.labels", "Labels that Prometheus looks for"),
)
VALUES: tuple[Value, ...] = (*_SHARED, *(each for it in PARTS for each in it.values), *_MONITORING)
#: The topics of the groups of values.
SECTIONS: Mapping[str, str] = {
    "image": "The image of both programs",
    "auth": "How agents prove who they are",
    "certificates": "What both sides trust",
    "monitoring": "For the Prometheus operator",
    **{path: about for it in PARTS for path, about in it.sections.items()},
}
TEMPLATE = Template(
    numbers=frozenset(value.path for value in VALUES if value.shape is ValueShape.WHOLE),
    computed={**COMPUTED, **{name: each for it in PARTS for name, each in it.computed.items()}},
)
#: What both Helm and Python refuse, and why.
REFUSALS: Sequence[tuple[Computed, str]] = [each for it in PARTS for each in it.refused]
NEEDED: Sequence[NeededObject] = (
    *(each for it in PARTS for each in it.needed),
    NeededObject(
        holds=HAS_AGENTS | (IN_CLUSTER & (BY_CERTIFICATE | (IS_DEPLOYMENT & ~CLIENT_CA))),
        kind="ConfigMap",
        name=hole("certificates.caConfigMap"),
        keys=(CA,),
    ),
    NeededObject(
        holds=IN_CLUSTER & IS_DEPLOYMENT & CLIENT_CA,
        kind="ConfigMap",
        name=hole("certificates.clientCaConfigMap"),
        keys=(CA,),
    ),
)


def _lease_namespace() -> Node:
    """The namespace of the Leases, if it is created and a program gets rights in it."""
    # The right to write Leases is for all of a namespace: those of servers have their own one.
    kept = HAS_SERVER & LEASES & (IS_STATIC | ~KUBECONFIG)
    owner = WorkloadOwner(name=hole("server.name"), namespace=NAMESPACE)
    wanted = (
        ~given("server.leases.namespace") & SHARED_NAMESPACE & (kept | (HAS_AGENTS & COUNTS_LEASES))
    )
    return When(wanted, around.namespace(owner, LEASES_IN))


def _monitoring() -> list[Node]:
    interval = hole("monitoring.podMonitor.interval")
    found: list[Node] = [
        When(
            given("monitoring.podMonitor.enabled") & part.watched,
            around.pod_monitor(
                WorkloadOwner(name=hole(f"{part.name}.name"), namespace=NAMESPACE),
                interval=interval,
                labels={Spread("monitoring.podMonitor.labels"): None},
                more=HealthPort(part.name).endpoint,
            ),
        )
        for part in PARTS
        if part.watched is not None
    ]
    metadata = WorkloadOwner(name="isthmus", namespace=NAMESPACE).metadata()
    more = {Spread("monitoring.prometheusRule.labels"): None}
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {**metadata, "labels": {**more, **metadata["labels"]}},
        "spec": FromFile(RULES_FILE, rules()),
    }
    return [*found, When(given("monitoring.prometheusRule.enabled"), rule)]


#: All objects, by the chart's template that has them, in the order to create them.
FILES: Mapping[str, Sequence[Node]] = {
    "lease-namespace.yaml": [_lease_namespace()],
    **{name: nodes for it in PARTS for name, nodes in it.files.items()},
    "monitoring.yaml": _monitoring(),
}


def installation(values: Tree, namespace: str) -> list[Manifest]:
    """Every object of an installation, in the order to create them.

    Raises:
        ConfigError: values conflict.
    """
    chosen = Chosen(values=values, namespace=namespace)
    for refused, why in REFUSALS:
        if refused.find(chosen):
            raise ConfigError(why)
    for part in PARTS:
        if part.there.find(chosen):
            part.check(chosen, TEMPLATE)
    chosen = replace(chosen, values=_with_plain_networks(values))
    found: list[Manifest] = TEMPLATE.fill(
        [each for file in FILES.values() for each in file], chosen
    )
    return found


def _with_plain_networks(values: Tree) -> Tree:
    chosen = Chosen(values=values, namespace="")
    found: Tree = {}
    for path, value in leaves(VALUES):
        if value.pattern == CIDR:
            put(found, path, [str(cidr(text)) for text in chosen[value.path]])
    return merged(values, found)


def needed_objects(values: Tree, namespace: str) -> list[tuple[str, str, Sequence[str]]]:
    """Kind, name and keys of the objects that must be created first."""
    chosen = Chosen(values=values, namespace=namespace)
    return [
        (each.kind, TEMPLATE.fill(each.name, chosen), each.keys)
        for each in NEEDED
        if each.holds.find(chosen)
    ]
