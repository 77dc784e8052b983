"""``isthmus manifest node-proxy``: what runs a node proxy on every node, or on one."""

from __future__ import annotations

from isthmus.frame.cli.flags import FlagCommand
from isthmus.manifests.command_shared import show, split
from isthmus.programs.node_proxy.settings import NodeProxySettings
from isthmus.programs.node_proxy.settings_manifest import NodeProxyManifestSettings
from isthmus.settings.options import given_in_vain, options_of
from isthmus.settings.parsing import load


def _node_proxy(**given: tuple[str, ...]) -> int:
    from isthmus.manifests.arguments import with_examples
    from isthmus.programs.node_proxy.render_manifest import (
        NodeProxyPlan,
        node_proxy_manifest,
        plan_warnings,
    )

    typed, flags = split(given, NodeProxyManifestSettings)
    manifest = load(NodeProxyManifestSettings, typed, {})
    manifest.validate()
    settings = load(NodeProxySettings, with_examples(flags), {})
    settings.validate()
    plan = NodeProxyPlan(manifest=manifest, settings=settings, given=flags)
    text = node_proxy_manifest(plan)
    said = manifest.warnings(typed) + plan_warnings(plan)
    return show(text, said, given_in_vain(NodeProxySettings, flags))


command = FlagCommand(
    "node-proxy",
    (*options_of(NodeProxyManifestSettings), *options_of(NodeProxySettings)),
    """\
isthmus manifest node-proxy --as=daemonset --api-server=api.example.com:6443 \\
    --proxy-mode=nftables --detect-local=node-cidr --take-over | kubectl apply -f -
isthmus manifest node-proxy --as=daemonset --config-map=kube-proxy \\
    --config=/var/lib/kube-proxy/config.conf --take-over
isthmus manifest node-proxy --as=systemd --kubeconfig=/etc/kubernetes/kube-proxy.conf \\
    --proxy-mode=nftables > /etc/systemd/system/isthmus-node-proxy.service""",
    callback=_node_proxy,
    help="Write a manifest or unit that runs a node proxy with the given flags",
    short_help="Write a manifest or unit that runs a node proxy",
)
