"""A whole installation, server and agents, for values of the chart; the Helm chart makes the same.

Values are checked as flags of the programs and of their manifests; the objects are
installation_objects.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from isthmus.errors import ConfigError
from isthmus.manifests import volumes
from isthmus.manifests.arguments import with_examples
from isthmus.manifests.installation_objects import FILES, agent_args, server_args, server_container
from isthmus.manifests.installation_values import FORMS, REFUSALS, TEMPLATE, image_of
from isthmus.manifests.pods import Manifest
from isthmus.manifests.server import (
    CONTAINER,
)
from isthmus.manifests.settings import ManifestSettings
from isthmus.manifests.settings_server import (
    ServerManifestSettings,
)
from isthmus.manifests.settings_values import merged, put
from isthmus.manifests.template import (
    Chosen,
    Node,
    Tree,
)
from isthmus.manifests.volumes import FlagFile, Volume, check_mountable
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.options import Kind, Option, options_of
from isthmus.settings.parsing import load
from isthmus.text.addresses import cidr
from isthmus.text.suggestions import nearest

Given = dict[str, tuple[str, ...]]
_NETWORKS = (("server", "allowCidrs"), ("server", "apiserverCidrs"), ("agent", "allowCidrs"))


def installation(values: Tree, namespace: str) -> list[Manifest]:
    """Every object of an installation, in the order to make it.

    Raises:
        ConfigError: values do not go together; one sentence.
    """
    chosen = Chosen(values=values, namespace=namespace)
    for refused, why in REFUSALS:
        if refused.find(chosen):
            raise ConfigError(why)
    if values["server"]["enabled"]:
        _check_server(chosen)
    if values["agent"]["enabled"]:
        _check_agent(chosen)
    chosen = replace(chosen, values=_with_plain_networks(values))
    found: list[Manifest] = TEMPLATE.fill(
        [each for file in FILES.values() for each in file], chosen
    )
    return found


def _with_plain_networks(values: Tree) -> Tree:
    found: Tree = {}
    for who, key in _NETWORKS:
        networks = [str(cidr(text)) for text in values[who]["networkPolicy"][key]]
        put(found, (who, "networkPolicy", key), networks)
    return merged(values, found)


# Whether values go together: they are flags of the programs and of their manifests.


def _check_server(chosen: Chosen) -> None:
    values = chosen.values
    server = values["server"]
    texts: Given = {
        "form": (FORMS[server["kind"]],),
        "name": (server["name"],),
        "namespace": (chosen.namespace,),
        "image": (image_of(values["image"]),),
        "run_as": (str(values["runAs"]),),
        "server_secret": (server["frontend"]["secret"],),
        "cluster_secret": (server["secret"],),
        "ca_config_map": (values["certificates"]["caConfigMap"],),
        "client_ca_config_map": (values["certificates"]["clientCaConfigMap"],),
        "secret": (server["kubeconfig"]["secret"],),
        "kubeconfig_user": (server["kubeconfig"]["user"] or "",),
        "allow_cidr": tuple(server["networkPolicy"]["allowCidrs"]),
        "apiserver_cidr": tuple(server["networkPolicy"]["apiserverCidrs"]),
        "apiserver_namespace": (server["networkPolicy"]["apiserverNamespace"],),
        "workload": (server["sidecar"]["workload"],),
        "container": (server["sidecar"]["container"],),
        "selector": (server["sidecar"]["selector"],),
    }
    load(ServerManifestSettings, texts, {}).validate()
    kind = server["kind"]
    _check_flags(ServerSettings, server_args(kind), chosen, where="server.extraArgs")
    if kind != "deployment":
        check_mountable([FlagFile.named("--uds-name", server["frontend"]["socket"])])
    mounts = TEMPLATE.fill(server_container(kind, CONTAINER, ports={}).to_spec(), chosen)
    volumes.check_apart(
        Volume(name=each["name"], mount=each["mountPath"], source={})
        for each in mounts["volumeMounts"]
    )


def _check_agent(chosen: Chosen) -> None:
    values = chosen.values
    agent = values["agent"]
    texts: Given = {
        "form": (agent["kind"],),
        "name": (agent["name"],),
        "namespace": (chosen.namespace,),
        "image": (image_of(values["image"]),),
        "run_as": (str(values["runAs"]),),
        "secret": (agent["secret"],),
        "ca_config_map": (values["certificates"]["caConfigMap"],),
        "token_audience": (values["auth"]["audience"],),
        "allow_cidr": tuple(agent["networkPolicy"]["allowCidrs"]),
        "https_proxy": (agent["httpsProxy"],),
        "no_proxy": tuple(agent["noProxy"]),
    }
    manifest = load(ManifestSettings, texts, {})
    _check_flags(AgentSettings, agent_args(), chosen, where="agent.extraArgs")
    manifest.validate()


def _check_flags(settings: type[Any], args: list[Node], chosen: Chosen, *, where: str) -> None:
    """See that a program takes its command line.

    Raises:
        ConfigError: one is none of its flags, has no value, or does not go with the others.
    """
    known: dict[str, Option] = {}
    for option in options_of(settings):
        known |= {f"--{name}": option for name in (option.flag, *option.aliases)}
    found: Given = {}
    for text in TEMPLATE.fill(args, chosen)[1:]:
        flag, equals, value = text.partition("=")
        if flag not in known:
            raise ConfigError(f"{where}: unknown flag {flag}{nearest(flag, list(known))}")
        option = known[flag]
        if not equals and option.kind is not Kind.BOOL:
            raise ConfigError(f"{where}: {flag} needs a value, {flag}={option.takes}")
        attribute = option.attribute
        found[attribute] = (*found.get(attribute, ()), value if equals else "true")
    load(settings, with_examples(found), {}).validate()
