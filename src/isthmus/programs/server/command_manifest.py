"""``isthmus manifest server``: what runs a server on a node, in a pod or beside kube-apiserver."""

from __future__ import annotations

from isthmus.frame.cli.flags import FlagCommand
from isthmus.manifests.command_shared import show, split
from isthmus.manifests.settings import lease_namespace
from isthmus.programs.server.settings import ServerSettings
from isthmus.programs.server.settings_manifest import (
    ServerManifestSettings,
    own_defaults,
    with_defaults,
)
from isthmus.settings.options import given_in_vain, options_of
from isthmus.settings.parsing import load


def _server(**given: tuple[str, ...]) -> int:
    from isthmus.manifests.arguments import with_examples
    from isthmus.programs.server.plan_manifest import ServerPlan
    from isthmus.programs.server.render_manifest import plan_warnings, server_manifest

    typed, flags = split(given, ServerManifestSettings)
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
    return show(text, said, given_in_vain(ServerSettings, flags))


command = FlagCommand(
    "server",
    (*options_of(ServerManifestSettings), *options_of(ServerSettings)),
    """\
isthmus manifest server --server-count=3 --namespace=clusters-a > patch.yaml
kubectl patch deployment kube-apiserver --patch-file=patch.yaml
isthmus manifest server --namespace=clusters-a --part=services
isthmus manifest server --namespace=clusters-a --part=config-map
isthmus manifest server --as=daemonset --enable-lease-controller | kubectl apply -f -
isthmus manifest server --as=static-pod --server-count=3 \\
    > /etc/kubernetes/manifests/isthmus-server.yaml""",
    callback=_server,
    help="Write a manifest or unit that runs a server with the given flags",
    short_help="Write a manifest or unit that runs a server",
)
