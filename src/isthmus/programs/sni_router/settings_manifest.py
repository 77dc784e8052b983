"""The settings of ``isthmus manifest sni-router``: names of objects, and the Service in front."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from isthmus.manifests.settings import (
    IMAGE,
    REPLICAS,
    RUN_AS,
    check_image,
    check_name,
    check_namespace,
    check_object,
    check_user,
)
from isthmus.settings.options import OURS, option, port
from isthmus.settings.parsing import check_at_least, check_values

CLUSTER_IP, NODE_PORT, LOAD_BALANCER = "ClusterIP", "NodePort", "LoadBalancer"
SERVICE_TYPES = (LOAD_BALANCER, NODE_PORT, CLUSTER_IP)
_GROUP = "Manifest"
_AROUND = "Around the pods"


@dataclass(frozen=True, slots=True, kw_only=True)
class SniRouterManifestSettings:
    """How to run a router in a cluster; ``validate()`` checks the settings."""

    GO: ClassVar = OURS

    name: str = option(
        "isthmus-sni-router", help="Name of every object", metavar="NAME", group=_GROUP
    )
    namespace: str = option(
        "isthmus", help="Namespace of every object", metavar="NAME", group=_GROUP
    )
    image: str = IMAGE(group=_GROUP)
    replicas: int = REPLICAS(help="Number of pods", group=_GROUP)
    run_as: int = RUN_AS(group=_GROUP)
    routes: str = option(
        "",
        help="File of routes to check and to write as the ConfigMap; without it the ConfigMap "
        "must already exist",
        once=True,
        metavar="FILE",
        group=_GROUP,
    )
    config_map: str = option(
        "",
        help="ConfigMap with the routes, under the name of the file in --config; empty means the "
        "name with -routes",
        metavar="NAME",
        group=_GROUP,
    )
    secret: str = option(
        "",
        help="Secret with all other files that flags name; empty means the name",
        metavar="NAME",
        group=_GROUP,
    )
    service_type: str = option(
        LOAD_BALANCER,
        help="Type of the Service",
        choices=SERVICE_TYPES,
        metavar="|".join(SERVICE_TYPES),
        group=_AROUND,
    )
    service_port: int = port(
        443,
        help="Port of the Service for the first --listen; the others keep their own numbers",
        least=1,
        group=_AROUND,
    )
    network_policy: bool = option(
        True,
        help="Add a NetworkPolicy that allows connections to the router's ports alone",
        group=_AROUND,
    )
    disruption_budget: bool = option(
        True, help="Add a PodDisruptionBudget if there are several pods", group=_AROUND
    )

    @property
    def routes_config_map(self) -> str:
        """The ConfigMap with the routes."""
        return self.config_map or f"{self.name}-routes"

    def validate(self) -> None:
        """Check each setting.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        check_values(self)
        check_name("name", self.name)
        check_namespace(self.namespace)
        check_image(self.image)
        check_object("config-map", self.routes_config_map)
        check_object("secret", self.secret or self.name)
        check_user(self.run_as)
        check_at_least("replicas", self.replicas, 1)

    def warnings(self, given: Collection[str]) -> list[str]:
        """Warnings, one text each."""
        if "disruption_budget" in given and self.disruption_budget and self.replicas == 1:
            return ["a single pod gets no PodDisruptionBudget, which would block draining its node"]
        return []
