"""The declaration of one program's part of the chart, and what such declarations share.

A program declares a ``ChartPart`` in render_chart.py of its room, which ``Program.chart`` names:
its values, its objects as trees with holes, computed values, and what is refused. installation.py
puts all parts together. Conditions that parts of several programs need are here; each is declared
once for Python and Helm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from isthmus import __version__
from isthmus.manifests import containers, volumes
from isthmus.manifests.arguments import REFERENCES, typed_flags, with_examples
from isthmus.manifests.chart_values import OBJECT_OR_NONE, Value, text_value
from isthmus.manifests.pods import Manifest
from isthmus.manifests.settings import LEASE_NAMESPACE, lease_namespace
from isthmus.manifests.template import (
    ITEM,
    Chosen,
    Computed,
    Each,
    Node,
    Spread,
    Template,
    Tree,
    Verbatim,
    When,
    given,
    hole,
    is_word,
    mentions,
)
from isthmus.manifests.volumes import CA, CERT, KEY, SECRET_MODE, FlagFile, Volume
from isthmus.settings.parsing import load

TOKEN, CERTIFICATE = "token", "certificate"


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededObject:
    """A Secret or ConfigMap that must be created first; ``remark`` is for the notes."""

    holds: Computed
    kind: str
    name: str
    keys: Sequence[str]
    remark: When | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPart:
    """What the chart has for one program.

    - ``name``: the first key of its values' paths; ``title``: the heading of their table;
    - ``values``, and ``sections``: what the groups of values are about, by their paths;
    - ``files``: its objects by the template that they are in, in the order to create them;
    - ``there``: the condition for installing it; ``watched``: whether a PodMonitor finds its pods,
      by their port ``health`` and by ``NAME.name`` of the values, and None for pods without such a
      port;
    - ``computed``: holes of its trees that are not values;
    - ``refused``: combinations that both Helm and Python refuse, and why;
    - ``needed``: the objects that must be created first;
    - ``notes``: documents that NOTES.txt of the chart includes as ``isthmus.NAME``;
    - ``check``: checks values against the flags of the program and of its manifest, in Python only.
    """

    name: str
    title: str
    values: Sequence[Value]
    sections: Mapping[str, str]
    files: Mapping[str, Sequence[Node]]
    there: Computed
    check: Callable[[Chosen, Template], None]
    watched: Computed | None = None
    computed: Mapping[str, Computed] = field(default_factory=dict)
    refused: Sequence[tuple[Computed, str]] = ()
    needed: Sequence[NeededObject] = ()
    notes: Mapping[str, Tree] = field(default_factory=dict)


# Computed values, by the names of holes.

NAMESPACE, IMAGE, LEASES_IN = hole("namespace"), hole("image"), hole("leaseNamespace")
PULL = hole("image.pullPolicy")
SHARED_NAMESPACE = Computed(
    lambda chosen: lease_namespace(chosen.namespace) != chosen.namespace,
    'or (eq "default" $.Release.Namespace) (hasPrefix "kube-" $.Release.Namespace)',
)


def grace(who: str, more: int) -> Computed:
    """How long a pod may take to end: the program's time for open tunnels, and some seconds
    more."""
    path = f"{who}.gracefulShutdownSeconds"
    return Computed(
        lambda chosen: chosen[path] + more, f"add $.Values.{path} {more}", is_number=True
    )


def joined(path: str) -> Computed:
    """A list of texts joined by commas."""
    return Computed(lambda chosen: ",".join(chosen[path]), f'join "," $.Values.{path}')


def image_of(image: Mapping[str, str]) -> str:
    """The image, with its tag and digest."""
    tag, digest = image["tag"] or __version__, image["digest"]
    return f"{image['repository']}:{tag}" + (f"@{digest}" if digest else "")


def image_values(image: str) -> dict[str, str]:
    """The chart's values for an image; the inverse of ``image_of``."""
    named, _, digest = image.partition("@")
    repository, colon, tag = named.rpartition(":")
    if not colon or "/" in tag:  # a registry's port is not a tag
        repository, tag = named, ""
    return {"repository": repository, "tag": tag, "digest": digest}


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
}

# Conditions for several programs.

BY_TOKEN, BY_CERTIFICATE = is_word("auth.mode", TOKEN), is_word("auth.mode", CERTIFICATE)
LEASES, COUNTS_LEASES = given("server.leases.enabled"), given("agent.countServerLeases")
CLIENT_CA = given("certificates.clientCaConfigMap")
KUBECONFIG = given("server.kubeconfig.secret")
HAS_SERVER, HAS_AGENTS = given("server.enabled"), given("agent.enabled")
HOSTS = given("agent.servers.hosts")
IS_DEPLOYMENT, IS_STATIC = is_word("server.kind", "deployment"), is_word("server.kind", "staticPod")
IN_CLUSTER = HAS_SERVER & ~IS_STATIC

#: The files of a TLS pair in a Secret.
TLS_KEYS = (CERT, KEY)
_HEALTH = "/etc/isthmus/health"

# The parts of pods.


def references(
    who: str, known: Mapping[str, Computed], *, own_id: str = "", paths: Sequence[str] = ()
) -> list[Node]:
    """Variables for the fields of the pod that arguments refer to, and one with its name.

    The latter, ``own_id``, is for programs whose pods each need their own id.
    """
    found: list[Node] = []
    for name in REFERENCES:
        said = mentions(f"{who}.extraArgs", f"$({name})")
        for path in paths:
            said |= mentions(path, f"$({name})")
        found += [
            When(said | known[name] if name in known else said, each)
            for each in containers.fields([name])
        ]
    return [*found, *containers.fields([], **({own_id: "POD_NAME"} if own_id else {}))]


