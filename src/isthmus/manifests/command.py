"""``isthmus manifest``: what runs a program of ours on a node or in a pod, as a manifest or a unit.

The flags of the program are read by the same declarations as by the program itself, so that a
wrong one is told before a node has it. Writing is manifests/, imported when a command runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click

from isthmus.errors import ConfigError
from isthmus.frame.cli.flags import FlagCommand
from isthmus.frame.cli.tables import filled
from isthmus.manifests.settings import ManifestSettings
from isthmus.manifests.settings_apiserver_proxy import ApiserverProxyManifestSettings
from isthmus.manifests.settings_server import (
    ServerManifestSettings,
    lease_namespace,
    own_defaults,
    with_defaults,
)
from isthmus.manifests.settings_sidecar import SidecarManifestSettings
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings
from isthmus.programs.https_proxy.settings import HttpsProxySettings
from isthmus.programs.server.settings import ServerSettings
from isthmus.programs.socks5_proxy.settings import Socks5ProxySettings
from isthmus.settings.options import Option, given_in_vain, options_of
from isthmus.settings.parsing import load

_ARGS = ("socks5_arg", "https_arg")
_MOST_BYTES = 1024 * 1024
Typed = dict[str, tuple[str, ...]]


@click.group(
    name="manifest",
    short_help="Write manifests and units that run our programs",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def command() -> None:
    """Write manifests and units that run our programs

    \b
    Example:
      isthmus manifest agent --as=static-pod --proxy-server-host=server.example.com \\
          --ca-cert=/etc/isthmus/ca.crt > /etc/kubernetes/manifests/isthmus-agent.yaml
    """


class _OutputCommand(FlagCommand):
    """A command whose --output may be said as kubectl says it, -o."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line."""
        return super().parse_args(ctx, [_output_flag(arg) for arg in args])


def _output_flag(arg: str) -> str:
    if not arg.startswith("-o"):
        return arg
    value = arg.removeprefix("-o").removeprefix("=")
    return f"--output={value}" if value else "--output"


def _split(given: Typed, ours: type[Any]) -> tuple[Typed, Typed]:
    """What was typed: all of it, and what is the program's."""
    own = {option.attribute for option in options_of(ours)}
    typed = {attribute: texts for attribute, texts in given.items() if texts}
    return typed, {each: texts for each, texts in typed.items() if each not in own}


def _print(text: str, said: Iterable[str], vain: Sequence[str]) -> int:
    left_out = [f"these flags have no effect and are left out: {', '.join(vain)}"] if vain else []
    for sentence in (*said, *left_out):
        click.echo(f"isthmus: {sentence}", err=True)
    click.echo(text, nl=False)
    return 0


# Whoever writes a manifest may have other variables than those who run it: none counts.


def _agent(**given: tuple[str, ...]) -> int:
    from isthmus.manifests.agent import AgentPlan, agent_manifest, identifiers, plan_warnings
    from isthmus.manifests.arguments import with_examples

    typed, flags = _split(given, ManifestSettings)
    manifest = load(ManifestSettings, typed, {})
    manifest.validate()
    if manifest.stand_for:
        before = flags.get("agent_identifiers", ("",))[-1]
        flags["agent_identifiers"] = (identifiers(manifest.stand_for, before),)
    settings = load(AgentSettings, with_examples(flags), {})
    settings.validate()
    plan = AgentPlan(manifest=manifest, settings=settings, given=flags)
    text = agent_manifest(plan)
    said = manifest.warnings(typed) + plan_warnings(plan)
    return _print(text, said, given_in_vain(AgentSettings, flags))


def _sidecar(**given: tuple[str, ...]) -> int:
    from isthmus.manifests.sidecar import (
        SidecarPlan,
        plan_sidecars,
        plan_warnings,
        sidecar_manifest,
    )

    typed, flags = _split(given, SidecarManifestSettings)
    manifest = load(SidecarManifestSettings, typed, {})
    manifest.validate()
    flags |= {each: typed[each] for each in _ARGS if each in typed}
    plan = SidecarPlan(manifest=manifest, sidecars=plan_sidecars(manifest, flags))
    text = sidecar_manifest(plan)
    return _print(text, plan_warnings(plan), given_in_vain(Socks5ProxySettings, flags))


