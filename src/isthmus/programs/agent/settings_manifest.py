"""The settings of ``isthmus manifest agent``: the form to run in, and the names of its objects."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from isthmus.errors import ConfigError
from isthmus.manifests.settings import (
    AUDIENCE,
    DAEMON_SET,
    DEPLOYMENT,
    EXECUTABLE,
    FORM,
    IMAGE,
    NAMESPACE,
    REPLICAS,
    RUN_AS,
    STATIC_POD,
    SYSTEMD,
    UNIT_GROUP,
    AroundSettings,
    check_audience,
    check_executable,
    check_group,
    check_image,
    check_name,
    check_namespace,
    check_object,
    check_user,
)
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.settings.options import OURS, option
from isthmus.settings.parsing import check_at_least, check_values

FORMS = (STATIC_POD, SYSTEMD, DAEMON_SET, DEPLOYMENT)
_GROUP = "Manifest"
_DNS_POLICIES = ("Default", "ClusterFirst", "ClusterFirstWithHostNet")
_PODS = (STATIC_POD, DAEMON_SET, DEPLOYMENT)
_ONLY_FOR = {
    "image": _PODS,
    "namespace": _PODS,
    "run_as": _PODS,
    "secret": (DAEMON_SET, DEPLOYMENT),
    "ca_config_map": (DAEMON_SET, DEPLOYMENT),
    "dns_policy": (DAEMON_SET, DEPLOYMENT),
    "https_proxy": _PODS,
    "no_proxy": _PODS,
    "replicas": (DEPLOYMENT,),
    "executable": (SYSTEMD,),
    "unit_group": (SYSTEMD,),
    "token_audience": (DAEMON_SET, DEPLOYMENT),
    "host_network": (DAEMON_SET,),
    "network_policy": (DAEMON_SET, DEPLOYMENT),
    "allow_cidr": (DAEMON_SET, DEPLOYMENT),
    "disruption_budget": (DEPLOYMENT,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentManifestSettings(AroundSettings):
    """How an agent is to be run; ``validate()`` checks it."""

    GO: ClassVar = OURS

    form: str = FORM(choices=("", *FORMS), metavar="|".join(FORMS), group=_GROUP, common=True)
    name: str = option("isthmus-agent", help="Name of the objects", metavar="NAME", group=_GROUP)
    namespace: str = NAMESPACE(group=_GROUP, common=True)
    image: str = IMAGE(
        help="Image to run, which has isthmus in its PATH, and nft for --bind-address",
        group=_GROUP,
        common=True,
    )
    run_as: int = RUN_AS(group=_GROUP)
    secret: str = option(
        "",
        help="Secret with the files of a daemonset or deployment; empty means its name",
        metavar="NAME",
        group=_GROUP,
    )
    ca_config_map: str = option(
        "",
        help="ConfigMap with --ca-cert of a daemonset or deployment, as ca.crt",
        metavar="NAME",
        group=_GROUP,
    )
    token_audience: str = option(
        AUDIENCE,
        help="Audience of the agent's tokens, the server's --authentication-audience",
        metavar="AUDIENCE",
        group=_GROUP,
    )
    stand_for: tuple[str, ...] = option(
        (),
        help="Address, network or host that the agent stands for, written into --agent-identifiers",
        repeat=True,
        metavar="ADDRESS|CIDR|HOST",
        group=_GROUP,
    )
    dns_policy: str = option(
        "",
        help="DNS policy of the pods; Default resolves as the node does, and needs no DNS of the "
        "cluster",
        choices=("", *_DNS_POLICIES),
        metavar="|".join(_DNS_POLICIES),
        shown_default="ClusterFirstWithHostNet for a daemonset, ClusterFirst for a deployment",
        group=_GROUP,
    )
    https_proxy: str = option(
        "",
        help="Proxy to reach servers through, HTTPS_PROXY of the pod",
        metavar="URL",
        group=_GROUP,
    )
    no_proxy: tuple[str, ...] = option(
        (),
        help="Servers to reach without the proxy, NO_PROXY of the pod",
        repeat=True,
        metavar="LIST",
        group=_GROUP,
    )
    replicas: int = REPLICAS(group=_GROUP)
    executable: str = EXECUTABLE(group=_GROUP)
    unit_group: str = UNIT_GROUP(group=_GROUP)

    def validate(self) -> None:
        """Check each setting.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        if not self.form:
            raise ConfigError(f"--as is missing: use {', '.join(FORMS[:-1])} or {FORMS[-1]}")
        check_values(self)
        check_name("name", self.name)
        check_namespace(self.namespace)
        for flag, text in (("secret", self.secret), ("ca-config-map", self.ca_config_map)):
            if text:
                check_object(flag, text)
        check_image(self.image)
        check_executable(self.executable)
        check_group(self.unit_group)
        check_at_least("replicas", self.replicas, 1)
        check_user(self.run_as)
        if self.https_proxy:
            ProxyAddress.parse(self.https_proxy, variable="--https-proxy")
        elif self.no_proxy:
            raise ConfigError("--no-proxy needs --https-proxy as well")
        check_audience("token-audience", self.token_audience)
        self.check_around()

    def warnings(self, given: Collection[str]) -> list[str]:
        """Warnings about given settings, by attribute, without effect in this form."""
        return [
            f"--{attribute.replace('_', '-')} has no effect with --as={self.form}"
            for attribute, forms in _ONLY_FOR.items()
            if attribute in given and self.form not in forms
        ]