def or_usual(path: str, usual: Node) -> When:
    """A value, or the default if it is empty."""
    return When(given(path), Verbatim(path), otherwise=usual)


def file_at(path: str) -> FlagFile:
    """A file that the program reads in its pod."""
    return FlagFile("", PurePosixPath(path))


def authorities(name: str) -> Volume:
    """The volume with the authorities that both sides trust."""
    source = hole("certificates.caConfigMap")
    return volumes.config_map(name, source, {CA: file_at("/etc/isthmus/ca/ca.crt")})


def pair_in(name: str, secret: str, directory: str) -> Volume:
    """The volume of a Secret with a certificate and its key."""
    files = {CERT: file_at(f"{directory}/{CERT}"), KEY: file_at(f"{directory}/{KEY}")}
    return volumes.secret(name, secret, files)


def health_value(who: str) -> Value:
    """The value for the Secret of the health port's HTTPS."""
    return text_value(
        f"{who}.healthSecret",
        "",
        "Secret with tls.crt and tls.key for HTTPS on that port, and with ca.crt and a certificate "
        f"for the name {who}.name where there is a PodMonitor; empty: plain HTTP",
        pattern=OBJECT_OR_NONE,
    )


@dataclass(frozen=True, slots=True)
class HealthPort:
    """What depends on the Secret of a program's health port."""

    who: str

    @property
    def by_tls(self) -> Computed:
        return given(f"{self.who}.healthSecret")

    @property
    def scheme(self) -> When:
        """The scheme in a probe."""
        return When(self.by_tls, "HTTPS")

    @property
    def args(self) -> When:
        """The flags on a command line."""
        flags = [f"--health-cert={_HEALTH}/{CERT}", f"--health-key={_HEALTH}/{KEY}"]
        return When(self.by_tls, flags)

    def volume(self, name: str = "health-certs") -> When:
        """The volume of the Secret."""
        return When(self.by_tls, pair_in(name, hole(f"{self.who}.healthSecret"), _HEALTH))

    @property
    def endpoint(self) -> Manifest:
        """Further fields of a PodMonitor."""
        secret = {"name": hole(f"{self.who}.healthSecret"), "key": CA}
        trust = {"ca": {"secret": secret}, "serverName": hole(f"{self.who}.name")}
        return {"scheme": When(self.by_tls, "https"), "tlsConfig": When(self.by_tls, trust)}

    def needed(self, there: Computed) -> list[NeededObject]:
        """The objects that must be created first; ``there``: the program is installed."""
        monitored = given("monitoring.podMonitor.enabled")
        name = hole(f"{self.who}.healthSecret")
        return [
            NeededObject(holds=there & self.by_tls & when, kind="Secret", name=name, keys=keys)
            for when, keys in ((~monitored, TLS_KEYS), (monitored, (*TLS_KEYS, CA)))
        ]


def more_files(who: str) -> When:
    """The volume of the additional Secret that values name."""
    name = f"{who}.extraSecret.name"
    source = {"secret": {"secretName": hole(name), "defaultMode": SECRET_MODE}}
    mount = hole(f"{who}.extraSecret.mountPath")
    return When(given(name), Volume(name="extra-files", mount=mount, source=source))


def block(path: str) -> Each:
    """The networks of a list, as peers of a rule."""
    return Each(path, {"ipBlock": {"cidr": hole(ITEM)}})


def placement(who: str, kind: str) -> Manifest:
    """The scheduling of pods, except what every workload has."""
    tolerations = {"tolerations": When(given(f"{who}.tolerations"), Verbatim(f"{who}.tolerations"))}
    pulled = [Each("imagePullSecrets", {"name": hole(ITEM)})]
    return {
        **(tolerations if kind == "deployment" else {}),
        "affinity": When(given(f"{who}.affinity"), Verbatim(f"{who}.affinity")),
        "imagePullSecrets": When(given("imagePullSecrets"), pulled),
    }


def placed(workload: Manifest, who: str) -> Manifest:
    """A workload in which values replace the defaults."""
    spec = workload["spec"]["template"]["spec"]
    for key in ("tolerations", "nodeSelector"):
        if key in spec and not isinstance(spec[key], When):
            spec[key] = or_usual(f"{who}.{key}", spec[key])
    priority = f"{who}.priorityClassName"
    spec["priorityClassName"] = When(
        given(priority), hole(priority), otherwise=spec["priorityClassName"]
    )
    if "hostNetwork" in spec:
        host = given(f"{who}.hostNetwork")
        spec["hostNetwork"] = When(host, then=True)
        spec["dnsPolicy"] = When(host, spec["dnsPolicy"])
    return workload


def pod_metadata(who: str) -> dict[str, Any]:
    """Additional labels and annotations, as arguments of a Pod."""
    annotations = f"{who}.podAnnotations"
    return {
        "more_labels": {Spread(f"{who}.podLabels"): None},
        "annotations": When(given(annotations), Verbatim(annotations)),
    }


def check_flags(settings: type[Any], args: Sequence[str], *, where: str) -> None:
    """Check a command line, without the program, against the flags of the program.

    Raises:
        ConfigError: an argument is not a flag of the program, has no value, or conflicts with
        others.
    """
    load(settings, with_examples(typed_flags(settings, args, where=where)), {}).validate()