def _apiserver_proxy(**given: tuple[str, ...]) -> int:
    from isthmus.manifests.apiserver_proxy import (
        ProxyManifestPlan,
        apiserver_proxy_manifest,
        plan_warnings,
    )
    from isthmus.manifests.arguments import with_examples

    typed, flags = _split(given, ApiserverProxyManifestSettings)
    manifest = load(ApiserverProxyManifestSettings, typed, {})
    manifest.validate()
    settings = load(ApiserverProxySettings, with_examples(flags), {})
    settings.validate()
    plan = ProxyManifestPlan(
        manifest=manifest,
        settings=settings,
        given=flags,
        carried=dict(map(_carried, typed.get("file", ()))),
    )
    text = apiserver_proxy_manifest(plan)
    said = manifest.warnings(typed) + plan_warnings(plan)
    return _print(text, said, given_in_vain(ApiserverProxySettings, flags))


def _carried(text: str) -> tuple[str, bytes]:
    from isthmus.manifests.volumes import FlagFile

    path, equals, source = text.partition("=")
    if not (path and equals and source):
        raise ConfigError(f"--file takes PATH=FILE, such as /etc/isthmus/ca.crt=ca.crt, not {text}")
    FlagFile.named("--file", path)
    try:
        with open(source, "rb") as file:
            contents = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"--file: cannot read {source}: {error.strerror}") from error
    if len(contents) > _MOST_BYTES:
        raise ConfigError(f"--file: {source} is larger than {_MOST_BYTES} bytes")
    return path, contents


def _server(**given: tuple[str, ...]) -> int:
    from isthmus.manifests.arguments import with_examples
    from isthmus.manifests.server import plan_warnings, server_manifest
    from isthmus.manifests.server_plan import ServerPlan

    typed, flags = _split(given, ServerManifestSettings)
    manifest = load(ServerManifestSettings, own_defaults(typed), {})
    manifest.validate()
    moved = lease_namespace(manifest.namespace) != manifest.namespace
    made = moved and not flags.get("lease_namespace")
    flags = with_defaults(
        flags,
        manifest.form,
        client_ca=bool(manifest.client_ca_config_map),
        namespace=manifest.namespace,
    )
    settings = load(ServerSettings, with_examples(flags), {})
    settings.validate()
    plan = ServerPlan(manifest=manifest, settings=settings, given=flags, makes_lease_namespace=made)
    text = server_manifest(plan)
    said = manifest.form_warnings(typed) + plan_warnings(plan)
    return _print(text, said, given_in_vain(ServerSettings, flags))


def _both() -> tuple[Option, ...]:
    """The flags of either sidecar, each once."""
    named = {
        option.attribute: option
        for settings in (Socks5ProxySettings, HttpsProxySettings)
        for option in options_of(settings)
    }
    return tuple(named.values())


@click.command(
    name="all",
    short_help="Write a whole installation, as the Helm chart does",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--values",
    "files",
    metavar="FILE",
    multiple=True,
    help="Read these values of the Helm chart; repeatable, later files count more",
)
@click.option(
    "--namespace",
    metavar="NAME",
    default="kube-system",
    show_default=True,
    help="Put everything into this namespace",
)
def everything(files: tuple[str, ...], namespace: str) -> int:
    """Write a whole installation, as the Helm chart does

    Server and agents with their rights, Services, budgets and network policies. Secrets and
    ConfigMaps with certificates are yours; which, is said on standard error.

    \b
    Example:
      isthmus manifest all | kubectl apply --server-side -f -
      isthmus manifest all --values=values.yaml --namespace=isthmus > isthmus.yaml
    """
    from isthmus.manifests.installation import installation
    from isthmus.manifests.installation_values import needed_objects
    from isthmus.manifests.settings import check_namespace
    from isthmus.manifests.settings_values import VALUES, defaults, merged, read
    from isthmus.text.go_yaml import to_yaml

    check_namespace(namespace)
    values = defaults(VALUES)
    for path in files:
        values = merged(values, read(_text(path), path, VALUES))
    text = to_yaml(installation(values, namespace))
    for kind, name, keys in needed_objects(values, namespace):
        click.echo(
            f"isthmus: {namespace} needs the {kind} {name} with {' and '.join(keys)}", err=True
        )
    click.echo(text, nl=False)
    return 0


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            found = file.read(_MOST_BYTES + 1)
        return found.decode()
    except OSError as error:
        raise ConfigError(f"--values: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--values: {path} is not text in UTF-8") from error


RULES, OBJECT, GRAFANA = "rules", "prometheus-rule", "grafana"


