"""What of an installation follows from values: holes of its trees, conditions, needed objects.

Each is said once for Python and for Helm; the trees are installation_objects.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from isthmus import __version__
from isthmus.manifests.server_plan import LEAVE_S
from isthmus.manifests.settings import DAEMON_SET, DEPLOYMENT, STATIC_POD
from isthmus.manifests.settings_server import (
    LEASE_NAMESPACE,
    SIDECAR,
    lease_namespace,
)
from isthmus.manifests.settings_values import CERTIFICATE, TOKEN, VALUES, ValueShape
from isthmus.manifests.template import (
    Chosen,
    Computed,
    Template,
    Tree,
    When,
    given,
    hole,
    is_word,
)
from isthmus.manifests.volumes import CA

RULES_FILE = "files/isthmus-rules.yaml"
FORMS = {
    "daemonset": DAEMON_SET,
    "deployment": DEPLOYMENT,
    "staticPod": STATIC_POD,
    "sidecar": SIDECAR,
}
PRE_STOP_S = 70

# What follows from values, by the names of holes.

NAMESPACE, IMAGE, LEASES_IN = hole("namespace"), hole("image"), hole("leaseNamespace")
SOCKET_DIRECTORY = hole("socketDirectory")
SHARED_NAMESPACE = Computed(
    lambda chosen: lease_namespace(chosen.namespace) != chosen.namespace,
    'or (eq "default" $.Release.Namespace) (hasPrefix "kube-" $.Release.Namespace)',
)


def _grace(who: str, more: int) -> Computed:
    path = f"{who}.gracefulShutdownSeconds"
    return Computed(
        lambda chosen: chosen[path] + more, f"add $.Values.{path} {more}", is_number=True
    )


def _joined(path: str) -> Computed:
    return Computed(lambda chosen: ",".join(chosen[path]), f'join "," $.Values.{path}')


def _half_of_selector(half: int) -> Computed:
    path = "server.sidecar.selector"
    return Computed(
        lambda chosen: chosen[path].partition("=")[2 * half],
        f'(splitn "=" 2 $.Values.{path})._{half}',
    )


COMPUTED: Mapping[str, Computed] = {
    "namespace": Computed(lambda chosen: chosen.namespace, "$.Release.Namespace"),
    "image": Computed(
        lambda chosen: image_of(chosen["image"]),
        'print $.Values.image.repository ":" (default $.Chart.AppVersion $.Values.image.tag)'
        ' (ternary "" (print "@" $.Values.image.digest) (empty $.Values.image.digest))',
    ),
    "leaseNamespace": Computed(
        lambda chosen: chosen["server.leases.namespace"] or lease_namespace(chosen.namespace),
        f'default (ternary "{LEASE_NAMESPACE}" $.Release.Namespace {SHARED_NAMESPACE})'
        " $.Values.server.leases.namespace",
    ),
    "agentNamespace": Computed(
        lambda chosen: chosen["auth.agentNamespace"] or chosen.namespace,
        "default $.Release.Namespace $.Values.auth.agentNamespace",
    ),
    "advertised": Computed(
        lambda chosen: {"ipv6": "[$(POD_IP)]"}.get(chosen["server.leases.advertise"], "$(POD_IP)"),
        'ternary "[$(POD_IP)]" "$(POD_IP)" (eq $.Values.server.leases.advertise "ipv6")',
    ),
    "socketDirectory": Computed(
        lambda chosen: str(PurePosixPath(chosen["server.frontend.socket"]).parent),
        "dir $.Values.server.frontend.socket",
    ),
    "strategies": _joined("server.strategies"),
    "noProxy": _joined("agent.noProxy"),
    "selectorLabel": _half_of_selector(0),
    "selectorValue": _half_of_selector(1),
    "agentGrace": _grace("agent", 5),
    "serverGrace": _grace("server", 5),
    "deploymentGrace": _grace("server", 5 + LEAVE_S),
    "sidecarGrace": _grace("server", PRE_STOP_S),
}
TEMPLATE = Template(
    numbers=frozenset(value.path for value in VALUES if value.shape is ValueShape.WHOLE),
    computed=COMPUTED,
)

# What holds or not.

BY_TOKEN, BY_CERTIFICATE = is_word("auth.mode", TOKEN), is_word("auth.mode", CERTIFICATE)
LEASES, COUNTS_LEASES = given("server.leases.enabled"), given("agent.countServerLeases")
CLIENT_CA = given("certificates.clientCaConfigMap")
KUBECONFIG = given("server.kubeconfig.secret")
NEEDS_API = LEASES | BY_TOKEN
HAS_SERVER, HAS_AGENTS = given("server.enabled"), given("agent.enabled")
HOSTS = given("agent.servers.hosts")
IS_DEPLOYMENT = is_word("server.kind", "deployment")
IS_STATIC, IS_SIDECAR = is_word("server.kind", "staticPod"), is_word("server.kind", "sidecar")
IN_CLUSTER = HAS_SERVER & ~IS_STATIC


def by_kubeconfig(kind: str) -> Computed:
    """Whether a server asks the Kubernetes API by a kubeconfig, and not as its pod's account."""
    return NEEDS_API if kind == "staticPod" else NEEDS_API & KUBECONFIG