@click.command(
    name="monitoring",
    short_help="Write Prometheus rules and a Grafana dashboard",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "-o",
    "--output",
    type=click.Choice([RULES, OBJECT, GRAFANA]),
    default=RULES,
    show_default=True,
    help="Write rules for Prometheus, the same for its operator, or a dashboard for Grafana",
)
@click.option(
    "--name",
    default="isthmus",
    show_default=True,
    callback=filled,
    help="Give the object this name",
)
@click.option(
    "--namespace",
    default="kube-system",
    show_default=True,
    callback=filled,
    help="Put the operator's object into this namespace",
)
def monitoring(output: str, name: str, namespace: str) -> int:
    """Write Prometheus rules and a Grafana dashboard over our metrics

    \b
    Example:
      isthmus manifest monitoring --output=rules > isthmus-rules.yaml
      isthmus manifest monitoring -o grafana > isthmus.json
    """
    from isthmus.manifests.alerts import prometheus_rule, rules_text
    from isthmus.manifests.grafana import grafana_text

    if output == GRAFANA:
        text = grafana_text()
    elif output == OBJECT:
        text = prometheus_rule(name=name, namespace=namespace)
    else:
        text = rules_text()
    click.echo(text, nl=False)
    return 0


command.add_command(
    FlagCommand(
        "agent",
        (*options_of(ManifestSettings), *options_of(AgentSettings)),
        """\
isthmus manifest agent --as=static-pod --image=registry.example.com/isthmus:1.0 \\
    --proxy-server-host=server.example.com --ca-cert=/etc/isthmus/ca.crt \\
    --agent-cert=/etc/isthmus/agent.crt --agent-key=/etc/isthmus/agent.key \\
    --feature-gates=EnableClusterToMasterTraffic=true \\
    --bind-address=10.0.0.1 --target=6443:localhost:6443
isthmus manifest agent --as=systemd --proxy-server-host=server.example.com \\
    --ca-cert=/etc/isthmus/ca.crt > /etc/systemd/system/isthmus-agent.service
isthmus manifest agent --as=deployment --proxy-server-host=konnectivity-server \\
    --ca-cert=/etc/isthmus/ca.crt --stand-for=172.30.1.2 --stand-for=fd00::1:2""",
        callback=_agent,
        help="Write what runs an agent, given the agent's own flags",
        short_help="Write what runs an agent",
    )
)
command.add_command(
    _OutputCommand(
        "sidecar",
        (*options_of(SidecarManifestSettings), *_both()),
        """\
isthmus manifest sidecar --preset=openshift-apiserver --namespace=clusters-a > patch.yaml
kubectl patch deployment openshift-apiserver --patch-file=patch.yaml
isthmus manifest sidecar --mode=socks5 --workload=my-operator \\
    --kubeconfig-secret=admin-kubeconfig --resolve-from-guest-cluster-dns -o pod-spec""",
        callback=_sidecar,
        help="Write the sidecars of a hosted control plane's component, given their own flags",
        short_help="Write the sidecars of a hosted control plane's component",
    )
)
command.add_command(
    FlagCommand(
        "apiserver-proxy",
        (*options_of(ApiserverProxyManifestSettings), *options_of(ApiserverProxySettings)),
        """\
isthmus manifest apiserver-proxy --as=static-pod --upstream=api.example.com:6443 \\
    --ca-cert=/etc/isthmus/ca.crt > /etc/kubernetes/manifests/kube-apiserver-proxy.yaml
isthmus manifest apiserver-proxy --as=ignition --upstream=api.example.com:6443 \\
    --ca-cert=/etc/isthmus/ca.crt --file=/etc/isthmus/ca.crt=ca.crt > node.ign""",
        callback=_apiserver_proxy,
        help="Write what runs a node's own way to its apiserver, given the proxy's own flags",
        short_help="Write what runs a node's own way to its apiserver",
    )
)
command.add_command(
    _OutputCommand(
        "server",
        (*options_of(ServerManifestSettings), *options_of(ServerSettings)),
        """\
isthmus manifest server --server-count=3 --namespace=clusters-a > patch.yaml
kubectl patch deployment kube-apiserver --patch-file=patch.yaml
isthmus manifest server --namespace=clusters-a -o services
isthmus manifest server --namespace=clusters-a -o config-map
isthmus manifest server --as=daemonset --enable-lease-controller | kubectl apply -f -
isthmus manifest server --as=static-pod --server-count=3 \\
    > /etc/kubernetes/manifests/isthmus-server.yaml""",
        callback=_server,
        help="Write what runs a server, given the server's own flags",
        short_help="Write what runs a server",
    )
)
command.add_command(everything)
command.add_command(monitoring)