def trusts_ca(kind: str) -> Computed:
    return BY_CERTIFICATE | ~CLIENT_CA if kind == "deployment" else BY_CERTIFICATE


#: What neither Helm nor Python takes, and why.
REFUSALS: Sequence[tuple[Computed, str]] = (
    (
        HAS_SERVER & IS_SIDECAR & NEEDS_API & ~KUBECONFIG,
        "server.kind sidecar has no account of its own in kube-apiserver's pod: set"
        " server.kubeconfig.secret, or auth.mode certificate and server.leases.enabled false",
    ),
    (
        HAS_SERVER & IS_STATIC & KUBECONFIG,
        "server.kubeconfig.secret is not for server.kind staticPod, which has its kubeconfig"
        " from its node, /etc/isthmus/kube/kubeconfig",
    ),
    (
        HAS_SERVER & IS_STATIC & given("server.extraSecret.name"),
        "server.extraSecret.name is not for server.kind staticPod, which has its files from its"
        " node, in /etc/isthmus",
    ),
    (
        HAS_AGENTS & given("agent.noProxy") & ~given("agent.httpsProxy"),
        "agent.noProxy needs agent.httpsProxy as well",
    ),
    (
        HAS_AGENTS & ~HOSTS & ~HAS_SERVER,
        "agent.servers.hosts is empty, and there is no server here that agents could connect to",
    ),
)


def image_of(image: Mapping[str, str]) -> str:
    """The image, with what says which."""
    tag, digest = image["tag"] or __version__, image["digest"]
    return f"{image['repository']}:{tag}" + (f"@{digest}" if digest else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededObject:
    """A Secret or ConfigMap that somebody has to make first; ``remark`` is for the notes."""

    holds: Computed
    kind: str
    name: str
    keys: Sequence[str]
    remark: When | None = None


_TLS = ("tls.crt", "tls.key")
NEEDED: Sequence[NeededObject] = (
    NeededObject(
        holds=IN_CLUSTER,
        kind="Secret",
        name=hole("server.secret"),
        keys=_TLS,
        remark=When(
            HAS_AGENTS & ~HOSTS,
            f": the certificate has the name {hole('server.name')}.{NAMESPACE}.svc",
        ),
    ),
    NeededObject(
        holds=IN_CLUSTER & IS_DEPLOYMENT,
        kind="Secret",
        name=hole("server.frontend.secret"),
        keys=_TLS,
    ),
    NeededObject(
        holds=IN_CLUSTER & KUBECONFIG,
        kind="Secret",
        name=hole("server.kubeconfig.secret"),
        keys=("kubeconfig",),
    ),
    NeededObject(
        holds=HAS_AGENTS & BY_CERTIFICATE, kind="Secret", name=hole("agent.secret"), keys=_TLS
    ),
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


def needed_objects(values: Tree, namespace: str) -> list[tuple[str, str, Sequence[str]]]:
    """Kind, name and keys of what somebody has to make first."""
    chosen = Chosen(values=values, namespace=namespace)
    return [
        (each.kind, TEMPLATE.fill(each.name, chosen), each.keys)
        for each in NEEDED
        if each.holds.find(chosen)
    ]
